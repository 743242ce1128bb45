"""What a batch claims of its sources: they are asked while nothing is locked, and the transaction
that opens the batch accepts what they offer.

An interval is claimed by one batch. Files, and ranges between offsets, are claimed by the batch
that finds them unclaimed. What an abandoned batch has claimed, the next one takes. ``max_pending``
is a gate before all of this: a batch takes what there is room for, or does not open. An interval is
never cut, nor what is new for a whole stage.
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
from ledger.core.json_values import as_json
from ledger.core.run_request import Interval
from ledger.core.text import quantity
from ledger.errors import BackPressureError, InputError, NotReadyError, redacted
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.settings import Settings
from ledger.sources.base import Claim, Scope
from ledger.sources.listing import FoundFile
from ledger.store.connection import Database
from ledger.store.queries import batches, pipelines
from ledger.store.queries import claims as queries
from ledger.store.queries.batches import Batch
from ledger.store.queries.claims import NOTHING, NextRange, PendingRecords

Result = TypeVar("Result")

# How often sources are asked, as long as other batches are faster to claim what they have.
MOST_ATTEMPTS = 20


class OvertakenError(NotReadyError):
    """Another batch has claimed what this one was about to claim."""


@dataclass(frozen=True)
class Opening:
    """The batch that claims. ``pipeline_id``: None before the pipeline's first. ``batch_id``: None
    while it has none. ``has_interval``: an interval is claimed: it is no replay, and it replaces no
    batch.
    """

    pipeline_id: int | None
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    batch_id: int | None = None
    has_interval: bool = True

    @property
    def interval(self) -> Interval:
        """What the batch reads."""
        return Interval(self.interval_start, self.interval_end, self.params)


@dataclass(frozen=True)
class Prospect:
    """What a batch can take of a source: the ``range`` that is next, and how many records there is
    ``room`` for beside those that are ``pending``; None: any number.
    """

    range: NextRange
    pending: PendingRecords = NOTHING
    room: int | None = None

    def has_room(self, claim: Claim) -> bool:
        """Whether a claim fits. What cannot be cut waits only while records are pending."""
        return self.room is None or not self.pending.records or (claim.records or 0) <= self.room


@dataclass(frozen=True)
class Offer:
    """What a source has for a batch, and the ``range`` that was next when it was asked."""

    claim: Claim
    range: NextRange


def ask(
    database: Database, settings: Settings, pipeline: Pipeline, opening: Opening
) -> list[Offer]:
    """Ask the sources what the batch is to take. This may take a while: nothing is locked.

    Raises InputError when its interval belongs to another batch, BackPressureError when there is
    no room for its records.
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

    return list(map(offer, _sources(pipeline), prospects))


def next_claim(
    database: Database, settings: Settings, pipeline: Pipeline, step: SourceStep, interval: Interval
) -> Claim:
    """Return what the next batch over the interval would take of a source, however many records
    are pending; of a source by offset without its range. Nothing is claimed.
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
    """What the batch claims, under the pipeline's lock: what its sources have offered, if nothing
    of it has been claimed since. ``offers``: None: they were not asked.

    Raises OvertakenError if they are to be asked again, and what ``ask`` does.
    """
    prospects = _prospects(connection, pipeline, opening)
    if offers is None:
        raise OvertakenError(
            f"a batch of pipeline {pipeline.name!r} was abandoned just now: run this again"
        )
    for step, prospect, offer in zip(_sources(pipeline), prospects, offers, strict=True):
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
    """Try until no other batch is faster, at most ``MOST_ATTEMPTS`` times."""
    for _ in range(MOST_ATTEMPTS - 1):
        with suppress(OvertakenError):
            return attempt()
    return attempt()


def replay_claims(settings: Settings, pipeline: Pipeline, opening: Opening) -> list[Claim]:
    """A replay claims messages, nothing of a source."""
    return [Claim(step.name, _path(settings, step, opening)) for step in _sources(pipeline)]


def replay_room(connection: Connection, pipeline: Pipeline, replay: Batch) -> int | None:
    """How many messages a replay may claim, of whichever source; None: any number."""
    if pipeline.max_pending is None:
        return None
    rooms = []
    for step in _sources(pipeline):
        pending = queries.pending(connection, replay.pipeline_id, step.name, replay.batch_id)
        rooms.append(_room(connection, pipeline, step.name, pending))
    return min(rooms)


def claim_of(connection: Connection, batch_id: int, source: str) -> Claim:
    """What a batch has claimed of a source, the files as they were then."""
    files = tuple(queries.files_of(connection, FoundFile, batch_id, source))
    return queries.of_source(connection, partial(Claim, source, files=files), batch_id, source)


def reread_claim(connection: Connection, replay: Batch, source: str) -> Claim:
    """What the original of a replay has claimed of a source, where the source has it now."""
    claim = claim_of(connection, replay.original_id, source)
    return replace(claim, path=claim_of(connection, replay.batch_id, source).path)


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


def _sources(pipeline: Pipeline) -> list[SourceStep]:
    return list(pipeline.sources())


def _scope(
    database: Database, settings: Settings, step: SourceStep, opening: Opening, now: datetime
) -> Scope:
    """Return the scope of a question to a source. ``now``: the ledger's time."""

    def unclaimed(files: Sequence[FoundFile]) -> list[FoundFile]:
        return database.transact(lambda c: _unclaimed(c, opening, step.name, files))

    path = _path(settings, step, opening)
    return Scope(settings, step.name, path, opening.interval, now, unclaimed)


