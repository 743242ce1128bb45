"""Forget what records contain, for whoever asks for the removal of their data.

The ledger holds content of records that failed, and of no others: it is removed there, with the
values that texts of its family quote, while verdicts, counts and XORs stay. A forgotten record is
never replayed, and no later copy brings its content back. The files of its batch hold it until
retention removes them, as they hold records that never failed.

What a text may quote is read from the snapshots, for the ledger has the content of one attempt
alone, cut, and without what is redacted by now.
"""

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from ledger.batch.payloads import keep_all
from ledger.batch.retention import Collected, GcOptions, gc_once
from ledger.core.commands import REASON, ackledger
from ledger.core.conditions import Comparison
from ledger.core.durations import SHORTEST_KEEP_SECONDS
from ledger.core.redaction import is_masked, texts, without
from ledger.errors import MASK, InputError, LostFileError, NotReadyError
from ledger.storage.folders import require_reachable
from ledger.storage.manifest import Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import checkpoints, forgetting, holds, payloads, records, runs
from ledger.store.queries.payloads import FailedRecord

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """A record that failed once: its number, its state by now, and who has given it up."""

    record: int
    pipeline: str
    batch_id: int
    status: str
    accepted_by: str | None = None


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
    sampled = database.transact(lambda c: holds.record(c, number))
    if found is None and sampled is not None:
        raise _undecided(sampled)
    if found is None:
        emitted = database.transact(lambda c: records.emitted_root(c, number))
        raise InputError(
            f"record {number} has not failed, it is {emitted.status}: the ledger holds no content"
            f" of it. The files of batch {emitted.batch_id} and the sinks may: ackledger gc removes"
            " the first, in time"
        )
    return [_record(found)]


def _record(row: Row[Any] | FailedRecord) -> Record:
    return Record(row.message_id, row.pipeline, row.batch_id, row.status, row.accepted_by)


def key_values(database: Database, number: int) -> list[tuple[str, str]]:
    """The columns of a record's key, each with its value, if the ledger has these as they are."""
    (record,) = named(database, number)
    contents = database.transact(lambda c: forgetting.contents(c, [record.record]))
    keys = [json.loads(one.key) for one in contents if one.key]
    found = [(name, part) for key in keys for name in key for part in texts(key[name])]
    return [] if any(is_masked(part) for _, part in found) else found


def matching(
    database: Database, pipeline: str | None, conditions: Sequence[Comparison]
) -> list[Record]:
    """The records that ever failed and whose fields fit."""
    keep_all(database, pipeline)
    chosen = {"pipeline": pipeline, "ever": True}

    def look(connection: Connection) -> list[Record]:
        found = [_record(row) for row in payloads.records(connection, chosen, conditions, None)]
        failed = {one.record for one in found}
        for sampled in holds.sample(connection, {"pipeline": pipeline}, conditions, None):
            if sampled.message_id not in failed:
                raise _undecided(sampled)
        return found

    return database.transact(look)


def _undecided(sampled: Row[Any] | FailedRecord) -> NotReadyError:
    """Why a record is not forgotten that the preview of a batch on hold has."""
    return NotReadyError(
        f"record {sampled.message_id} is not decided: batch {sampled.batch_id} is on hold, and"
        " shows its content to decide by. Fix the batch and rerun it, or"
        f" {ackledger('release', sampled.batch_id)}, and forget the record then. Nothing was"
        " forgotten"
    )


def forget(
    database: Database,
    chosen: Sequence[Record],
    *,
    files: bool = False,
    now: datetime | None = None,
) -> Forgotten:
    """Remove what these records contain. ``files``: and, where nothing needs them, the files of
    their batches, whatever their pipelines' ``keep``.

    Raises NotReadyError if one of them is failed or being replayed, and UnavailableError where the
    storage is out of reach, which has the values to be masked: nothing is forgotten then.
    """
    numbers = [one.record for one in chosen]
    database.transact(lambda c: _refuse_undecided(c, numbers))
    known = _known(database, numbers)

    def work(connection: Connection) -> None:
        for pipeline in sorted({one.pipeline for one in chosen}):
            checkpoints.lock_pipeline(connection, pipeline)  # no replay claims one meanwhile
        _refuse_undecided(connection, numbers)
        masked = map(known.masked, forgetting.told_of(connection, numbers))
        changed = [one for one in masked if one["masked"] != one["told"]]
        forgetting.forget(connection, numbers, changed)

    database.transact(work)
    collected = None
    if files:
        families = tuple(sorted({one.batch_id for one in chosen}))
        options = GcOptions(keep_seconds=SHORTEST_KEEP_SECONDS, families=families)
        collected = gc_once(database, options, now=now)
    return Forgotten(tuple(chosen), tuple(holding(database, numbers)), collected)


