"""Commands that run a pipeline: ``run``, ``replay``, ``publish``."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.batch import follow_ups
from ledger.batch.advice.actions import Advice, sentences
from ledger.batch.advice.batches import asked_as, resume
from ledger.batch.advice.sinks import state_of
from ledger.batch.manual_actions import abandon
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.outcome.readings import Batch
from ledger.batch.outcome.report import (
    ERROR,
    INCOMPLETE,
    QUARANTINED,
    advise,
    exit_code,
    sink_advice,
)
from ledger.batch.outcome.summary import Summary, summarize
from ledger.batch.publishing import Published
from ledger.batch.records.filters import require_batch
from ledger.batch.records.payloads import keep_all
from ledger.batch.recovery import restarts_of, waiting_states
from ledger.batch.replay_matches import (
    left_out,
    matching_messages,
    nothing_to_replay,
    originals_of,
    require_match,
)
from ledger.batch.upkeep.checks import before_replay, before_run
from ledger.cli import causes, tables
from ledger.cli.base import (
    LOCAL,
    BatchNumber,
    Json,
    Params,
    Since,
    Spark,
    Target,
    Until,
    app,
    err,
    example,
    in_user_words,
    interval_options,
    load,
    out,
    params_of,
    show,
)
from ledger.cli.progress import progress_of
from ledger.core.connect_server import checked_place, is_remote
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import Guarantee
from ledger.errors import BackPressureError, FencedError, LedgerError, NotReadyError
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.spark.failures import Failures, explained
from ledger.store.connection import Database
from ledger.store.upgrade import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START, END = interval_options("RUN")


@app.command(epilog=example("run etl:shop --from 2026-01-01 --to 2026-01-02"))
def run(
    target: Target,
    interval_start: Annotated[datetime, START],
    interval_end: Annotated[datetime, END],
    run_id: Annotated[str | None, typer.Option(help="Finds the batch of that run again.")] = None,
    param: Params = None,
    reprocess: Annotated[
        bool, typer.Option("--reprocess", help="Replace the batch that has this interval.")
    ] = False,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="Instead of the pipeline's own.")
    ] = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Run a pipeline over one interval, without Airflow."""
    at = place(target, spark)
    interval = Interval(interval_start, interval_end, params_of(param or []))
    key = RunKey("", run_id or f"run-{uuid.uuid4()}")
    done = run_interval(at, key, interval, reprocess=reprocess, guarantee=guarantee)
    finish(at.database, [done], as_json, single=True)


@dataclass(frozen=True)
class CommandTarget:
    """The pipeline that a command runs, with its settings, ledger and Spark. ``spark``: a master,
    or the address of a Spark Connect server.
    """

    target: str
    pipeline: Pipeline
    settings: Settings
    database: Database
    spark: str

    @property
    def remote(self) -> str | None:
        """The address of the Spark Connect server, if Spark is one."""
        return self.spark if is_remote(self.spark) else None


def place(target: str, spark: str) -> CommandTarget:
    """Load the pipeline at ``target`` and connect the ledger, for a command that runs it. Raises
    ConfigurationError unless ``spark`` is a master or the address of a Spark Connect server.
    """
    checked_place(spark)
    settings = Settings()
    return CommandTarget(target, load(target), settings, connect(settings), spark)


def run_interval(
    at: CommandTarget,
    key: RunKey,
    interval: Interval,
    *,
    reprocess: bool = False,
    guarantee: Guarantee | None = None,
) -> dict[str, Any]:
    """Open the batch of a run over an interval, or find it again; run it; return its summary. Spark
    starts first, so that nothing is claimed if it does not start.
    """
    request = (at.database, at.settings, at.pipeline, key, interval)
    before_run(*request, remote=at.remote)
    spark_session(at.pipeline, at.spark)  # without Spark nothing is claimed
    batch = open_batch(*request, reprocess=reprocess, guarantee=guarantee)
    return summary_of(*_run_batch(at, batch), at.target)