def _path(settings: Settings, step: SourceStep, opening: Opening) -> str:
    return step.source.path(settings, opening.interval)


def _prospects(connection: Connection, pipeline: Pipeline, opening: Opening) -> list[Prospect]:
    """Of each source. Raises what ``ask`` does, but for a source that has to be asked first."""
    if opening.has_interval:
        _check_free(connection, pipeline, opening)
    return [_prospect(connection, pipeline, opening, step) for step in _sources(pipeline)]


def _prospect(
    connection: Connection, pipeline: Pipeline, opening: Opening, step: SourceStep
) -> Prospect:
    pipeline_id, batch_id = opening.pipeline_id, opening.batch_id
    ahead = queries.next_range(connection, pipeline_id, step.name, batch_id)
    if ahead != NextRange() and not step.source.by_offset:
        raise InputError(
            f"source {step.name!r} of pipeline {pipeline.name!r} was read by offsets, and is now"
            " declared as one that is not, which would not read what they have left: declare it"
            " under a new name"
        )
    if pipeline.max_pending is None:
        return Prospect(ahead)
    pending = queries.pending(connection, pipeline_id, step.name, batch_id)
    return Prospect(ahead, pending, _room(connection, pipeline, step.name, pending))


def _latest(pipeline: Pipeline, step: SourceStep, scope: Scope, prospect: Prospect) -> Claim:
    """What the batch takes: what another has given back, whole, or what its source has; all of it
    where a whole stage needs it. If the pipeline redacts, an error keeps no values: a source that
    counts its records may quote one.
    """
    ahead = prospect.range
    values: dict[str, Any] = {"start": ahead.start, "number": ahead.number}
    if ahead.released_by is not None:
        return scope.claim(end=ahead.end, records=ahead.records, **values)
    takes_all = step.incremental and pipeline.graph.in_units(step.name)
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
    """Take a range from the batch that has given it back. Raises InputError if a source has gone
    back."""
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
            f" {start} it reads on to {end}, where an earlier batch has ended, so records would be"
            " read twice. If its system was set up again, declare it under a new name",
            quotes=[start, end],
        )
        raise redacted(error) if pipeline.redact else error


def _unclaimed(
    connection: Connection, opening: Opening, source: str, files: Sequence[FoundFile]
) -> list[FoundFile]:
    """The files that no batch has claimed as they are now, the oldest first."""
    if not files:
        return []
    paths = [file.path for file in files]
    claimed = queries.claimed_files(connection, FoundFile, opening.pipeline_id, source, paths)
    seen = {(file.path, file.bytes, file.modified_at) for file in claimed}
    # Of each path the last content alone: one that comes back is new, touched or not.
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
    for step in _sources(pipeline):
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
    """How many more records of a source may be pending, at least one."""
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
    """Why a batch of ``demand`` records waits; an InputError if only a person ends that, since the
    batches on hold alone leave no room.
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
    """Where a batch is that others wait for, and what to do if no driver runs it."""
    standing = stands_at(connection, batches.get_batch(connection, batch_id))
    return f". Batch {batch_id}: {standing}" if standing.actions else ""
