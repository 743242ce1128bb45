"""Forget what records contain, for whoever asks for the removal of their data.

The ledger holds content of records that failed, and of no others: it is removed there, with the
values that reasons quote, while verdicts, counts and XORs stay. A forgotten record is never
replayed, and no later copy brings its content back. The files of its batch hold it until retention
removes them, as they hold records that never failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ledger.batch.payloads import keep_all
from ledger.batch.retention import Collected, GcOptions, gc_once
from ledger.core.conditions import Comparison
from ledger.core.durations import SHORTEST_KEEP_SECONDS
from ledger.errors import InputError, NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import checkpoints, payloads, records, retention


@dataclass(frozen=True)
class Record:
    """A record that failed once: its number, and its state by now."""

    record: int
    pipeline: str
    batch_id: int
    status: str


@dataclass(frozen=True)
class Holding:
    """A batch whose files may still hold the records. ``keep_seconds``: of its pipeline; None: they
    are kept for good. ``published``: a sink has published rows of it, and these are the sink's.
    """

    batch_id: int
    pipeline: str
    files: int
    bytes: int
    keep_seconds: float | None
    published: bool


@dataclass(frozen=True)
class Forgotten:
    """``records``: whose content is gone. ``holding``: what holds it still. ``collected``: what was
    removed of their batches, if that was asked for."""

    records: tuple[Record, ...]
    holding: tuple[Holding, ...]
    collected: Collected | None = None


def named(database: Database, number: int) -> list[Record]:
    """The record of this number, or root. Raises InputError if it never failed."""
    found = database.transact(lambda c: records.failed_record(c, number))
    if found is None:
        raise InputError(
            f"record {number} has not failed, or is unknown: the ledger holds no content of it. The"
            " files of its batch and the sinks may: ackledger gc removes the first, in time"
        )
    return [Record(found.message_id, found.pipeline, found.batch_id, found.status)]


def matching(
    database: Database, pipeline: str | None, conditions: Sequence[Comparison]
) -> list[Record]:
    """The records that ever failed and whose fields fit."""
    keep_all(database, pipeline)
    chosen = {"pipeline": pipeline, "ever": True}

    def look(connection: Connection) -> list[Record]:
        return [
            Record(row.message_id, row.pipeline, row.batch_id, row.status)
            for row in payloads.records(connection, chosen, conditions, None)
        ]

    return database.transact(look)


def forget(
    database: Database,
    chosen: Sequence[Record],
    *,
    files: bool = False,
    now: datetime | None = None,
) -> Forgotten:
    """Remove what these records contain. ``files``: and, where nothing needs them, the files of
    their batches, whatever their pipelines' ``keep``.

    Raises NotReadyError if one of them is failed or being replayed: nothing is forgotten then.
    """
    numbers = [one.record for one in chosen]

    def work(connection: Connection) -> None:
        for pipeline in sorted({one.pipeline for one in chosen}):
            checkpoints.lock_pipeline(connection, pipeline)  # no replay claims one meanwhile
        undecided = retention.undecided(connection, numbers)
        if undecided:
            raise NotReadyError(
                f"record {undecided[0]} is failed or being replayed, and its content may be needed:"
                f" replay it, or quarantine it (ackledger quarantine {undecided[0]} --reason ...),"
                " and forget it then. Nothing was forgotten"
            )
        retention.forget(connection, numbers)

    database.transact(work)
    collected = None
    if files:
        families = tuple(sorted({one.batch_id for one in chosen}))
        options = GcOptions(keep_seconds=SHORTEST_KEEP_SECONDS, families=families)
        collected = gc_once(database, options, now=now)
    return Forgotten(tuple(chosen), tuple(holding(database, numbers)), collected)


def holding(database: Database, numbers: Sequence[int]) -> list[Holding]:
    """The batches whose files, or whose sinks, may hold these records."""
    found = database.transact(lambda c: retention.holding(c, numbers))
    return [Holding(**row._mapping) for row in found if row.files or row.published]
