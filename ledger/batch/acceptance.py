"""Accept the quarantined records of a batch: a person's word that they may stay out of its
sinks.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from ledger.batch.advice.batches import still_failed
from ledger.batch.quarantine import required_reason
from ledger.store.connection import Database
from ledger.store.queries import acceptances, batches, reports


@dataclass(frozen=True)
class Acceptance:
    """Result of accepting the quarantined records of a batch.

    ``batch_id``: the original.
    ``records``: number of records that this call accepted.
    ``accepted``: number of those among the ``quarantined`` records that are accepted by now.
    ``failed``: number of failed records, which cannot be accepted and need a replay.
    ``next``: what to do about records that are still failed, and why there was nothing to accept,
    if there was nothing.
    """

    batch_id: int
    records: int
    accepted: int
    quarantined: int
    failed: int
    next: tuple[str, ...] = ()


def accept(database: Database, batch_id: int, *, by: str, reason: str) -> Acceptance:
    """Accept the records of a batch, or of a replay's original, that are quarantined now.

    ``by``: who does, for the ledger. Safe to repeat: what is accepted stays so. A record that is
    quarantined later, or again, is not accepted. Raises InputError without a reason, or if there
    is no such batch.
    """
    text = required_reason(reason)

    def work(connection: Connection) -> Acceptance:
        original = batches.get_batch(connection, batch_id).original_id
        batches.lock_batch(connection, original)
        records = acceptances.accept(connection, original, by, text)
        row = reports.batch_counts(connection, original)
        counts = (records, row.accepted, row.quarantined, row.failed)
        return Acceptance(original, *counts, tuple(_next(original, *counts)))

    return database.transact(work)


def _next(batch_id: int, records: int, accepted: int, quarantined: int, failed: int) -> list[str]:
    lines = []
    if not quarantined:
        lines.append(f"batch {batch_id} has nothing in quarantine")
    elif not records:
        lines.append(
            f"batch {batch_id} has nothing left to accept: {accepted:,} of {quarantined:,}"
            " quarantined are accepted"
        )
    if failed:
        lines.append(str(still_failed(batch_id, failed)))
    return lines
