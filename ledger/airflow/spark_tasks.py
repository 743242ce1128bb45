"""Tasks that run a driver, by spark-submit or on a Spark Connect server: a step of a pipeline, all
of a batch, or a follow-up of its settlement.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator

from ledger.airflow.hooks import driver_environment, settings_of
from ledger.airflow.tasks import connected, connected_by, fail_permanently, without_retry
from ledger.airflow.versions import AirflowException, AirflowFailException
from ledger.batch import follow_ups
from ledger.core.logs import about, last_error
from ledger.core.requirements import spark_program
from ledger.errors import EXIT_PERMANENT, DeclarationError, LedgerError
from ledger.pipeline.pipeline import Pipeline

WHOLE = "run"  # the task that runs all of a batch
NUMBERING = "ledger_attempt_number"  # the DAG's macro that numbers an attempt
CONF = {"spark.ui.enabled": "false", "spark.log.level": "WARN"}  # of every spark-submit
# A driver of a small step spends most of its seconds on its own start: compile less, collect
# simply.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_log = logging.getLogger(__name__)


class _Driver:
    """A task that runs a driver, with the context of its log and its lineage for OpenLineage."""

    follows = False  # the settlement, which leaves it something to do
    ledger_conn_id: str | None = None  # ``conn_id`` is Spark's
    dag_id: str
    task_id: str

    def execute(self, context: Any) -> None:
        """Run the driver, unless the batch is settled: then a step would change nothing."""
        with self.logged():
            if self.follows or not is_settled(context, self.ledger_conn_id):
                with driver_environment(self.ledger_conn_id):
                    self.drive(context)
            else:
                _log.info("the batch is settled: %s changes nothing", self.task_id)

    def drive(self, context: Any) -> None:
        """Run the driver. Subclasses implement this."""
        raise NotImplementedError

    @property
    def driver_arguments(self) -> list[str]:
        """The arguments of the driver."""
        raise NotImplementedError

    def logged(self) -> AbstractContextManager[None]:
        """Add the pipeline, batch and step to the task's log lines in the block."""
        step = {} if self._step is None else {"step": self._step}
        return about(pipeline=self.dag_id, batch_id=self._batch_id, **step)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the datasets of the task's steps. Airflow's OpenLineage provider calls this after
        the task has ended, failed or not.
        """
        from airflow.providers.openlineage.extractors import OperatorLineage

        from ledger.airflow.lineage import of_steps
        from ledger.pipeline.load import load_pipeline

        if self._batch_id is None:  # its arguments were never rendered
            return OperatorLineage()
        pipeline = load_pipeline(self._argument("--pipeline"))
        settings = settings_of(self.ledger_conn_id)
        database = connected_by(settings)
        try:
            steps = None if self._step is None else steps_of(pipeline, self._step)
            return of_steps(database, settings, pipeline, self._batch_id, steps)
        finally:
            database.dispose()

    @property
    def _batch_id(self) -> int | None:
        """Return the run's batch, or None if it has none."""
        number = self._argument("--batch")
        return int(number) if number.isdecimal() else None

    @property
    def _step(self) -> str | None:
        """Return the step that the task runs, or None if it runs all of the batch."""
        return self._argument("--step") if "--step" in self.driver_arguments else None

    def _argument(self, option: str) -> str:
        return self.driver_arguments[self.driver_arguments.index(option) + 1]


class Connect(_Driver, BaseOperator):
    """Runs a driver on a Spark Connect server, without starting a JVM. Fails without a retry if the
    driver reports that another attempt would fail in the same way. For a step of a settled batch,
    it starts no driver.
    """

    template_fields = ("arguments",)

    def __init__(
        self,
        *,
        remote: str,
        name: str,
        application: str,
        application_args: list[str],
        **options: Any,
    ):
        super().__init__(**options)
        # Unbuffered: the last line is the driver's own, whatever a stage prints.
        self.driver = [sys.executable, "-u", application]
        self.arguments = [*application_args, "--remote", remote]

    @property
    def driver_arguments(self) -> list[str]:
        return self.arguments

    def drive(self, context: Any) -> None:
        # Where the worker runs, not in a folder that goes away: settings may be relative.
        done = self._process.run_command([*self.driver, *self.arguments], cwd=os.getcwd())
        if done.exit_code == EXIT_PERMANENT:
            fail_permanently(_error_line(done.output))
        if done.exit_code:
            raise AirflowException(f"the driver ended with {done.exit_code}: {done.output}")

    def on_kill(self) -> None:
        self._process.send_sigterm()  # type: ignore[no-untyped-call]

    @cached_property
    def _process(self) -> SubprocessHook:
        return SubprocessHook()


