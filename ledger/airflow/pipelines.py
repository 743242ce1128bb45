"""A pipeline as a DAG.

Its run opens a batch, submits one Spark job per step, settles, and tells complete from incomplete.
Everything that connects, or needs Java, is imported when a task runs.
"""

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, task
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    DagRunTriggerException,
)

from ledger.airflow.submitting import (
    Combine,
    State,
    Withhold,
    connected,
    decided_batch,
    submitted,
)
from ledger.errors import (
    BackPressureError,
    DeclarationError,
    InputError,
    LedgerError,
    NotReadyError,
)
from ledger.pipeline import Pipeline
from ledger.settings import Settings
from ledger.states import Guarantee
from ledger.steps import COMBINE, NOTIFY, STATE, WITHHOLD

APPLICATION = Path(__file__).resolve().parent.parent.parent / "jobs" / "run_step.py"
_OWN_TASKS = (
    "open",
    "settle",
    "publish",
    "complete",
    "next_part",
    NOTIFY,
    WITHHOLD,
    COMBINE,
    STATE,
)
SELECTING = ("reason", "stage", "root", "source", "since", "until", "quarantined", "held", "from_source")  # fmt: skip
_OWN_CONF = ("interval_start", "interval_end", "reprocess", "guarantee")
_log = logging.getLogger(__name__)
START = datetime(2000, 1, 1, tzinfo=UTC)

# A driver of a small step spends most of its seconds on its own start: compile less, collect simply.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pipeline_dag(
    pipeline: Pipeline,
    *,
    schedule: str | None,
    target: str | None = None,
    start_date: datetime = START,
    connection: str = "spark_default",
    spark_conf: dict[str, str] | None = None,
    java_options: str = _JAVA,
    application: str | Path = APPLICATION,
    retries: int = 1,
    retry_delay: timedelta = timedelta(seconds=30),
    room_poll: timedelta = timedelta(minutes=1),
    **dag_options: Any,
) -> DAG:
    """The DAG of a pipeline: ``open``, one spark-submit per step, ``settle``, ``publish``, ``complete``.

    Before the last two, ``withhold`` submits a Spark job if records failed, and is skipped if none did; so do
    ``combine`` and ``state``, beside ``publish``, if the pipeline has them and it is their turn.
    A run's conf may name another guarantee than the pipeline's: ``{"guarantee": "at_least_once"}``.
    ``schedule``: a cron expression or ``@monthly`` and the like; it becomes real data intervals.
    ``target``: MODULE:NAME where the pipeline is found by the job; default: the module that
    declared it. ``connection``, ``spark_conf``: of the Spark cluster. ``room_poll``: how often a run
    that waits for room (``max_pending``) looks again. ``dag_options``: further
    options of ``DAG``. Raises DeclarationError if the pipeline is not one.
    """
    steps = pipeline.steps()
    pipeline.check_guarantee(pipeline.guarantee or Settings().guarantee)
    for step in (*steps, *pipeline.followers()):
        if step.name in _OWN_TASKS:
            raise DeclarationError(
                f"step {step.name!r} of {pipeline.name!r}: the DAG has a task of that name"
            )
    options: dict[str, Any] = {
        "catchup": False,
        # A run that waits for room is running, and must not keep out the one that it waits for.
        "max_active_runs": 2 if pipeline.max_pending is None else 16,
        "tags": ["ackledger"],
        **dag_options,
        "params": {"guarantee": _guarantee_param(), **dag_options.get("params", {})},
    }
    timetable = CronDataIntervalTimetable(schedule, timezone="UTC") if schedule else None
    defaults = {"retries": retries, "retry_delay": retry_delay, **options.pop("default_args", {})}
    with DAG(
        pipeline.name, schedule=timetable, start_date=start_date, default_args=defaults, **options
    ) as dag:
        opened = _open_task(target or _target(pipeline), room_poll)
        submit = partial(
            submitted,
            pipeline,
            target or _target(pipeline),
            conn_id=connection,
            application=str(application),
            conf={"spark.ui.enabled": "false", "spark.log.level": "WARN", **(spark_conf or {})},
            env_vars={"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": java_options},
        )
        tasks = {step.name: submit(step.name) for step in steps}
        settled = _settle_task()
        for step in steps:
            for before in [tasks[name] for name in step.inputs] or [opened]:
                before >> tasks[step.name]
            if not pipeline.consumers(step.name):
                tasks[step.name] >> settled
        _follow(pipeline, settled, _publish_task(target or _target(pipeline)), submit)
    return dag


def _guarantee_param() -> Param:
    return Param(
        None,
        type=["null", "string"],
        enum=[None, *(one.value for one in Guarantee)],
        description="What the sinks promise of this run's batch; none: as the pipeline says.",
    )


