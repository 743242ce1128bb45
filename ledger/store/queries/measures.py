"""Statements behind metrics, notifications and lineage: what the ledger has open, what it has
lost, and what the steps of a batch have read and written.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text


def backlog(connection: Connection) -> Sequence[Row[Any]]:
    """For each pipeline: open_batches, held_batches, pending_records; oldest_pending_seconds, the
    age of its oldest undecided batch; age_ratio, the greatest age of an open batch as a share of
    the pipeline's greatest; 0 where there is none.
    """
    statement = text("""
        SELECT p.name AS pipeline,
               count(*) FILTER (WHERE b.status = 'open') AS open_batches,
               count(*) FILTER (WHERE b.status = 'held') AS held_batches,
               coalesce(sum(s.roots), 0)::bigint AS pending_records,
               coalesce(max(a.seconds), 0)::float AS oldest_pending_seconds,
               coalesce(max(a.seconds / p.max_batch_age_seconds) FILTER (WHERE b.status = 'open'),
                        0)::float AS age_ratio
        FROM pipeline p
        LEFT JOIN batch b ON b.pipeline_id = p.pipeline_id AND b.status IN ('open', 'held')
        LEFT JOIN LATERAL (
          SELECT sum(roots) AS roots FROM batch_source WHERE batch_id = b.batch_id
        ) s ON true
        LEFT JOIN LATERAL (
          SELECT extract(epoch FROM clock_timestamp() - b.opened_at)::float AS seconds
        ) a ON true
        GROUP BY p.name ORDER BY p.name
    """)
    return connection.execute(statement).all()


def lost_records(connection: Connection) -> Sequence[Row[Any]]:
    """For each pipeline: failed_records, failed or being replayed; quarantined_records, that nobody
    has accepted. Those of a batch that another one replaced are its business.
    """
    statement = text("""
        WITH lost AS (
          SELECT original_batch_id AS batch_id,
                 count(*) FILTER (WHERE status <> 'quarantined') AS failed,
                 count(*) FILTER (WHERE status = 'quarantined') AS quarantined
          FROM failed_message WHERE status IN ('failed', 'replaying', 'quarantined')
          GROUP BY original_batch_id
        ), accepted AS (
          SELECT m.original_batch_id AS batch_id, count(*) AS records
          FROM accepted_root a
          JOIN failed_root r USING (root_id)
          JOIN failed_message m ON m.message_id = r.message_id AND m.root_id = a.root_id
                               AND m.status = 'quarantined'
          GROUP BY m.original_batch_id
        )
        SELECT p.name AS pipeline, coalesce(sum(l.failed), 0)::bigint AS failed_records,
               coalesce(sum(l.quarantined - coalesce(a.records, 0)), 0)::bigint
                 AS quarantined_records
        FROM pipeline p
        LEFT JOIN (
          lost l JOIN batch b ON b.batch_id = l.batch_id AND b.status <> 'superseded'
          LEFT JOIN accepted a ON a.batch_id = l.batch_id
        ) ON b.pipeline_id = p.pipeline_id
        GROUP BY p.name ORDER BY p.name
    """)
    return connection.execute(statement).all()


def overdue_batches(connection: Connection, batch_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """For each pipeline: overdue_batches, how many of these batches are its own."""
    statement = text("""
        SELECT p.name AS pipeline, count(b.batch_id) AS overdue_batches
        FROM pipeline p
        LEFT JOIN batch b ON b.pipeline_id = p.pipeline_id
                         AND b.batch_id = ANY(cast(:ids AS bigint[]))
        GROUP BY p.name ORDER BY p.name
    """)
    return connection.execute(statement, {"ids": list(batch_ids)}).all()


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


def rows_of_steps(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """The newest run of each step of a batch, in order: step, kind, step_run_id, input_rows,
    output_rows, dropped_rows, failed_rows, and path, what a source has read.
    """
    statement = text("""
        SELECT p.step, p.kind, p.step_run_id, p.input_rows, p.output_rows, p.failed_rows, s.path,
               coalesce(d.records, 0)::bigint AS dropped_rows
        FROM step_progress p
        LEFT JOIN batch_source s ON s.batch_id = p.batch_id AND s.source = p.step
        LEFT JOIN LATERAL (
          SELECT sum(records) AS records FROM step_run_drop WHERE step_run_id = p.step_run_id
        ) d ON true
        WHERE p.batch_id = :id ORDER BY p.number
    """)
    return connection.execute(statement, {"id": batch_id}).all()
