"""Commands that show, settle and accept batches: ``status``, ``sweep``, ``settle``, ``restart``,
``release``, ``accept``.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from ledger.batch.manual_actions import accept as accept_batch
from ledger.batch.manual_actions import release as release_batch
from ledger.batch.manual_actions import restart as restart_batch
from ledger.batch.outcome.readings import recent_batches, unpublished
from ledger.batch.outcome.summary import summarize
from ledger.batch.records.failures import holds_of
from ledger.batch.recovery import waiting_states
from ledger.batch.settlement import settle_once
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.cli import tables
from ledger.cli.base import (
    BATCH,
    BatchNumber,
    Json,
    PipelineName,
    app,
    err,
    example,
    in_user_words,
    out,
    show,
    user,
)
from ledger.cli.runs import print_summary, summary_of
from ledger.core.states import BatchStatus
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.upgrade import connect

_LOOK_AGAIN_SECONDS = 2.0


@app.command(epilog=example("status --pipeline flights", "status --batch 1", "status --watch"))
def status(
    pipeline: PipelineName = None,
    batch: BatchNumber = None,
    limit: Annotated[int, typer.Option(min=1, help="Batches listed at most.")] = 20,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until none of them is open, or Ctrl-C; on a terminal, in place. With"
            " --json print them once, at the end.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the latest batches, or show the steps of one."""
    database = connect(Settings())
    look = partial(_view_of, database, pipeline, batch, limit)
    view = _watch(look, Console(quiet=True) if as_json else out) if watch else look()
    if watch and not as_json:
        return
    if batch is not None and not as_json:
        print_summary(database, view.data)
    else:
        show(view.data, as_json, view.table)
    for sentence in view.waiting:
        err.print(sentence, style="yellow", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _View:
    """Batches as ``status`` shows them at one time. ``waiting``: a sentence for each state that
    batches wait for, and for each batch that is on hold or not published as a whole. ``open``:
    whether one of them is open.
    """

    data: Any
    table: Callable[[Any], RenderableType]
    waiting: Sequence[str]
    open: bool


def _view_of(database: Database, pipeline: str | None, batch: int | None, limit: int) -> _View:
    if batch is not None:
        summary = summarize(database, batch)
        is_open = summary.status is BatchStatus.OPEN
        return _View(summary_of(summary), tables.summary, (), is_open)
    rows = recent_batches(database, pipeline, limit)
    waiting = database.transact(lambda c: waiting_states(c, pipeline), engine=database.reader)
    waiting += unpublished(database, rows)
    waiting += holds_of(database, [row.batch_id for row in rows])
    is_open = any(row.status == BatchStatus.OPEN for row in rows)
    return _View([asdict(row) for row in rows], tables.batches, waiting, is_open)


def _watch(look: Callable[[], _View], console: Console) -> _View:
    """Refresh the view in place until no batch is open or the user interrupts; return the last."""
    view = look()
    with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            lines = (tables.line(sentence, "yellow") for sentence in view.waiting)
            live.update(Group(view.table(view.data), *lines), refresh=True)
            if not view.open:
                break
            sleep(_LOOK_AGAIN_SECONDS)
            view = look()
    return view


@app.command(epilog=example("sweep"))
def sweep(as_json: Json = False) -> None:
    """Settle what is due and fail what expired; safe at any time."""
    swept = sweep_once(connect(Settings()))
    settlements = [in_user_words(asdict(settlement)) for settlement in swept.settlements]
    show({**asdict(swept), "settlements": settlements}, as_json, tables.sweep)
    if swept.errors:
        raise typer.Exit(1)


@app.command(epilog=example("settle 7"))
def settle(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Decide one batch, if it is due; safe at any time.

    As the sweeper does, which leaves a batch open that "needs refinement" if it does not see its
    storage: run this where the storage is seen.
    """
    settled = settle_once(connect(Settings()), batch)
    assert settled is not None
    show(in_user_words(asdict(settled)), as_json, tables.released)
    if not settled.status.decided:
        raise typer.Exit(1)


@app.command(epilog=example("restart 7"))
def restart(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Run all steps of an open batch again, when it runs next.

    A batch whose step failed goes on at that step. Restart it if you fixed a step before that
    one, or what a source reads. It is on hold until its run begins again, and what its steps did
    before does not count. A driver that began before runs none of its steps any more.
    """
    advice = restart_batch(connect(Settings()), batch)
    facts = {"batch_id": batch, "status": BatchStatus.HELD.words, "next": str(advice)}
    show(facts, as_json, tables.fact_lines)


@app.command(epilog=example("release 7"))
def release(batch: Annotated[int, BATCH], as_json: Json = False) -> None:
    """Let a batch settle that is on hold for too many failures."""
    released = release_batch(connect(Settings()), batch)
    show(in_user_words(asdict(released)), as_json, tables.released)
    if released.status is not BatchStatus.SETTLED:
        raise typer.Exit(1)


@app.command(epilog=example("accept 12 --reason 'planes that were never registered'"))
def accept(
    batch: Annotated[int, BATCH],
    reason: Annotated[str, typer.Option(help="Why they may stay out; kept in the ledger.")],
    as_json: Json = False,
) -> None:
    """Accept quarantined records of a batch: it is then complete.

    Records whose replays are used up wait in quarantine for this. 'quarantine' gives failed
    records up before that, and accepts them at once. What is quarantined later, or again after a
    replay, is not accepted.
    """
    accepted = accept_batch(connect(Settings()), batch, by=user(), reason=reason)
    facts = asdict(accepted)
    show({**facts, "next": "; ".join(accepted.next) or None}, as_json, tables.fact_lines)
