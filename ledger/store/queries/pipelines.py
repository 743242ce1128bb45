"""Statements about pipelines: their policies, as batches are opened with them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text

_POLICY = (
    "message_timeout_seconds",
    "max_batch_age_seconds",
    "max_replays",
    "max_failed_ratio",
    "on_quarantine",
    "tolerate",
    "replay_limit",
    "replay_backoff_seconds",
    "replay_backoff_cap_seconds",
    "auto_replay",
)
_TARGET = "coalesce(excluded.target, pipeline.target)"  # of a pipeline that is a global somewhere


def save(connection: Connection, policy: Mapping[str, Any]) -> int:
    """Insert the pipeline, or update its policy where that has changed; locks its row in any case,
    so that opens wait for each other.
    """
    names = (*_POLICY, "target")
    columns, values = ", ".join(names), ", ".join(f":{name}" for name in names)
    before = ", ".join(f"pipeline.{name}" for name in names)
    after = ", ".join((*(f"excluded.{name}" for name in _POLICY), _TARGET))
    statement = text(f"""
        INSERT INTO pipeline (name, {columns}) VALUES (:name, {values})
        ON CONFLICT (name) DO UPDATE SET ({columns}) = ROW ({after})
        WHERE ROW ({before}) IS DISTINCT FROM ROW ({after})
        RETURNING pipeline_id
    """)
    changed = connection.execute(statement, dict(policy)).scalar()
    if changed is None:
        found = text("SELECT pipeline_id FROM pipeline WHERE name = :name")
        return int(connection.execute(found, {"name": policy["name"]}).scalar_one())
    if policy["auto_replay"]:  # what had failed before is for the sweeper now
        connection.execute(text(_LOOK_AGAIN), {"id": changed})
    return int(changed)


_LOOK_AGAIN = """
UPDATE batch SET followed_at = NULL
WHERE pipeline_id = :id AND failed_roots > 0 AND followed_at IS NOT NULL
"""
