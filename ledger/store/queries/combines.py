"""Statements about combines: what runs over all acked rows of a family, once none of it is
failed any more, and partial ones after each settlement.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from ledger.store.queries.batches import any_to_follow

# What is yet to be run, s, in a settled batch b, the last of its family: a combine, once nothing of
# the family is failed and no units of it are to be rebuilt, or at once if it is partial; a sink of
# a combine that has run.
COMBINES_DUE = """
FROM batch b JOIN batch_step s USING (batch_id)
WHERE b.status = 'settled' AND s.after AND NOT s.stateful
  AND NOT EXISTS (SELECT FROM batch l WHERE l.family_id = b.family_id AND l.status = 'settled'
                  AND (l.settled_at, l.batch_id) > (b.settled_at, b.batch_id))
  AND NOT EXISTS (SELECT FROM step_run r WHERE r.batch_id = s.batch_id AND r.step = s.name
                  AND r.state = 'committed')
  AND CASE
    WHEN s.kind = 'sink' THEN EXISTS (
      SELECT FROM step_run r WHERE r.batch_id = s.batch_id AND s.declaration -> 'reads' ? r.step
        AND r.state = 'committed')
    ELSE s.partial
      OR NOT EXISTS (SELECT FROM open_failure m WHERE m.original_batch_id = b.family_id)
      AND NOT EXISTS (SELECT FROM pending_rebuild f WHERE f.family_id = b.family_id)
  END
"""
# A reason why the family of an original f is kept: combines read it.
COMBINE_DUE = f"""
  EXISTS (SELECT {COMBINES_DUE} AND b.family_id = f.batch_id)
"""


def is_last(connection: Connection, batch_id: int) -> bool:
    """Whether a batch is the one of its family that was settled last, and none of it is under
    way.
    """
    statement = text("""
        SELECT NOT EXISTS (
          SELECT FROM batch b JOIN batch f USING (family_id)
          WHERE b.batch_id = :id AND f.status = 'settled'
            AND (f.settled_at, f.batch_id) > (b.settled_at, b.batch_id))
    """)
    return bool(connection.execute(statement, {"id": batch_id}).scalar_one())


def committed_outputs(connection: Connection, original_id: int, step: str) -> Sequence[Row[Any]]:
    """The settled batches of a family, latest first, with the committed run of a step: batch_id,
    step_run_id, null where it was added later; not those that expired without it.
    """
    statement = text("""
        SELECT b.batch_id, r.step_run_id FROM batch b
        LEFT JOIN step_run r ON r.batch_id = b.batch_id AND r.step = :step
          AND r.state = 'committed'
        WHERE b.status = 'settled' AND b.family_id = :original
          AND (r.step_run_id IS NOT NULL
               OR NOT EXISTS (
                 SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.name = :step))
        ORDER BY b.settled_at DESC, b.batch_id DESC
    """)
    return connection.execute(statement, {"original": original_id, "step": step}).all()


def combine_overdue(connection: Connection, before: datetime) -> list[int]:
    """Batches of a DAG, settled before a time, in which a combine, or a sink of one, is yet to
    run."""
    if not any_to_follow(connection):
        return []
    statement = text(f"""
        SELECT DISTINCT b.batch_id {COMBINES_DUE}
          AND b.followed_at IS NULL AND b.settled_at < :before AND b.dag_id <> ''
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"before": before}).scalars())


def combine_is_due(connection: Connection, batch_id: int) -> bool:
    """Whether a combine, or a sink of one, is yet to run in a batch."""
    statement = text(f"SELECT EXISTS (SELECT {COMBINES_DUE} AND b.batch_id = :id)")
    return bool(connection.execute(statement, {"id": batch_id}).scalar_one())


def is_due(connection: Connection, batch_id: int, steps: Sequence[str]) -> bool:
    """Whether one of these combines, and sinks of one, is yet to run in a batch."""
    statement = text(f"""
        SELECT EXISTS (SELECT {COMBINES_DUE} AND b.batch_id = :id AND s.name = ANY(:steps))
    """)
    keys = {"id": batch_id, "steps": list(steps)}
    return bool(connection.execute(statement, keys).scalar_one())


def waiting(connection: Connection, pipeline: str, batch_id: int | None) -> list[int]:
    """Batches of a pipeline, or the one, in which a combine, or a sink of one, is yet to run."""
    statement = text(f"""
        SELECT DISTINCT b.batch_id {COMBINES_DUE}
          AND b.pipeline_id = (SELECT pipeline_id FROM pipeline WHERE name = :pipeline)
          AND (cast(:id AS bigint) IS NULL OR b.batch_id = :id)
        ORDER BY 1
    """)
    rows = connection.execute(statement, {"pipeline": pipeline, "id": batch_id})
    return [row.batch_id for row in rows]
