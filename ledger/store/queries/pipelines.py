"""Statements about pipelines: their policies, as batches are opened with them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

DURATIONS = ("message_timeout", "max_batch_age", "replay_backoff", "replay_backoff_cap", "keep")
POLICY = (
    *DURATIONS,
    "max_replays",
    "hold_above",
    "allow_failed",
    "replay_limit",
    "auto_replay",
    "redact",
)
_COLUMNS = ", ".join((*POLICY, "target"))
_VALUES = ", ".join(f":{name}" for name in (*POLICY, "target"))
_BEFORE = ", ".join(f"p.{name}" for name in (*POLICY, "target"))
_AFTER = ", ".join(
    [*(f"excluded.{name}" for name in POLICY), "coalesce(excluded.target, p.target)"]
)
_SAVE = f"""
INSERT INTO pipeline AS p (name, {_COLUMNS}) VALUES (:name, {_VALUES})
ON CONFLICT (name) DO UPDATE SET ({_COLUMNS}) = ROW ({_AFTER})
WHERE ({_BEFORE}) IS DISTINCT FROM ({_AFTER})
RETURNING pipeline_id, (  -- as it was before
  SELECT o.auto_replay FROM pipeline o WHERE o.name = :name) AS was_automatic
"""
# Batches b of a pipeline, of a batch's family, or all.
BATCHES = """
    FROM batch b JOIN pipeline p USING (pipeline_id)
    WHERE (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
      AND (cast(:batch_id AS bigint) IS NULL OR b.family_id =
        (SELECT o.family_id FROM batch o WHERE o.batch_id = :batch_id))
"""


def save(connection: Connection, policy: Mapping[str, Any]) -> int:
    """Insert the pipeline, or update its policy if that has changed, and return its number. Locks
    its row in any case, so that opens wait for each other. ``policy``: name, target, and all of
    ``POLICY``, of which ``DURATIONS`` are timedeltas.
    """
    before = lock(connection, policy["name"])
    changed = connection.execute(text(_SAVE), dict(policy)).first()
    if changed is None:
        pipeline_id = before or lock(connection, policy["name"])  # another has just inserted it
        assert pipeline_id is not None
        return pipeline_id
    if policy["auto_replay"] and changed.was_automatic is False:
        _look_again(connection, changed.pipeline_id)
    return int(changed.pipeline_id)


def find(connection: Connection, name: str) -> int | None:
    """Return the number of a pipeline; None before its first batch."""
    statement = text("SELECT pipeline_id FROM pipeline WHERE name = :name")
    pipeline_id = connection.execute(statement, {"name": name}).scalar()
    return None if pipeline_id is None else int(pipeline_id)


def lock(connection: Connection, name: str) -> int | None:
    """Return the number of a pipeline, or None, as ``find`` does, and lock its row for the
    transaction, as every opening of a batch does.
    """
    statement = text("SELECT pipeline_id FROM pipeline WHERE name = :name FOR NO KEY UPDATE")
    pipeline_id = connection.execute(statement, {"name": name}).scalar()
    return None if pipeline_id is None else int(pipeline_id)


def _look_again(connection: Connection, pipeline_id: int) -> None:
    """Let the sweeper look again at a pipeline's originals with failed records, which it may replay
    now. They are locked in order.
    """
    locked = text("""
        SELECT o.batch_id FROM batch o
        WHERE o.pipeline_id = :id AND o.followed_at IS NOT NULL AND EXISTS (
          SELECT FROM failed_message m
          WHERE m.original_batch_id = o.batch_id AND m.status = 'failed')
        ORDER BY 1 FOR NO KEY UPDATE
    """)
    originals = list(connection.execute(locked, {"id": pipeline_id}).scalars())
    statement = text("UPDATE batch SET followed_at = NULL WHERE batch_id = ANY(:ids)")
    connection.execute(statement, {"ids": originals})


def names(connection: Connection) -> list[str]:
    """Return all pipelines."""
    return list(connection.execute(text("SELECT name FROM pipeline ORDER BY 1")).scalars())


def steps(connection: Connection, scope: Mapping[str, Any], kind: str | None = None) -> list[str]:
    """Return the steps that batches have had, by name. ``scope``: the pipeline and the batch_id of
    these batches, of which None means any. ``kind``: only steps of this kind.
    """
    statement = text(f"""
        SELECT DISTINCT s.name FROM batch_step s
        WHERE s.batch_id IN (SELECT b.batch_id {BATCHES})
          AND (cast(:kind AS text) IS NULL OR s.kind = :kind) ORDER BY 1
    """)
    return list(connection.execute(statement, {**scope, "kind": kind}).scalars())
