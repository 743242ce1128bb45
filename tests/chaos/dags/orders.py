"""The chaos pipeline; tasks are tried again soon and often, for they are killed often."""

import os
from datetime import timedelta

from ledger.airflow import SparkSubmit, pipeline_dag
from tests.chaos.pipeline import SUBMIT, pipeline

dag = pipeline_dag(
    pipeline,
    schedule=None,
    submit=os.environ[SUBMIT],  # type: ignore[arg-type]
    retries=30,
    retry_delay=timedelta(seconds=3),
    max_active_runs=3,
    is_paused_upon_creation=False,
    spark=SparkSubmit(
        conf={"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    ),
)
