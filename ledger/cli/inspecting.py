"""Commands that ask the ledger: ``status``, ``sql``."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from ledger.batch.outcome.readings import recent_batches, unpublished
from ledger.batch.outcome.summary import summarize
from ledger.batch.records.failures import holds_of
from ledger.batch.recovery import waiting_states
from ledger.cli import tables
from ledger.cli.base import BatchNumber, Json, PipelineName, app, err, example, out, show
from ledger.cli.running import print_summary, summary_of
from ledger.core.states import BatchStatus
from ledger.settings import Settings
from ledger.store.asking import answer
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
    look = partial(_look, database, pipeline, batch, limit)
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
    """Batches, or one, as they are now. ``waiting``: a sentence for each state that batches wait
    for, and for each batch that is on hold or not published as a whole. ``open``: whether one of
    them is under way.
    """

    data: Any
    table: Callable[[Any], RenderableType]
    waiting: Sequence[str]
    open: bool


def _look(database: Database, pipeline: str | None, batch: int | None, limit: int) -> _View:
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
    """Refresh the view in place, until no batch is open or the user interrupts; the last one."""
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


@app.command(epilog=example("sql 'SELECT * FROM batch_status ORDER BY batch_id'"))
def sql(
    query: Annotated[str, typer.Argument(help="One query, in quotes.")], as_json: Json = False
) -> None:
    """Query the ledger in SQL, by a login that can only read."""
    show(answer(connect(Settings()), query), as_json, tables.rows)
