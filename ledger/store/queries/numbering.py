"""Statements about the numbers that the ledger gives: of batches, runs and attempts."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

# Where a sequence is that counts the numbers of a column.
_SEQUENCE = "pg_get_serial_sequence('{table}', '{column}')"


def move_on(
    connection: Connection, table: str, column: str, by: int, sequence: str | None = None
) -> int:
    """Go on counting so far above the greatest number that a column was given, and return the next
    number.

    ``sequence``: by default the column's own. It starts at that number from now on, which
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


def newest_batch(connection: Connection) -> int | None:
    """Return the greatest number of a batch; None: there is none."""
    return connection.execute(text("SELECT max(batch_id) FROM batch")).scalar()


def undecided_batches(connection: Connection) -> list[int]:
    """Return batches that are open or on hold."""
    statement = text("""
        SELECT batch_id FROM batch WHERE status IN ('open', 'held') ORDER BY batch_id
    """)
    return list(connection.execute(statement).scalars())


def unknown_runs(connection: Connection, batch_id: int, run_ids: Sequence[int]) -> list[int]:
    """Return those of the runs that have not noted that they write for the batch.

    Numbers from before the numbers were moved on are left out, because they are never given again.
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