def _follow(pipeline: Pipeline, settled: Any, published: Any, submit: Callable[..., Any]) -> None:
    """What follows the settlement: a sink that cannot be withheld or reached keeps nothing else waiting, and the
    run's last task from running."""
    completed, withheld = _complete_task(), submit(WITHHOLD, kind=Withhold)
    following = [published]
    if pipeline.combined():
        following.append(submit(COMBINE, kind=Combine, trigger_rule="all_done"))
    if pipeline.states():
        following.append(submit(STATE, kind=State, trigger_rule="all_done"))
    settled >> withheld >> following
    [settled, withheld, *following] >> completed
    if pipeline.reads_in_parts:
        published >> _next_part_task()
    if pipeline.wants_notice:
        keeping = any(step.keeper is not None for step in pipeline.sources())
        if keeping:  # it hears of what its sinks show
            published >> submit(NOTIFY, trigger_rule="all_done")
        else:
            settled >> submit(NOTIFY)


def _target(pipeline: Pipeline) -> str:
    """MODULE:NAME of a pipeline that is a global of the module that declared it."""
    _check_importable(pipeline)
    for name, value in vars(sys.modules[pipeline.module]).items():
        if value is pipeline:
            return f"{pipeline.module}:{name}"
    raise DeclarationError(
        f"pipeline {pipeline.name!r} is no global of module {pipeline.module!r}: pass target='MODULE:NAME'"
    )


def _check_importable(pipeline: Pipeline) -> None:
    """A DAG file is loaded under a name that a Spark job cannot import."""
    if pipeline.module.startswith("unusual_prefix_"):
        raise DeclarationError(
            f"pipeline {pipeline.name!r} is declared in a DAG file, which its Spark jobs cannot import: declare it in "
            "a module on PYTHONPATH, import it in the DAG file, or pass target='MODULE:NAME'"
        )


def _open_task(target: str, room_poll: timedelta) -> Any:
    @task(task_id="open")
    def open_batch(**context: Any) -> int:
        """Open the run's batch, or find it again; its number."""
        from ledger.loading import load_pipeline
        from ledger.requests import RunKey

        run = context["dag_run"]
        key = RunKey(run.dag_id, run.run_id)
        try:
            batch = _opened(load_pipeline(target), key, run.conf or {}, context)
        except InputError as exc:  # asking again would get the same answer
            raise AirflowFailException(str(exc)) from exc
        except BackPressureError as exc:  # waiting takes no worker's slot and no retry
            _log.info("%s", exc)
            later = datetime.now(UTC) + room_poll
            raise AirflowRescheduleException(later) from exc  # type: ignore[no-untyped-call]
        _log.info(
            "batch %s (%s) is %s: %s to %s",
            batch.batch_id,
            batch.kind,
            batch.status,
            batch.interval_start,
            batch.interval_end,
        )
        return int(batch.batch_id)

    return open_batch()


def _opened(pipeline: Pipeline, key: Any, conf: dict[str, Any], context: Any) -> Any:
    from ledger.opening import open_batch, open_replay
    from ledger.requests import Interval, RunKey
    from ledger.storage import require_writable

    database, settings = connected(), Settings()
    require_writable(settings.storage_root(), "ACKLEDGER_STORAGE")
    if conf.get("batch") is not None:  # a run that looks after a batch which another one opened
        return _own_batch(database, pipeline, int(conf["batch"]))
    if conf.get("replay_of") is not None:
        chosen = selection(conf)
        try:
            return open_replay(database, settings, pipeline, key, int(conf["replay_of"]), chosen)
        except BackPressureError:
            raise  # it waits for room, as an original does
        except NotReadyError as exc:
            raise AirflowSkipException(str(exc)) from exc
    params = {name: value for name, value in conf.items() if name not in _OWN_CONF}
    start, end = _interval(conf, context)
    reprocess = bool(conf.get("reprocess"))
    if reprocess:  # by the same run, cleared, it is another batch than the one that it replaces
        key = RunKey(key.dag_id, f"{key.run_id}#reprocess")
    interval = Interval(start, end, params)
    return open_batch(
        database, settings, pipeline, key, interval, reprocess=reprocess, guarantee=_guarantee(conf)
    )


def _guarantee(conf: dict[str, Any]) -> Guarantee | None:
    given = conf.get("guarantee")
    if given is not None and given not in list(Guarantee):
        raise InputError(
            f"guarantee {given!r} in the run's conf: expected {' or '.join(Guarantee)}"
        )
    return None if given is None else Guarantee(given)


def _own_batch(database: Any, pipeline: Pipeline, batch_id: int) -> Any:
    from ledger.queries import batches

    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    if batch.pipeline != pipeline.name:
        raise InputError(
            f"batch {batch_id} is of pipeline {batch.pipeline!r}, not {pipeline.name!r}"
        )
    return batch


