"""Commands that ask the ledger: ``status``, ``sql``."""

from itertools import count
from typing import Any

from sqlalchemy import Row

from ledger.batch.recovery import waiting_states
from ledger.batch.summary import summarize
from ledger.cli import tables
from ledger.cli.base import BatchNumber, Json, PipelineName, app, err, example, show
from ledger.cli.running import summary_of
from ledger.settings import Settings
from ledger.store.queries import asking, reports
from ledger.store.upgrade import connect


@app.command(epilog=example("status --pipeline flights", "status --batch 1"))
def status(
    pipeline: PipelineName = None, batch: BatchNumber = None, limit: int = 20, as_json: Json = False
) -> None:
    """Show the latest batches, or the steps of one."""
    database = connect(Settings())
    if batch is not None:
        show(summary_of(summarize(database, batch)), as_json, tables.summary)
        return
    rows = database.transact(
        lambda c: reports.recent_batches(c, pipeline, limit), engine=database.reader
    )
    show([dict(row._mapping) for row in rows], as_json, tables.batches)
    for sentence in database.transact(
        lambda c: waiting_states(c, pipeline), engine=database.reader
    ):
        err.print(sentence, style="yellow", markup=False, highlight=False, soft_wrap=True)


@app.command(epilog=example("sql 'SELECT * FROM batch_status ORDER BY batch_id'"))
def sql(query: str, as_json: Json = False) -> None:
    """Ask the ledger in SQL: one query, by a login that can only read."""
    rows = asking.answer(connect(Settings()), query)
    show([_named(row) for row in rows], as_json, tables.rows)


def _named(row: Row[Any]) -> dict[str, Any]:
    """A row by its columns' names, of which a repeated one is numbered: count, count_2."""
    made: dict[str, Any] = {}
    for name, value in zip(row._fields, row, strict=True):
        numbered = (f"{name}_{number}" for number in count(2))
        made[name if name not in made else next(n for n in numbered if n not in made)] = value
    return made
