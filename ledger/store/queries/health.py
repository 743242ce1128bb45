"""Statements about the installation: roles, clock, and the sweeper's last run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from ledger.store.queries.rows import one_of


@dataclass(frozen=True)
class LastSweep:
    """The last sweep, and the oldest open batch.

    ``swept_at``: None: no sweep ever ended.
    ``open_batch_id``, ``opened_at``: the oldest open batch.
    """

    swept_at: datetime | None
    open_batch_id: int | None
    opened_at: datetime | None
    now: datetime


def note_sweep(connection: Connection) -> None:
    """Note that a sweep ends now."""
    connection.execute(
        text("""
        INSERT INTO last_sweep (swept_at) VALUES (clock_timestamp())
        ON CONFLICT (single) DO UPDATE SET swept_at = excluded.swept_at
        """)
    )


def last_sweep(connection: Connection) -> LastSweep:
    """Return the last sweep, and the oldest open batch."""
    statement = text("""
        SELECT s.swept_at, b.batch_id AS open_batch_id, b.opened_at, clock_timestamp() AS now
        FROM (SELECT) AS singleton LEFT JOIN last_sweep s ON true
        LEFT JOIN LATERAL (
          SELECT batch_id, opened_at FROM batch WHERE status = 'open' ORDER BY opened_at LIMIT 1
        ) b ON true
    """)
    return one_of(LastSweep, connection.execute(statement))


def open_for(connection: Connection, age: timedelta, most: int) -> list[int]:
    """Return the open batches of which nothing has run for this long, oldest first, at most so
    many.
    """
    statement = text("""
        SELECT b.batch_id FROM batch b
        WHERE b.status = 'open' AND b.opened_at < clock_timestamp() - :age
          AND NOT EXISTS (SELECT FROM step_run r WHERE r.batch_id = b.batch_id
            AND coalesce(r.closed_at, r.lease_until) >= clock_timestamp() - :age)
        ORDER BY b.opened_at LIMIT :most
    """)
    return list(connection.execute(statement, {"age": age, "most": most}).scalars())


def roles_held(connection: Connection, roles: Sequence[str]) -> list[str]:
    """Return those of the roles that the session's user may take, in their order. The owner's role
    is returned only if the user has its rights without taking it.
    """
    statement = text("""
        SELECT name FROM unnest(cast(:roles AS text[])) WITH ORDINALITY AS given (name, place)
        WHERE to_regrole(name) IS NOT NULL AND pg_has_role(session_user, name,
          -- A vacuum sets no role.
          CASE name WHEN 'ledger_owner' THEN 'USAGE' ELSE 'MEMBER' END)
        ORDER BY place
    """)
    return list(connection.execute(statement, {"roles": list(roles)}).scalars())