def selection(conf: dict[str, Any]) -> Any:
    """The records that a conf, or the form's parameters, name."""
    from ledger.requests import Selection

    given = {name: conf[name] for name in SELECTING if conf.get(name) is not None}
    for name in ("since", "until"):
        if name in given:
            given[name] = moment(given[name])
    return Selection(**given)


def _interval(conf: dict[str, Any], context: Any) -> tuple[datetime, datetime]:
    """The run's data interval, or the one in its conf. A run id's date is never looked at."""
    start, end = conf.get("interval_start"), conf.get("interval_end")
    if start and end:
        return moment(start), moment(end)
    if start or end:
        raise InputError(
            "the run's conf has only one of interval_start and interval_end: expected both, or neither"
        )
    run = context["dag_run"]
    if run.data_interval_start is None or run.data_interval_end is None:
        raise InputError(
            "this run has no data interval: trigger it with a logical date, or with "
            'conf {"interval_start": "2013-01-01", "interval_end": "2013-02-01"}'
        )
    return run.data_interval_start, run.data_interval_end


def moment(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as exc:
        raise InputError(
            f"{value!r} in the run's conf is no ISO date: expected for example 2013-01-01"
        ) from exc


def _settle_task() -> Any:
    @task(task_id="settle")
    def settle(**context: Any) -> None:
        """Decide every record of the batch: acked, or failed with its stage and reason."""
        from ledger.payloads import try_to_keep
        from ledger.replaced import remove_replaced
        from ledger.settlement import settle_once

        database = connected()
        settlement = settle_once(database, context["ti"].xcom_pull(task_ids="open"))
        assert settlement is not None
        _log.info("%s", settlement)
        if not settlement.status.decided:
            raise LedgerError(
                f"batch {settlement.batch_id} is {settlement.status}: {settlement.reason}"
            )
        try_to_keep(database, settlement.batch_id)
        remove_replaced(database, settlement.batch_id)

    return settle()


def _publish_task(target: str) -> Any:
    @task(task_id="publish", trigger_rule="all_done")
    def publish(**context: Any) -> None:
        """Show what is acked in the sinks; of a batch that ran at least once they show it already."""
        from ledger.loading import load_pipeline
        from ledger.payloads import try_to_keep
        from ledger.publishing import publish as publish_batch

        database = connected()
        batch_id = decided_batch(context, database)
        try_to_keep(database, batch_id)  # the sweeper may have settled it, far from the storage
        for shown in publish_batch(database, Settings(), load_pipeline(target), batch_id):
            _log.info("%s", shown)

    return publish()


def _complete_task() -> Any:
    @task(task_id="complete", retries=0, trigger_rule="none_failed")
    def complete(**context: Any) -> None:
        """Fail while records of the batch are failed and neither recovered nor quarantined."""
        from ledger.summary import summarize

        batch_id = context["ti"].xcom_pull(task_ids="open")
        if batch_id is None:
            raise AirflowSkipException("the run has no batch")
        summary = summarize(connected(), batch_id)
        _log.info("%s", summary.roots)
        if not summary.done:
            raise AirflowFailException(summary.incomplete_because())
        for sentence in summary.waits:
            _log.warning("%s", sentence)
        if summary.unread:
            _log.warning("%s", summary.incomplete_because())

    return complete()


def _next_part_task() -> Any:
    @task(task_id="next_part", trigger_rule="all_done")
    def next_part(**context: Any) -> None:
        """Trigger another run of this DAG for what is left of the interval, whether or not all sinks show this
        part; skipped if nothing is left, or the batch is not settled."""
        from ledger.queries import batches, claims
        from ledger.summary import summarize

        database = connected()
        batch_id = decided_batch(context, database)
        unread = summarize(database, batch_id).unread
        if not unread:
            raise AirflowSkipException("the interval is read to its end")
        batch = database.transact(lambda c: batches.get_batch(c, batch_id))
        run_id = f"part__{batch_id}"
        tried = database.transact(lambda c: claims.given_up(c, batch.dag_id, run_id))
        run_id = f"{run_id}__{tried}" if tried else run_id
        _log.info("%s records of the interval are left: run %s reads on", unread, run_id)
        interval = {
            "interval_start": batch.interval_start.isoformat(),
            "interval_end": batch.interval_end.isoformat(),
        }
        own = {"guarantee": batch.guarantee.value}
        raise trigger(batch.dag_id, run_id, {**interval, **own, **batch.params})

    return next_part()


def trigger(dag_id: str, run_id: str, conf: dict[str, Any]) -> DagRunTriggerException:
    """What TriggerDagRunOperator raises; importing that operator takes 0.3 s of every parse."""
    return DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=conf,
        logical_date=None,
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=["success"],
        failed_states=["failed"],
        poke_interval=60,
        deferrable=False,
    )
