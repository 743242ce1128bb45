"""Commands that ask the ledger: ``status``, ``sql``."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from sqlalchemy import Row

from ledger.batch.failures import holds_of
from ledger.batch.filters import require_pipeline
from ledger.batch.recovery import waiting_states
from ledger.batch.summary import summarize
from ledger.cli import tables
from ledger.cli.base import BatchNumber, Json, PipelineName, app, err, example, out, show
from ledger.cli.running import print_summary, summary_of
from ledger.core.states import BatchStatus
from ledger.errors import InputError
from ledger.settings import Settings
from ledger.store.connection import Database
from ledger.store.queries import asking, reports
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
            help="Refresh until none of them is open, or Ctrl-C; on a terminal, in place.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the latest batches, or show the steps of one."""
    if watch and as_json:
        raise InputError("expected --watch or --json, found both: a program asks again by itself")
    database = connect(Settings())
    look = partial(_look, database, pipeline, batch, limit)
    if watch:
        _watch(look)
        return
    found = look()
    if batch is not None and not as_json:
        print_summary(database, found.data)
    else:
        show(found.data, as_json, found.table)
    for sentence in found.waiting:
        err.print(sentence, style="yellow", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _Found:
    """Batches, or one, as they are now. ``waiting``: a sentence for each state that batches wait
    for. ``open``: whether one of them is under way.
    """

    data: Any
    table: Callable[[Any], RenderableType]
    waiting: Sequence[str]
    open: bool


def _look(database: Database, pipeline: str | None, batch: int | None, limit: int) -> _Found:
    if batch is not None:
        found = summarize(database, batch)
        is_open = found.status is BatchStatus.OPEN
        return _Found(summary_of(found), tables.summary, (), is_open)
    rows = database.transact(
        lambda c: reports.recent_batches(c, pipeline, limit), engine=database.reader
    )
    if not rows and pipeline is not None:
        database.transact(lambda c: require_pipeline(c, pipeline), engine=database.reader)
    waiting = database.transact(lambda c: waiting_states(c, pipeline), engine=database.reader)
    waiting += holds_of(database, [row.batch_id for row in rows])
    is_open = any(row.status == BatchStatus.OPEN for row in rows)
    return _Found([dict(row._mapping) for row in rows], tables.batches, waiting, is_open)


def _watch(look: Callable[[], _Found]) -> None:
    """Show in place what there is, until nothing is under way or somebody has seen enough."""
    with Live(console=out, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            found = look()
            told = (tables.line(sentence, "yellow") for sentence in found.waiting)
            live.update(Group(found.table(found.data), *told), refresh=True)
            if not found.open:
                return
            sleep(_LOOK_AGAIN_SECONDS)


@app.command(epilog=example("sql 'SELECT * FROM batch_status ORDER BY batch_id'"))
def sql(
    query: Annotated[str, typer.Argument(help="One query, in quotes.")], as_json: Json = False
) -> None:
    """Query the ledger in SQL, by a login that can only read."""
    rows = asking.answer(connect(Settings()), query)
    show([_named(row) for row in rows], as_json, tables.rows)


def _named(row: Row[Any]) -> dict[str, Any]:
    """A row by its columns' names, of which a repeated one is numbered: count, count_2."""
    made: dict[str, Any] = {}
    for name, value in zip(row._fields, row, strict=True):
        numbered = (f"{name}_{number}" for number in count(2))
        made[name if name not in made else next(n for n in numbered if n not in made)] = value
    return made
