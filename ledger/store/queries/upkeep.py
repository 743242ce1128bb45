"""Statements about the installation: roles, clock, sweeps, dead rows, and the numbers that the
ledger gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from ledger.store.queries.rows import one_of

_LIVE_FOR_ONE_DEAD = 200
# Where a sequence is that counts the numbers of a column.
_SEQUENCE = "pg_get_serial_sequence('{table}', '{column}')"


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
    """Record that a sweep has just ended."""
    statement = text("""
        INSERT INTO last_sweep (swept_at) VALUES (clock_timestamp())
        ON CONFLICT (single) DO UPDATE SET swept_at = excluded.swept_at
    """)
    connection.execute(statement)


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


def decided_with_deltas(connection: Connection) -> list[int]:
    """Return the decided and abandoned batches that have deltas, which no settlement needs any
    more. Reads an entry of each index for each batch that has any.
    """
    statement = text("""
        WITH RECURSIVE posted AS (
          SELECT min(batch_id) AS batch_id FROM ledger_delta
          UNION ALL
          SELECT (SELECT min(d.batch_id) FROM ledger_delta d WHERE d.batch_id > p.batch_id)
          FROM posted p WHERE p.batch_id IS NOT NULL
        )
        SELECT batch_id FROM posted p
        WHERE (SELECT status FROM batch b WHERE b.batch_id = p.batch_id) NOT IN ('open', 'held')
    """)
    return list(connection.execute(statement).scalars())


def remove_deltas(connection: Connection, batch_id: int) -> None:
    """Remove the deltas of a decided batch."""
    connection.execute(text("SELECT remove_deltas(:id)"), {"id": batch_id})


def tables_with_dead_rows(connection: Connection, after_seconds: float) -> list[str]:
    """Return the ledger's tables in which more than half a percent of the rows are dead, as
    PostgreSQL has counted them.

    Tables that were vacuumed less than ``after_seconds`` ago are left out: another transaction may
    still see their dead rows.
    """
    statement = text("""
        SELECT format('%I.%I', current_schema(), relname) FROM pg_class
        WHERE relkind = 'r' AND relowner = to_regrole('ledger_owner')
          AND relnamespace = current_schema()::regnamespace
          AND pg_stat_get_dead_tuples(oid) * :live > pg_stat_get_live_tuples(oid)
          AND coalesce(
            pg_stat_get_last_vacuum_time(oid) < clock_timestamp() - make_interval(secs => :after),
            true)
        ORDER BY 1
    """)
    keys = {"live": _LIVE_FOR_ONE_DEAD, "after": after_seconds}
    return list(connection.execute(statement, keys).scalars())


def vacuum(connection: Connection, table: str) -> None:
    """Free the space of dead rows; needs a connection in autocommit. A table that another process
    has locked is skipped; a lock on one of its indexes is waited for, as long as the server lets
    the login wait. Files are not shortened, which would need an exclusive lock.
    """
    connection.execute(text(f"VACUUM (SKIP_LOCKED, TRUNCATE false) {table}"))


def move_on(
    connection: Connection, table: str, column: str, by: int, sequence: str | None = None
) -> int:
    """Let a sequence go on ``by`` numbers above the greatest one that a column was given, and
    return the number that comes next.

    ``sequence``: by default the column's own. That number becomes its start, which
    ``unknown_runs`` reads.
    """
    if sequence is None:
        own = text(f"SELECT {_SEQUENCE.format(table=table, column=column)}")
        sequence = str(connection.execute(own).scalar_one())
    newest = text(f"""
        SELECT greatest(s.last_value, (SELECT max({column}) FROM {table})) FROM {sequence} s
    """)
    following = int(connection.execute(newest).scalar_one()) + by
    connection.execute(text(f"ALTER SEQUENCE {sequence} START WITH {following} RESTART"))
    return following


def unknown_runs(connection: Connection, batch_id: int, run_ids: Sequence[int]) -> list[int]:
    """Return the ids in ``run_ids`` that no run of the batch in this ledger has recorded a folder
    for. They may come from a ledger that was lost.

    Ids before those that ``move_on`` skipped are left out, because they are never used again.
    """
    statement = text(f"""
        SELECT stored.id FROM unnest(cast(:ids AS bigint[])) AS stored (id)
        WHERE stored.id >= (
            SELECT seqstart FROM pg_sequence
            WHERE seqrelid = {_SEQUENCE.format(table="step_run", column="step_run_id")}::regclass)
          AND NOT EXISTS (
            SELECT FROM step_run r
            WHERE r.step_run_id = stored.id AND r.batch_id = :batch AND r.folder IS NOT NULL)
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"batch": batch_id, "ids": list(run_ids)}).scalars())
