"""Statements about records that a person quarantines or accepts."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ledger.store.queries.rows import all_of


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


def by_person(connection: Connection, batch_id: int) -> dict[str, int]:
    """Return how many of a batch's quarantined records each person has accepted, most first. The
    counts of an original include those of its replays.
    """
    statement = text("""
        SELECT c.accepted_by, count(*) AS records
        FROM batch b
        JOIN failed_message m ON m.original_batch_id = b.family_id AND m.status = 'quarantined'
        JOIN accepted_root a ON a.root_id = m.root_id JOIN acceptance c USING (acceptance_id)
        WHERE b.batch_id = :id AND (b.kind = 'original' OR EXISTS (
          SELECT FROM failed_root r WHERE r.message_id = m.message_id AND r.batch_id = b.batch_id))
        GROUP BY 1 ORDER BY 2 DESC, 1
    """)
    rows = connection.execute(statement, {"id": batch_id})
    return {row.accepted_by: row.records for row in rows}


def accept(connection: Connection, original_id: int, by: str, reason: str) -> int:
    """Accept the quarantined records of a family that are not accepted yet, and return their
    number. The acceptance belongs to a record's last failed attempt: a record that is quarantined
    again after another attempt is not accepted.
    """
    statement = text("""
        WITH due AS (
          SELECT m.root_id FROM failed_message m
          WHERE m.original_batch_id = :id AND m.status = 'quarantined'
            AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
        ), acceptances AS (
          INSERT INTO acceptance (batch_id, accepted_by, reason)
          SELECT :id, :by, :reason WHERE EXISTS (SELECT FROM due) RETURNING acceptance_id
        )
        INSERT INTO accepted_root (root_id, acceptance_id)
        SELECT due.root_id, acceptances.acceptance_id FROM due CROSS JOIN acceptances
    """)
    keys = {"id": original_id, "by": by, "reason": reason}
    return connection.execute(statement, keys).rowcount


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
