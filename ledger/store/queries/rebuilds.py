"""Statements about units that have to be replayed without their quarantined records."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from ledger.store.queries.refining import SETTLING


def pending(connection: Connection, batch_id: int) -> list[int]:
    """Return the settled batches of a batch's family in which records of units were quarantined,
    and for which the units without them are not requested yet.
    """
    statement = text("""
        SELECT f.batch_id FROM pending_rebuild f
        WHERE f.family_id = (SELECT family_id FROM batch WHERE batch_id = :id)
        ORDER BY 1
    """)
    return list(connection.execute(statement, {"id": batch_id}).scalars())


def set_requested(connection: Connection, batch_id: int) -> None:
    """Note that the units of a batch are requested, without the records that were quarantined."""
    connection.execute(
        text("UPDATE batch SET rebuild_requested_at = now() WHERE batch_id = :id"), {"id": batch_id}
    )


def collect(connection: Connection, batch_id: int, roots: Sequence[int], step: str) -> None:
    """Fill ``settling`` with roots of a settled batch, less those that failed in it, as failures
    of their unit.
    """
    statement = text("""
        INSERT INTO settling (root_id, residue, step, cause, own_failure, shared, incomplete)
        SELECT root_id, 0, :step, 'unit', false, true, false
        FROM unnest(cast(:roots AS bigint[])) AS w (root_id)
        WHERE root_id NOT IN (SELECT root_id FROM failed_root WHERE batch_id = :id)
    """)
    connection.execute(text(SETTLING))
    connection.execute(statement, {"id": batch_id, "roots": list(roots), "step": step})
