"""Readings of the ledger as it is now, for commands, DAGs and pages."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ledger.batch.advice.sinks import of_sinks
from ledger.batch.records.filters import require_batch, require_pipeline
from ledger.core.states import BatchStatus
from ledger.store.connection import Database
from ledger.store.queries import measures, redactions, reports, sinks
from ledger.store.queries.batches import Batch
from ledger.store.queries.measures import Measures
from ledger.store.queries.reports import Counts, StepRows

__all__ = ["Batch", "Counts", "Measures", "StepRows"]


def get_batch(database: Database, batch_id: int, pipeline: str | None = None) -> Batch:
    """Return the batch of this number. Raises InputError if there is none, or if it is of another
    pipeline.
    """
    return database.transact(lambda c: require_batch(c, batch_id, pipeline))


def recent_batches(database: Database, pipeline: str | None, limit: int) -> list[Counts]:
    """Return the latest batches, newest first. Raises InputError for a pipeline without batches."""

    def look(connection: Connection) -> list[Counts]:
        rows = reports.recent_batches(connection, pipeline, limit)
        if not rows and pipeline is not None:
            require_pipeline(connection, pipeline)
        return rows

    return database.transact(look, engine=database.reader)


def unpublished(database: Database, rows: Sequence[Counts]) -> list[str]:
    """Return a sentence for each family among these batches that has unpublished rows, about its
    first such batch.
    """

    def look(connection: Connection) -> list[str]:
        sentences: dict[int, str] = {}
        for row in rows:
            family = row.original_batch_id or row.batch_id
            if row.status == BatchStatus.SETTLED and family not in sentences:
                advice = of_sinks(sinks.of_batch(connection, row.batch_id))
                if advice is not None:
                    sentences[family] = str(advice)
        return list(sentences.values())

    return database.transact(look, engine=database.reader)


def rows_of_steps(database: Database, batch_id: int) -> list[StepRows]:
    """Return how many rows the newest run of each step of a batch read and wrote, in order."""
    return database.transact(lambda c: reports.step_table(c, batch_id), engine=database.reader)


def measure(database: Database, overdue: Sequence[int]) -> list[Measures]:
    """Return the open, lost and overdue work of each pipeline. ``overdue``: the batches that a
    sweep has found overdue.
    """
    return database.transact(lambda c: measures.of_pipelines(c, overdue), engine=database.reader)


def redacted_columns(database: Database, pipeline: str) -> list[str]:
    """Return the columns that a pipeline redacts, by name."""
    redacts = database.transact(
        lambda c: redactions.columns_of(c, pipeline), engine=database.reader
    )
    return sorted(redacts.columns)
