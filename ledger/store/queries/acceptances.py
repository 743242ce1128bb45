"""Statements about quarantined records that a person accepts."""

from sqlalchemy import Connection, text


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
    """Accept the quarantined records of a family that are not accepted yet, and return how many. A
    record is accepted with its last failed attempt: if it is quarantined again after another
    attempt, it is not accepted.
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
