"""Two records at a time, with a task a step."""

from datetime import timedelta

from ledger.airflow import pipeline_dag
from tests.acceptance.letters import inbox

dag = pipeline_dag(inbox, schedule=None, room_poll=timedelta(seconds=15))
