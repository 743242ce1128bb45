"""Quarantine records by hand, with a person's reason. This also accepts that they stay out of the
sinks, so nothing waits for them.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from ledger.batch import follow_ups
from ledger.batch.advice.actions import Action
from ledger.batch.advice.batches import publish, still_failed
from ledger.batch.records.filters import require_names
from ledger.batch.recovery import waits_for
from ledger.batch.settlement import decide_publications
from ledger.core.commands import ANY_TARGET, ackledger
from ledger.core.text import storable
from ledger.errors import InputError, NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import batches, records, reports
from ledger.store.queries.batches import Batch


@dataclass(frozen=True)
class Quarantined:
    """Records of an original batch that were moved to quarantine, and accepted.

    ``records``: number of records.
    ``accepted_by``: the person who accepted them.
    ``next``: what follows from that, as sentences and commands.
    """

    batch_id: int
    records: int
    accepted_by: str
    next: tuple[str, ...]


def quarantine(
    database: Database,
    reason: str,
    by: str,
    *,
    record: int | None = None,
    batch_id: int | None = None,
    step: str | None = None,
) -> Quarantined:
    """Quarantine one failed record, or those of a batch (that failed last at ``step``).

    Raises InputError without a reason, or for a record that never failed or is of another batch,
    NotReadyError if nothing is failed.
    """
    text = required_reason(reason)
    return database.transact(lambda c: _quarantine(c, text, by, record, batch_id, step))


def required_reason(reason: str | None) -> str:
    """Return a person's reason as the ledger keeps it. Raises InputError if it is empty, or only
    dots, which stand for a reason in printed commands.
    """
    text = (reason or "").strip()
    if not text.strip(".…"):
        what = f"is {reason!r}" if text else "is empty"
        raise InputError(
            f"the reason {what}: say why these records may stay out, for those who look at them"
            " later"
        )
    return storable(reason or "")


def _quarantine(
    connection: Connection,
    reason: str,
    by: str,
    record: int | None,
    batch_id: int | None,
    step: str | None,
) -> Quarantined:
    message, original = _locate(connection, record, batch_id)
    locked = batches.lock_batch(connection, original)
    assert locked is not None
    moved = records.quarantine(
        connection, original, message, step, reason, by, whole=locked.is_whole
    )
    if moved == 0:
        raise NotReadyError(_nothing(connection, record, original, step))
    decide_publications(connection, locked)
    return Quarantined(original, moved, by, tuple(_next(connection, locked)))


def _next(connection: Connection, batch: Batch) -> list[str]:
    """Return what to do next for a batch whose records were accepted: about records that are still
    failed, and about publications that waited for the records.
    """
    number, lines = batch.batch_id, []
    left = reports.batch_counts(connection, number).failed
    if left:
        lines.append(str(still_failed(number, left)))
    if left and batch.is_whole:
        without = Action(
            "Records that are given up are quarantined by a replay, which leaves them out",
            ackledger("replay", batch.target or ANY_TARGET, batch=number),
        )
        lines.append(str(without))
    if follow_ups.waiting(connection, batch.pipeline, number):
        target = batch.target or ANY_TARGET
        lines += map(str, publish(target, number, "What waited for them goes on with", None))
    return lines or waits_for(connection, number)


def _locate(
    connection: Connection, record: int | None, batch_id: int | None
) -> tuple[int | None, int]:
    """Return the message number of a record, if one is named, and the original batch. Raises
    InputError if neither a record nor a batch is named, or if the record never failed.
    """
    if record is None:
        if batch_id is None:
            raise InputError("expected a record, or --batch, found neither")
        return None, batches.get_batch(connection, batch_id).original_id
    row = records.failed_record(connection, record)
    if row is None:
        state = records.emitted_root(connection, record).status
        raise InputError(
            f"record {record} has not failed, it is {state}: 'ackledger failed --records' lists"
            f" those that did, '{ackledger('explain', record)}' says what became of it"
        )
    require_names(connection, {"batch_id": batch_id, "record": record})
    return row.message_id, row.batch_id


def _nothing(connection: Connection, record: int | None, batch_id: int, step: str | None) -> str:
    where = f" at {step}" if step else ""
    if record is not None:
        row = records.failed_record(connection, record)
        assert row is not None
        at = f" at {row.step}" if step else ""
        return f"record {record} is {row.status}{at}: only a failed one{where} is quarantined"
    require_names(connection, {"batch_id": batch_id, "step": step})
    return (
        f"batch {batch_id} has no failed record{where} (those replaying, recovered or quarantined "
        f"do not count): {ackledger('failed', batch=batch_id)}"
    )
