"""Statements about claims of batches on sources: intervals, files, ranges between offsets."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.store.queries.rows import T, all_of, first_of, one_of


@dataclass(frozen=True)
class PendingRecords:
    """Records of a source that are pending.

    ``records``: number of records that undecided batches have emitted or claimed.
    ``held_records``: number of those that belong to batches on hold.
    ``batches``: numbers of all these batches.
    ``held``: numbers of those that are on hold.
    ``unread``: numbers of originals that have yet to read a claim whose number of records is not
    known.
    """

    records: int = 0
    held_records: int = 0
    batches: Sequence[int] = ()
    held: Sequence[int] = ()
    unread: Sequence[int] = ()


NOTHING = PendingRecords()


@dataclass(frozen=True)
class NextRange:
    """The next range of a source.

    ``number``, ``start``: always known.
    ``end``, ``records``: those of a range that an abandoned batch, ``released_by``, has claimed.
    Without such a batch the end is open.
    """

    number: int = 1
    start: Any = None
    end: Any = None
    records: int | None = None
    released_by: int | None = None


def pending(
    connection: Connection, pipeline_id: int | None, source: str, excluding_batch_id: int | None
) -> PendingRecords:
    """Return the pending records of a source, without those of ``excluding_batch_id``; nothing for
    a pipeline without a number, which has no batch yet.
    """
    statement = text("""
        SELECT coalesce(sum(n.records), 0)::bigint AS records,
               coalesce(sum(n.records) FILTER (WHERE b.status = 'held'), 0)::bigint AS held_records,
               array_agg(b.batch_id ORDER BY b.batch_id) AS batches,
               array_agg(b.batch_id ORDER BY b.batch_id) FILTER (WHERE b.status = 'held') AS held,
               array_agg(b.batch_id ORDER BY b.batch_id)
                 FILTER (WHERE coalesce(s.roots, s.claim_records) IS NULL
                           AND b.kind = 'original') AS unread
        FROM batch_source s JOIN batch b USING (batch_id)
        CROSS JOIN LATERAL (
          SELECT coalesce(s.roots, s.claim_records, (
            SELECT count(*) FROM failed_message m
            WHERE m.replay_batch_id = b.batch_id AND m.status = 'replaying'
              AND m.source = s.source)) AS records
        ) n
        WHERE s.pipeline_id = :pipeline_id AND s.source = :source AND b.status IN ('open', 'held')
          AND b.batch_id IS DISTINCT FROM :excluding_batch_id
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "excluding_batch_id": excluding_batch_id}
    row = connection.execute(statement, keys).one()
    return PendingRecords(
        row.records, row.held_records, row.batches or (), row.held or (), row.unread or ()
    )


def next_range(
    connection: Connection, pipeline_id: int | None, source: str, batch_id: int | None
) -> NextRange:
    """Return the range that a batch takes next: the one that it has claimed itself, before it was
    abandoned; else the first that another abandoned batch has claimed; else what follows the last.
    """
    released = text("""
        SELECT s.claim_number AS number, s.claim_start AS start, s.claim_end AS "end",
               s.claim_records AS records, s.batch_id AS released_by
        FROM batch_source s JOIN batch b USING (batch_id)
        WHERE s.pipeline_id = :pipeline_id AND s.source = :source AND s.claim_number IS NOT NULL
          AND b.status = 'abandoned'
        ORDER BY s.batch_id IS NOT DISTINCT FROM :batch_id DESC, s.claim_number LIMIT 1
    """)
    last = text("""
        SELECT claim_number + 1 AS number, claim_end AS start FROM batch_source
        WHERE pipeline_id = :pipeline_id AND source = :source AND claim_number IS NOT NULL
        ORDER BY claim_number DESC LIMIT 1
    """)
    keys = {"pipeline_id": pipeline_id, "source": source}
    free = first_of(NextRange, connection.execute(released, {**keys, "batch_id": batch_id}))
    return free or first_of(NextRange, connection.execute(last, keys)) or NextRange()


