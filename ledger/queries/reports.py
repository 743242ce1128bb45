"""Statements behind the command line's tables; they read the documented views."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from ledger.errors import NotReadyError


def batch_counts(connection: Connection, batch_id: int) -> Row[Any]:
    """One batch's row of ``batch_status``. Raises NotReadyError if there is none."""
    statement = text("SELECT * FROM batch_status WHERE batch_id = :id")
    found = connection.execute(statement, {"id": batch_id}).first()
    if found is None:
        raise NotReadyError(f"batch {batch_id} is not in the ledger: see 'ackledger status'")
    return found


def recent_batches(connection: Connection, pipeline: str | None, limit: int) -> Sequence[Row[Any]]:
    """The latest batches of ``batch_status``, newest first."""
    statement = text("""
        SELECT * FROM batch_status WHERE cast(:pipeline AS text) IS NULL OR pipeline = :pipeline
        ORDER BY batch_id DESC LIMIT :limit
    """)
    return connection.execute(statement, {"pipeline": pipeline, "limit": limit}).all()


def failures(
    connection: Connection, pipeline: str | None, batch_id: int | None
) -> Sequence[Row[Any]]:
    """Failed messages by original batch, stage, reason and status of their last attempt, with an example root."""
    statement = text("""
        SELECT m.original_batch_id AS batch_id, f.pipeline, f.stage, f.reason, m.status,
               count(*) AS messages, min(f.root_id) AS example_root
        FROM failed_message m JOIN failed_root_detail f ON f.root_id = m.root_id
        WHERE m.status <> 'recovered'
          AND (cast(:pipeline AS text) IS NULL OR f.pipeline = :pipeline)
          AND (cast(:batch_id AS bigint) IS NULL OR :batch_id IN (m.original_batch_id, f.batch_id))
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 6 DESC, 3, 4
    """)
    return connection.execute(statement, {"pipeline": pipeline, "batch_id": batch_id}).all()


def failed_records(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """Records that failed in a batch: message_id, source, stage, reason, detail, status by now."""
    statement = text("""
        SELECT message_id, source, stage, reason, detail, status FROM failed_root_payload
        WHERE batch_id = :id ORDER BY message_id
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def family(connection: Connection, batch_id: int) -> list[int]:
    """The original that a batch belongs to, and all replays of it."""
    statement = text("""
        SELECT f.batch_id FROM batch b
        JOIN batch f ON coalesce(b.original_batch_id, b.batch_id) IN (f.batch_id, f.original_batch_id)
        WHERE b.batch_id = :id ORDER BY f.batch_id
    """)
    return [row.batch_id for row in connection.execute(statement, {"id": batch_id})]


def stage_table(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """The steps of a batch in order, from ``stage_progress``."""
    statement = text("SELECT * FROM stage_progress WHERE batch_id = :id ORDER BY step")
    return connection.execute(statement, {"id": batch_id}).all()