@app.command(
    epilog=example(
        "replay jobs.flights:pipeline --batch 1",
        "replay jobs.flights:pipeline --step with_plane --dry-run",
    )
)
def replay(
    target: Target,
    batch: BatchNumber = None,
    reason: Annotated[
        str | None,
        typer.Option(help="Only records with this cause, or a reason like this SQL pattern."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="Only records that failed in this step.")] = None,
    record: Annotated[int | None, typer.Option(help="Only this record, by its number.")] = None,
    source: Annotated[str | None, typer.Option(help="Only records of this source.")] = None,
    since: Annotated[datetime | None, Since] = None,
    until: Annotated[datetime | None, Until] = None,
    quarantined: Annotated[
        bool,
        typer.Option(
            "--quarantined",
            help="Instead quarantined records, with a new budget; not those that are accepted.",
        ),
    ] = False,
    accepted: Annotated[
        bool,
        typer.Option(
            "--accepted",
            help="Instead, or with --quarantined as well, records that a person accepted.",
        ),
    ] = False,
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Read them again from their source, by key.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what is due, by step and reason.")
    ] = False,
    run_id: Annotated[str | None, typer.Option(help="Finds the replay of that run again.")] = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Run failed records again, one replay batch for each batch."""
    at = place(target, spark)
    pipeline, database = at.pipeline, at.database
    selection = Selection(
        reason, step, record, source, since, until, quarantined, from_source, accepted
    )
    for sentence in left_out(database, pipeline.name, batch, selection):
        err.print(sentence, style="yellow", highlight=False, soft_wrap=True)
    if dry_run:
        _print_due(at, batch, selection, as_json)
        return
    keep_all(database, pipeline.name)
    base = run_id or f"replay-{uuid.uuid4()}"
    summaries, refused = [], 0
    originals = originals_of(database, pipeline, batch, selection, base)
    keys = {original: RunKey("", f"{base}-{original}") for original in originals}
    before_replay(database, at.settings, pipeline, keys.values(), at.remote)
    for original, key in keys.items():
        spark_session(pipeline, at.spark)  # without Spark nothing is claimed
        try:
            opened = open_replay(database, at.settings, pipeline, key, original, selection)
        except BackPressureError:
            raise
        except NotReadyError as exc:  # another replay was first
            err.print(f"batch {original}: {exc}", highlight=False, soft_wrap=True)
            refused += 1
            continue
        summaries.append(summary_of(*_run_batch(at, opened), target))
    if not originals and not as_json:
        out.print(nothing_to_replay(database, batch, selection), soft_wrap=True)
    finish(database, summaries, as_json, refused=refused)


@app.command(epilog=example("publish jobs.flights:pipeline"))
def publish(
    target: Target,
    batch: BatchNumber = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Finish what an interrupted run left pending.

    Publish sinks, run combines, update states. With --batch those of the batch and its replays.
    """
    from ledger.execution import StepResult, follow
    from ledger.spark.job import Job

    at = place(target, spark)
    pipeline, database = at.pipeline, at.database
    keep_all(database, pipeline.name)
    if batch is not None:
        database.transact(lambda c: require_batch(c, batch, pipeline.name))
    asked = follow_ups.by_publish(pipeline)
    waiting = database.transact(lambda c: follow_ups.waiting(c, pipeline.name, batch, asked))
    failures = Failures(pipeline)
    done: list[object] = []
    if waiting or follow_ups.is_due(database, pipeline):
        job = Job(spark_session(pipeline, at.spark), database, at.settings, pipeline)
        for number in waiting:
            for each in asked:
                with failures.collect():
                    done += follow(job, each, number)
        for each in follow_ups.of_pipeline(pipeline):
            with failures.collect():
                done += follow(job, each, batch)
    published = [asdict(result) for result in done if isinstance(result, Published)]
    if not published:
        failures.raise_first()
    if published or as_json:
        show(published, as_json, tables.rows)
    else:
        carried = {result.name for result in done if isinstance(result, StepResult)}
        for sentence in nothing_to_publish(database, pipeline, batch, carried):
            out.print(sentence, soft_wrap=True)
    failures.raise_first()


def nothing_to_publish(
    database: Database, pipeline: Pipeline, batch: int | None, carried: Iterable[str]
) -> list[str]:
    """Return the sentences that ``publish`` prints if it has published nothing. ``carried``: the
    states that it has carried forward.
    """
    if carried:
        return [f"carried forward: {', '.join(sorted(carried))}"]
    if batch is None:
        nothing = f"no publication is pending in pipeline {pipeline.name!r}"
        return [nothing, *database.transact(lambda c: waiting_states(c, pipeline.name))]
    advice = advise(summarize(database, summarize(database, batch).original_id))
    nothing = f"no publication is pending of batch {batch} and its replays"
    return [nothing] if advice is None else [nothing, *advice.lines]


def _print_due(at: CommandTarget, batch: int | None, selection: Selection, as_json: bool) -> None:
    """Print the records that a replay would take, or why there are none. Raises LedgerError if the
    batch, or a name in the selection, is unknown.
    """
    matching = matching_messages(at.database, at.pipeline.name, batch, selection)
    if not matching:
        require_match(at.database, at.pipeline, batch, selection)
    columns = ("batch_id", "pipeline", "step", "reason", "records")
    if matching or as_json:
        rows = [{name: getattr(row, name) for name in columns} for row in matching]
        show(rows, as_json, tables.labelled)
    else:
        out.print(nothing_to_replay(at.database, batch, selection), soft_wrap=True)


def spark_session(pipeline: Pipeline, spark: str) -> "SparkSession":
    """Return the running Spark session, or a new one for the steps of a command. A new local
    session logs nothing if the pipeline redacts columns, because Spark's log may quote records.

    ``spark``: a master such as ``local[*]``, or a Spark Connect server such as ``sc://host:port``.
    """
    from ledger.spark.session import build_session

    return build_session(f"ackledger {pipeline.name}", spark, silent=bool(pipeline.redact))


