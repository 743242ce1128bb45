"""Commands that run a pipeline: ``run``, ``replay``, ``publish``."""

import time
import uuid
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ledger.cli import tables
from ledger.cli.base import (
    INCOMPLETE,
    BatchNumber,
    Json,
    Moment,
    Target,
    app,
    connect,
    err,
    load,
    out,
    show,
)
from ledger.database.connection import Database
from ledger.errors import BackPressureError, Failures, InputError, NotReadyError
from ledger.opening import open_batch, open_replay
from ledger.payloads import keep_all
from ledger.pipeline import Pipeline
from ledger.queries import batches, publications, replays
from ledger.queries.batches import Batch
from ledger.requests import Interval, RunKey, Selection
from ledger.settings import Settings
from ledger.states import BatchStatus, Guarantee
from ledger.storage import require_writable
from ledger.summary import Summary, summarize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@app.command()
def run(
    target: Target,
    interval_start: Annotated[datetime, Moment],
    interval_end: Annotated[datetime, Moment],
    run_id: Annotated[str | None, typer.Option(help="Finds the batch of that run again.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the path templates.")
    ] = None,
    reprocess: Annotated[
        bool, typer.Option("--reprocess", help="Replace the batch that has this interval.")
    ] = False,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="Instead of the pipeline's own.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: Json = False,
) -> None:
    """Run all steps of a pipeline over one interval in one process, without Airflow."""
    settings = Settings()
    pipeline = load(target)
    interval = Interval(interval_start, interval_end, _params(param or []))
    database = connect(settings)
    require_writable(settings.storage_root(), "ACKLEDGER_STORAGE")
    key = RunKey("", run_id or f"run-{uuid.uuid4()}")
    batch = open_batch(
        database, settings, pipeline, key, interval, reprocess=reprocess, guarantee=guarantee
    )
    finish([_run_batch(database, settings, pipeline, batch, master)], as_json, single=True)


@app.command()
def replay(
    target: Target,
    batch: BatchNumber = None,
    reason: Annotated[
        str | None, typer.Option(help="Only records whose last reason is like this SQL pattern.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Only records that failed in this step.")
    ] = None,
    root: Annotated[int | None, typer.Option(help="Only the record of this root.")] = None,
    source: Annotated[str | None, typer.Option(help="Only records of this source.")] = None,
    since: Annotated[datetime | None, Moment] = None,
    until: Annotated[datetime | None, Moment] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Records given up, with a new budget.")
    ] = False,
    held: Annotated[
        bool, typer.Option("--held", help="Records whose unit failed too often, with a new budget.")
    ] = False,
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Read them again from their source, by key.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is due, by stage and reason.")
    ] = False,
    run_id: Annotated[str | None, typer.Option(help="Finds the replay of that run again.")] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: Json = False,
) -> None:
    """Run the failed records again, one replay batch for each original batch."""
    settings = Settings()
    pipeline = load(target)
    database = connect(settings)
    require_writable(settings.storage_root(), "ACKLEDGER_STORAGE")
    selection = Selection(reason, stage, root, source, since, until, quarantined, held, from_source)
    if dry_run:
        show(_matching(database, pipeline, batch, selection), as_json, tables.rows)
        return
    keep_all(database, pipeline.name)
    base = run_id or f"replay-{uuid.uuid4()}"
    summaries = []
    for original in _originals(database, pipeline, batch, selection, base):
        key = RunKey("", f"{base}-{original}")
        _session(pipeline, master)  # without Spark nothing is claimed
        try:
            opened = open_replay(database, settings, pipeline, key, original, selection)
        except BackPressureError:
            raise
        except NotReadyError as exc:  # another replay was first
            err.print(f"batch {original}: {exc}", markup=False, highlight=False, soft_wrap=True)
            continue
        summaries.append(_run_batch(database, settings, pipeline, opened, master))
    if not summaries and not as_json:
        out.print("nothing to replay: no failed record matches, or is due; see 'ackledger failed'")
    finish(summaries, as_json)


