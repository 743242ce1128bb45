"""Statements about the delta partitions of batches: made, emptied and dropped."""

from sqlalchemy import Connection, text


def open_partition(connection: Connection, batch_id: int) -> None:
    """Make the batch's delta partition, unless it exists."""
    connection.execute(text("SELECT open_partition(:id)"), {"id": batch_id})


def clear_partition(connection: Connection, batch_id: int) -> bool:
    """Empty the batch's deltas; False if a straggler still writes there."""
    return bool(
        connection.execute(text("SELECT clear_partition(:id)"), {"id": batch_id}).scalar_one()
    )


def decided_partitions(connection: Connection) -> list[int]:
    """Return decided batches whose delta partition still exists.

    An abandoned batch keeps its partition, because it may be opened again.
    """
    statement = text("""
        WITH standing AS MATERIALIZED (
          SELECT substr(relname, 14)::bigint AS batch_id FROM pg_class
          WHERE relname ~ '^ledger_delta_[0-9]+$' AND relkind = 'r'
        )
        SELECT b.batch_id FROM standing s JOIN batch b USING (batch_id)
        WHERE b.status IN ('settled', 'superseded') ORDER BY 1
    """)
    return list(connection.execute(statement).scalars())


def drop_partition(connection: Connection, batch_id: int, lock_timeout: str) -> bool:
    """Drop the batch's partition; return False if another sweep has dropped it, or is dropping one.

    Raises the driver's error at once if a driver still writes there, and after ``lock_timeout``,
    for example ``500ms``, if other batches' deltas are in use. Meanwhile every statement that uses
    them waits.
    """
    if not try_clean_up_lock(connection) or not _stands(connection, batch_id):
        return False
    connection.execute(
        text("SELECT set_config('lock_timeout', :timeout, true)"), {"timeout": lock_timeout}
    )
    own = f"ledger_delta_{int(batch_id)}"
    connection.execute(text(f"LOCK TABLE {own} IN ACCESS EXCLUSIVE MODE NOWAIT"))
    connection.execute(text(f"DROP TABLE {own}"))  # which locks the whole of ledger_delta
    return True


def try_clean_up_lock(connection: Connection) -> bool:
    """Be the only one that drops partitions, in this transaction; False if another is."""
    statement = text("SELECT pg_try_advisory_xact_lock(hashtext('ackledger clean-up'))")
    return bool(connection.execute(statement).scalar_one())


def _stands(connection: Connection, batch_id: int) -> bool:
    statement = text("SELECT to_regclass('ledger_delta_' || :id) IS NOT NULL")
    return bool(connection.execute(statement, {"id": batch_id}).scalar_one())
