"""Statements about single records: their state and history, and quarantining one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ledger.errors import InputError
from ledger.store.queries.causes import ACCEPTED_BY, JOINS, REASON, REREADS, STATE, STEPS
from ledger.store.queries.payloads import FailedMessage
from ledger.store.queries.rows import all_of, first_of

# A reason why the family of an original f is kept: its records may be replayed.
RECORDS_FAILED = """
  f.status = 'settled' AND EXISTS (
    SELECT FROM open_failure m WHERE m.original_batch_id = f.batch_id)
"""
# A reason why the family of an original f is kept: its records may be released.
RECORDS_QUARANTINED = """
  f.status = 'settled' AND EXISTS (
    SELECT FROM failed_message m
    WHERE m.original_batch_id = f.batch_id AND m.status = 'quarantined'
      AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
      AND NOT EXISTS (SELECT FROM failed_payload c
                      WHERE c.message_id = m.message_id AND c.forgotten_at IS NOT NULL))
"""


@dataclass(frozen=True)
class LastFailure(FailedMessage):
    """A message that failed at least once, with its last failure; the other columns are those of
    its original.

    ``content_root``: the root whose content is kept.
    """

    root_id: int
    state: str
    cause: str
    due_at: datetime | None
    replay_batch_id: int | None
    target: str | None
    batch_status: str
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    dag_id: str
    joins: bool
    rereads: bool
    whole: bool
    reprocesses: bool
    producers: str | None
    emitted_edges: int | None
    acked_edges: int | None
    content_root: int | None
    expired_at: datetime | None
    forgotten_at: datetime | None


@dataclass(frozen=True)
class EmittedRoot:
    """A root of any state."""

    root_id: int
    message_id: int
    batch_id: int
    pipeline: str
    source: str
    status: str


@dataclass(frozen=True)
class DecidedAttempt:
    """A decided attempt of a message that failed once.

    ``cause``, ``detail``: of a failure; the detail is raw text. For rows that do not add up, see
    ``failed_root_detail``.
    """

    attempt: int
    batch_id: int
    root_id: int
    outcome: str
    step: str | None
    cause: str | None
    reason: str | None
    detail: str | None
    producers: str | None
    emitted_edges: int | None
    acked_edges: int | None
    wrong_at: str | None
    decided_at: datetime


@dataclass(frozen=True)
class PersonalDecision:
    """A person's acceptance of a message.

    ``by_hand``: whether the person quarantined the message.
    ``holds``: whether it is about the last attempt, so that it still stands.
    """

    accepted_by: str
    accepted_at: datetime
    reason: str
    by_hand: bool
    holds: bool


def failed_record(connection: Connection, number: int) -> LastFailure | None:
    """Return a message that failed at least once, by its id or by a root of it."""
    statement = text(f"""
        SELECT m.message_id, m.root_id, m.status::text AS status, {ACCEPTED_BY} AS accepted_by,
               m.attempts,
               {STATE} AS state, r.cause::text AS cause, m.not_before AS due_at,
               m.replay_batch_id, p.name AS pipeline, p.target,
               b.batch_id, b.status::text AS batch_status, b.interval_start, b.interval_end,
               b.params, b.dag_id, m.source, s.declaration -> 'layout' AS layout,
               {JOINS} AS joins, {REREADS} AS rereads,
               any_step.merges AS whole, NOT any_step.incremental AS reprocesses,
               r.step, {REASON} AS reason, r.producers, r.emitted_edges, r.acked_edges,
               f.key, f.root_id AS content_root, f.parsed, f.source_file, f.source_row,
               CASE WHEN f.forgotten_at IS NULL THEN f.content ELSE '(forgotten)' END AS content,
               b.files_expired_at AS expired_at, f.forgotten_at
        FROM failed_message m
        JOIN failed_root r ON r.root_id = m.root_id
        JOIN batch b ON b.batch_id = m.original_batch_id
        JOIN pipeline p ON p.pipeline_id = b.pipeline_id
        {STEPS}
        LEFT JOIN failed_payload f ON f.message_id = m.message_id
        WHERE m.message_id = coalesce(
          (SELECT message_id FROM replay_root WHERE root_id = :id LIMIT 1),
          (SELECT message_id FROM failed_root WHERE root_id = :id), :id)
    """)
    return first_of(LastFailure, connection.execute(statement, {"id": number}))


def emitted_root(connection: Connection, number: int) -> EmittedRoot:
    """Return the root of this number, whatever its state. Raises InputError if it was never
    emitted.
    """
    statement = text("""
        SELECT root_id, message_id, batch_id, pipeline, source, status FROM root_state(:id)
    """)
    root = first_of(EmittedRoot, connection.execute(statement, {"id": number}))
    if root is None:
        shown = " as 'ackledger failed --records' shows it" if _lists_any(connection) else ""
        raise InputError(
            f"no record {number}: expected the number of a record{shown}; numbers go from 1 to"
            f" {_last_root(connection)} so far, with gaps"
        )
    return root


def _lists_any(connection: Connection) -> bool:
    """Return whether there is a record that ``failed --records`` lists."""
    statement = text("""
        SELECT EXISTS (SELECT FROM failed_message m
                       JOIN batch b ON b.batch_id = m.original_batch_id AND b.status <> 'superseded'
                       WHERE m.status NOT IN ('recovered', 'superseded'))
            OR EXISTS (SELECT FROM hold_sample JOIN batch USING (batch_id) WHERE status = 'held')
    """)
    return bool(connection.execute(statement).scalar_one())


def _last_root(connection: Connection) -> int:
    """Return the greatest root that any batch has emitted; 0 if none has."""
    statement = text("SELECT coalesce(max(first_root + roots - 1), 0) FROM batch_source")
    return int(connection.execute(statement).scalar_one())


def attempts(connection: Connection, message_id: int) -> list[DecidedAttempt]:
    """Return every decided attempt of a message that failed once, in order."""
    statement = text("""
        SELECT h.attempt, h.batch_id, h.root_id, h.outcome, h.step, f.cause, h.reason, f.detail,
               f.producers, f.emitted_edges, f.acked_edges, f.wrong_at, h.decided_at
        FROM replay_history h LEFT JOIN failed_root f ON f.root_id = h.root_id
        WHERE h.message_id = :id ORDER BY h.attempt
    """)
    return all_of(DecidedAttempt, connection.execute(statement, {"id": message_id}))


def decisions(connection: Connection, message_id: int) -> list[PersonalDecision]:
    """Return the persons' decisions that a message stays out, in order."""
    statement = text("""
        SELECT c.accepted_by, c.accepted_at, c.reason, EXISTS (
                 SELECT FROM manual_quarantine q
                 WHERE q.message_id = :id AND q.quarantined_at = c.accepted_at) AS by_hand,
               a.root_id = m.root_id AND m.status = 'quarantined' AS holds
        FROM failed_message m
        JOIN failed_root r ON r.message_id = m.message_id
        JOIN accepted_root a ON a.root_id = r.root_id JOIN acceptance c USING (acceptance_id)
        WHERE m.message_id = :id ORDER BY c.accepted_at
    """)
    return all_of(PersonalDecision, connection.execute(statement, {"id": message_id}))


