"""Statements about what batches claim of sources: intervals, files, cursor ranges."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text


@dataclass(frozen=True)
class PendingRecords:
    """Records of a source that are pending: ``records`` that undecided batches have emitted or, of
    replays, claimed, and ``held_records`` of these of batches on hold; the numbers of these
    ``batches``, and of those among them that are ``held`` or ``unread``: originals that have yet to
    read the source.
    """

    records: int
    held_records: int
    batches: Sequence[int]
    held: Sequence[int]
    unread: Sequence[int]


def pending(
    connection: Connection, pipeline_id: int, source: str, excluding_batch_id: int | None
) -> PendingRecords:
    """What is pending of a source, without ``excluding_batch_id``."""
    statement = text("""
        SELECT coalesce(sum(n.records), 0)::bigint AS records,
               coalesce(sum(n.records) FILTER (WHERE b.status = 'held'), 0)::bigint AS held_records,
               array_agg(b.batch_id ORDER BY b.batch_id) AS batches,
               array_agg(b.batch_id ORDER BY b.batch_id) FILTER (WHERE b.status = 'held') AS held,
               array_agg(b.batch_id ORDER BY b.batch_id)
                 FILTER (WHERE s.roots IS NULL AND b.kind = 'original') AS unread
        FROM batch_source s JOIN batch b USING (batch_id)
        CROSS JOIN LATERAL (
          SELECT coalesce(s.roots, (
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
        SET claimed = false, claimed_after = NULL, claimed_upto = NULL WHERE batch_id = :id
        """),
        keys,
    )


def update_source(connection: Connection, values: Mapping[str, Any]) -> None:
    """What a batch that is reopened claims of one source."""
    connection.execute(
        text("""
        UPDATE batch_source
        SET claimed = :claimed, claimed_after = :claimed_after, claimed_upto = :claimed_upto
        WHERE batch_id = :batch_id AND source = :source
        """),
        dict(values),
    )
