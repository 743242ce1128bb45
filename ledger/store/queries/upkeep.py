"""Statements that keep the tables as large as what is in them."""

from sqlalchemy import Connection, text

_LIVE_FOR_ONE_DEAD = 200


def tables_with_dead_rows(connection: Connection, after_seconds: float) -> list[str]:
    """The ledger's tables in which more than a half per cent of the rows are dead, as PostgreSQL
    has counted them; without the delta partitions, which are dropped as a whole, and those that
    were vacuumed less than ``after_seconds`` ago: what is dead there another transaction may see.
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
    """Make room where dead rows are; needs a connection in autocommit. A table that another process
    has locked is skipped; a lock on one of its indexes is waited for, as long as the server lets
    the login wait. No file is cut short, which would need an exclusive lock.
    """
    connection.execute(text(f"VACUUM (SKIP_LOCKED, TRUNCATE false) {table}"))
