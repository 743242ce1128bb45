"""Statements that keep years of history out of a sweep's way: which decided batches have nothing
pending of what follows their settlement.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from ledger.store.queries.batches import any_to_follow
from ledger.store.queries.combines import COMBINES_DUE

_AT_ONCE = 1_000  # batches that one sweep notes at most

# The decided batches d of which nothing is pending, nor becomes pending unless a record of their
# family changes: then ``look_again``.
_DONE = f"""
d.followed_at IS NULL AND d.status IN ('settled', 'superseded')
AND NOT EXISTS (SELECT FROM pending_publication x WHERE x.batch_id = d.batch_id)
AND NOT EXISTS (SELECT FROM pending_rebuild f WHERE f.batch_id = d.batch_id)
AND NOT EXISTS (SELECT FROM payload_missing m WHERE m.batch_id = d.batch_id)
AND NOT EXISTS (
  SELECT FROM batch_source s JOIN batch_step t ON t.batch_id = s.batch_id AND t.name = s.source
  WHERE s.batch_id = d.batch_id AND s.notified_at IS NULL AND t.notice)
AND NOT EXISTS (SELECT {COMBINES_DUE} AND b.batch_id = d.batch_id)
AND NOT EXISTS (
  SELECT FROM failed_message m JOIN pipeline p ON p.pipeline_id = d.pipeline_id
  WHERE m.original_batch_id = d.batch_id AND m.status = 'failed' AND p.auto_replay
    AND (m.not_before IS NULL OR m.not_before < 'infinity'))
AND (d.status = 'superseded' OR NOT EXISTS (
  SELECT FROM batch_step s
  WHERE s.batch_id = d.batch_id AND s.kind = 'stateful' AND NOT EXISTS (
    SELECT FROM checkpoint c
    WHERE c.pipeline_id = d.pipeline_id AND c.batch_id = d.batch_id AND c.step = s.name)))
"""


def done(connection: Connection) -> list[int]:
    """Decided batches of which nothing is pending and that no sweep has noted as such, the
    first of them.
    """
    if not any_to_follow(connection):
        return []
    statement = text(f"SELECT d.batch_id FROM batch d WHERE {_DONE} ORDER BY 1 LIMIT {_AT_ONCE}")
    return list(connection.execute(statement).scalars())


def lock(connection: Connection, batch_ids: Sequence[int]) -> list[int]:
    """Lock these batches, their originals and, against another policy, their pipelines for the
    transaction, those that no other transaction holds; which.
    """
    statement = text("""
        SELECT b.batch_id FROM batch b JOIN batch o ON o.batch_id = b.family_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        WHERE b.batch_id = ANY(:ids) ORDER BY 1
        FOR NO KEY UPDATE OF b, o SKIP LOCKED FOR SHARE OF p SKIP LOCKED
    """)
    return list(connection.execute(statement, {"ids": list(batch_ids)}).scalars())


def note(connection: Connection, batch_ids: Sequence[int]) -> None:
    """Note which of these batches have nothing pending. They are locked by a statement before: what
    another process changed of them meanwhile is seen.
    """
    statement = text(f"""
        UPDATE batch d SET followed_at = now() WHERE d.batch_id = ANY(:ids) AND {_DONE}
    """)
    connection.execute(statement, {"ids": list(batch_ids)})


def look_again(connection: Connection, family_id: int) -> None:
    """Records of a family change: what follows is rechecked, in all its batches."""
    statement = text("""
        UPDATE batch SET followed_at = NULL WHERE family_id = :id AND followed_at IS NOT NULL
    """)
    connection.execute(statement, {"id": family_id})
