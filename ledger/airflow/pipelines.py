"""A pipeline as a DAG.

Its run opens a batch, submits a driver for each step or one for all, settles, and is red if
the batch is incomplete. Everything that connects, or needs Java, is imported when a task runs.
"""

import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, task

from ledger.airflow import task_docs
from ledger.airflow.hooks import settings_of
from ledger.airflow.intervals import instant, interval_of
from ledger.airflow.notifiers import in_ledger
from ledger.airflow.provider import CONN_TYPE
from ledger.airflow.sensors import interval_partitions
from ledger.airflow.settlement import Complete, Settle, follow_up_task
from ledger.airflow.spark_tasks import (
    NUMBERING,
    WHOLE,
    SparkSubmit,
    drawn_number,
    spark_connect,
    submitted,
)
from ledger.airflow.tasks import connected_by, fail_permanently, skip_unless_due, without_retry
from ledger.airflow.versions import (
    HAS_PARTITIONS,
    AirflowRescheduleException,
    AirflowSkipException,
    CronDataIntervalTimetable,
)
from ledger.batch import follow_ups
from ledger.batch.follow_ups import SETTLE, WithoutSpark
from ledger.core.connect_server import checked_address
from ledger.core.logs import about
from ledger.core.run_request import REPROCESS, Interval, RunKey, Selection
from ledger.core.states import Guarantee
from ledger.errors import (
    BackPressureError,
    ConfigurationError,
    DeclarationError,
    InputError,
    LedgerError,
    NotReadyError,
)
from ledger.pipeline.load import is_importable, target_of
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings

APPLICATION = Path(__file__).resolve().parent.parent / "run_step.py"
STEPS, AFTER = "pipeline_steps", "after_settlement"  # groups of tasks
SELECTING = tuple(field.name for field in fields(Selection))
_GUARANTEE = "What the sinks promise of this run's batch; none: as the pipeline declares."
_CALLBACKS = ("on_success_callback", "on_failure_callback")
_OWN_CONF = ("interval_start", "interval_end", "reprocess", "guarantee", "conn_id")
_log = logging.getLogger(__name__)
SPARK_SUBMIT = SparkSubmit()
START = datetime(2000, 1, 1, tzinfo=UTC)


def pipeline_dag(
    pipeline: Pipeline,
    *,
    schedule: str | None,
    conn_id: str | None = None,
    target: str | None = None,
    start_date: datetime = START,
    spark: str | Callable[..., BaseOperator] = SPARK_SUBMIT,
    application: str | Path = APPLICATION,
    submit: Literal["stage", "batch"] = "stage",
    retries: int = 1,
    retry_delay: timedelta = timedelta(seconds=30),
    room_poll: timedelta = timedelta(minutes=1),
    **dag_options: Any,
) -> DAG:
    """Return the DAG of a pipeline: ``open``, one Spark job per step, ``settle``, ``publish``,
    ``complete``.

    Before the last two, ``withhold`` submits a Spark job if records failed, and is skipped if
    none did. So are ``combine`` and ``state``, beside ``publish``, unless the pipeline has them
    and it is their turn. A run's conf may name another guarantee than the pipeline's:
    ``{"guarantee": "at_least_once"}``.

    - ``schedule``: a cron expression or ``@monthly`` and the like, which becomes real data
      intervals, or None. Airflow's other schedules have no intervals and are refused.
      A run by hand reads the interval that contains its logical date, if that has ended.
    - ``conn_id``: the connection of the ledger, of type ``ackledger``; default: the settings of the
      environment. Notifiers such as ``WhenFailedRatio`` among the callbacks get it as well.
    - ``submit="batch"``: one driver for all steps, in one task, ``run``. For small batches.
    - ``spark``: where the Spark jobs run: ``SparkSubmit(connection=..., conf=...)``; the address of
      a Spark Connect server, ``sc://host:port``, with which no task starts a JVM; or a function
      that makes their tasks, from ``task_id``, ``name``, ``application``, ``application_args``
      (templated) and options that every operator takes.
    - ``target``: MODULE:NAME of the pipeline for its jobs; default: the module that declared it.
    - ``room_poll``: how often a run that waits for room (``max_pending``) looks again.

    Raises DeclarationError for another ``schedule``, ``spark`` or ``submit``, and for a pipeline
    that needs a ``target``, another guarantee, or other names of its steps.
    """
    _check(pipeline, submit)
    operator = _operator(pipeline, spark)
    options, target = _options(pipeline, dag_options, conn_id), target or _target(pipeline)
    defaults = {"retries": retries, "retry_delay": retry_delay, **options.pop("default_args", {})}
    remote, java = spark if isinstance(spark, str) else None, isinstance(spark, SparkSubmit)
    opening = partial(open_for_run, schedule=schedule, remote=remote, java=java, conn_id=conn_id)
    submitting = partial(
        submitted, operator, pipeline, target, application=str(application), conn_id=conn_id
    )
    timetable = _timetable(pipeline, schedule)
    with DAG(
        pipeline.name, schedule=timetable, start_date=start_date, default_args=defaults, **options
    ) as dag:
        opened: Any = _open_task(target, opening, room_poll)
        if submit == "batch":
            awaited = opened >> submitting(WHOLE, whole=True, doc_md=task_docs.WHOLE)
        else:
            awaited = _add_tasks(pipeline, opened, target, submitting, conn_id)
        partitions = interval_partitions(pipeline.name) if HAS_PARTITIONS else None
        awaited >> Complete(
            target=target,
            conn_id=conn_id,
            partitions=partitions,
            schedule=schedule,
            task_id="complete",
            retries=0,
            trigger_rule="none_failed",
        )
    return dag


