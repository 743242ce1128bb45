"""The word count on the cluster: one driver for each step."""

from jobs.wordcount import pipeline
from ledger.airflow import pipeline_dag

dag = pipeline_dag(pipeline, schedule=None, submit="stage", is_paused_upon_creation=False)
