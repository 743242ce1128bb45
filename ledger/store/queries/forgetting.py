"""Statements about records that are forgotten: what they contained, where a text may quote it, and
what holds it still."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

# Whether a sink shows rows of batch b.
_PUBLISHED = """
    EXISTS (SELECT FROM publication x WHERE x.batch_id = b.batch_id
            AND x.published_at IS NOT NULL AND x.replaced_at IS NULL)
"""


def undecided(connection: Connection, message_ids: Sequence[int]) -> list[int]:
    """Those of these messages that are failed or being replayed."""
    statement = text("""
        SELECT message_id FROM open_failure
        WHERE message_id = ANY (cast(:ids AS bigint[])) ORDER BY 1
    """)
    return list(connection.execute(statement, {"ids": list(message_ids)}).scalars())


def emits(connection: Connection, message_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """Where the records of these messages were read, by batch and source: family_id, batch_id,
    files_expired_at (of the batch), folder (of the run), and as ``payloads.missing``. Of each
    attempt, for a replay may have read them again.
    """
    statement = text("""
        WITH attempt AS (
          SELECT message_id, message_id AS root_id, original_batch_id AS batch_id
          FROM failed_message WHERE message_id = ANY (cast(:ids AS bigint[]))
          UNION
          SELECT message_id, root_id, batch_id FROM replay_root
          WHERE message_id = ANY (cast(:ids AS bigint[]))
        )
        SELECT b.family_id, b.batch_id, b.files_expired_at, r.folder, s.source, s.emit_run_id,
               s.first_root,
               array_agg(a.message_id ORDER BY a.root_id) AS messages,
               array_agg(a.root_id ORDER BY a.root_id) AS roots
        FROM attempt a
        JOIN batch b ON b.batch_id = a.batch_id
        JOIN batch_source s ON s.batch_id = a.batch_id AND a.root_id >= s.first_root
                           AND a.root_id < s.first_root + s.roots
        JOIN step_run r ON r.step_run_id = s.emit_run_id
        GROUP BY b.family_id, b.batch_id, b.files_expired_at, r.folder, s.source, s.emit_run_id,
                 s.first_root
        ORDER BY b.batch_id, s.source
    """)
    return connection.execute(statement, {"ids": list(message_ids)}).all()


def contents(connection: Connection, message_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """What the ledger keeps of the content of these messages: message_id, batch_id, root_id (of the
    first attempt that had it), key (JSON), content; nothing of what is forgotten."""
    statement = text("""
        SELECT message_id, batch_id, root_id, key::text AS key, content FROM failed_payload
        WHERE message_id = ANY (cast(:ids AS bigint[]))
    """)
    return connection.execute(statement, {"ids": list(message_ids)}).all()


def told_of(connection: Connection, message_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """The texts in which these messages may be quoted: family_id, told, shared (with others), and
    of what is told of one of them root_id (of the attempt), message_id, at_source (what did not
    parse). Of an attempt each text once, whoever else has told it."""
    statement = text("""
        WITH own AS (
          SELECT message_id, root_id, original_batch_id AS family_id FROM (
            SELECT m.message_id, r.root_id, m.original_batch_id
            FROM failed_message m JOIN failed_root r USING (message_id)
            UNION
            SELECT m.message_id, r.root_id, m.original_batch_id
            FROM failed_message m JOIN replay_root r USING (message_id)
            UNION
            SELECT m.message_id, m.message_id, m.original_batch_id FROM failed_message m
          ) a WHERE message_id = ANY (cast(:ids AS bigint[]))
        ), member AS MATERIALIZED (
          SELECT batch_id, family_id, held_reason, selection FROM batch
          WHERE family_id IN (SELECT family_id FROM own)
        )
        SELECT family_id, told, root_id, message_id, bool_or(at_source) AS at_source,
               bool_or(shared) AS shared
        FROM (
          SELECT o.family_id, r.reason AS told, o.root_id, o.message_id,
                 b.source IS NOT NULL AS at_source, r.shared
          FROM own o JOIN failed_root r USING (root_id)
          LEFT JOIN batch_source b ON b.batch_id = r.batch_id AND b.source = r.step
          UNION ALL
          SELECT o.family_id, f.reason, o.root_id, o.message_id, b.source IS NOT NULL, f.shared
          FROM own o
          JOIN member m USING (family_id)
          JOIN root_fail f ON f.batch_id = m.batch_id AND f.root_id = o.root_id
          JOIN step_run r ON r.step_run_id = f.step_run_id
          LEFT JOIN batch_source b ON b.batch_id = r.batch_id AND b.source = r.step
        ) owns GROUP BY 1, 2, 3, 4
        UNION
        SELECT family_id, told, NULL, NULL, false, true FROM (
          SELECT m.family_id, r.failure AS told FROM member m JOIN step_run r USING (batch_id)
          UNION
          SELECT m.family_id, d.reason
          FROM member m JOIN step_run r USING (batch_id) JOIN step_run_drop d USING (step_run_id)
          UNION SELECT family_id, held_reason FROM member
          UNION SELECT m.family_id, h.reason FROM member m JOIN hold_failure h USING (batch_id)
          UNION SELECT family_id, selection ->> 'reason' FROM member
          UNION SELECT a.batch_id, a.reason FROM acceptance a
          WHERE a.batch_id IN (SELECT family_id FROM own)
          UNION
          SELECT f.original_batch_id, q.reason
          FROM failed_message f JOIN manual_quarantine q USING (message_id)
          WHERE f.original_batch_id IN (SELECT family_id FROM own)
          UNION
          SELECT m.family_id, r.reason FROM member m JOIN failed_root r USING (batch_id)
          WHERE r.shared
          UNION
          SELECT m.family_id, r.reason FROM member m JOIN root_fail r USING (batch_id)
          WHERE r.shared
        ) others WHERE told IS NOT NULL
    """)
    return connection.execute(statement, {"ids": list(message_ids)}).all()


def forget(
    connection: Connection, message_ids: Sequence[int], texts: Sequence[Mapping[str, Any]]
) -> int:
    """Remove what decided records contain, and what texts quote of it; of how many. ``texts``: by
    family_id, and root_id of what is told of one of them: told, masked."""
    statement = text("SELECT forget_records(cast(:ids AS bigint[]), cast(:texts AS jsonb))")
    keys = {"ids": list(message_ids), "texts": json.dumps(texts)}
    return int(connection.execute(statement, keys).scalar_one())


def holding(connection: Connection, message_ids: Sequence[int]) -> Sequence[Row[Any]]:
    """The batches of these records' families: batch_id, pipeline, keep_seconds, files and bytes
    that their runs committed and that are not removed, published (whether a sink shows rows of it).
    """
    statement = text(f"""
        SELECT b.batch_id, p.name AS pipeline, p.keep_seconds,
               coalesce(sum(w.files), 0)::bigint AS files,
               coalesce(sum(w.bytes), 0)::bigint AS bytes,
               {_PUBLISHED} AS published
        FROM batch b
        JOIN pipeline p USING (pipeline_id)
        LEFT JOIN step_run r ON r.batch_id = b.batch_id AND r.files_removed_at IS NULL
        LEFT JOIN LATERAL (
          SELECT count(*) AS files, sum(t.bytes) AS bytes FROM step_run_file t
          WHERE t.step_run_id = r.step_run_id) AS w ON true
        WHERE b.family_id IN (
          SELECT original_batch_id FROM failed_message
          WHERE message_id = ANY (cast(:ids AS bigint[])))
        GROUP BY b.batch_id, p.name, p.keep_seconds ORDER BY b.batch_id
    """)
    return connection.execute(statement, {"ids": list(message_ids)}).all()


def run_folders(connection: Connection, pipeline: str | None) -> Sequence[Row[Any]]:
    """The folders of runs whose files are not removed: step_run_id, batch_id, pipeline,
    keep_seconds, folder, published (whether a sink shows rows of the batch)."""
    statement = text(f"""
        SELECT r.step_run_id, r.batch_id, p.name AS pipeline, p.keep_seconds, r.folder,
               {_PUBLISHED} AS published
        FROM step_run r JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
        WHERE r.folder IS NOT NULL AND r.files_removed_at IS NULL
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
        ORDER BY r.batch_id, r.step_run_id
    """)
    return connection.execute(statement, {"pipeline": pipeline}).all()
