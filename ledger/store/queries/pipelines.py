"""Statements about pipelines: their policies, as batches are opened with them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

_SAVE = """
INSERT INTO pipeline AS p
  (name, message_timeout_seconds, max_batch_age_seconds, max_replays, max_failed_ratio,
   on_quarantine, tolerate, replay_limit, replay_backoff_seconds, replay_backoff_cap_seconds,
   auto_replay, target, redact)
VALUES
  (:name, :message_timeout_seconds, :max_batch_age_seconds, :max_replays, :max_failed_ratio,
   :on_quarantine, :tolerate, :replay_limit, :replay_backoff_seconds, :replay_backoff_cap_seconds,
   :auto_replay, :target, cast(:redact AS text[]))
ON CONFLICT (name) DO UPDATE SET
  message_timeout_seconds = excluded.message_timeout_seconds,
  max_batch_age_seconds = excluded.max_batch_age_seconds, max_replays = excluded.max_replays,
  max_failed_ratio = excluded.max_failed_ratio, on_quarantine = excluded.on_quarantine,
  tolerate = excluded.tolerate, replay_limit = excluded.replay_limit,
  replay_backoff_seconds = excluded.replay_backoff_seconds,
  replay_backoff_cap_seconds = excluded.replay_backoff_cap_seconds,
  auto_replay = excluded.auto_replay, target = coalesce(excluded.target, p.target),
  redact = excluded.redact
WHERE
  (p.message_timeout_seconds, p.max_batch_age_seconds, p.max_replays, p.max_failed_ratio,
   p.on_quarantine, p.tolerate, p.replay_limit, p.replay_backoff_seconds,
   p.replay_backoff_cap_seconds, p.auto_replay, p.target, p.redact)
  IS DISTINCT FROM
  (excluded.message_timeout_seconds, excluded.max_batch_age_seconds, excluded.max_replays,
   excluded.max_failed_ratio, excluded.on_quarantine, excluded.tolerate, excluded.replay_limit,
   excluded.replay_backoff_seconds, excluded.replay_backoff_cap_seconds, excluded.auto_replay,
   coalesce(excluded.target, p.target), excluded.redact)
RETURNING pipeline_id
"""
_LOOK_AGAIN = """
UPDATE batch SET followed_at = NULL
WHERE pipeline_id = :id AND failed_roots > 0 AND followed_at IS NOT NULL
"""


def save(connection: Connection, policy: Mapping[str, Any]) -> int:
    """Insert the pipeline, or update its policy where that has changed; locks its row in any case,
    so that opens wait for each other.
    """
    changed = connection.execute(text(_SAVE), dict(policy)).scalar()
    if changed is None:
        found = text("SELECT pipeline_id FROM pipeline WHERE name = :name")
        return int(connection.execute(found, {"name": policy["name"]}).scalar_one())
    if policy["auto_replay"]:  # what had failed before is for the sweeper now
        connection.execute(text(_LOOK_AGAIN), {"id": changed})
    return int(changed)
