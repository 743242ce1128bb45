"""Statements that keep the tables as large as what is in them."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

_FEWEST, _LIVE_FOR_ONE_DEAD = 5, 200


def tables_with_dead_rows(connection: Connection) -> list[str]:
    """The ledger's tables in which more than a half per cent of the rows are dead, as PostgreSQL
    has counted them; without the delta partitions, which are dropped as a whole.
    """
    statement = text("""
        SELECT format('%I', relname) FROM pg_class
        WHERE relkind = 'r' AND relowner = to_regrole('ledger_owner')
          AND relnamespace = 'public'::regnamespace AND relname !~ '^ledger_delta_[0-9]+$'
          AND pg_stat_get_dead_tuples(oid) >= :fewest
          AND pg_stat_get_dead_tuples(oid) * :live > pg_stat_get_live_tuples(oid)
        ORDER BY 1
    """)
    keys = {"fewest": _FEWEST, "live": _LIVE_FOR_ONE_DEAD}
    return list(connection.execute(statement, keys).scalars())


def vacuum(connection: Connection, tables: Sequence[str]) -> None:
    """Make room where dead rows are; needs a connection in autocommit. Waits for nobody and keeps
    nobody waiting: what another process vacuums is left to it, and no file is cut short.
    """
    if tables:
        connection.execute(text(f"VACUUM (SKIP_LOCKED, TRUNCATE false) {', '.join(tables)}"))
