"""Statements about the intervals that a pipeline's batches read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text


def over(
    connection: Connection, pipeline: str, start: datetime, end: datetime
) -> Sequence[Row[Any]]:
    """The originals of a pipeline that read something of an interval and count: batch_id, run_id,
    dag_id, status, interval_start, interval_end, total, failed, quarantined; by start.
    """
    statement = text("""
        SELECT batch_id, run_id, dag_id, status::text AS status, interval_start, interval_end,
               total, failed, quarantined
        FROM batch_status
        WHERE pipeline = :pipeline AND kind = 'original'
          AND status NOT IN ('abandoned', 'superseded')
          AND interval_start < :end AND interval_end > :start
        ORDER BY interval_start, batch_id
    """)
    keys = {"pipeline": pipeline, "start": start, "end": end}
    return connection.execute(statement, keys).all()
