"""Statements about combines, which run over all acked rows of a family once no record of their
sources is failed, and about partial ones, which run after each settlement.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, text


def is_last(connection: Connection, batch_id: int) -> bool:
    """Return whether a batch is the one of its family that was settled last, and no batch of it is
    undecided.
    """
    statement = text("""
        SELECT NOT EXISTS (
          SELECT FROM batch b JOIN batch f USING (family_id)
          WHERE b.batch_id = :id AND f.status = 'settled'
            AND (f.settled_at, f.batch_id) > (b.settled_at, b.batch_id))
    """)
    return bool(connection.execute(statement, {"id": batch_id}).scalar_one())


def committed_outputs(
    connection: Connection, original_id: int, step: str
) -> list[tuple[int, int | None]]:
    """Return the settled batches of a family, latest first, each with the committed run of a step,
    or null if the step was added later. Batches that expired without the step are left out, and
    of a family that is replayed as a whole all but the last.
    """
    statement = text("""
        SELECT b.batch_id, r.step_run_id FROM batch b
        LEFT JOIN step_run r ON r.batch_id = b.batch_id AND r.step = :step
          AND r.state = 'committed'
        WHERE b.status = 'settled' AND b.family_id = :original AND NOT is_outdated(b.batch_id)
          AND (r.step_run_id IS NOT NULL
               OR NOT EXISTS (
                 SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.name = :step))
        ORDER BY b.settled_at DESC, b.batch_id DESC
    """)
    rows = connection.execute(statement, {"original": original_id, "step": step})
    return [(row.batch_id, row.step_run_id) for row in rows]


def is_due(connection: Connection, batch_id: int, steps: Sequence[str]) -> bool:
    """Return whether one of these combines, or a sink of one, has yet to run in a batch."""
    statement = text("""
        SELECT EXISTS (SELECT FROM pending_follow_up
                       WHERE batch_id = :id AND follow_up = 'combine' AND step = ANY(:steps))
    """)
    keys = {"id": batch_id, "steps": list(steps)}
    return bool(connection.execute(statement, keys).scalar_one())
