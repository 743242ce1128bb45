"""Rows of failed records withheld, and a combine that waits for them, with a task a step."""

from ledger.airflow import pipeline_dag
from tests.acceptance.letters import mail

dag = pipeline_dag(mail, schedule=None)
