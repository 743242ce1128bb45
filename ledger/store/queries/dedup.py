"""Statements about what sinks delivered earlier, and the filters kept of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from ledger.core.declarations import SHORTEST_KEEP_SECONDS
from ledger.store.queries.rows import all_of

# A reason why the family of an original f is kept: a sink compares new rows with its rows. Outside
# the window are those with so many newer originals, and one more, for a batch that replaces another
# is not compared with that one. A sink that runs has chosen when it began; what settled up to a day
# before may have been committed after that, unseen by it.
DEDUP_WINDOW = f"""
  f.status = 'settled' AND EXISTS (
    SELECT FROM batch_step t
    WHERE t.dedup_window IS NOT NULL
      AND t.batch_id IN (
        SELECT max(l.batch_id) FROM batch l WHERE l.pipeline_id = f.pipeline_id
        UNION SELECT o.batch_id FROM batch o
        WHERE o.pipeline_id = f.pipeline_id AND o.status IN ('open', 'held'))
      AND (t.dedup_window < 0 OR t.dedup_window >= (
        SELECT count(*) FROM (
          SELECT FROM batch n
          WHERE n.pipeline_id = f.pipeline_id AND n.kind = 'original' AND n.status = 'settled'
            AND n.settled_at < coalesce((
              SELECT min(r.opened_at) - make_interval(secs => {SHORTEST_KEEP_SECONDS})
              FROM step_run r JOIN batch o USING (batch_id)
              WHERE r.state = 'running' AND r.step = t.name AND o.pipeline_id = f.pipeline_id),
              'infinity')
            AND n.batch_id > (SELECT max(m.batch_id) FROM batch m WHERE m.family_id = f.batch_id)
            AND EXISTS (SELECT FROM step_run r WHERE r.batch_id = n.batch_id AND r.step = t.name
                        AND r.state = 'committed')
          LIMIT greatest(t.dedup_window, 0) + 1) AS newer)))
"""


@dataclass(frozen=True)
class EarlierDelivery:
    """A committed run of a sink in a settled batch, with its input run and its filter, if any."""

    step_run_id: int
    batch_id: int
    kind: str
    input_run_id: int
    key: Sequence[str] | None
    capacity: int | None
    error_rate: float | None
    entries: int
    filter: memoryview


_DELIVERY = """
SELECT r.step_run_id, b.batch_id, b.kind, i.input_run_id, f.key, f.capacity, f.error_rate,
       coalesce(f.entries, 0) AS entries, coalesce(f.filter, '') AS filter
FROM step_run r
JOIN batch b USING (batch_id)
JOIN step_run_input i USING (step_run_id)
LEFT JOIN dedup_filter f USING (step_run_id)
WHERE r.state = 'committed' AND b.status = 'settled' AND b.files_expired_at IS NULL
  AND r.step = :sink AND b.batch_id <> :batch_id
  AND NOT EXISTS (
    SELECT FROM batch n WHERE n.batch_id = :batch_id AND b.family_id = n.replaces_batch_id)
"""


def family_deliveries(
    connection: Connection, sink: str, batch_id: int, original_id: int
) -> list[EarlierDelivery]:
    """Return committed runs of the sink in the settled batches of a family, oldest first. The order
    is that of the runs, because an abandoned batch that was opened again came later than its number
    suggests.
    """
    statement = text(_DELIVERY + "AND b.family_id = :original ORDER BY r.step_run_id")
    keys = {"sink": sink, "batch_id": batch_id, "original": original_id}
    return all_of(EarlierDelivery, connection.execute(statement, keys))


def pipeline_deliveries(
    connection: Connection, sink: str, batch_id: int, pipeline_id: int, limit: int | None
) -> list[EarlierDelivery]:
    """Return committed runs of the sink in the pipeline's settled batches, latest first, at most
    ``limit``. Retention keeps their files, unless the window was smaller when it ran.
    """
    statement = text(
        _DELIVERY + "AND b.pipeline_id = :pipeline_id ORDER BY b.batch_id DESC LIMIT :limit"
    )
    keys = {"sink": sink, "batch_id": batch_id, "pipeline_id": pipeline_id, "limit": limit}
    return all_of(EarlierDelivery, connection.execute(statement, keys))


def messages_of_roots(connection: Connection, batch_id: int) -> dict[int, int]:
    """Return the message of every root of a replay batch's committed emits, by root."""
    statement = text("""
        SELECT r.root_id, r.message_id FROM replay_root r
        JOIN batch_source s ON s.batch_id = r.batch_id AND s.emit_run_id = r.step_run_id
        WHERE r.batch_id = :id
    """)
    return {row.root_id: row.message_id for row in connection.execute(statement, {"id": batch_id})}


def insert_filter(connection: Connection, values: Mapping[str, Any]) -> None:
    """Keep the filter of a sink's run."""
    statement = text("""
        INSERT INTO dedup_filter (step_run_id, key, capacity, error_rate, entries, filter)
        VALUES (:run, :key, :capacity, :error_rate, :entries, :filter)
    """)
    connection.execute(statement, dict(values))
