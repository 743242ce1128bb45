"""Two records at a time."""

from datetime import timedelta

from ledger.airflow import pipeline_dag
from tests.acceptance.letters import inbox

dag = pipeline_dag(inbox, schedule=None, submit="batch", room_poll=timedelta(seconds=15))
