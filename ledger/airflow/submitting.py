"""Tasks that submit a Spark job: a step of a pipeline, or what follows its settlement if it is due."""

import sys
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowSkipException

from ledger.pipeline import Pipeline
from ledger.settings import Settings


class Withhold(SparkSubmitOperator):
    """Submits nothing where nothing failed."""

    def execute(self, context: Any) -> None:
        from ledger.publishing import needs_withholding

        batch_id = context["ti"].xcom_pull(task_ids="open")
        if not needs_withholding(connected(), batch_id):
            raise AirflowSkipException("nothing is to be withheld")
        super().execute(context)


class Combine(SparkSubmitOperator):
    """Submits nothing while records of the batch, or of its replays, are failed."""

    def execute(self, context: Any) -> None:
        from ledger.loading import load_pipeline
        from ledger.running import combines_due

        database = connected()
        batch_id = decided_batch(context, database)
        target = self.application_args[1]  # type: ignore[index]
        if not combines_due(database, load_pipeline(target), batch_id):
            raise AirflowSkipException(
                "nothing is to be combined: it has been, or records are failed"
            )
        super().execute(context)


class State(SparkSubmitOperator):
    """Submits nothing while no state is due: an earlier batch is not decided, or another run has done it."""

    def execute(self, context: Any) -> None:
        from ledger.loading import load_pipeline
        from ledger.state_runs import is_due, waits_for

        database = connected()
        batch_id = decided_batch(context, database)
        target = self.application_args[1]  # type: ignore[index]
        if not is_due(database, load_pipeline(target)):
            waits = database.transact(lambda c: waits_for(c, batch_id))
            raise AirflowSkipException("; ".join(waits) or "the states have taken in this batch")
        super().execute(context)


def decided_batch(context: Any, database: Any) -> int:
    """The run's batch; a run that has none, or whose batch is not decided, skips the task."""
    from ledger.queries import batches

    batch_id = context["ti"].xcom_pull(task_ids="open")
    if batch_id is None:
        raise AirflowSkipException("the run has no batch")
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    if not batch.status.decided:
        raise AirflowSkipException(f"batch {batch_id} is {batch.status}: nothing follows yet")
    return int(batch_id)


def submitted(
    pipeline: Pipeline,
    target: str,
    name: str,
    *,
    kind: type[SparkSubmitOperator] = SparkSubmitOperator,
    **options: Any,
) -> Any:
    """The task that runs a step of the pipeline as a Spark job."""
    return kind(
        task_id=name,
        name=f"{pipeline.name}.{name}",
        application_args=_arguments(target, name),
        spark_binary=_spark_submit(),
        **options,
    )


def _spark_submit() -> str:
    """spark-submit beside this Python, whose pyspark it is; else the one on the PATH."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def _arguments(target: str, step: str) -> list[str]:
    return [
        "--pipeline", target, "--batch", "{{ ti.xcom_pull(task_ids='open') }}", "--step", step,
        "--attempt", "{{ ti.id }}", "--try-number", "{{ ti.try_number }}",
    ]  # fmt: skip


def connected() -> Any:
    from ledger.database.connection import persist
    from ledger.database.upgrade import connect

    return persist(lambda: connect(Settings()))
