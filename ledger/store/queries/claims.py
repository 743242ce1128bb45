"""Statements about what batches claim of sources: intervals, files, cursor ranges, remainders
of snapshots.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text


def pending_roots(
    connection: Connection, pipeline_id: int, source: str, excluding_batch_id: int | None
) -> Row[Any]:
    """Roots of a source that undecided batches, without ``excluding_batch_id``, have emitted or may
    emit, and messages that replays have claimed: roots, batches (their numbers), held (of those,
    which are).
    """
    statement = text("""
        SELECT coalesce(sum(coalesce(s.roots, s.quota, (
                 SELECT count(*) FROM failed_message m
                 WHERE m.replay_batch_id = b.batch_id AND m.status = 'replaying'
                   AND m.source = s.source))), 0) AS roots,
               array_agg(b.batch_id ORDER BY b.batch_id) AS batches,
               array_agg(b.batch_id ORDER BY b.batch_id) FILTER (WHERE b.status = 'held') AS held
        FROM batch_source s JOIN batch b USING (batch_id)
        WHERE s.pipeline_id = :pipeline_id AND s.source = :source AND b.status IN ('open', 'held')
          AND b.batch_id IS DISTINCT FROM :excluding_batch_id
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "excluding_batch_id": excluding_batch_id}
    return connection.execute(statement, keys).one()


def claimed_sources(
    connection: Connection, pipeline: str, start: datetime, end: datetime
) -> set[str]:
    """Sources of a pipeline of which a batch has claimed this interval."""
    statement = text("""
        SELECT DISTINCT s.source FROM batch_source s JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND s.claimed AND s.interval_start = :start
          AND s.interval_end = :end
    """)
    keys = {"pipeline": pipeline, "start": start, "end": end}
    return set(connection.execute(statement, keys).scalars())


def snapshots_with_remainder(
    connection: Connection, pipeline_id: int, source: str
) -> Sequence[Row[Any]]:
    """Settled batches whose snapshot of a source holds more than was claimed of it, oldest
    first: batch_id, status, roots, remainder. An open one may yet read its source again.
    """
    statement = text("""
        SELECT s.batch_id, b.status, s.roots, s.remainder
        FROM batch_source s JOIN batch b USING (batch_id)
        WHERE s.pipeline_id = :pipeline_id AND s.source = :source AND s.remainder > 0
          AND b.status = 'settled'
          AND s.remainder > (SELECT coalesce(sum(coalesce(r.roots, r.quota)), 0) FROM batch_source r
                        WHERE r.remainder_of_batch_id = s.batch_id AND r.source = s.source)
        ORDER BY s.batch_id
    """)
    return connection.execute(statement, {"pipeline_id": pipeline_id, "source": source}).all()


def claimed_remainders(connection: Connection, batch_id: int, source: str) -> list[tuple[int, int]]:
    """Ranges of positions in a batch's snapshot that other batches have claimed: start, end."""
    statement = text("""
        SELECT first_position AS start, first_position + coalesce(roots, quota, 0) AS stop
        FROM batch_source WHERE remainder_of_batch_id = :id AND source = :source ORDER BY 1
    """)
    found = connection.execute(statement, {"id": batch_id, "source": source})
    return [(row.start, row.stop) for row in found]


def cursor_claims(connection: Connection, pipeline_id: int, source: str) -> Sequence[Row[Any]]:
    """Ranges of a table's cursor that are claimed: claimed_after, claimed_upto (text)."""
    statement = text("""
        SELECT claimed_after, claimed_upto FROM batch_source
        WHERE pipeline_id = :pipeline_id AND source = :source AND claimed_upto IS NOT NULL
    """)
    return connection.execute(statement, {"pipeline_id": pipeline_id, "source": source}).all()


def claimed_files(
    connection: Connection, pipeline: str, source: str, paths: Sequence[str]
) -> Sequence[Row[Any]]:
    """Claims of files with these paths, each path's newest last: path, bytes, modified_at,
    digest.
    """
    statement = text("""
        SELECT f.path, f.bytes, f.modified_at, f.digest FROM claimed_file f
        JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND f.source = :source AND f.path = ANY (cast(:paths AS text[]))
        ORDER BY f.path, f.claimed_at
    """)
    keys = {"pipeline": pipeline, "source": source, "paths": list(paths)}
    return connection.execute(statement, keys).all()


