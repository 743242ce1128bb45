"""The flights pipeline, monthly."""

from jobs.flights import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(pipeline, schedule="@monthly")
