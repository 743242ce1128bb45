"""Statements about follow-ups of a settlement: the pending ones of a batch, as the view
``pending_follow_up`` has them, and decided batches with nothing pending, which sweeps need not look
at again.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.batches import any_to_follow

_AT_ONCE = 1_000  # batches that one sweep notes at most

# The decided batches d of which nothing is pending, nor becomes pending unless a record of their
# family changes: then ``look_again``. The view is asked of each by itself: an anti join would read
# all of it.
_DONE = """
d.followed_at IS NULL AND d.status IN ('settled', 'superseded')
AND (SELECT true FROM pending_follow_up f WHERE f.batch_id = d.batch_id LIMIT 1) IS NULL
"""


def pending(connection: Connection, batch_id: int, follow_ups: Sequence[str]) -> dict[str, int]:
    """Return, for each of these follow-ups that is pending in a batch, in how many steps it is."""
    statement = text("""
        SELECT follow_up, count(*) AS steps FROM pending_follow_up
        WHERE batch_id = :id AND follow_up = ANY(:follow_ups) GROUP BY 1
    """)
    keys = {"id": batch_id, "follow_ups": list(follow_ups)}
    return {row.follow_up: row.steps for row in connection.execute(statement, keys)}


def waiting(
    connection: Connection,
    pipeline: str,
    follow_ups: Sequence[str],
    *,
    batch_id: int | None = None,
    steps: Sequence[str] | None = None,
) -> list[int]:
    """Return batches of a pipeline with one of these follow-ups pending. ``batch_id``: only batches
    of its family. ``steps``: only if it is pending in one of these steps.
    """
    statement = text("""
        SELECT DISTINCT batch_id FROM pending_follow_up
        WHERE pipeline = :pipeline AND follow_up = ANY(:follow_ups)
          AND (cast(:id AS bigint) IS NULL
               OR family_id = (SELECT family_id FROM batch WHERE batch_id = :id))
          AND (cast(:steps AS text[]) IS NULL OR step = ANY(:steps))
        ORDER BY 1
    """)
    keys = {
        "pipeline": pipeline,
        "follow_ups": list(follow_ups),
        "id": batch_id,
        "steps": None if steps is None else list(steps),
    }
    return list(connection.execute(statement, keys).scalars())


def combine_is_due(connection: Connection, batch_id: int, steps: Sequence[str]) -> bool:
    """Return whether one of these combines, or a sink of one, has yet to run in a batch."""
    statement = text("""
        SELECT EXISTS (SELECT FROM pending_follow_up
                       WHERE batch_id = :id AND follow_up = 'combine' AND step = ANY(:steps))
    """)
    keys = {"id": batch_id, "steps": list(steps)}
    return bool(connection.execute(statement, keys).scalar_one())


def overdue(connection: Connection, before: datetime) -> list[int]:
    """Return the batches with a DAG of which a follow-up has been pending since before a time."""
    if not any_to_follow(connection):
        return []
    statement = text("""
        SELECT DISTINCT batch_id FROM pending_follow_up
        WHERE since < :before AND dag_id <> '' ORDER BY 1
    """)
    return list(connection.execute(statement, {"before": before}).scalars())


def done(connection: Connection) -> list[int]:
    """Return the first of the decided batches that have nothing pending and that no sweep has noted
    as such.
    """
    if not any_to_follow(connection):
        return []
    statement = text(f"SELECT d.batch_id FROM batch d WHERE {_DONE} ORDER BY 1 LIMIT {_AT_ONCE}")
    return list(connection.execute(statement).scalars())


def lock(connection: Connection, batch_ids: Sequence[int]) -> list[int]:
    """Lock these batches, their originals and, against a change of their policy, their pipelines
    for the transaction, without those that another transaction holds. Return the batches that are
    locked.
    """
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN batch o ON o.batch_id = b.family_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        WHERE b.batch_id = ANY(:ids) ORDER BY 1
        FOR NO KEY UPDATE OF b, o SKIP LOCKED FOR SHARE OF p SKIP LOCKED
    """)
    return list(connection.execute(statement, {"ids": list(batch_ids)}).scalars())


def note(connection: Connection, batch_ids: Sequence[int]) -> None:
    """Note which of these batches have nothing pending. They have to be locked by an earlier
    statement, so that changes that another process has made meanwhile are seen.
    """
    statement = text(f"""
        UPDATE batch d SET followed_at = now() WHERE d.batch_id = ANY(:ids) AND {_DONE}
    """)
    connection.execute(statement, {"ids": list(batch_ids)})


def look_again(connection: Connection, family_id: int) -> None:
    """Let sweeps look at all batches of a family again, because its records change."""
    statement = text("""
        UPDATE batch SET followed_at = NULL WHERE family_id = :id AND followed_at IS NOT NULL
    """)
    connection.execute(statement, {"id": family_id})
