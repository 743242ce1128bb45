"""Statements about records that are forgotten: their content, and the files and sinks that still
hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of

# Whether a sink shows rows of batch b.
_PUBLISHED = """
    EXISTS (SELECT FROM publication x WHERE x.batch_id = b.batch_id
            AND x.published_at IS NOT NULL AND x.replaced_at IS NULL)
"""


@dataclass(frozen=True)
class Holding:
    """A batch whose files may still hold the records. Files that its runs read in place are not
    counted.

    ``keep_seconds``: ``keep`` of its pipeline; None: files are kept permanently.
    ``published``: whether a sink has published rows of it, which ackledger does not remove.
    """

    batch_id: int
    pipeline: str
    files: int
    bytes: int
    keep_seconds: float | None
    published: bool


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run whose files are not removed. Other fields are those of ``Holding``."""

    step_run_id: int
    folder: str
    batch_id: int
    pipeline: str
    keep_seconds: float | None
    published: bool


def undecided(connection: Connection, message_ids: Sequence[int]) -> list[int]:
    """Return those of these messages that are failed or being replayed."""
    statement = text("""
        SELECT message_id FROM open_failure
        WHERE message_id = ANY (cast(:ids AS bigint[])) ORDER BY 1
    """)
    return list(connection.execute(statement, {"ids": list(message_ids)}).scalars())


def forget(connection: Connection, message_ids: Sequence[int]) -> int:
    """Remove the content of decided records, and the texts that may quote it, and return for how
    many records.
    """
    statement = text("SELECT forget_records(cast(:ids AS bigint[]))")
    return int(connection.execute(statement, {"ids": list(message_ids)}).scalar_one())


def holding(connection: Connection, message_ids: Sequence[int]) -> list[Holding]:
    """Return the batches of these records' families that have files which their runs committed and
    that are not removed, or whose rows a sink shows.
    """
    statement = text(f"""
        SELECT b.batch_id, p.name AS pipeline, extract(epoch FROM p.keep)::float AS keep_seconds,
               coalesce(sum(w.files), 0)::bigint AS files,
               coalesce(sum(w.bytes), 0)::bigint AS bytes,
               {_PUBLISHED} AS published
        FROM batch b
        JOIN pipeline p USING (pipeline_id)
        LEFT JOIN step_run r ON r.batch_id = b.batch_id AND r.files_removed_at IS NULL
        LEFT JOIN LATERAL (
          SELECT count(*) AS files, sum(t.bytes) AS bytes FROM step_run_file t
          WHERE t.step_run_id = r.step_run_id
            AND starts_with(t.path, r.folder || '/')) AS w ON true
        WHERE b.family_id IN (
          SELECT original_batch_id FROM failed_message
          WHERE message_id = ANY (cast(:ids AS bigint[])))
        GROUP BY b.batch_id, p.name, p.keep ORDER BY b.batch_id
    """)
    rows = all_of(Holding, connection.execute(statement, {"ids": list(message_ids)}))
    return [row for row in rows if row.files or row.published]


def run_folders(connection: Connection, pipeline: str | None) -> list[RunFolder]:
    """Return the folders of runs whose files are not removed."""
    statement = text(f"""
        SELECT r.step_run_id, r.batch_id, p.name AS pipeline,
               extract(epoch FROM p.keep)::float AS keep_seconds, r.folder,
               {_PUBLISHED} AS published
        FROM step_run r JOIN batch b USING (batch_id) JOIN pipeline p USING (pipeline_id)
        WHERE r.folder IS NOT NULL AND r.files_removed_at IS NULL
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
        ORDER BY r.batch_id, r.step_run_id
    """)
    return all_of(RunFolder, connection.execute(statement, {"pipeline": pipeline}))
