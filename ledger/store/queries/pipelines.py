"""Statements about pipelines: their policies, as batches are opened with them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, text

_SAVE = """
INSERT INTO pipeline AS p
  (name, message_timeout_seconds, max_batch_age_seconds, max_replays, max_failed_ratio,
   tolerate, replay_limit, replay_backoff_seconds, replay_backoff_cap_seconds,
   auto_replay, target, redact, keep_seconds)
VALUES
  (:name, :message_timeout_seconds, :max_batch_age_seconds, :max_replays, :max_failed_ratio,
   :tolerate, :replay_limit, :replay_backoff_seconds, :replay_backoff_cap_seconds,
   :auto_replay, :target, cast(:redact AS text[]), :keep_seconds)
ON CONFLICT (name) DO UPDATE SET
  message_timeout_seconds = excluded.message_timeout_seconds,
  max_batch_age_seconds = excluded.max_batch_age_seconds, max_replays = excluded.max_replays,
  max_failed_ratio = excluded.max_failed_ratio, tolerate = excluded.tolerate,
  replay_limit = excluded.replay_limit,
  replay_backoff_seconds = excluded.replay_backoff_seconds,
  replay_backoff_cap_seconds = excluded.replay_backoff_cap_seconds,
  auto_replay = excluded.auto_replay, target = coalesce(excluded.target, p.target),
  redact = excluded.redact, keep_seconds = excluded.keep_seconds
WHERE
  (p.message_timeout_seconds, p.max_batch_age_seconds, p.max_replays, p.max_failed_ratio,
   p.tolerate, p.replay_limit, p.replay_backoff_seconds,
   p.replay_backoff_cap_seconds, p.auto_replay, p.target, p.redact, p.keep_seconds)
  IS DISTINCT FROM
  (excluded.message_timeout_seconds, excluded.max_batch_age_seconds, excluded.max_replays,
   excluded.max_failed_ratio, excluded.tolerate, excluded.replay_limit,
   excluded.replay_backoff_seconds, excluded.replay_backoff_cap_seconds, excluded.auto_replay,
   coalesce(excluded.target, p.target), excluded.redact, excluded.keep_seconds)
RETURNING pipeline_id
"""


def save(connection: Connection, policy: Mapping[str, Any]) -> int:
    """Insert the pipeline, or update its policy where that has changed; locks its row in any case,
    so that opens wait for each other.
    """
    before = lock(connection, policy["name"])
    changed = connection.execute(text(_SAVE), dict(policy)).scalar()
    if changed is None:
        row = before or lock(connection, policy["name"])  # another process has just inserted it
        assert row is not None
        return int(row.pipeline_id)
    if before is not None and policy["auto_replay"] and not before.auto_replay:
        _look_again(connection, changed)
    return int(changed)


def find(connection: Connection, name: str) -> int | None:
    """Its number; None before its first batch."""
    statement = text("SELECT pipeline_id FROM pipeline WHERE name = :name")
    pipeline_id = connection.execute(statement, {"name": name}).scalar()
    return None if pipeline_id is None else int(pipeline_id)


def lock(connection: Connection, name: str) -> Row[Any] | None:
    """The pipeline's row, locked for the transaction as every opening of a batch locks it:
    pipeline_id, auto_replay; None: it never ran."""
    statement = text("""
        SELECT pipeline_id, auto_replay FROM pipeline WHERE name = :name FOR NO KEY UPDATE
    """)
    return connection.execute(statement, {"name": name}).first()


def _look_again(connection: Connection, pipeline_id: int) -> None:
    """What had failed before is for the sweeper to replay now: it rechecks these originals,
    locked in order.
    """
    locked = text("""
        SELECT o.batch_id FROM batch o
        WHERE o.pipeline_id = :id AND o.followed_at IS NOT NULL AND EXISTS (
          SELECT FROM failed_message m
          WHERE m.original_batch_id = o.batch_id AND m.status = 'failed'
            AND (m.not_before IS NULL OR m.not_before < 'infinity'))
        ORDER BY 1 FOR NO KEY UPDATE
    """)
    originals = list(connection.execute(locked, {"id": pipeline_id}).scalars())
    statement = text("UPDATE batch SET followed_at = NULL WHERE batch_id = ANY(:ids)")
    connection.execute(statement, {"ids": originals})