@app.command()
def publish(
    target: Target,
    batch: BatchNumber = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: Json = False,
) -> None:
    """Show in the sinks what is decided and not shown yet, and bring states on: what a run that died has left."""
    from ledger.running import advance_states, combine, publish_settled
    from ledger.spark.job import Job
    from ledger.state_runs import is_due

    settings, pipeline = Settings(), load(target)
    database = connect(settings)
    keep_all(database, pipeline.name)
    waiting = database.transact(lambda c: publications.waiting(c, pipeline.name, batch))
    failures, shown = Failures(), []
    if waiting or is_due(database, pipeline):
        job = Job(_session(pipeline, master), database, settings, pipeline)
        for number in waiting:
            for follow in (publish_settled, combine):
                with failures.kept():
                    shown += follow(job, number)
        with failures.kept():
            advance_states(job, batch)
    show([asdict(one) for one in shown], as_json, tables.rows)
    failures.raise_first()


def _params(given: list[str]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            raise InputError(f"--param {one!r}: expected NAME=VALUE")
    return dict(one.split("=", 1) for one in given)


def _originals(
    database: Database, pipeline: Pipeline, batch: int | None, selection: Selection, base: str
) -> list[int]:
    """Batches with failed records that match, and those that this run began to replay before."""

    begun = database.transact(lambda c: replays.unfinished_replays(c, pipeline.name, base))
    matching = _matching(database, pipeline, batch, selection)
    return sorted({*(row["batch_id"] for row in matching), *begun})


def _matching(
    database: Database, pipeline: Pipeline, batch: int | None, selection: Selection
) -> list[dict[str, Any]]:
    """Failed records that match and are due, by batch, stage and reason."""
    rows = database.transact(
        lambda c: replays.batches_to_replay(
            c, pipeline.name, batch, selection.as_json(), batches.database_now(c)
        )
    )
    return [dict(row._mapping) for row in rows]


def _session(pipeline: Pipeline, master: str) -> "SparkSession":
    from ledger.spark.session import build_session

    return build_session(f"ackledger {pipeline.name}", master)


def _run_batch(
    database: Database, settings: Settings, pipeline: Pipeline, batch: Batch, master: str
) -> dict[str, Any]:
    """Run the batch's steps with a progress line each, settle, and summarize."""
    from ledger.running import StepResult, run_steps, settle_and_follow
    from ledger.spark.job import Job

    started = time.monotonic()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        line = progress.add_task(f"batch {batch.batch_id}: starting Spark")

        def on_step(name: str, result: StepResult | None) -> None:
            progress.update(line, description=f"batch {batch.batch_id}: {name}")

        job = Job(_session(pipeline, master), database, settings, pipeline)
        run_steps(job, batch, on_step)
        progress.update(line, description=f"batch {batch.batch_id}: settling")
        settle_and_follow(job, batch.batch_id)
    return summary_of(summarize(database, batch.batch_id), time.monotonic() - started)


def summary_of(summary: Summary, seconds: float | None = None) -> dict[str, Any]:
    """What is printed of a batch."""
    made = {**asdict(summary), "complete": summary.complete}
    if seconds is not None:
        made["seconds"] = round(seconds, 2)
    if not summary.complete:
        made["advice"] = summary.incomplete_because()
    return made


def finish(summaries: list[dict[str, Any]], as_json: bool, *, single: bool = False) -> None:
    """Print what became of the batches; exit 3 if records failed, 1 if a batch is not settled."""
    if as_json:
        show(summaries[0] if single else summaries, True, tables.summary)
    else:
        for summary in summaries:
            out.print(tables.summary(summary))
    if any(not BatchStatus(summary["status"]).decided for summary in summaries):
        raise typer.Exit(1)
    if not all(summary["complete"] for summary in summaries):
        raise typer.Exit(INCOMPLETE)
