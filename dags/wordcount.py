"""The word count pipeline, daily."""

from jobs.wordcount import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(pipeline, schedule="@daily")