def is_claimed_end(connection: Connection, pipeline_id: int, source: str, end: Any) -> bool:
    """Return whether a range of the source ends at an offset."""
    statement = text("""
        SELECT EXISTS (
          SELECT FROM batch_source WHERE pipeline_id = :pipeline_id AND source = :source
            AND claim_number IS NOT NULL AND claim_end = cast(:end AS jsonb))
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "end": json.dumps(end)}
    return bool(connection.execute(statement, keys).scalar_one())


def clear_range(connection: Connection, batch_id: int, source: str, number: int) -> bool:
    """Take a range from the abandoned batch that claimed it, as it now belongs to another batch;
    return False if that batch has no range of this number, or is not abandoned.
    """
    statement = text("""
        UPDATE batch_source s SET claim_number = NULL, claim_start = NULL, claim_end = NULL,
               claim_records = NULL
        FROM batch b
        WHERE b.batch_id = s.batch_id AND b.status = 'abandoned'
          AND s.batch_id = :id AND s.source = :source AND s.claim_number = :number
        """)
    keys = {"id": batch_id, "source": source, "number": number}
    return connection.execute(statement, keys).rowcount == 1


def of_source(connection: Connection, kind: Callable[..., T], batch_id: int, source: str) -> T:
    """Return a batch's claim on a source, without the files: path, start, end, number, records."""
    statement = text("""
        SELECT path, claim_start AS start, claim_end AS "end", claim_number AS number,
               claim_records AS records
        FROM batch_source WHERE batch_id = :id AND source = :source
    """)
    keys = {"id": batch_id, "source": source}
    return one_of(kind, connection.execute(statement, keys))


def claimed_files(
    connection: Connection,
    kind: Callable[..., T],
    pipeline_id: int | None,
    source: str,
    paths: Sequence[str],
) -> list[T]:
    """Return claims of these paths, each path's newest last: path, bytes, modified_at, digest."""
    statement = text("""
        SELECT path, bytes, modified_at, digest FROM claimed_file
        WHERE pipeline_id = :pipeline_id AND source = :source
          AND path = ANY (cast(:paths AS text[]))
        ORDER BY path, claimed_at
    """)
    keys = {"pipeline_id": pipeline_id, "source": source, "paths": list(paths)}
    return all_of(kind, connection.execute(statement, keys))


def files_of(connection: Connection, kind: Callable[..., T], batch_id: int, source: str) -> list[T]:
    """Return the files of a source that a batch has claimed, ordered by path.

    ``kind``: called with each file's path, bytes, modified_at and digest.
    """
    statement = text("""
        SELECT path, bytes, modified_at, digest FROM claimed_file
        WHERE batch_id = :id AND source = :source ORDER BY path
    """)
    return all_of(kind, connection.execute(statement, {"id": batch_id, "source": source}))


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
    """Give back the claims of an abandoned batch. Its ranges stay in its rows until another batch
    takes them, or the batch is opened again.
    """
    keys = {"id": batch_id}
    connection.execute(text("SELECT release_files(:id)"), keys)
    connection.execute(text("UPDATE batch_source SET claimed = false WHERE batch_id = :id"), keys)


def uncommitted(connection: Connection, pipeline: str, source: str) -> dict[int, Any]:
    """Return ranges of a source that are committed as a whole, with all before them, and of which
    it was not notified: their batches are settled, and published by the sinks. In order: the batch,
    and the end of its range.
    """
    statement = text("""
        SELECT batch_id, claim_end FROM (
          SELECT s.batch_id, s.claim_number, s.claim_end, bool_and(
                   b.status IN ('settled', 'superseded')
                   AND NOT EXISTS (
                     SELECT FROM pending_follow_up f WHERE f.family_id = s.batch_id
                       AND f.follow_up = 'publish')
                   AND NOT (b.publish = 'complete' AND EXISTS (
                     SELECT FROM open_failure m WHERE m.original_batch_id = s.batch_id))
                 ) OVER (ORDER BY s.claim_number) AS is_whole
          FROM batch_source s JOIN pipeline p USING (pipeline_id) JOIN batch b USING (batch_id)
          WHERE p.name = :pipeline AND s.source = :source AND s.claim_number IS NOT NULL
            AND s.committed_at IS NULL
        ) r
        WHERE is_whole ORDER BY claim_number
    """)
    rows = connection.execute(statement, {"pipeline": pipeline, "source": source})
    return {row.batch_id: row.claim_end for row in rows}


def set_committed(connection: Connection, batch_id: int, source: str) -> None:
    """Note that the source was notified that the range of a batch is committed as a whole."""
    statement = text("""
        UPDATE batch_source SET committed_at = now()
        WHERE batch_id = :id AND source = :source AND committed_at IS NULL
    """)
    connection.execute(statement, {"id": batch_id, "source": source})
