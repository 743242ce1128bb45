"""Claims of a batch on its sources. The sources are asked while nothing is locked; the transaction
that opens the batch accepts their offers.

An interval is claimed by one batch. Files, and ranges between offsets, are claimed by the batch
that finds them unclaimed. The next batch takes over the claims of an abandoned one. ``max_pending``
is a gate before all of this: a batch takes as much as there is room for, or does not open. Two
claims are never cut: an interval, and the unclaimed records of a source that a whole stage needs.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import instead_of_a_second_run
from ledger.batch.recovery import stands_at
from ledger.core.declarations import as_json
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import BackPressureError, InputError, NotReadyError, quote, redacted
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.settings import Settings
from ledger.sources.base import Claim, FoundFile, Scope
from ledger.store.connection import Database
from ledger.store.queries import batches, pipelines
from ledger.store.queries import claims as queries
from ledger.store.queries.batches import Batch
from ledger.store.queries.claims import NOTHING, NextRange, PendingRecords

Result = TypeVar("Result")

# How often sources are asked, as long as other batches are faster to claim what they have.
MOST_ATTEMPTS = 20


class OvertakenError(NotReadyError):
    """Another batch has just claimed what this batch was about to claim."""


@dataclass(frozen=True)
class Opening:
    """A batch that is being opened, as sources are asked about it.

    ``pipeline_id``: None before the pipeline's first batch.
    ``batch_id``: None until the batch has a number.
    ``has_interval``: whether the batch claims its interval. A replay does not, nor does a batch
    that replaces another one.
    """

    pipeline_id: int | None
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    batch_id: int | None = None
    has_interval: bool = True

    @property
    def interval(self) -> Interval:
        """The interval that the batch reads, with the run's parameters."""
        return Interval(self.interval_start, self.interval_end, self.params)


@dataclass(frozen=True)
class Prospect:
    """The part of a source that a batch can take.

    ``range``: the next range.
    ``pending``: the pending records of the source.
    ``room``: number of records for which there is room beside the pending ones; None: any number.
    """

    range: NextRange
    pending: PendingRecords = NOTHING
    room: int | None = None

    def has_room(self, claim: Claim) -> bool:
        """Return whether a claim fits. A claim that cannot be cut waits only while records are
        pending.
        """
        return self.room is None or not self.pending.records or (claim.records or 0) <= self.room


@dataclass(frozen=True)
class Offer:
    """A source's claim for a batch, and the ``range`` that was next when the source was asked."""

    claim: Claim
    range: NextRange


def ask(
    database: Database, settings: Settings, pipeline: Pipeline, opening: Opening
) -> list[Offer]:
    """Ask each source for its offer to a batch. This may take a while: nothing is locked.

    Raises InputError if the batch's interval belongs to another batch, BackPressureError if there
    is no room for its records.
    """

    def look(connection: Connection) -> tuple[Opening, datetime, list[Prospect]]:
        current = replace(opening, pipeline_id=pipelines.find(connection, pipeline.name))
        prospects = _prospects(connection, pipeline, current)
        return current, batches.database_now(connection), prospects

    opening, now, prospects = database.transact(look)

    def offer(step: SourceStep, prospect: Prospect) -> Offer:
        scope = _scope(database, settings, step, opening, now)
        claim = _latest(pipeline, step, scope, prospect)
        if not prospect.has_room(claim):
            pending, demand = prospect.pending, claim.records or 0
            raise database.transact(lambda c: _no_room(c, pipeline, step.name, pending, demand))
        return Offer(claim, prospect.range)

    return list(map(offer, pipeline.sources(), prospects))


def next_claim(
    database: Database, settings: Settings, pipeline: Pipeline, step: SourceStep, interval: Interval
) -> Claim:
    """Return the claim of the next batch over the interval on a source, however many records are
    pending. The claim on a source by offset is without its range. Nothing is claimed.
    """
    opening = Opening(None, interval.start, interval.end, interval.params, has_interval=False)
    if step.source.by_offset:
        return Claim(step.name, _path(settings, step, opening))

    def look(connection: Connection) -> tuple[Opening, datetime]:
        current = replace(opening, pipeline_id=pipelines.find(connection, pipeline.name))
        return current, batches.database_now(connection)

    scope = _scope(database, settings, step, *database.transact(look))
    return step.source.latest(scope, None, None)