def _run_batch(at: CommandTarget, batch: Batch) -> tuple[Summary, float]:
    """Run the batch's steps with a progress line each, and settle. Return its summary, and how many
    seconds that took.
    """
    from ledger.execution import StepResult, run_steps, settle_and_follow
    from ledger.spark.job import Job

    started = time.monotonic()
    current = "its start"
    options = () if at.spark == LOCAL else ("--spark", at.spark)
    again = sentences(resume(batch, target=at.target, options=options))
    begun = f"batch {batch.batch_id}: run id {asked_as(batch)}"
    err.print(begun, highlight=False, soft_wrap=True)
    steps = {step.name: step.inputs for step in at.pipeline.steps()}
    with progress_of(batch.batch_id, steps) as progress:

        def on_step(name: str, result: StepResult | None) -> None:
            nonlocal current
            current = f"step {name!r}"
            progress.on_step(name, result)

        with going_on(at.database, batch, again, lambda: current):
            session = spark_session(at.pipeline, at.spark)
            progress.watch(session)
            job = Job(session, at.database, at.settings, at.pipeline)
            run_steps(job, batch.batch_id, on_step)
            current = "its settlement, or what follows it"
            progress.settling()
            settle_and_follow(job, batch.batch_id)
    return summarize(at.database, batch.batch_id), time.monotonic() - started


@contextmanager
def going_on(
    database: Database, batch: Batch, ways: str, step: Callable[[], str]
) -> Iterator[None]:
    """Raise an error of this block again with its batch, its ``step``, and the ``ways`` to go on.
    An interrupt becomes a LedgerError. A FencedError passes unchanged.

    Before that, the batch is abandoned, and gives back its claims, if nothing of it is committed or
    runs elsewhere.
    """
    try:
        yield
    except FencedError:
        raise
    except (Exception, KeyboardInterrupt) as exc:
        reason = f"its run failed before anything was committed: {type(exc).__name__}"
        try:
            is_abandoned = abandon(database, batch.batch_id, reason)
        except LedgerError:  # a failed release of the claims hides no error
            is_abandoned = False
        what = f"batch {batch.batch_id} (run id {batch.run_id})"
        advice = ways
        if is_abandoned:
            advice = f"Batch {batch.batch_id} is abandoned and claims nothing. {ways}"
        if isinstance(exc, Exception):
            others = () if is_abandoned else restarts_of(database, batch.batch_id)
            advice = ". ".join([advice, *map(str, others)])
            raise explained(exc, f"{what} failed at {step()}", advice) from exc
        raise LedgerError(f"{what} was interrupted at {step()}. {advice}") from exc


def summary_of(
    summary: Summary, seconds: float | None = None, target: str | None = None
) -> dict[str, Any]:
    """Return the data that is printed of a batch. ``target``: see ``advise``."""
    data = in_user_words(asdict(summary))
    data |= {"outcome": summary.outcome.value, "exit_code": exit_code(summary)}
    del data["cases"], data["stands"]  # inputs of the advice
    if seconds is not None:
        data["seconds"] = round(seconds, 2)
    data["sinks"] = [
        {
            "sink": row.sink,
            "state": state_of(row).value,
            "rows": row.published_rows,
            "staged_rows": row.staged_rows,
            "withheld_rows": row.withheld_rows,
            "because": advice.because,
            "commands": _pairs(advice),
        }
        for row, advice in zip(summary.sinks, sink_advice(summary, target), strict=True)
    ]
    advice = advise(summary, target)
    if advice is not None:
        data["advice"] = advice.because
        data["commands"] = _pairs(advice)
    return data


def _pairs(advice: Advice) -> list[list[str | None]]:
    return [[action.what, action.command] for action in advice.actions]


def finish(
    database: Database,
    summaries: list[dict[str, Any]],
    as_json: bool,
    *,
    single: bool = False,
    refused: int = 0,
) -> None:
    """Print the summaries of batches, and exit with the worst of their codes: 1, then 3, then 4.
    Return if all codes are 0.

    ``refused``: batches that could not be replayed, whose records are as they were.
    """
    if as_json:
        show(summaries[0] if single else summaries, True, tables.summary)
    else:
        for summary in summaries:
            print_summary(database, summary)
    codes = {summary["exit_code"] for summary in summaries} | ({INCOMPLETE} if refused else set())
    for code in (ERROR, INCOMPLETE, QUARANTINED):
        if code in codes:
            raise typer.Exit(code)


def print_summary(database: Database, summary: dict[str, Any]) -> None:
    """Print one batch, and its failed records by step and reason."""
    failed: list[dict[str, Any]] = []
    if summary["records"]["failed"] or summary["records"]["quarantined"]:
        failed = causes.rows_of(database, {"batch_id": summary["batch_id"]})
    out.print(tables.summary(summary, failed), crop=False)
    causes.print_legend(database, failed)