def quarantine(
    connection: Connection,
    original_batch_id: int,
    message_id: int | None,
    step: str | None,
    reason: str,
    by: str,
    *,
    whole: bool,
) -> int:
    """Move failed messages of an original to quarantine, accepted, keep who did it and why, and
    return how many. With ``whole``, those that may have touched others are given up instead: the
    next replay of the whole batch leaves them out, and quarantines them.

    A parameter that is None matches any message, or any step of the last failure.
    """
    statement = text("""
        WITH moved AS (
          UPDATE failed_message m
          SET status = (CASE WHEN :whole AND r.cause <> 'unparsed' THEN 'failed'
                             ELSE 'quarantined' END)::message_status,
              given_up = true, not_before = NULL, replay_batch_id = NULL, updated_at = now()
          FROM failed_root r
          WHERE r.root_id = m.root_id AND m.original_batch_id = :batch AND m.status = 'failed'
            AND (cast(:message AS bigint) IS NULL OR m.message_id = :message)
            AND (cast(:step AS text) IS NULL OR r.step = :step)
          RETURNING m.message_id, m.root_id
        ), acceptances AS (
          INSERT INTO acceptance (batch_id, accepted_by, reason)
          SELECT :batch, :by, :reason WHERE EXISTS (SELECT FROM moved) RETURNING acceptance_id
        ), accepted AS (
          INSERT INTO accepted_root (root_id, acceptance_id)
          SELECT root_id, acceptance_id FROM moved CROSS JOIN acceptances
          ON CONFLICT DO NOTHING
        )
        INSERT INTO manual_quarantine (message_id, reason, quarantined_by)
        SELECT message_id, :reason, :by FROM moved
    """)
    keys = {"batch": original_batch_id, "message": message_id, "step": step, "whole": whole}
    return connection.execute(statement, {**keys, "reason": reason, "by": by}).rowcount
