"""Commands that ask the ledger: ``status``, ``sql``."""

from ledger.cli import tables
from ledger.cli.base import BatchNumber, Json, PipelineName, app, connect, show
from ledger.cli.running import summary_of
from ledger.queries import asking, reports
from ledger.settings import Settings
from ledger.summary import summarize


@app.command()
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


@app.command()
def sql(query: str, as_json: Json = False) -> None:
    """Ask the ledger in SQL: one query, by a login that can only read."""
    rows = asking.answer(connect(Settings()), query)
    show([dict(row._mapping) for row in rows], as_json, tables.rows)
