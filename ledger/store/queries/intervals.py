"""Statements about the intervals that a pipeline's batches read."""

from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.reports import Counts
from ledger.store.queries.rows import all_of


def over(connection: Connection, pipeline: str, start: datetime, end: datetime) -> list[Counts]:
    """The originals of a pipeline that read something of an interval and count, by start."""
    statement = text("""
        SELECT * FROM batch_status
        WHERE pipeline = :pipeline AND kind = 'original'
          AND status NOT IN ('abandoned', 'superseded')
          AND interval_start < :end AND interval_end > :start
        ORDER BY interval_start, batch_id
    """)
    keys = {"pipeline": pipeline, "start": start, "end": end}
    return all_of(Counts, connection.execute(statement, keys))