class Submit(_Driver, SparkSubmitOperator):
    """Runs a driver by spark-submit. Fails without a retry if the driver reports that another
    attempt would fail in the same way. For a step of a settled batch, it starts no driver, because
    nothing would change.
    """

    @property
    def driver_arguments(self) -> list[str]:
        return list(self.application_args or ())

    def drive(self, context: Any) -> None:
        try:
            SparkSubmitOperator.execute(self, context)
        except AirflowException as exc:
            if not re.search(rf"Error code is: {EXIT_PERMANENT}\b", str(exc)):
                raise
            fail_permanently(_error_line(str(exc)))


def _error_line(log: str) -> str:
    """Return the last error in a driver's log."""
    return last_error(log, "ackledger") or "the step failed permanently: its log says why"


def steps_of(pipeline: Pipeline, name: str) -> list[str]:
    """Return the steps that a driver runs which was started for this step or follow-up."""
    follow_up = follow_ups.submitted().get(name)
    return [name] if follow_up is None else [step.name for step in follow_up.steps(pipeline)]


def is_settled(context: Any, conn_id: str | None = None) -> bool:
    """Return whether the batch of a task's run is decided, so that its steps have nothing to do."""
    from ledger.batch.outcome.readings import get_batch

    batch_id = context["ti"].xcom_pull(task_ids="open")
    if batch_id is None:
        return False
    batch = get_batch(connected(conn_id), batch_id)
    return bool(batch.status.decided)


@dataclass(frozen=True)
class SparkSubmit:
    """Makes tasks that run a driver by spark-submit, with a connection of Airflow's.

    ``conf``: Spark's configuration, added to that of every driver. ``java_options``: options of the
    driver's JVM.
    """

    connection: str = "spark_default"
    conf: Mapping[str, str] = field(default_factory=dict)
    java_options: str = _JAVA

    def __call__(self, **options: Any) -> BaseOperator:
        operator = Submit(
            conn_id=self.connection,
            conf={**CONF, **self.conf},
            env_vars={"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": self.java_options},
            spark_binary=spark_program(),
            **options,
        )
        return without_retry(operator)


def spark_connect(remote: str) -> Callable[..., BaseOperator]:
    """Return the function that makes a task whose steps run on a Spark Connect server."""
    return lambda **options: without_retry(Connect(remote=remote, **options))


def submitted(
    operator: Callable[..., BaseOperator],
    pipeline: Pipeline,
    target: str,
    name: str,
    *,
    application: str,
    whole: bool = False,
    due: Callable[[str, Any], None] | None = None,
    conn_id: str | None = None,
    **options: Any,
) -> Any:
    """Return the task ``name``. It runs the step of that name in a driver of its own, or all steps
    if ``whole``.

    ``due``: called with ``target`` and the task's context; skips the task if there is nothing to
    do.
    ``conn_id``: the connection of the ledger. The driver refuses an environment of another one.

    Raises DeclarationError unless ``operator`` returns such a task.
    """
    if due is not None:
        options["pre_execute"] = partial(due, target)
    # The attempt is numbered where the task's templates are rendered, before its driver starts: one
    # that Airflow has lost stays the older one, however late it comes.
    driver_arguments = [
        "--pipeline", target, "--batch", "{{ ti.xcom_pull(task_ids='open') }}",
        *([] if whole else ["--step", name]),
        *([] if conn_id is None else ["--conn-id", conn_id]),
        "--attempt", "{{ ti.id }}", "--try-number", "{{ ti.try_number }}",
        "--attempt-number", f"{{{{ {NUMBERING}() }}}}",
    ]  # fmt: skip
    arguments = {
        "task_id": name,
        "name": f"{pipeline.name}.{name}",
        "application": application,
        "application_args": driver_arguments,
        **options,
    }
    try:
        task = operator(**arguments)
    except TypeError as exc:
        raise DeclarationError(
            f"spark= of the DAG of {pipeline.name!r} cannot make the task {name!r}: {exc}."
            f" Expected a function of {', '.join(arguments)}, and of what else an operator takes"
        ) from exc
    if not isinstance(task, BaseOperator) or task.label != name:
        raise DeclarationError(
            f"spark= of the DAG of {pipeline.name!r}: expected an operator with task_id"
            f" {name!r}, found {task!r}: return the operator, made with the task_id that it is"
            " given"
        )
    if isinstance(task, Connect | Submit):
        task.follows = whole or name in follow_ups.submitted()
        task.ledger_conn_id = conn_id
    return task


def drawn_number(conn_id: str | None = None) -> int:
    """Draw a number from the ledger for an attempt that begins now."""
    from ledger.batch.step_runs import draw_number

    try:
        return draw_number(connected(conn_id))
    except LedgerError as exc:
        if not exc.permanent:
            raise
        raise AirflowFailException(str(exc)) from None
