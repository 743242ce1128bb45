"""Statements about failed messages and their replays."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.core.run_request import Selection
from ledger.store.queries.batches import Batch
from ledger.store.queries.failures import FAILURES, MATCHES_REASON, REASON
from ledger.store.queries.rows import all_of, one_of
from ledger.store.queries.settlement import GRACE

# Which failed messages m, with r their last failure, a selection takes. ``quarantined``,
# ``accepted``: those quarantined, or accepted by a person, instead, to restart by hand.
_SELECTED = f"""
    m.status = (CASE WHEN cast(:quarantined AS boolean) OR cast(:accepted AS boolean)
      THEN 'quarantined' ELSE 'failed' END)::message_status
    AND (m.status = 'failed'
      OR CASE WHEN EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
              THEN cast(:accepted AS boolean) ELSE cast(:quarantined AS boolean) END)
    AND (m.status = 'quarantined' OR m.not_before IS NULL
         OR m.not_before <= cast(:now AS timestamptz))
    AND (cast(:source AS text) IS NULL OR m.source = :source)
    AND (cast(:reason AS text) IS NULL OR {MATCHES_REASON})
    AND (cast(:step AS text) IS NULL OR r.step = :step)
    AND (cast(:causes AS jsonb) IS NULL OR cast(:causes AS jsonb)
         @> jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
           'step', r.step, 'cause', r.cause, 'words', r.reason))))
    AND (cast(:since AS timestamptz) IS NULL OR r.failed_at >= cast(:since AS timestamptz))
    AND (cast(:until AS timestamptz) IS NULL OR r.failed_at < cast(:until AS timestamptz))
    AND (cast(:record AS bigint) IS NULL
         OR m.message_id = cast(:record AS bigint)
         OR m.message_id IN (SELECT f.message_id FROM failed_root f
           WHERE f.root_id = cast(:record AS bigint)))
    AND NOT (m.status = 'quarantined' AND EXISTS (
      SELECT FROM failed_payload f
      WHERE f.message_id = m.message_id AND f.forgotten_at IS NOT NULL))
"""
_MATCHING = f"""
        WHERE b.status = 'settled' AND {_SELECTED}
          AND (b.files_expired_at IS NULL OR cast(:from_source AS boolean)
               OR b.batch_id = cast(:batch_id AS bigint))
          AND (cast(:pipeline AS text) IS NULL OR p.name = :pipeline)
          AND (cast(:batch_id AS bigint) IS NULL OR b.batch_id = :batch_id)
"""


@dataclass(frozen=True)
class DueRecords:
    """Failed records of an original that a replay takes, by step and reason of their last failure.

    ``words``: the reason, if a source, stage or sink gave one.
    ``repeated``: number of these records whose last replay failed as the attempt before it did.
    ``last``: number of these records that are quarantined if they fail once more, because of
    ``max_replays``.
    """

    batch_id: int
    pipeline: str
    step: str
    cause: str
    words: str | None
    reason: str
    records: int
    repeated: int
    last: int
    max_replays: int


@dataclass(frozen=True)
class LeftOut:
    """Records that match and that a person accepted, one row for each decision."""

    batch_id: int
    accepted_by: str
    accepted_at: datetime
    reason: str
    records: int


@dataclass(frozen=True)
class WaitingRecords:
    """Numbers of an original's records that are not recovered, by state.

    ``due``: a replay without options takes them.
    ``replaying``: another replay has them.
    ``later``: they wait, the first until ``not_before``.
    ``quarantined``: accepted or not.
    """

    due: int
    replaying: int
    later: int
    not_before: datetime | None
    quarantined: int


@dataclass(frozen=True)
class ReplayRequest:
    """A batch whose pipeline asks for automatic replay, with the number of its failed records."""

    batch_id: int
    pipeline: str
    records: int


# Keeps the messages of ``claims`` as a replay finds them, for its abandonment. An abandoned replay
# that is opened again claims again.
_SAVE_CLAIMS = """
INSERT INTO message_claim (batch_id, message_id, status, not_before, failed_replays, given_up)
SELECT :batch_id, message_id, status, not_before, failed_replays, given_up FROM claims
ON CONFLICT (batch_id, message_id) DO UPDATE SET status = excluded.status,
  not_before = excluded.not_before, failed_replays = excluded.failed_replays,
  given_up = excluded.given_up
