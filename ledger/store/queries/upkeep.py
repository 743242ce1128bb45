"""Statements that keep tables from growing with dead rows."""

from sqlalchemy import Connection, text

_LIVE_FOR_ONE_DEAD = 200


def tables_with_dead_rows(connection: Connection, after_seconds: float) -> list[str]:
    """Return the ledger's tables in which more than half a percent of the rows are dead, as
    PostgreSQL has counted them.

    Delta partitions are left out, because they are dropped as a whole. So are tables that were
    vacuumed less than ``after_seconds`` ago: another transaction may still see their dead rows.
    """
    statement = text("""
        SELECT format('%I', relname) FROM pg_class
        WHERE relkind = 'r' AND relowner = to_regrole('ledger_owner')
          AND relnamespace = 'public'::regnamespace AND relname !~ '^ledger_delta_[0-9]+$'
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
