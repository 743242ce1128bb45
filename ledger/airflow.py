"""Airflow's face: a pipeline as a DAG, the sweeper, and the replay form.

A pipeline's run opens its batch, submits one Spark job per step, settles, and tells complete from
incomplete. Everything that connects, or needs Java, is imported when a task runs.
"""

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, task
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
)

from ledger.errors import DeclarationError, InputError, LedgerError, NotReadyError
from ledger.pipeline import Pipeline

REPLAY_WANTED = Asset("x-ledger://replay-wanted")
APPLICATION = Path(__file__).resolve().parent.parent / "jobs" / "run_step.py"
_OWN_TASKS = ("open", "settle", "complete")
_SELECTING = ("reason", "stage", "root", "source", "since", "until", "quarantined")
_OWN_CONF = ("interval_start", "interval_end", "replay_of", *_SELECTING)
_log = logging.getLogger(__name__)
_START = datetime(2000, 1, 1, tzinfo=UTC)

# A driver of a small step spends most of its seconds on its own start: compile less, collect simply.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pipeline_dag(
    pipeline: Pipeline,
    *,
    schedule: str | None,
    target: str | None = None,
    start_date: datetime = _START,
    connection: str = "spark_default",
    spark_conf: dict[str, str] | None = None,
    java_options: str = _JAVA,
    application: str | Path = APPLICATION,
    retries: int = 1,
    retry_delay: timedelta = timedelta(seconds=30),
    **dag_options: Any,
) -> DAG:
    """The DAG of a pipeline: ``open``, one spark-submit per step, ``settle``, ``complete``.

    ``schedule``: a cron expression or ``@monthly`` and the like; it becomes real data intervals.
    ``target``: MODULE:NAME where the pipeline is found by the job; default: the module that
    declared it. ``connection``, ``spark_conf``: of the Spark cluster. ``dag_options``: further
    options of ``DAG``. Raises DeclarationError if the pipeline is not one.
    """
    steps = pipeline.steps()
    for step in steps:
        if step.name in _OWN_TASKS:
            raise DeclarationError(
                f"step {step.name!r} of {pipeline.name!r}: the DAG has a task of that name"
            )
    options: dict[str, Any] = {
        "catchup": False,
        "max_active_runs": 2,
        "tags": ["ackledger"],
        **dag_options,
    }
    timetable = CronDataIntervalTimetable(schedule, timezone="UTC") if schedule else None
    defaults = {"retries": retries, "retry_delay": retry_delay, **options.pop("default_args", {})}
    with DAG(
        pipeline.name, schedule=timetable, start_date=start_date, default_args=defaults, **options
    ) as dag:
        opened = _open_task(target or _target(pipeline))
        tasks = {
            step.name: SparkSubmitOperator(
                task_id=step.name,
                conn_id=connection,
                application=str(application),
                name=f"{pipeline.name}.{step.name}",
                application_args=_arguments(target or _target(pipeline), step.name),
                conf={"spark.ui.enabled": "false", "spark.log.level": "WARN", **(spark_conf or {})},
                env_vars={"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": java_options},
                spark_binary=_spark_submit(),
            )
            for step in steps
        }
        settled = _settle_task()
        for step in steps:
            for before in [tasks[name] for name in step.inputs] or [opened]:
                before >> tasks[step.name]
            if step.kind == "sink":
                tasks[step.name] >> settled
        settled >> _complete_task()
    return dag


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


def _spark_submit() -> str:
    """spark-submit beside this Python, whose pyspark it is; else the one on the PATH."""
    beside = Path(sys.executable).parent / "spark-submit"
    return str(beside) if beside.exists() else "spark-submit"


def _arguments(target: str, step: str) -> list[str]:
    return [
        "--pipeline", target, "--batch", "{{ ti.xcom_pull(task_ids='open') }}", "--step", step,
        "--attempt", "{{ ti.id }}", "--try-number", "{{ ti.try_number }}",
    ]  # fmt: skip


