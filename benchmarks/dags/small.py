"""A small batch in both forms, and as one bare spark-submit."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from benchmarks import small, small_pipelines
from ledger.airflow import SparkSubmit, pipeline_dag
from ledger.airflow.spark_tasks import CONF

START = datetime(2025, 1, 1, tzinfo=UTC)

alike: dict[str, Any] = {
    "schedule": "@daily",
    "start_date": START,
    "spark": SparkSubmit(java_options=small.JAVA),
}
stage = pipeline_dag(small_pipelines.stage, **alike)
batch = pipeline_dag(small_pipelines.batch, submit="batch", **alike)

with DAG("small_bare", schedule=None, start_date=START) as bare:
    SparkSubmitOperator(
        task_id="run",
        conn_id="spark_default",
        application=str(Path(small_pipelines.__file__).with_name("small_by_hand.py")),
        conf=CONF,
        env_vars={"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": small.JAVA},
    )