def accept(
    connection: Connection, pipeline: Pipeline, opening: Opening, offers: Sequence[Offer] | None
) -> list[Claim]:
    """Return the claims of a batch, under the pipeline's lock: the offers of its sources, if no
    other batch has claimed any of them since.

    ``offers``: None: the sources were not asked.

    Raises OvertakenError if the sources have to be asked again, and the errors of ``ask``.
    """
    prospects = _prospects(connection, pipeline, opening)
    if offers is None:
        raise OvertakenError(
            f"a batch of pipeline {pipeline.name!r} was abandoned just now: run this again"
        )
    for step, prospect, offer in zip(pipeline.sources(), prospects, offers, strict=True):
        files = offer.claim.files
        is_open = len(_unclaimed(connection, opening, step.name, files)) == len(files)
        if not (is_open and prospect.range == offer.range and prospect.has_room(offer.claim)):
            raise OvertakenError(
                f"source {step.name!r} of pipeline {pipeline.name!r}: other batches were faster to"
                " claim what is new: run this again"
            )
        _take_range(connection, pipeline, opening, offer)
    return [offer.claim for offer in offers]


def until_accepted(attempt: Callable[[], Result]) -> Result:
    """Call ``attempt`` until no other batch is faster, at most ``MOST_ATTEMPTS`` times. Return its
    result.
    """
    for _ in range(MOST_ATTEMPTS - 1):
        with suppress(OvertakenError):
            return attempt()
    return attempt()


def replay_claims(settings: Settings, pipeline: Pipeline, opening: Opening) -> list[Claim]:
    """Return a claim on each source for a replay. It has only the path, because a replay claims
    failed messages, and no files or ranges.
    """
    return [Claim(step.name, _path(settings, step, opening)) for step in pipeline.sources()]


def replay_room(connection: Connection, pipeline: Pipeline, replay: Batch) -> int | None:
    """Return how many messages a replay may claim before ``max_pending`` records of a source are
    pending; None: the pipeline has no ``max_pending``. The source with the least room counts.

    Raises BackPressureError while a source has no room, or while a batch has yet to read a source.
    Raises InputError if batches on hold leave no room, so that only a person can end the wait.
    """
    if pipeline.max_pending is None:
        return None
    rooms = []
    for step in pipeline.sources():
        pending = queries.pending(connection, replay.pipeline_id, step.name, replay.batch_id)
        rooms.append(_room(connection, pipeline, step.name, pending))
    return min(rooms)


def claim_of(connection: Connection, batch_id: int, source: str) -> Claim:
    """Return the claim of a batch on a source, with the files as they were claimed."""
    files = tuple(queries.files_of(connection, FoundFile, batch_id, source))
    return queries.of_source(connection, partial(Claim, source, files=files), batch_id, source)


def reread_claim(connection: Connection, replay: Batch, source: str) -> Claim:
    """Return the claim of a replay's original on a source, at the path where the source is now. Of
    a source by interval it has no version, because the source is read as it is now.
    """
    claim = claim_of(connection, replay.original_id, source)
    end = None if claim.number is None else claim.end
    return replace(claim, path=claim_of(connection, replay.batch_id, source).path, end=end)


def save(
    connection: Connection,
    pipeline: Pipeline,
    opening: Opening,
    batch_id: int,
    claims: Iterable[Claim],
) -> None:
    """Write the claims of a batch that is opened, or opened again."""
    for claim in claims:
        incremental = pipeline.source_named(claim.source).incremental
        keys = {"batch_id": batch_id, "pipeline_id": opening.pipeline_id, "source": claim.source}
        values = {
            "path": claim.path,
            "interval_start": opening.interval_start,
            "interval_end": opening.interval_end,
            "claimed": opening.has_interval and not incremental,
            "claim_number": claim.number,
            "claim_start": claim.start,
            "claim_end": claim.end,
            "claim_records": claim.records,
        }
        batches.save_source(connection, {**keys, **values})
        queries.insert_files(connection, [{**asdict(file), **keys} for file in claim.files])