def _open_task(target: str) -> Any:
    @task(task_id="open")
    def open_batch(**context: Any) -> int:
        """Open the run's batch, or find it again; its number."""
        from ledger.loading import load_pipeline
        from ledger.opening import RunKey

        run = context["dag_run"]
        key = RunKey(run.dag_id, run.run_id)
        try:
            batch = _opened(load_pipeline(target), key, run.conf or {}, context)
        except InputError as exc:  # asking again would get the same answer
            raise AirflowFailException(str(exc)) from exc
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
    from ledger.opening import Interval, open_batch, open_replay
    from ledger.settings import Settings
    from ledger.storage import require_writable

    database, settings = _database(), Settings()
    require_writable(settings.storage_root(), "ACKLEDGER_STORAGE")
    if conf.get("replay_of") is not None:
        selection = _selection(conf)
        try:
            return open_replay(database, settings, pipeline, key, int(conf["replay_of"]), selection)
        except NotReadyError as exc:
            raise AirflowSkipException(str(exc)) from exc
    params = {name: value for name, value in conf.items() if name not in _OWN_CONF}
    start, end = _interval(conf, context)
    return open_batch(database, settings, pipeline, key, Interval(start, end, params))


def _selection(conf: dict[str, Any]) -> Any:
    """The records that a conf, or the form's parameters, name."""
    from ledger.opening import Selection

    given = {name: conf[name] for name in _SELECTING if conf.get(name) is not None}
    for name in ("since", "until"):
        if name in given:
            given[name] = _moment(given[name])
    return Selection(**given)


def _interval(conf: dict[str, Any], context: Any) -> tuple[datetime, datetime]:
    """The run's data interval, or the one in its conf. A run id's date is never looked at."""
    start, end = conf.get("interval_start"), conf.get("interval_end")
    if start and end:
        return _moment(start), _moment(end)
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


def _moment(value: str) -> datetime:
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
        from ledger.settlement import settle_once
        from ledger.states import BatchStatus

        settlement = settle_once(_database(), context["ti"].xcom_pull(task_ids="open"))
        assert settlement is not None
        _log.info("%s", settlement)
        if settlement.status is not BatchStatus.SETTLED:
            raise LedgerError(
                f"batch {settlement.batch_id} is {settlement.status}: {settlement.reason}"
            )

    return settle()


def _complete_task() -> Any:
    @task(task_id="complete", retries=0)
    def complete(**context: Any) -> None:
        """Fail while records of the batch are failed and neither recovered nor quarantined."""
        from ledger.summary import summarize

        summary = summarize(_database(), context["ti"].xcom_pull(task_ids="open"))
        _log.info("%s", summary.roots)
        if not summary.complete:
            raise AirflowFailException(summary.incomplete_because())

    return complete()


def _database() -> Any:
    from ledger.database.connection import Database
    from ledger.settings import Settings

    database = Database.from_settings(Settings())
    database.check()
    return database


def sweeper_dag(*, schedule: str | None, **dag_options: Any) -> DAG:
    """Sweeps on ``schedule`` and, for pipelines with ``auto_replay``, asks for replays by an asset."""
    options = {
        "catchup": False,
        "max_active_runs": 1,
        "is_paused_upon_creation": False,
        "tags": ["ackledger"],
        **dag_options,
    }
    with DAG("ledger_sweeper", schedule=schedule, start_date=_START, **options) as dag:

        @task
        def sweep() -> dict[str, list[Any]]:
            """One sweep; the batches whose pipeline wants a replay, and what could not be settled."""
            from ledger.sweeper import sweep_once

            swept = sweep_once(_database())
            for settlement in swept.settlements:
                _log.info("%s", settlement)
            errors = [f"batch {batch}: {error}" for batch, error in swept.errors.items()]
            return {"replays": [wish.batch_id for wish in swept.replays], "errors": errors}

        @task(outlets=[REPLAY_WANTED])
        def ask_for_replay(batches: Any, *, outlet_events: Any = None) -> None:
            """Publish the asset event that starts ledger_replay; skipped if nothing has failed."""
            if not batches:
                raise AirflowSkipException("no pipeline wants a replay")
            outlet_events[REPLAY_WANTED].extra = {"batches": batches}

        @task
        def report(errors: Any) -> None:
            """Fail, saying which batches could not be settled, if there are any."""
            if errors:
                raise AirflowFailException("; ".join(errors))

        swept: Any = sweep()
        ask_for_replay(swept["replays"])
        report(swept["errors"])
    return dag