def _options(
    pipeline: Pipeline, dag_options: dict[str, Any], conn_id: str | None
) -> dict[str, Any]:
    """Return the options of the DAG: those that a user gives, and defaults of the others."""
    guarantees = [None, *(guarantee.value for guarantee in Guarantee)]
    guarantee = Param(None, type=["null", "string"], enum=guarantees, description=_GUARANTEE)
    macros = {NUMBERING: partial(drawn_number, conn_id)}
    callbacks = {
        name: in_ledger(dag_options[name], conn_id) for name in _CALLBACKS if name in dag_options
    }
    return {
        "catchup": False,
        # A run that waits for room is running, and must not keep out the one that it waits for.
        "max_active_runs": 2 if pipeline.max_pending is None else 16,
        "tags": ["ackledger"],
        "doc_md": task_docs.dag(pipeline),
        **dag_options,
        **callbacks,
        "params": {"guarantee": guarantee, **dag_options.get("params", {})},
        "user_defined_macros": {**macros, **dag_options.get("user_defined_macros", {})},
    }


def _check(pipeline: Pipeline, submit: str) -> None:
    """Raise DeclarationError for an unknown ``submit``, or a step with the name of one of the DAG's
    own tasks (only if ``submit`` is ``stage``). Check the guarantee as ``Pipeline.check_guarantee``
    does.
    """
    if submit not in ("stage", "batch"):
        raise DeclarationError(
            f"submit={submit!r} of the DAG of {pipeline.name!r}: expected 'stage' or 'batch'"
        )
    pipeline.check_guarantee(pipeline.guarantee or Settings().guarantee)
    own = {"open", STEPS, SETTLE, AFTER, "complete"}
    own |= {each.name for each in follow_ups.with_tasks()}
    for step in (*pipeline.steps(), *pipeline.followers()):
        if step.name in own and submit == "stage":
            raise DeclarationError(
                f"step {step.name!r} of {pipeline.name!r}: the DAG has a task of that name"
            )


def _timetable(pipeline: Pipeline, schedule: str | None) -> CronDataIntervalTimetable | None:
    """Return the timetable of a cron expression. Raises DeclarationError for any other schedule."""
    if schedule is None:
        return None
    if not isinstance(schedule, str):
        fault = type(schedule).__name__
    else:
        try:
            timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
            timetable.validate()
        except Exception as exc:  # of croniter or Airflow, by Airflow's version
            fault = str(exc)
        else:
            return timetable
    raise DeclarationError(
        f"schedule={schedule!r} of the DAG of {pipeline.name!r} ({fault}): expected a cron"
        ' expression such as "0 */6 * * *", a preset such as "@daily", or None. Each run reads an'
        " interval, which a timedelta or assets do not name: for these use None, and trigger the"
        " DAG with interval_start and interval_end in the run's conf"
    )


