"""Statements behind notifications: the batch of a run, and what batches have quarantined."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text


def batch_of_run(connection: Connection, dag_id: str, run_ids: Sequence[str]) -> int | None:
    """The newest batch that a run of a DAG has opened, under one of its ids; None: it has none."""
    statement = text("""
        SELECT max(batch_id) FROM batch
        WHERE dag_id = :dag_id AND run_id = ANY(cast(:run_ids AS text[]))
    """)
    keys = {"dag_id": dag_id, "run_ids": list(run_ids)}
    found: int | None = connection.execute(statement, keys).scalar_one()
    return found


def quarantined_by_batch(
    connection: Connection, pipeline_id: int, after: datetime, until: datetime
) -> dict[int, int]:
    """How many records each batch of a pipeline has quarantined that was decided between two
    moments, the first exclusive; without those that are accepted or taken up again by now.
    """
    statement = text("""
        SELECT b.batch_id, count(*) AS records
        FROM batch b
        JOIN failed_root r ON r.batch_id = b.batch_id
        JOIN failed_message m ON m.message_id = r.message_id AND m.root_id = r.root_id
                             AND m.status = 'quarantined'
        WHERE b.pipeline_id = :pipeline_id AND b.settled_at > :after AND b.settled_at <= :until
          AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = r.root_id)
        GROUP BY b.batch_id
    """)
    keys = {"pipeline_id": pipeline_id, "after": after, "until": until}
    return {row.batch_id: row.records for row in connection.execute(statement, keys)}
