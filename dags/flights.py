"""The flights pipeline, monthly; its data are those of 2013."""

from datetime import UTC, datetime

from jobs.flights import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(
    pipeline,
    schedule="@monthly",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
)
