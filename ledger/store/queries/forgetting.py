"""Statements about records that are forgotten: what they contained, and what holds it still."""

from collections.abc import Sequence
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


def forget(connection: Connection, message_ids: Sequence[int]) -> int:
    """Remove what decided records contain, and the texts that may quote it; of how many."""
    statement = text("SELECT forget_records(cast(:ids AS bigint[]))")
    return int(connection.execute(statement, {"ids": list(message_ids)}).scalar_one())


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
