"""Statements about what sinks delivered earlier, and the filters kept of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from ledger.store.queries.batches import Batch

_DELIVERY = """
SELECT r.step_run_id, b.batch_id, b.kind, i.input_run_id, f.key, f.capacity, f.error_rate,
       f.entries, f.filter
FROM step_run r
JOIN batch b USING (batch_id)
JOIN step_run_input i USING (step_run_id)
LEFT JOIN dedup_filter f USING (step_run_id)
WHERE r.state = 'committed' AND b.status = 'settled' AND r.stage = :sink AND b.batch_id <> :batch_id
  AND NOT EXISTS (
    SELECT FROM batch n LEFT JOIN batch_source p ON p.rest_of_batch_id = n.replaces_batch_id
    WHERE n.batch_id = :batch_id AND b.family_id IN (n.replaces_batch_id, p.batch_id))
"""


def family_deliveries(
    connection: Connection, sink: str, batch_id: int, original_id: int
) -> Sequence[Row[Any]]:
    """Committed runs of the sink in the settled batches of a family, oldest first, with input
    run and filter. By run: a batch that was abandoned and opened again came later than its
    number says.
    """
    statement = text(_DELIVERY + "AND b.family_id = :original ORDER BY r.step_run_id")
    keys = {"sink": sink, "batch_id": batch_id, "original": original_id}
    return connection.execute(statement, keys).all()


def pipeline_deliveries(
    connection: Connection, sink: str, batch_id: int, pipeline_id: int, limit: int | None
) -> Sequence[Row[Any]]:
    """Committed runs of the sink in the pipeline's settled batches, latest first, at most
    ``limit``.
    """
    statement = text(
        _DELIVERY + "AND b.pipeline_id = :pipeline_id ORDER BY b.batch_id DESC LIMIT :limit"
    )
    keys = {"sink": sink, "batch_id": batch_id, "pipeline_id": pipeline_id, "limit": limit}
    return connection.execute(statement, keys).all()


def void_deliveries(connection: Connection, sink: str, batch: Batch) -> Sequence[Row[Any]]:
    """Other decided batches that no committed run of the sink stands behind: settled ones of the
    batch's family, and abandoned ones of it or of its interval: batch_id, status. They had a
    sink of this name.

    What they show was brought by a run that was superseded, or died before it committed: this
    batch, or a later one, brings each of its records again.
    """
    statement = text("""
        SELECT b.batch_id, b.status FROM batch b
        WHERE b.batch_id <> :id AND b.pipeline_id = :pipeline
          AND ((b.family_id = :original AND b.status IN ('settled', 'abandoned')
                OR b.status = 'abandoned' AND b.interval_start = :start AND b.interval_end = :end)
               AND NOT EXISTS (SELECT FROM step_run r
                               WHERE r.batch_id = b.batch_id AND r.stage = :sink
                                 AND r.state = 'committed')
               AND EXISTS (
                 SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.name = :sink))
    """)
    keys = {
        "original": batch.original_id,
        "id": batch.batch_id,
        "pipeline": batch.pipeline_id,
        "start": batch.interval_start,
        "end": batch.interval_end,
        "sink": sink,
    }
    return connection.execute(statement, keys).all()


def family_batches(connection: Connection, original_id: int) -> list[int]:
    """An original batch, the further parts of its interval, and all their replays."""
    statement = text("""
        SELECT batch_id FROM batch WHERE family_id IN (
          SELECT :id UNION SELECT batch_id FROM batch_source WHERE rest_of_batch_id = :id)
            ORDER BY 1
    """)
    return [row.batch_id for row in connection.execute(statement, {"id": original_id})]


def note_replaced(connection: Connection, batch_id: int, sink: str, paths: Sequence[str]) -> None:
    """The folders that a sink's run of a batch replaces; they go once the batch is settled."""
    keys = {"batch": batch_id, "sink": sink}
    connection.execute(
        text("DELETE FROM replaced_folder WHERE batch_id = :batch AND sink = :sink"), keys
    )
    for path in paths:
        connection.execute(
            text(
                "INSERT INTO replaced_folder (batch_id, sink, path) VALUES (:batch, :sink, :path)"
            ),
            {**keys, "path": path},
        )


def note_own_folders(connection: Connection, batch_id: int) -> None:
    """The folders that the sinks of a batch show, by their committed runs: it is given up, they
    go.
    """
    connection.execute(
        text("""
        INSERT INTO replaced_folder (batch_id, sink, path)
        SELECT DISTINCT r.batch_id, r.stage,
               regexp_replace(f.path, '(/batch=' || r.batch_id || ')/.*', '\\1')
        FROM step_run r JOIN step_run_file f USING (step_run_id)
        JOIN batch_step s ON s.batch_id = r.batch_id AND s.name = r.stage
        WHERE r.batch_id = :id AND r.state = 'committed' AND s.kind = 'sink'
        ON CONFLICT DO NOTHING
        """),
        {"id": batch_id},
    )


def replaced_folders(connection: Connection, batch_id: int | None) -> Sequence[Row[Any]]:
    """Folders to be removed, of one batch or of all: batch_id, path. Those that a settled batch has
    replaced, if the sink's run still counts, and an abandoned one's own."""
    statement = text("""
        SELECT f.batch_id, f.path FROM replaced_folder f JOIN batch b USING (batch_id)
        WHERE (cast(:id AS bigint) IS NULL OR f.batch_id = :id)
          AND (b.status = 'abandoned' OR b.status IN ('settled', 'superseded') AND EXISTS (
            SELECT FROM step_run r
            WHERE r.batch_id = f.batch_id AND r.stage = f.sink AND r.state = 'committed'))
        ORDER BY 1, 2
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def forget_replaced(connection: Connection, batch_id: int, path: str | None = None) -> None:
    """Forget a folder that was removed, or all that a batch was about to replace."""
    connection.execute(
        text("""
        DELETE FROM replaced_folder
        WHERE batch_id = :id AND (cast(:path AS text) IS NULL OR path = :path)
        """),
        {"id": batch_id, "path": path},
    )


def messages_of_roots(connection: Connection, batch_id: int) -> Sequence[Row[Any]]:
    """Of a replay batch: root_id and message_id of every root of its committed emits."""
    statement = text("""
        SELECT r.root_id, r.message_id FROM replay_root r
        JOIN batch_source s ON s.batch_id = r.batch_id AND s.emit_run_id = r.step_run_id
        WHERE r.batch_id = :id
    """)
    return connection.execute(statement, {"id": batch_id}).all()


def insert_filter(connection: Connection, values: Mapping[str, Any]) -> None:
    """Keep the filter of a sink's run."""
    connection.execute(
        text("""
        INSERT INTO dedup_filter (step_run_id, key, capacity, error_rate, entries, filter)
        VALUES (:run, :key, :capacity, :error_rate, :entries, :filter)
        """),
        dict(values),
    )
