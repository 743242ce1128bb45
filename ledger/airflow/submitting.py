"""Tasks that submit a Spark job: a step of a pipeline, or what follows its settlement if it is due."""

import re
import sys
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from ledger.errors import EXIT_PERMANENT, Failures, LedgerError
from ledger.pipeline import Pipeline
from ledger.settings import Settings


class Step(SparkSubmitOperator):
    """Numbers its attempt before the driver starts: one that Airflow has lost stays the older one,
    however late it comes. Fails for good, without another JVM, what the driver says another attempt
    would only fail again."""

    def execute(self, context: Any) -> None:
        number = ["--attempt-number", str(_drawn())]
        self.application_args = [*(self.application_args or []), *number]
        try:
            super().execute(context)
        except AirflowException as exc:
            line = permanent_failure(str(exc))
            if line is None:
                raise
            raise AirflowFailException(line) from None


class Withhold(Step):
    """Submits nothing where nothing failed and no staged file is lost."""

    def execute(self, context: Any) -> None:
        from ledger.loading import load_pipeline
        from ledger.publishing import lost, needs_withholding
        from ledger.spark.failures import told

        batch_id, database = context["ti"].xcom_pull(task_ids="open"), connected()
        target = self.application_args[1]  # type: ignore[index]
        failures = Failures(told)
        if not needs_withholding(database, batch_id) and not lost(
            database, Settings(), load_pipeline(target), batch_id, failures
        ):
            failures.raise_first()
            raise AirflowSkipException("nothing is to be withheld")
        super().execute(context)


class Combine(Step):
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


class State(Step):
    """Submits nothing while no state is due: an earlier batch is not decided, or another run has done it."""

    def execute(self, context: Any) -> None:
        from ledger.loading import load_pipeline
        from ledger.recovery import waits_for
        from ledger.state_runs import is_due

        database = connected()
        batch_id = decided_batch(context, database)
        target = self.application_args[1]  # type: ignore[index]
        if not is_due(database, load_pipeline(target)):
            waits = database.transact(lambda c: waits_for(c, batch_id))
            raise AirflowSkipException("; ".join(waits) or "the states have taken in this batch")
        super().execute(context)


def permanent_failure(told: str) -> str | None:
    """What the driver said last, if spark-submit ended with its code for what is not worth another
    attempt."""
    if not re.search(rf"Error code is: {EXIT_PERMANENT}\b", told):
        return None
    said = re.findall(r" ackledger ERROR (.+)", told)
    return said[-1] if said else "the step failed for good: its log says why"


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
    kind: type[Step] = Step,
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


def _drawn() -> int:
    from ledger.queries import runs

    try:
        return int(connected().transact(runs.draw_number))
    except LedgerError as exc:
        if not exc.permanent:
            raise
        raise AirflowFailException(str(exc)) from None


def connected() -> Any:
    from ledger.database.connection import persist
    from ledger.database.upgrade import connect

    return persist(lambda: connect(Settings()))