def _scope(
    database: Database, settings: Settings, step: SourceStep, opening: Opening, now: datetime
) -> Scope:
    """Return what a source is told when it is asked. ``now``: the ledger's time."""

    def unclaimed(files: Sequence[FoundFile]) -> list[FoundFile]:
        return database.transact(lambda c: _unclaimed(c, opening, step.name, files))

    path = _path(settings, step, opening)
    return Scope(settings, step.name, path, opening.interval, now, unclaimed)


def _path(settings: Settings, step: SourceStep, opening: Opening) -> str:
    return step.source.path(settings, opening.interval)


def _prospects(connection: Connection, pipeline: Pipeline, opening: Opening) -> list[Prospect]:
    """Return the prospect of each source. Raises those errors of ``ask`` for which no source has to
    be asked.
    """
    if opening.has_interval:
        _check_free(connection, pipeline, opening)
    pipeline_id, batch_id, prospects = opening.pipeline_id, opening.batch_id, []
    for step in pipeline.sources():
        ahead = queries.next_range(connection, pipeline_id, step.name, batch_id)
        if ahead != NextRange() and not step.source.by_offset:
            raise InputError(
                f"source {step.name!r} of pipeline {pipeline.name!r} was read by offsets, and is"
                " now declared as one that is not, which would not read what they have left:"
                " declare it under a new name"
            )
        if pipeline.max_pending is None:
            prospects.append(Prospect(ahead))
            continue
        pending = queries.pending(connection, pipeline_id, step.name, batch_id)
        room = _room(connection, pipeline, step.name, pending)
        prospects.append(Prospect(ahead, pending, room))
    return prospects


def _latest(pipeline: Pipeline, step: SourceStep, scope: Scope, prospect: Prospect) -> Claim:
    """Return the claim of a batch on a source: a whole range that another batch has given back, or
    the latest that the source offers, and all of it if a whole stage needs it.

    If the pipeline redacts, an error of the source keeps no values, because a source that counts
    its records may quote one.
    """
    ahead = prospect.range
    values: dict[str, Any] = {}
    if step.source.by_offset:
        values = {"start": ahead.start, "number": ahead.number}
    if ahead.released_by is not None:
        return scope.claim(end=ahead.end, records=ahead.records, **values)
    takes_all = step.incremental and pipeline.graph.is_whole  # as far as it is known
    try:
        claim = step.source.latest(scope, ahead.start, None if takes_all else prospect.room)
    except Exception as exc:
        if not pipeline.redact:
            raise
        raise redacted(exc) from None
    end = as_json(f"latest of source {step.name!r}", claim.end, "an offset")
    if end is not None and end != ahead.start:
        return replace(claim, end=end, **values)
    is_nothing = step.incremental and not claim.files
    return replace(claim, end=None, records=0 if is_nothing else claim.records)


def _take_range(connection: Connection, pipeline: Pipeline, opening: Opening, offer: Offer) -> None:
    """Take over a range that an abandoned batch has given back. Raises InputError if a source has
    returned to an earlier offset.
    """
    claim, pipeline_id = offer.claim, opening.pipeline_id
    if claim.number is None:
        return
    assert pipeline_id is not None
    if offer.range.released_by is not None:
        batch_id, number = offer.range.released_by, claim.number
        cleared = queries.clear_range(connection, batch_id, claim.source, number)
        assert cleared, (batch_id, claim.source, number)  # the pipeline's lock keeps it so
    elif queries.is_claimed_end(connection, pipeline_id, claim.source, claim.end):
        start, end = json.dumps(claim.start), json.dumps(claim.end)
        error = InputError(
            f"source {claim.source!r} of pipeline {pipeline.name!r} has gone back: from offset"
            f" {quote(start)} it reads on to {quote(end)}, where an earlier batch has ended, so"
            " records would be read twice. If its system was set up again, declare it under a new"
            " name"
        )
        raise redacted(error) if pipeline.redact else error