def _refuse_undecided(connection: Connection, numbers: Sequence[int]) -> None:
    undecided = forgetting.undecided(connection, numbers)
    if undecided:
        raise NotReadyError(
            f"record {undecided[0]} is failed or being replayed, and its content may be needed:"
            f" replay it, or quarantine it ({ackledger('quarantine', undecided[0])} {REASON}),"
            " and forget it then. Nothing was forgotten"
        )


class _Known:
    """What records have contained, in whichever attempt. ``unknown``: messages of which not all is
    known: what may quote them is masked as a whole."""

    def __init__(self) -> None:
        self._values: dict[int, set[str]] = defaultdict(set)
        self._of_family: dict[int, set[int]] = defaultdict(set)
        self.unknown: set[int] = set()

    def add(self, family_id: int, message: int, values: Iterable[str]) -> None:
        """Add what one attempt of a message had."""
        self._of_family[family_id].add(message)
        self._values[message].update(values)

    def masked(self, text: Row[Any]) -> dict[str, Any]:
        """A text as it stands, and without what it quotes."""
        messages = self._of_family[text.family_id] if text.shared else {text.message_id}
        told = text.told
        if text.at_source:
            told = re.sub(r"(?s), found .*$", f", found {MASK}", told)
        if messages & self.unknown:
            told = MASK
        values = set[str]().union(*(self._values[message] for message in messages))
        # A replay selects by a pattern, in which some characters are escaped.
        values |= {re.sub(r"([\\%_])", r"\\\1", value) for value in values}
        keys = {"family_id": text.family_id, "root_id": text.root_id, "told": text.told}
        return {**keys, "masked": without(told, values)}


def _known(database: Database, numbers: Sequence[int]) -> _Known:
    """What records have contained, from the snapshots, and from the ledger where these are gone."""
    from ledger.batch import snapshots  # its libraries take longer to load than most commands take

    known = _Known()
    gone: dict[int, int] = {}  # by message the first attempt whose snapshot is not there
    for emit in database.transact(lambda c: forgetting.emits(c, numbers)):
        found = _contained(database, emit)
        for message, root in zip(emit.messages, emit.roots, strict=True):
            known.add(emit.family_id, message, found.get(message, ()))
            if message not in found:
                gone[message] = min(root, gone.get(message, root))
    for one in database.transact(lambda c: forgetting.contents(c, numbers)):
        values = snapshots.kept_values(one.key, one.content)
        known.add(one.batch_id, one.message_id, values or ())
        if values is not None and one.root_id <= gone.get(one.message_id, one.root_id):
            gone.pop(one.message_id, None)
    known.unknown.update(gone)
    return known


def _contained(database: Database, emit: Row[Any]) -> dict[int, frozenset[str]]:
    """The values of records as a batch has read them, by message; none where its files are gone."""
    from ledger.batch import snapshots

    if emit.files_expired_at is not None:
        return {}
    files = database.transact(lambda c: runs.files(c, emit.emit_run_id))
    if emit.folder is not None:
        require_reachable(emit.folder)
    try:
        check_files(Manifest(files))
    except LostFileError as exc:
        _log.warning("reasons of its records are masked as a whole: %s", exc)
        return {}
    return dict(snapshots.values(emit, files))


def holding(database: Database, numbers: Sequence[int]) -> list[Holding]:
    """The batches whose files, or whose sinks, may hold these records."""
    found = database.transact(lambda c: forgetting.holding(c, numbers))
    return [Holding(**row._mapping) for row in found if row.files or row.published]
