"""The flights on the cluster: one driver a batch, and tasks that are tried again."""

from datetime import timedelta

from jobs.flights import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(
    pipeline,
    schedule=None,
    submit="batch",
    retries=3,
    retry_delay=timedelta(seconds=5),
    is_paused_upon_creation=False,
)
