"""Forget the content of records, for a person who asks for the removal of their data.

The ledger holds content only of records that failed. There it is removed, with every text of its
family that may quote it, while verdicts, counts and XORs stay. A forgotten record is never
replayed, and no later copy brings its content back. The files of its batch hold the content until
retention removes them, like that of records that never failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ledger.batch.records.held_values import texts
from ledger.batch.records.payloads import keep_all
from ledger.batch.upkeep.retention import Collected, GcOptions, gc_once
from ledger.core.commands import REASON, ackledger
from ledger.core.conditions import Comparison
from ledger.core.declarations import SHORTEST_KEEP_SECONDS
from ledger.core.redaction import is_masked
from ledger.errors import InputError, NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import forgetting, holds, pipelines, records
from ledger.store.queries.forgetting import Holding
from ledger.store.queries.records import FailedMessage

__all__ = ["Holding"]


@dataclass(frozen=True)
class RecordToForget:
    """A record that failed once: its number, its state by now, and the person who accepted it."""

    record: int
    pipeline: str
    batch_id: int
    status: str
    accepted_by: str | None = None


@dataclass(frozen=True)
class Forgotten:
    """Result of forgetting records.

    ``records``: the records whose content was removed.
    ``holding``: the batches that still hold it.
    ``collected``: the files of their batches that were removed, if that was requested.
    """

    records: tuple[RecordToForget, ...]
    holding: tuple[Holding, ...]
    collected: Collected | None = None


def named(database: Database, number: int) -> list[RecordToForget]:
    """Return the record of this number, or root. Raises InputError if it never failed."""
    row = database.transact(lambda c: records.failed_record(c, number))
    sampled = database.transact(lambda c: holds.record(c, number))
    if row is None and sampled is not None:
        raise _undecided(sampled)
    if row is None:
        emitted = database.transact(lambda c: records.emitted_root(c, number))
        raise InputError(
            f"record {number} has not failed, it is {emitted.status}: the ledger holds no content"
            f" of it. The files of batch {emitted.batch_id} and the sinks may: ackledger gc removes"
            " the first, in time"
        )
    return [_record(row)]


def _record(row: FailedMessage) -> RecordToForget:
    return RecordToForget(row.message_id, row.pipeline, row.batch_id, row.status, row.accepted_by)


def key_values(database: Database, number: int) -> list[tuple[str, str]]:
    """Return the columns of a record's key, each with its value, if the ledger has these
    unredacted.
    """
    (record,) = named(database, number)
    row = database.transact(lambda c: records.failed_record(c, record.record))
    assert row is not None
    pairs = [(name, part) for name, value in (row.key or {}).items() for part in texts(value)]
    return [] if any(is_masked(part) for _, part in pairs) else pairs


def matching(
    database: Database, pipeline: str | None, conditions: Sequence[Comparison]
) -> list[RecordToForget]:
    """Return the records that ever failed and whose fields match. Raises NotReadyError if a record
    that never failed before, and is in the preview of a batch on hold, matches too.
    """
    keep_all(database, pipeline)
    filters = {"pipeline": pipeline, "ever": True}

    def look(connection: Connection) -> list[RecordToForget]:
        matches = [_record(row) for row in records.matches(connection, filters, conditions, None)]
        failed = {record.record for record in matches}
        for sampled in holds.sample(connection, {"pipeline": pipeline}, conditions, None):
            if sampled.message_id not in failed:
                raise _undecided(sampled)
        return matches

    return database.transact(look)


def _undecided(sampled: FailedMessage) -> NotReadyError:
    """Return the error for a record that cannot be forgotten because it is in the preview of a
    batch on hold.
    """
    return NotReadyError(
        f"record {sampled.message_id} is not decided: batch {sampled.batch_id} is on hold, and"
        " shows its content to decide by. Fix the batch and rerun it, or"
        f" {ackledger('release', sampled.batch_id)}, and forget the record then. Nothing was"
        " forgotten"
    )


def forget(
    database: Database,
    targets: Sequence[RecordToForget],
    *,
    files: bool = False,
    now: datetime | None = None,
) -> Forgotten:
    """Remove the content of these records.

    ``files``: whether to remove also the files of their batches that nothing needs, whatever
    ``keep`` of their pipelines is.

    Raises NotReadyError if one of them is failed or being replayed; then nothing is forgotten.
    """
    numbers = [record.record for record in targets]

    def work(connection: Connection) -> None:
        for pipeline in sorted({record.pipeline for record in targets}):
            pipelines.lock(connection, pipeline)  # no replay claims one meanwhile
        undecided = forgetting.undecided(connection, numbers)
        if undecided:
            raise NotReadyError(
                f"record {undecided[0]} is failed or being replayed, and its content may be needed:"
                f" replay it, or quarantine it ({ackledger('quarantine', undecided[0])} {REASON}),"
                " and forget it then. Nothing was forgotten"
            )
        forgetting.forget(connection, numbers)

    database.transact(work)
    collected = None
    if files:
        families = tuple(sorted({record.batch_id for record in targets}))
        options = GcOptions(keep_seconds=SHORTEST_KEEP_SECONDS, families=families)
        collected = gc_once(database, options, now=now)
    return Forgotten(tuple(targets), tuple(holding(database, numbers)), collected)


def holding(database: Database, numbers: Sequence[int]) -> list[Holding]:
    """Return the batches whose files, or whose sinks, may hold these records."""
    return database.transact(lambda c: forgetting.holding(c, numbers))
