"""The flights, with one task for a whole batch: the DAG of the inbox has a task a step."""

from datetime import UTC, datetime

from jobs.flights import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(
    pipeline,
    schedule="@monthly",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    submit="batch",
)