def _unclaimed(
    connection: Connection, opening: Opening, source: str, files: Sequence[FoundFile]
) -> list[FoundFile]:
    """Return the files that no batch has claimed as they are now, the oldest first."""
    if not files:
        return []
    paths = [file.path for file in files]
    claimed = queries.claimed_files(connection, FoundFile, opening.pipeline_id, source, paths)
    seen = {(file.path, file.bytes, file.modified_at) for file in claimed}
    # Only the last content of each path: an earlier one that comes back is new.
    newest = {file.path: file.digest for file in claimed}
    new = [
        file
        for file in files
        if (file.path, file.bytes, file.modified_at) not in seen
        and (file.digest is None or file.digest != newest.get(file.path))
    ]
    return sorted(new, key=lambda file: (file.modified_at, file.path))


def _check_free(connection: Connection, pipeline: Pipeline, opening: Opening) -> None:
    """Raise InputError if another batch has the interval of a source."""
    start, end = opening.interval_start, opening.interval_end
    for step in pipeline.sources():
        owner = batches.claiming_batch(connection, opening.pipeline_id, step.name, start, end)
        if owner is not None and not step.incremental:
            interval = Interval(start, end, owner.params)
            instead = instead_of_a_second_run(known_target(pipeline), interval, owner)
            raise InputError(
                f"source {step.name!r} of pipeline {pipeline.name!r}: the interval"
                f" {start.isoformat()} to {end.isoformat()} belongs to batch {owner.batch_id}"
                f" ({owner.status.words}; run {owner.run_id!r}); a second batch would"
                f" deliver it twice. {sentences(instead)}"
            )


def _room(connection: Connection, pipeline: Pipeline, source: str, pending: PendingRecords) -> int:
    """Return how many more records of a source may be pending, at least one. Raises the error of
    ``_no_room`` if there is no room, BackPressureError if a batch has yet to read the source.
    """
    assert pipeline.max_pending is not None
    room = pipeline.max_pending - pending.records
    if room <= 0:
        raise _no_room(connection, pipeline, source, pending)
    if pending.unread:
        unread = pending.unread[0]
        raise BackPressureError(
            f"source {source!r} of pipeline {pipeline.name!r}: batch {unread} has yet to read it,"
            f" so its records are not known, and max_pending is {pipeline.max_pending}: wait until"
            f" it has read them{_standing(connection, unread)}"
        )
    return room


def _no_room(
    connection: Connection,
    pipeline: Pipeline,
    source: str,
    pending: PendingRecords,
    demand: int = 1,
) -> InputError | BackPressureError:
    """Return the error for a batch of ``demand`` records that has to wait: InputError if only a
    person can end the wait, because the batches on hold by themselves leave no room; otherwise
    BackPressureError.
    """
    assert pipeline.max_pending is not None
    room = pipeline.max_pending - pending.records
    larger = f", and more than {room} are to be read" if room > 0 else ""
    reason = (
        f"source {source!r} of pipeline {pipeline.name!r}:"
        f" {quantity(pending.records, 'record is', 'records are')} pending in batches"
        f" {', '.join(map(str, pending.batches))}{larger}, max_pending is {pipeline.max_pending}"
    )
    if pending.held_records and pending.held_records + demand > pipeline.max_pending:
        return InputError(
            f"{reason}, and batch {pending.held[0]} is on hold: fix what holds it, or release it,"
            " then run this again"
        )
    waiting_for = [number for number in pending.batches if number not in pending.held]
    return BackPressureError(
        f"{reason}: wait until they settle{_standing(connection, waiting_for[0])}"
    )


def _standing(connection: Connection, batch_id: int) -> str:
    """Return the progress of a batch that others wait for, as the end of a message; empty if there
    is nothing to do about it.
    """
    standing = stands_at(connection, batches.get_batch(connection, batch_id))
    return f". Batch {batch_id}: {standing}" if standing.actions else ""