def files_of(connection: Connection, batch_id: int, source: str) -> Sequence[Row[Any]]:
    """Files that a batch has claimed of a source, by path: path, bytes, modified_at, digest."""
    statement = text("""
        SELECT path, bytes, modified_at, digest FROM claimed_file
        WHERE batch_id = :id AND source = :source ORDER BY path
    """)
    return connection.execute(statement, {"id": batch_id, "source": source}).all()


def insert_files(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Claim files."""
    if rows:
        statement = text("""
            INSERT INTO claimed_file (pipeline_id, source, path, bytes, modified_at, digest,
                                      batch_id)
            SELECT pipeline_id, source, path, bytes, modified_at, digest, batch_id
            FROM jsonb_populate_recordset(NULL::claimed_file, cast(:rows AS jsonb))
        """)
        connection.execute(statement, {"rows": json.dumps(rows, default=datetime.isoformat)})


def release(connection: Connection, batch_id: int) -> None:
    """Give back everything that a batch has claimed."""
    keys = {"id": batch_id}
    connection.execute(text("SELECT release_files(:id)"), keys)
    connection.execute(
        text("""
        UPDATE batch_source
        SET claimed = false, quota = NULL, remainder = NULL, remainder_of_batch_id = NULL,
            first_position = NULL, claimed_after = NULL, claimed_upto = NULL
        WHERE batch_id = :id
        """),
        keys,
    )


def update_source(connection: Connection, values: Mapping[str, Any]) -> None:
    """What a batch that is opened again claims of one source."""
    connection.execute(
        text("""
        UPDATE batch_source SET claimed = :claimed, quota = :quota,
               remainder_of_batch_id = :remainder_of_batch_id, first_position = :first_position,
               claimed_after = :claimed_after, claimed_upto = :claimed_upto
        WHERE batch_id = :batch_id AND source = :source
        """),
        dict(values),
    )


def unread(connection: Connection, batch_id: int) -> int:
    """Records of a batch's interval that no batch has emitted yet: of its own snapshots and of
    those whose remainders it emits. What an incremental source left belongs to no interval.
    """
    statement = text("""
        SELECT coalesce(sum(h.remainder - coalesce((
            SELECT sum(r.roots) FROM batch_source r
            WHERE r.remainder_of_batch_id = h.batch_id AND r.source = h.source), 0)), 0)
        FROM batch_source h
        WHERE h.remainder > 0 AND h.claimed AND (h.batch_id, h.source) IN (
          SELECT coalesce(s.remainder_of_batch_id, s.batch_id), s.source FROM batch_source s
          WHERE s.batch_id = :id)
    """)
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def unread_intervals(connection: Connection, before: datetime) -> Sequence[Row[Any]]:
    """The last batch of each interval in parts of which something is left and nobody reads on,
    if it was settled before a moment: batch_id, dag_id.
    """
    statement = text("""
        WITH part AS (
          SELECT h.batch_id AS interval_owner, h.source, h.remainder, b.batch_id, b.dag_id,
                 b.status, b.settled_at,
                 CASE WHEN s.remainder_of_batch_id IS NOT NULL THEN coalesce(s.roots, s.quota, 0)
                   ELSE 0 END AS taken
          FROM batch_source h
          JOIN batch o ON o.batch_id = h.batch_id AND o.followed_at IS NULL
            AND o.status <> 'abandoned'
          JOIN batch_source s ON s.source = h.source
            AND h.batch_id IN (s.batch_id, s.remainder_of_batch_id)
          JOIN batch b ON b.batch_id = s.batch_id
          WHERE h.claimed AND h.remainder > 0
        )
        SELECT DISTINCT last.batch_id, last.dag_id
        FROM (SELECT interval_owner, source FROM part GROUP BY interval_owner, source, remainder
              HAVING remainder > sum(taken)
                AND bool_and(status = 'settled' AND settled_at < :before)) AS left_over
        CROSS JOIN LATERAL (
          SELECT batch_id, dag_id FROM part
          WHERE part.interval_owner = left_over.interval_owner AND dag_id <> ''
          ORDER BY batch_id DESC LIMIT 1
        ) AS last
    """)
    return connection.execute(statement, {"before": before}).all()


def abandoned_runs(connection: Connection, dag_id: str, run_id: str) -> int:
    """How many batches of a run, and of those that took it up under ``<run_id>__<n>``, are
    abandoned.
    """
    statement = text("""
        SELECT count(*) FROM batch
        WHERE dag_id = :dag_id AND status = 'abandoned'
          AND (run_id = :run_id OR starts_with(run_id, :run_id || '__'))
    """)
    return int(connection.execute(statement, {"dag_id": dag_id, "run_id": run_id}).scalar_one())
