"""Statements that keep tables from growing with dead rows."""

from sqlalchemy import Connection, text

_LIVE_FOR_ONE_DEAD = 200


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
