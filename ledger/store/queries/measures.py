"""Statements behind metrics and notifications: the open work and the lost records of the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of


@dataclass(frozen=True)
class Measures:
    """Open work and lost records of a pipeline; 0 where there is nothing.

    ``oldest_pending_seconds``: age of its oldest undecided batch.
    ``age_ratio``: the greatest age of an open batch, as a share of the pipeline's
    ``max_batch_age``.
    ``failed_records``: number of records that are failed or being replayed.
    ``quarantined_records``: number of quarantined records that are not accepted. Records of a batch
    that another one replaced are not counted.
    ``overdue_batches``: number of the pipeline's batches among the overdue ones.
    """

    pipeline: str
    open_batches: int
    held_batches: int
    pending_records: int
    oldest_pending_seconds: float
    age_ratio: float
    failed_records: int
    quarantined_records: int
    overdue_batches: int


def of_pipelines(connection: Connection, overdue: Sequence[int]) -> list[Measures]:
    """Return the measures of every pipeline, by name. ``overdue``: batches with overdue work."""
    statement = text("""
        WITH backlog AS (
          SELECT b.pipeline_id,
                 count(*) FILTER (WHERE b.status = 'open') AS open,
                 count(*) FILTER (WHERE b.status = 'held') AS held,
                 sum(s.roots) AS records,
                 max(a.seconds) AS oldest,
                 max(a.seconds / extract(epoch FROM p.max_batch_age)::float)
                   FILTER (WHERE b.status = 'open') AS ratio
          FROM batch b
          JOIN pipeline p USING (pipeline_id)
          LEFT JOIN LATERAL (
            SELECT sum(roots) AS roots FROM batch_source WHERE batch_id = b.batch_id
          ) s ON true
          CROSS JOIN LATERAL (
            SELECT extract(epoch FROM clock_timestamp() - b.opened_at)::float AS seconds
          ) a
          WHERE b.status IN ('open', 'held') GROUP BY b.pipeline_id
        ), failed AS (
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
        ), lost AS (
          SELECT b.pipeline_id, sum(f.failed) AS failed,
                 sum(f.quarantined - coalesce(a.records, 0)) AS quarantined
          FROM failed f JOIN batch b ON b.batch_id = f.batch_id AND b.status <> 'superseded'
          LEFT JOIN accepted a ON a.batch_id = f.batch_id GROUP BY b.pipeline_id
        ), overdue AS (
          SELECT pipeline_id, count(*) AS batches FROM batch
          WHERE batch_id = ANY (cast(:overdue AS bigint[])) GROUP BY pipeline_id
        )
        SELECT p.name AS pipeline, coalesce(o.open, 0) AS open_batches,
               coalesce(o.held, 0) AS held_batches,
               coalesce(o.records, 0)::bigint AS pending_records,
               coalesce(o.oldest, 0)::float AS oldest_pending_seconds,
               coalesce(o.ratio, 0)::float AS age_ratio,
               coalesce(l.failed, 0)::bigint AS failed_records,
               coalesce(l.quarantined, 0)::bigint AS quarantined_records,
               coalesce(d.batches, 0) AS overdue_batches
        FROM pipeline p
        LEFT JOIN backlog o USING (pipeline_id)
        LEFT JOIN lost l USING (pipeline_id)
        LEFT JOIN overdue d USING (pipeline_id) ORDER BY p.name
    """)
    return all_of(Measures, connection.execute(statement, {"overdue": list(overdue)}))


def quarantined_by_batch(
    connection: Connection, pipeline_id: int, after: datetime, until: datetime
) -> dict[int, int]:
    """Return how many records each batch of a pipeline has quarantined, of batches decided after
    ``after`` and until ``until``. Records that are accepted or replayed by now are not counted.
    """
    statement = text("""
        SELECT b.batch_id, count(*) AS records
        FROM batch b CROSS JOIN LATERAL (
          SELECT m.root_id FROM failed_root r JOIN failed_message m USING (message_id, root_id)
          WHERE r.batch_id = b.batch_id AND m.status = 'quarantined' AND m.replay_batch_id IS NULL
          UNION ALL  -- a replay has left them out
          SELECT m.root_id FROM failed_message m
          WHERE m.replay_batch_id = b.batch_id AND m.status = 'quarantined') r
        WHERE b.pipeline_id = :pipeline_id AND b.settled_at > :after AND b.settled_at <= :until
          AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = r.root_id)
        GROUP BY b.batch_id
    """)
    keys = {"pipeline_id": pipeline_id, "after": after, "until": until}
    return {row.batch_id: row.records for row in connection.execute(statement, keys)}
