"""Explain a record: its state, where it was last seen, its content, and what to do next."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ledger.batch.advice.actions import Action, lines
from ledger.batch.advice.records import NOTHING_LEFT, Case, RecordState, of_records, state_of
from ledger.batch.records.payloads import try_to_keep
from ledger.batch.recovery import on_hold
from ledger.core.commands import ACCEPT_DAG, ackledger
from ledger.core.states import BatchStatus, FailureCause
from ledger.sources.base import Sought
from ledger.sources.registry import lines_of
from ledger.store.connection import Database
from ledger.store.queries import acceptances, batches, holds, records
from ledger.store.queries.holds import SampledRecord
from ledger.store.queries.records import DecidedAttempt, EmittedRoot, FailedMessage, LastFailure

NOT_DECIDED = "on hold: not decided"


@dataclass(frozen=True)
class Explanation:
    """All that the ledger knows of one record.

    ``root``: root of its last attempt.
    ``last_seen``: the step that last passed on a row of it; None while nothing is decided.
    ``content``: JSON of its fields, or raw text.
    ``accepted_by``: the person whose acceptance of it stands.
    ``decisions``: all persons who accepted it, with their reasons.
    ``next``: what to do, with commands.
    """

    record: int
    root: int
    pipeline: str
    source: str
    batch_id: int
    verdict: str
    accepted_by: str | None = None
    last_seen: str | None = None
    missing: str | None = None
    key: Mapping[str, Any] | None = None
    content: str | None = None
    source_file: str | None = None
    source_row: int | None = None
    source_line: int | None = None
    interval_start: datetime | None = None
    interval_end: datetime | None = None
    attempts: tuple[dict[str, Any], ...] = ()
    decisions: tuple[dict[str, Any], ...] = ()
    next: tuple[str, ...] = ()


def explain(database: Database, number: int) -> Explanation:
    """Explain the record of a root or a message number. Content that is not kept yet, or may have
    been read again, is copied first. Raises InputError if there is no record of that number.
    """
    sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None and sampled.content is None:
        try_to_keep(database, sampled.batch_id)
        sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None:
        undecided = explained(database, number)
        return replace(undecided, source_line=_line(sampled))
    record = _failed_record(database, number)
    if record is not None and (record.content_root or 0) < record.root_id:
        try_to_keep(database, record.batch_id)
        record = _failed_record(database, number)
    line = None if record is None else _line(record)
    return replace(explained(database, number), source_line=line)


def explained(database: Database, number: int, accept_dag: str = ACCEPT_DAG) -> Explanation:
    """Explain a record as ``explain`` does, only from the ledger: copies no content, and does not
    look up the record's line in the source. ``accept_dag``: the DAG whose form accepts records of
    this ledger.
    """
    record = _failed_record(database, number)
    sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None:
        return _on_hold(database, sampled, None if record is None else record.message_id)
    if record is None:
        return database.transact(lambda c: _without_failure(c, number))
    tried = database.transact(lambda c: records.attempts(c, record.message_id))
    decided = database.transact(lambda c: acceptances.decisions(c, record.message_id))
    last_seen, missing = _last_seen(record)
    own = {"cause": FailureCause(record.cause), "state": state_of(record)}
    columns = {**_columns(record, Case), **own}
    case = Case(**columns, record=record.message_id, accept_dag=accept_dag)
    return _of(
        record,
        record.status,
        accepted_by=next((row.accepted_by for row in decided if row.holds), None),
        last_seen=last_seen,
        missing=missing,
        attempts=tuple(map(asdict, tried)),
        decisions=tuple(map(asdict, decided)),
        next=tuple(lines(of_records(case))),
    )


def _of(row: LastFailure | SampledRecord | EmittedRoot, verdict: str, **others: Any) -> Explanation:
    """Return the explanation of a record from its row, whose columns have the names of the fields,
    and from other fields.
    """
    ids = {"record": row.message_id, "root": row.root_id}
    return Explanation(**{**_columns(row, Explanation), **ids, "verdict": verdict, **others})


def _columns(row: object, fields_of: type[Case | Explanation]) -> dict[str, Any]:
    """Return the columns of a row that have the names of a class's fields."""
    names = {each.name for each in fields(fields_of)}
    return {name: value for name, value in vars(row).items() if name in names}


def _failed_record(database: Database, number: int) -> LastFailure | None:
    return database.transact(lambda c: records.failed_record(c, number))


def _on_hold(database: Database, sampled: SampledRecord, failed_before: int | None) -> Explanation:
    """Return the explanation of a record that would fail if its batch, which is on hold, were
    settled.
    """

    def look(connection: Connection) -> tuple[list[DecidedAttempt], str]:
        batch = batches.get_batch(connection, sampled.batch_id)
        tried = [] if failed_before is None else records.attempts(connection, failed_before)
        return tried, on_hold(connection, batch)

    tried, sentences = database.transact(look)
    return _of(
        sampled,
        NOT_DECIDED,
        missing=f"it would fail at {sampled.step}: {sampled.reason}",
        attempts=tuple(map(asdict, tried)),
        next=(sentences,),
    )


def _without_failure(connection: Connection, number: int) -> Explanation:
    """Return the explanation of a record that never failed: acked, or not decided yet."""
    root = records.emitted_root(connection, number)
    batch = batches.get_batch(connection, root.batch_id)
    action = Action(f"nothing: {NOTHING_LEFT[RecordState.ACKED]}")
    if root.status == "pending" and batch.status is BatchStatus.HELD:
        action = Action(on_hold(connection, batch))
    elif root.status == "pending":
        status = ackledger("status", batch=root.batch_id)
        action = Action(f"wait until batch {root.batch_id} settles", status)
    return _of(root, root.status, next=(str(action),))


def _last_seen(record: LastFailure) -> tuple[str, str]:
    """Return the step that last passed on a row of a record, and which row is missing after it and
    why.
    """
    if record.producers is None:
        # It did not parse, or a replay looked for it in the source.
        what = "could not be read" if record.step == record.source else "failed there"
        return record.step, f"it {what}: {record.reason}"
    producers = record.producers
    emitted, acked = record.emitted_edges or 0, record.acked_edges or 0
    if emitted > acked:
        rows = "one row" if emitted == 1 else f"{emitted} rows"
        none = "none" if acked <= 0 else f"no output for {emitted - acked} of them"
        gap = f"{record.step} read {rows} of this record from {producers} and wrote {none}"
    elif emitted < acked:
        gap = f"{record.step} acked {acked} rows of the {emitted} from {producers}"
    else:
        gap = f"one row from {producers} is missing at {record.step}, and another came twice"
    return producers, f"{gap}: {record.reason}"


def _line(record: FailedMessage) -> int | None:
    if record.source_file is None or record.source_row is None or record.content is None:
        return None
    sought = Sought(record.source_row, record.content, bool(record.parsed))
    return lines_of(record.source_file, [sought], record.layout or {}).get(record.source_row)