"""


def _keys(selection: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    causes = selection.get("causes")
    as_text = None if causes is None else json.dumps(causes)
    return {**asdict(Selection()), **selection, "causes": as_text, "now": now}


def claim_messages(
    connection: Connection,
    batch_id: int,
    original_batch_id: int,
    selection: Mapping[str, Any],
    now: datetime,
    limit: int | None,
) -> int:
    """Claim the failed messages that ``selection`` names and that are due, at most ``limit``, for
    an open replay, and return how many. Messages that failed least often come first, so that one
    that kills its step every time does not keep the others waiting. Messages taken from quarantine
    begin with a new budget.

    The status guards the claim: of two replays at once each message goes to one. The subquery is
    materialized, because it might rerun for each row of the outer table, and its limit would then
    hold for each run.
    """
    statement = text(f"""
        WITH claims AS MATERIALIZED (
          SELECT m.* FROM failed_message m JOIN failed_root r ON r.root_id = m.root_id
          WHERE m.original_batch_id = :original AND {_SELECTED}
          ORDER BY m.attempts, m.message_id LIMIT :limit FOR UPDATE OF m
        ), saved AS ({_SAVE_CLAIMS})
        UPDATE failed_message SET status = 'replaying', replay_batch_id = :batch_id,
               updated_at = now(), not_before = NULL,
               failed_replays = CASE WHEN status = 'quarantined' THEN 0 ELSE failed_replays END,
               given_up = given_up AND status <> 'quarantined'
        WHERE message_id IN (SELECT message_id FROM claims)
          AND status IN ('failed', 'quarantined')
    """)
    keys = {"batch_id": batch_id, "original": original_batch_id, "limit": limit}
    return connection.execute(statement, {**_keys(selection, now), **keys}).rowcount


def delay_replays(connection: Connection, batch: Batch, instant: datetime) -> None:
    """Set the time from which the messages that fail in this settlement of a batch may be replayed.
    The wait doubles each time.
    """
    statement = text("""
        UPDATE failed_message m
        SET not_before = cast(:instant AS timestamptz) + make_interval(
              secs => least(:cap, :base * power(2, least(m.failed_replays, 60))))
        FROM settling s
        WHERE m.root_id = s.root_id AND m.original_batch_id = :original AND m.status = 'failed'
    """)
    keys = {
        "original": batch.original_id,
        "instant": instant,
        "base": batch.replay_backoff.total_seconds(),
        "cap": batch.replay_backoff_cap.total_seconds(),
    }
    connection.execute(statement, keys)


def claim_rest(connection: Connection, batch_id: int, original_batch_id: int) -> int:
    """Claim the other failed messages of an original, whose replay takes all of them, and return
    how many.
    """
    statement = text(f"""
        WITH claims AS (
          SELECT m.* FROM failed_message m
          WHERE m.original_batch_id = :original AND m.status = 'failed' FOR UPDATE OF m
        ), saved AS ({_SAVE_CLAIMS})
        UPDATE failed_message m SET status = 'replaying', replay_batch_id = :batch_id,
               not_before = NULL, updated_at = now()
        FROM claims c WHERE m.message_id = c.message_id  -- so that they are saved before
    """)
    keys = {"batch_id": batch_id, "original": original_batch_id}
    return connection.execute(statement, keys).rowcount


def messages_left_out(connection: Connection, original_batch_id: int, source: str) -> list[int]:
    """Return the messages of an original batch's source that an open replay of the whole batch
    leaves out: those that are quarantined, and those that its settlement quarantines.
    """
    statement = text("""
        SELECT message_id FROM failed_message
        WHERE original_batch_id = :id AND source = :source
          AND (status = 'quarantined' OR given_up AND status = 'replaying')
    """)
    keys = {"id": original_batch_id, "source": source}
    return list(connection.execute(statement, keys).scalars())


def wrongly_emitted(connection: Connection, batch_id: int) -> int:
    """Return the number of messages on which a replay batch and its committed emits disagree:
    claimed, not given up, and not emitted; or left out, and emitted.
    """
    statement = text("""
        SELECT count(*) FROM failed_message m
        WHERE m.original_batch_id = (SELECT family_id FROM batch WHERE batch_id = :id)
          AND (m.status = 'quarantined' OR m.replay_batch_id = :id AND m.status = 'replaying')
          AND (m.status = 'replaying' AND NOT m.given_up) <> EXISTS (
            SELECT FROM replay_root r
            JOIN batch_source s ON s.batch_id = r.batch_id AND s.emit_run_id = r.step_run_id
            WHERE r.batch_id = :id AND r.message_id = m.message_id)
    """)
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def claimed_count(connection: Connection, batch_id: int) -> int:
    """Return how many messages a replay batch has claimed."""
    statement = text(
        "SELECT count(*) FROM failed_message WHERE replay_batch_id = :id AND status = 'replaying'"
    )
    return int(connection.execute(statement, {"id": batch_id}).scalar_one())


def claimed_sources(connection: Connection, batch_id: int) -> list[str]:
    """Return the sources of the messages that a replay batch has claimed, by name."""
    statement = text("""
        SELECT DISTINCT source FROM failed_message
        WHERE replay_batch_id = :id AND status = 'replaying' ORDER BY source
    """)
    return list(connection.execute(statement, {"id": batch_id}).scalars())


def unfinished_replays(connection: Connection, pipeline: str, run_id: str) -> list[int]:
    """Return originals whose replay by this run, named ``<run_id>-<original>``, is not settled."""
    statement = text("""
        SELECT b.original_batch_id FROM batch b JOIN pipeline p USING (pipeline_id)
        WHERE p.name = :pipeline AND b.kind = 'replay' AND b.dag_id = '' AND b.status <> 'settled'
          AND b.run_id = :run_id || '-' || b.original_batch_id
        ORDER BY 1
    """)
    keys = {"pipeline": pipeline, "run_id": run_id}
    return list(connection.execute(statement, keys).scalars())


def count_due(
    connection: Connection,
    pipeline: str | None,
    batch_id: int | None,
    selection: Mapping[str, Any],
    now: datetime,
) -> list[DueRecords]:
    """Return the numbers of failed messages that match and are due, of settled originals. They are
    counted by original, step, cause and reason; within an original, the most frequent come first.

    Messages of an original whose files have expired are included only if its number is given, or if
    they are to be reread.
    """
    statement = text(f"""
        SELECT b.batch_id, p.name AS pipeline, r.step, r.cause::text AS cause, r.reason AS words,
               {REASON} AS reason, count(*) AS records,
               count(*) FILTER (WHERE CASE WHEN r.attempt > 1 THEN EXISTS (
                 SELECT FROM failed_root e
                 WHERE e.message_id = m.message_id AND e.attempt = r.attempt - 1
                   AND e.step = r.step AND e.cause = r.cause
                   AND replace(e.reason, coalesce(e.place, ''), '')
                     IS NOT DISTINCT FROM replace(r.reason, coalesce(r.place, ''), '')) END
               ) AS repeated,
               count(*) FILTER (WHERE p.max_replays + CASE WHEN r.shared THEN {GRACE} ELSE 0 END
                 <= 1 + CASE WHEN m.status = 'quarantined' THEN 0 ELSE m.failed_replays END)
                 AS last,
               p.max_replays
        {FAILURES} {_MATCHING}
        GROUP BY b.batch_id, p.pipeline_id, r.step, r.cause, r.reason
        ORDER BY b.batch_id, records DESC, r.step, reason
    """)
    keys = {"pipeline": pipeline, "batch_id": batch_id}
    return all_of(DueRecords, connection.execute(statement, {**_keys(selection, now), **keys}))


def left_out(
    connection: Connection,
    pipeline: str | None,
    batch_id: int | None,
    selection: Mapping[str, Any],
    now: datetime,
) -> list[LeftOut]:
    """Return the quarantined messages that match and that a person accepted, by decision."""
    statement = text(f"""
        SELECT b.batch_id, c.accepted_by, c.accepted_at, c.reason, count(*) AS records
        {FAILURES}
        JOIN accepted_root d ON d.root_id = m.root_id JOIN acceptance c USING (acceptance_id)
        {_MATCHING}
        GROUP BY b.batch_id, c.acceptance_id ORDER BY b.batch_id, c.acceptance_id
    """)
    asked = {**selection, "quarantined": False, "accepted": True}
    keys = {"pipeline": pipeline, "batch_id": batch_id}
    return all_of(LeftOut, connection.execute(statement, {**_keys(asked, now), **keys}))


def waiting_records(connection: Connection, original_batch_id: int) -> WaitingRecords:
    """Return how many records of an original are not recovered, by state."""
    statement = text("""
        SELECT count(*) FILTER (WHERE status = 'failed'
                 AND (not_before IS NULL OR not_before <= now())) AS due,
               count(*) FILTER (WHERE status = 'replaying') AS replaying,
               count(*) FILTER (WHERE later) AS later,
               min(not_before) FILTER (WHERE later) AS not_before,
               count(*) FILTER (WHERE status = 'quarantined') AS quarantined
        FROM failed_message CROSS JOIN LATERAL (
          SELECT status = 'failed' AND not_before > now() AS later) x
        WHERE original_batch_id = :id AND status IN ('failed', 'replaying', 'quarantined')
    """)
    return one_of(WaitingRecords, connection.execute(statement, {"id": original_batch_id}))


def automatic_replays(connection: Connection, now: datetime) -> list[ReplayRequest]:
    """Return batches of pipelines with ``auto_replay`` that have failed messages due, and may be
    replayed now.
    """
    statement = text("""
        SELECT m.original_batch_id AS batch_id, p.name AS pipeline, count(*) AS records
        FROM failed_message m
        JOIN batch b ON b.batch_id = m.original_batch_id
        JOIN pipeline p USING (pipeline_id)
        WHERE m.status = 'failed' AND p.auto_replay AND b.followed_at IS NULL
          AND b.files_expired_at IS NULL AND b.status IN ('settled', 'superseded')
          AND (m.not_before IS NULL OR m.not_before <= cast(:now AS timestamptz))
          AND NOT EXISTS (SELECT FROM batch n
            WHERE n.replaces_batch_id = b.batch_id AND n.status IN ('open', 'held'))
          AND NOT (EXISTS (
            SELECT FROM batch_step s WHERE s.batch_id = b.batch_id AND s.merges
          ) AND EXISTS (
            SELECT FROM batch r
            WHERE r.family_id = b.batch_id AND r.kind = 'replay' AND r.status IN ('open', 'held')))
        GROUP BY 1, 2 ORDER BY 1
    """)
    return all_of(ReplayRequest, connection.execute(statement, {"now": now}))