def replay_dag(**dag_options: Any) -> DAG:
    """Finds the batches with failed records and triggers their pipelines' DAGs to replay them."""
    options = {
        "catchup": False,
        "is_paused_upon_creation": False,
        "tags": ["ackledger"],
        **dag_options,
    }
    params = {
        "pipeline": Param(None, type=["null", "string"], description="Only this pipeline."),
        "batch": Param(None, type=["null", "integer"], description="Only this original batch."),
        "reason": Param(
            None, type=["null", "string"], description="Only records that failed with this reason."
        ),
        "stage": Param(
            None, type=["null", "string"], description="Only records that failed in this step."
        ),
        "root": Param(None, type=["null", "integer"], description="Only the record of this root."),
        "source": Param(None, type=["null", "string"], description="Only records of this source."),
        "since": Param(None, type=["null", "string"], description="Only failed since (ISO date)."),
        "until": Param(None, type=["null", "string"], description="Only failed before (ISO date)."),
        "quarantined": Param(
            False, type="boolean", description="Records given up, with a new budget."
        ),
        "release": Param(
            False, type="boolean", description="First let that batch settle, which is held."
        ),
    }
    with DAG(
        "ledger_replay", schedule=[REPLAY_WANTED], start_date=_START, params=params, **options
    ) as dag:

        @task
        def find(**context: Any) -> list[dict[str, Any]]:
            """One trigger per original batch with failed records."""
            if context["params"]["release"]:
                _release(context["params"]["batch"])
            return _triggers(context["params"], _asked_for(context), context["dag_run"].run_id)

        @task
        def replay(trigger: Any) -> None:
            """Trigger one pipeline's DAG."""
            raise _trigger_exception(**trigger)

        replay.expand(trigger=find())
    return dag


def _trigger_exception(dag_id: str, run_id: str, conf: dict[str, Any]) -> DagRunTriggerException:
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


def _asked_for(context: Any) -> set[int] | None:
    """The batches that asset events name; None for a run by hand."""
    events = context.get("triggering_asset_events") or {}
    named = [event.extra.get("batches", []) for found in events.values() for event in found]
    return {batch for batches in named for batch in batches} if named else None


def _release(batch: int | None) -> None:
    from ledger.settlement import release

    if batch is None:
        raise AirflowFailException("which batch is to be released? Give its number as batch")
    _log.info("%s", release(_database(), batch))


def _triggers(params: dict[str, Any], only: set[int] | None, run_id: str) -> list[dict[str, Any]]:
    from ledger.queries import batches, replays

    selection = _selection(params).as_json()
    database = _database()
    rows: Sequence[Any] = database.transact(
        lambda c: replays.batches_to_replay(
            c, params["pipeline"], params["batch"], selection, batches.database_now(c)
        )
    )
    counts: Counter[int] = Counter()
    for row in rows:
        if only is None or row.batch_id in only:
            counts[row.batch_id] += row.messages
    made = []
    for number, messages in counts.items():
        batch = database.transact(lambda c, n=number: batches.get_batch(c, n))
        conf = {"replay_of": number, **selection}
        dag_id = batch.dag_id or batch.pipeline
        _log.info("replay %s records of batch %s by %s: %s", messages, number, dag_id, conf)
        made.append({"dag_id": dag_id, "run_id": f"replay_{number}__{run_id}", "conf": conf})
    if not made:
        raise AirflowSkipException("nothing to replay: no failed record matches")
    return made
