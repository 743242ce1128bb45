"""Explain a record: what became of it, where it was last seen, what it holds, what to do next."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from ledger.batch.advice.actions import Action, lines
from ledger.batch.advice.records import NOTHING_LEFT, Case, Cause, RecordState, of_records, state_of
from ledger.batch.records.payloads import try_to_keep
from ledger.batch.recovery import on_hold
from ledger.core.commands import ackledger
from ledger.core.states import BatchStatus
from ledger.sources.base import Sought
from ledger.sources.registry import lines_of
from ledger.store.connection import Database
from ledger.store.queries import batches, holds, records

NOT_DECIDED = "on hold: not decided"
_EDGES = re.compile(r"(-?\d+) edges from (.+?), (-?\d+) acked")


@dataclass(frozen=True)
class Explanation:
    """All that the ledger knows of one record. ``root``: of its last attempt. ``last_seen``: the
    step that last passed on a row of it, None while nothing is decided. ``content``: JSON of its
    fields, or raw text. ``accepted_by``: who gave it up, as it stands; ``decisions``: who ever did,
    and why. ``next``: what to do, with commands."""

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
    """The record of a root, or of a message; where its content is not kept yet, or may have been
    read again, it is copied first. Raises InputError if there is none of that id.
    """
    sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None and sampled.content is None:
        try_to_keep(database, sampled.batch_id)
        sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None:
        undecided = explained(database, number)
        return replace(undecided, source_line=_line(sampled, sampled.layout or {}))
    found = _found(database, number)
    if found is not None and (found.content is None or found.content_root < found.root_id):
        try_to_keep(database, found.batch_id)
        found = _found(database, number)
    line = None if found is None else _line(found, _layout(found))
    return replace(explained(database, number), source_line=line)


def explained(database: Database, number: int) -> Explanation:
    """As ``explain``, by what the ledger holds alone: copies nothing, and does not look in the
    source for the line.
    """
    found = _found(database, number)
    sampled = database.transact(lambda c: holds.record(c, number))
    if sampled is not None:
        return _on_hold(database, sampled, None if found is None else found.message_id)
    if found is None:
        return database.transact(lambda c: _without_failure(c, number))
    tried = database.transact(lambda c: records.attempts(c, found.message_id))
    decided = database.transact(lambda c: records.decisions(c, found.message_id))
    last_seen, missing = _last_seen(found)
    return Explanation(
        record=found.message_id,
        root=found.root_id,
        pipeline=found.pipeline,
        source=found.source,
        batch_id=found.batch_id,
        verdict=found.status,
        accepted_by=next((row.accepted_by for row in decided if row.holds), None),
        last_seen=last_seen,
        missing=missing,
        key=found.key,
        content=found.content,
        source_file=found.source_file,
        source_row=found.source_row,
        interval_start=found.interval_start,
        interval_end=found.interval_end,
        attempts=tuple(dict(row._mapping) for row in tried),
        decisions=tuple(dict(row._mapping) for row in decided),
        next=tuple(lines(of_records(_case(found)))),
    )


def _found(database: Database, number: int) -> Row[Any] | None:
    return database.transact(lambda c: records.failed_record(c, number))


def _on_hold(database: Database, sampled: Row[Any], failed_before: int | None) -> Explanation:
    """A record that would fail if its batch, which is on hold, were settled as it is."""

    def look(connection: Connection) -> tuple[Sequence[Row[Any]], str]:
        batch = batches.get_batch(connection, sampled.batch_id)
        tried = [] if failed_before is None else records.attempts(connection, failed_before)
        return tried, on_hold(connection, batch)

    tried, sentences = database.transact(look)
    return Explanation(
        record=sampled.message_id,
        root=sampled.root_id,
        pipeline=sampled.pipeline,
        source=sampled.source,
        batch_id=sampled.batch_id,
        verdict=NOT_DECIDED,
        missing=f"it would fail at {sampled.step}: {sampled.reason}",
        key=sampled.key,
        content=sampled.content,
        source_file=sampled.source_file,
        source_row=sampled.source_row,
        interval_start=sampled.interval_start,
        interval_end=sampled.interval_end,
        attempts=tuple(dict(row._mapping) for row in tried),
        next=(sentences,),
    )


def _without_failure(connection: Connection, number: int) -> Explanation:
    """A record that never failed: acked, or not decided yet."""
    found = records.emitted_root(connection, number)
    batch = batches.get_batch(connection, found.batch_id)
    action = Action(f"nothing: {NOTHING_LEFT[RecordState.ACKED]}")
    if found.status == "pending" and batch.status is BatchStatus.HELD:
        action = Action(on_hold(connection, batch))
    elif found.status == "pending":
        status = ackledger("status", batch=found.batch_id)
        action = Action(f"wait until batch {found.batch_id} settles", status)
    return Explanation(
        record=found.message_id,
        root=found.root_id,
        pipeline=found.pipeline,
        source=found.source,
        batch_id=found.batch_id,
        verdict=found.status,
        next=(str(action),),
    )


def _last_seen(found: Row[Any]) -> tuple[str, str]:
    """The step that last passed on a row of a record; which row is missing after it, and why."""
    edges = _EDGES.match(found.detail or "")
    if edges is None:
        # It did not parse, or a replay looked for it in the source.
        what = "could not be read" if found.step == found.source else "failed there"
        return found.step, f"it {what}: {found.reason}"
    emitted, producers, acked = int(edges[1]), edges[2], int(edges[3])
    if emitted > acked:
        rows = "one row" if emitted == 1 else f"{emitted} rows"
        none = "none" if acked <= 0 else f"no output for {emitted - acked} of them"
        gap = f"{found.step} read {rows} of this record from {producers} and wrote {none}"
    elif emitted < acked:
        gap = f"{found.step} acked {acked} rows of the {emitted} from {producers}"
    else:
        gap = f"one row from {producers} is missing at {found.step}, and another came twice"
    return producers, f"{gap}: {found.reason}"


def _layout(found: Row[Any]) -> Mapping[str, Any]:
    return next((step for step in found.topology if step["name"] == found.source), {})


def _line(found: Row[Any], layout: Mapping[str, Any]) -> int | None:
    if found.source_file is None or found.source_row is None:
        return None
    sought = Sought(found.source_row, found.content, found.parsed)
    return lines_of(found.source_file, [sought], layout).get(found.source_row)


def _has_key(found: Row[Any]) -> bool:
    """Whether its key could be read; where its content is not kept yet, it may be."""
    return found.content is None or None not in (found.key or {"": None}).values()


def _case(found: Row[Any]) -> Case:
    sources = [step for step in found.topology if step["name"] == found.source]
    by_unit = any(step.get("merges") for step in found.topology)
    return Case(
        found.target,
        found.batch_id,
        found.interval_start,
        found.interval_end,
        found.params,
        found.dag_id,
        found.step,
        Cause(found.cause),
        state_of(found),
        any(step.get("rereads") for step in sources) and not by_unit and _has_key(found),
        not any(step.get("incremental") for step in found.topology),
        found.reason,
        record=found.message_id,
        joins=any(step.get("joins") for step in found.topology if step["name"] == found.step),
        due_at=found.due_at,
        replay_batch_id=found.replay_batch_id,
        expired_at=found.files_expired_at,
    )
