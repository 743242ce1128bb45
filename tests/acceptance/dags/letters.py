"""The letters pipeline, by hand."""

from ledger.airflow import pipeline_dag
from tests.acceptance.letters import pipeline

dag = pipeline_dag(pipeline, schedule=None, submit="batch", retries=0)
