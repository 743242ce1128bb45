"""Statements about quarantined records that a person accepts."""

from sqlalchemy import Connection, text


def accept(connection: Connection, original_id: int, by: str, reason: str | None) -> int:
    """Accept the quarantined records of a family that are not accepted yet; how many. Each is named
    by the attempt that failed last: quarantined again after another attempt, it is not accepted."""
    statement = text("""
        WITH due AS (
          SELECT m.root_id FROM failed_message m
          WHERE m.original_batch_id = :id AND m.status = 'quarantined'
            AND NOT EXISTS (SELECT FROM accepted_root a WHERE a.root_id = m.root_id)
        ), made AS (
          INSERT INTO acceptance (batch_id, accepted_by, reason)
          SELECT :id, :by, :reason WHERE EXISTS (SELECT FROM due) RETURNING acceptance_id
        )
        INSERT INTO accepted_root (root_id, acceptance_id)
        SELECT due.root_id, made.acceptance_id FROM due CROSS JOIN made
    """)
    keys = {"id": original_id, "by": by, "reason": reason}
    return connection.execute(statement, keys).rowcount