def _operator(pipeline: Pipeline, spark: Any) -> Callable[..., BaseOperator]:
    """Return the function that makes the tasks of Spark jobs. Raises DeclarationError if ``spark``
    gives none.
    """
    dag = f"the DAG of {pipeline.name!r}"
    if isinstance(spark, str):
        try:
            checked_address(spark)
        except ConfigurationError as exc:
            raise DeclarationError(f"spark= of {dag}: {exc}") from None
        return spark_connect(spark)
    if not callable(spark) or spark is SparkSubmit:
        raise DeclarationError(
            f"spark= of {dag}: expected SparkSubmit(...), the address of a Spark Connect server, or"
            f" a function that makes a task, found {spark!r}"
        )
    operator: Callable[..., BaseOperator] = spark
    return operator


def _add_tasks(
    pipeline: Pipeline,
    opened: Any,
    target: str,
    submitting: Callable[..., Any],
    conn_id: str | None,
) -> list[Any]:
    """Add a task for each step, for the settlement, and for each follow-up, and return those for
    which ``complete`` waits. A sink that cannot be withheld or published keeps no follow-up
    waiting, only ``complete``.
    """
    with TaskGroup(STEPS, prefix_group_id=False):
        tasks = {
            step.name: submitting(step.name, doc_md=task_docs.step(step))
            for step in pipeline.steps()
        }
    settled = Settle(target=target, conn_id=conn_id)
    for step in pipeline.steps():
        for before in [tasks[name] for name in step.inputs] or [opened]:
            before >> tasks[step.name]
        if not pipeline.consumers(step.name):
            tasks[step.name] >> settled
    after, awaited = {SETTLE: settled}, [settled]
    with TaskGroup(AFTER, prefix_group_id=False):
        for each in follow_ups.tasks_of(pipeline):
            before = each.after(pipeline)
            rule = {} if before == SETTLE else {"trigger_rule": "all_done"}
            if isinstance(each, WithoutSpark):
                after[each.name] = follow_up_task(each, target, conn_id, **rule)
            else:
                due = partial(skip_unless_due, each, conn_id)
                after[each.name] = submitting(each.name, doc_md=each.does, due=due, **rule)
            after[before] >> after[each.name]
            if each.is_awaited:
                awaited.append(after[each.name])
    return awaited


def _target(pipeline: Pipeline) -> str:
    """Return MODULE:NAME of a pipeline. Raises DeclarationError unless it is a global of the module
    that declared it, and Spark jobs can import that module.
    """
    target = target_of(pipeline)
    if target is not None:
        return target
    if not is_importable(pipeline.module):
        raise DeclarationError(
            f"pipeline {pipeline.name!r} is declared in a DAG file, which its Spark jobs cannot"
            " import: declare it in a module on PYTHONPATH, import it in the DAG file, or pass"
            " target='MODULE:NAME'"
        )
    raise DeclarationError(
        f"pipeline {pipeline.name!r} is no global of module {pipeline.module!r}: pass"
        " target='MODULE:NAME'"
    )


def _open_task(target: str, opening: Callable[..., Any], room_poll: timedelta) -> Any:
    @task(task_id="open", doc_md=task_docs.OPEN)
    def open_batch(**context: Any) -> int:
        """Open the run's batch, or find it again; return its number."""
        from ledger.pipeline.load import load_pipeline

        run = context["dag_run"]
        key = RunKey(run.dag_id, run.run_id)
        try:
            batch = opening(load_pipeline(target), key, run)
        except BackPressureError as exc:  # waiting takes no worker's slot and no retry
            _log.info("%s", exc)
            later = datetime.now(UTC) + room_poll
            raise AirflowRescheduleException(later) from exc  # type: ignore[no-untyped-call]
        except LedgerError as exc:
            if not exc.permanent:
                raise
            fail_permanently(str(exc))  # asking again gets the same answer
        with about(pipeline=batch.pipeline, batch_id=batch.batch_id):
            _log.info(
                "batch %s (%s) is %s: %s to %s",
                batch.batch_id,
                batch.kind,
                batch.status.words,
                batch.interval_start,
                batch.interval_end,
            )
        return int(batch.batch_id)

    opened: Any = open_batch()
    without_retry(opened.operator)
    return opened


