"""Statements about the delta partitions of batches: made, emptied, detached and dropped."""

from sqlalchemy import Connection, text


def open_partition(connection: Connection, batch_id: int) -> None:
    """Make the batch's delta partition, unless it is there."""
    connection.execute(text("SELECT open_partition(:id)"), {"id": batch_id})


def clear_partition(connection: Connection, batch_id: int) -> bool:
    """Empty the batch's deltas; False if a straggler still writes there."""
    return bool(
        connection.execute(text("SELECT clear_partition(:id)"), {"id": batch_id}).scalar_one()
    )


def decided_partitions(connection: Connection) -> list[int]:
    """Decided batches whose delta partition, attached or not, still stands: first one that is half
    detached, which has to be done before another can be.

    An abandoned batch keeps its partition, for it may be reopened.
    """
    statement = text("""
        WITH standing AS MATERIALIZED (
          SELECT substr(relname, 14)::bigint AS batch_id, i.inhdetachpending IS TRUE AS half
          FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
          WHERE c.relname ~ '^ledger_delta_[0-9]+$' AND c.relkind = 'r'
        )
        SELECT b.batch_id FROM standing s JOIN batch b USING (batch_id)
        WHERE b.status IN ('settled', 'superseded') ORDER BY s.half DESC, 1
    """)
    return [row.batch_id for row in connection.execute(statement)]


def try_clean_up_lock(connection: Connection) -> bool:
    """Become the only session that drops partitions, until it ends; False if another is."""
    statement = text("SELECT pg_try_advisory_lock(hashtext('ackledger clean-up'))")
    return bool(connection.execute(statement).scalar_one())


def release_clean_up_lock(connection: Connection) -> None:
    """Let another session drop partitions."""
    connection.execute(text("SELECT pg_advisory_unlock(hashtext('ackledger clean-up'))"))


def wait_at_most(connection: Connection, timeout: str) -> None:
    """Give up on a lock after ``timeout``, for example ``2s``, in this session."""
    connection.execute(
        text("SELECT set_config('lock_timeout', :timeout, false)"), {"timeout": timeout}
    )


def detach_partition(connection: Connection, batch_id: int) -> None:
    """Detach the batch's partition without stopping writers; needs a connection in autocommit."""
    statement = text("""
        SELECT inhdetachpending FROM pg_inherits
        WHERE inhparent = 'ledger_delta'::regclass
          AND inhrelid = to_regclass('ledger_delta_' || :id)
    """)
    row = connection.execute(statement, {"id": batch_id}).first()
    if row is not None:
        how = "FINALIZE" if row.inhdetachpending else "CONCURRENTLY"
        connection.execute(
            text(f"ALTER TABLE ledger_delta DETACH PARTITION ledger_delta_{int(batch_id)} {how}")
        )


def drop_partition(connection: Connection, batch_id: int) -> None:
    """Drop the batch's detached partition."""
    connection.execute(text(f"DROP TABLE IF EXISTS ledger_delta_{int(batch_id)}"))