def open_for_run(
    pipeline: Pipeline,
    key: Any,
    run: Any,
    schedule: str | None,
    remote: str | None = None,
    *,
    java: bool = True,
    conn_id: str | None = None,
) -> Any:
    """Open the batch of a DAG run, or find it again. With ``replay_of`` in the run's conf, open a
    replay of that batch. With ``batch``, return that batch, whose follow-ups this run does.

    Raises AirflowSkipException if there is nothing to replay, and LedgerError if the environment,
    the conf or the state of the batch forbid the run. A BackPressureError may pass: try again
    later.
    """
    from ledger.batch.opening import open_batch, open_replay
    from ledger.batch.outcome.readings import get_batch
    from ledger.batch.upkeep.checks import before_replay, before_run

    conf = run.conf or {}
    _check_ledger(conf, conn_id)
    settings = settings_of(conn_id)
    database = connected_by(settings)
    if conf.get("batch") is not None:  # of another run, whose follow-ups this run does
        return get_batch(database, int(conf["batch"]), pipeline.name)
    if conf.get("replay_of") is not None:
        criteria = selection(conf)
        before_replay(database, settings, pipeline, [key], remote, java=java)
        try:
            return open_replay(database, settings, pipeline, key, int(conf["replay_of"]), criteria)
        except BackPressureError:
            raise  # it waits for room, as an original does
        except NotReadyError as exc:
            raise AirflowSkipException(str(exc)) from exc
    params = {name: value for name, value in conf.items() if name not in _OWN_CONF}
    start, end = interval_of(conf, run, schedule)
    reprocess = bool(conf.get("reprocess"))
    if reprocess:  # also a cleared run reprocesses into another batch than the one it replaces
        key = RunKey(key.dag_id, key.run_id + REPROCESS)
    interval = Interval(start, end, params)
    before_run(database, settings, pipeline, key, interval, remote=remote, java=java)
    return open_batch(
        database,
        settings,
        pipeline,
        key,
        interval,
        reprocess=reprocess,
        guarantee=guarantee_in(conf),
    )


def _check_ledger(conf: dict[str, Any], conn_id: str | None) -> None:
    """Raise InputError if a run's conf is for another ledger than that of its DAG."""
    asked = conf.get("conn_id", conn_id)
    if asked != conn_id:
        raise InputError(
            f"the run's conf is for {_ledger(asked)}, its DAG works with {_ledger(conn_id)}: pass"
            " the same conn_id to the pipeline's DAG, the sweeper and the forms of a ledger, and"
            f" list it in conn_ids of section [{CONN_TYPE}] for the pages"
        )


def _ledger(conn_id: str | None) -> str:
    """Return the ledger of a connection in words."""
    return "the environment's ledger" if conn_id is None else f"the ledger of {conn_id!r}"


def guarantee_in(conf: dict[str, Any]) -> Guarantee | None:
    """Return the guarantee that a run's conf names, or None. Raises InputError for any other
    value.
    """
    guarantee = conf.get("guarantee")
    if guarantee is not None and guarantee not in list(Guarantee):
        raise InputError(
            f"guarantee {guarantee!r} in the run's conf: expected {' or '.join(Guarantee)}"
        )
    return None if guarantee is None else Guarantee(guarantee)


def selection(conf: dict[str, Any]) -> Selection:
    """Return the selection of records that a conf, or the parameters of a form, describe."""
    filters = {name: conf[name] for name in SELECTING if conf.get(name) is not None}
    for name in ("since", "until"):
        if name in filters:
            filters[name] = instant(filters[name])
    return Selection(**filters)
