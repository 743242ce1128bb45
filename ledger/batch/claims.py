"""What a batch claims of its sources, in the transaction that opens it.

An interval is claimed by one batch. Files and ranges of a cursor are claimed by the batch that
finds them unclaimed. An abandoned batch gives everything back. ``max_pending`` is a gate before
all of this: a batch takes what there is room for, or does not open.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import instead_of_a_second_run
from ledger.batch.recovery import stands_at
from ledger.core.run_request import Interval
from ledger.core.states import BatchStatus
from ledger.core.text import quantity
from ledger.errors import BackPressureError, InputError, NotReadyError, redacted
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.settings import Settings
from ledger.sources.base import Claimed, Offer, Scope, Taken
from ledger.sources.claims import Whole
from ledger.sources.listing import FoundFile
from ledger.store.connection import Database
from ledger.store.queries import batches
from ledger.store.queries import claims as queries
from ledger.store.queries.batches import Batch
from ledger.store.queries.claims import PendingRecords

Surveys = Mapping[str, Offer | None]  # what sources offer, by name


@dataclass(frozen=True)
class Opening:
    """The batch that claims. ``batch_id``: None while it has none. ``replaces``: it runs an
    interval again.
    """

    pipeline: str
    pipeline_id: int
    interval_start: datetime
    interval_end: datetime
    params: Mapping[str, Any]
    batch_id: int | None = None
    replaces: bool = False

    @property
    def interval(self) -> Interval:
        """What the batch reads."""
        return Interval(self.interval_start, self.interval_end, self.params)


@dataclass(frozen=True)
class Claim:
    """What a batch takes of one source, as ``batch_source`` keeps it, and the ``files`` beside
    it.
    """

    source: str
    path: str
    claimed: bool = False
    claimed_after: str | None = None
    claimed_upto: str | None = None
    files: tuple[FoundFile, ...] = ()

    def row(self) -> dict[str, Any]:
        """The values of its row."""
        row = asdict(self)
        del row["files"]
        return row


def survey(database: Database, settings: Settings, pipeline: Pipeline, opening: Opening) -> Surveys:
    """Look at the sources, which may take a while, before anything is locked. What goes wrong is
    told as the pipeline lets it be: a source that counts its records may quote one."""
    interval, most = opening.interval, pipeline.max_pending
    try:
        return {
            step.name: _offer(
                step, Scope(database, settings, pipeline.name, step.name, interval, most)
            )
            for step in _sources(pipeline)
        }
    except Exception as exc:
        if not pipeline.redact:
            raise
        raise redacted(exc) from None


def claim(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    opening: Opening,
    surveys: Surveys,
) -> list[Claim]:
    """What the batch takes of each source; nothing is written yet.

    Raises InputError when its interval belongs to another batch, BackPressureError when there is
    no room for its records.
    """
    if not opening.replaces:
        _check_free(connection, pipeline, opening)
    return [
        _claim_of(connection, settings, pipeline, opening, step, surveys.get(step.name))
        for step in _sources(pipeline)
    ]


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


def claim_of(connection: Connection, batch_id: int, source: str) -> Claimed:
    """What a batch has claimed of a source, the files as they were then."""
    rows = queries.files_of(connection, batch_id, source)
    files = tuple(FoundFile(row.path, row.bytes, row.modified_at, row.digest) for row in rows)
    row = batches.source_of(connection, batch_id, source)
    return Claimed(source, row.path, files, row.claimed_after, row.claimed_upto)


def reread_claim(connection: Connection, replay: Batch, source: str) -> Claimed:
    """What the original of a replay has claimed of a source, where the source has it now."""
    claimed = claim_of(connection, replay.original_id, source)
    return replace(claimed, path=batches.source_of(connection, replay.batch_id, source).path)


def insert(
    connection: Connection, opening: Opening, batch_id: int, claims: Iterable[Claim]
) -> None:
    """Write the claims of a new batch."""
    for claim in claims:
        interval = {
            "interval_start": opening.interval_start,
            "interval_end": opening.interval_end,
        }
        keys = {"batch_id": batch_id, "pipeline_id": opening.pipeline_id}
        batches.insert_source(connection, {**claim.row(), **keys, **interval})
        _insert_files(connection, opening, batch_id, claim)


def retake(
    connection: Connection, opening: Opening, batch_id: int, claims: Iterable[Claim]
) -> None:
    """Write the claims of a batch that was abandoned and is opened again."""
    for claim in claims:
        queries.update_source(connection, {**claim.row(), "batch_id": batch_id})
        _insert_files(connection, opening, batch_id, claim)


def _sources(pipeline: Pipeline) -> list[SourceStep]:
    return list(pipeline.sources())


def _path(settings: Settings, step: SourceStep, opening: Opening) -> str:
    return step.source.path(settings, opening.interval)


def _offer(step: SourceStep, scope: Scope) -> Offer | None:
    """What a source has to claim. The records of an interval are counted only for a limit."""
    if step.incremental:
        return step.source.look(scope)
    return Whole(None if scope.most is None else step.source.count(scope))


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
                f" ({BatchStatus(owner.status).words}; run {owner.run_id!r}); a second batch would"
                f" deliver it twice. {sentences(instead)}"
            )


def _claim_of(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    opening: Opening,
    step: SourceStep,
    offer: Offer | None,
) -> Claim:
    path = _path(settings, step, opening)
    if step.hooks is not None:  # what it reads is known once it has read
        return Claim(step.name, path)
    if offer is None:
        raise NotReadyError(
            f"source {step.name!r}: its batch was abandoned a moment ago and opens anew: run this"
            " again"
        )
    take = _take(connection, pipeline, opening, step.name, offer)
    return Claim(
        step.name,
        path,
        claimed=not (step.incremental or opening.replaces),
        claimed_after=take.after,
        claimed_upto=take.upto,
        files=take.files,
    )


def _take(
    connection: Connection, pipeline: Pipeline, opening: Opening, source: str, offer: Offer
) -> Taken:
    """What there is room for. What cannot be cut is taken whole, but waits while records are
    pending beside which it has no room.
    """
    if pipeline.max_pending is None:
        return offer.take(connection, opening.pipeline_id, None)
    pending = queries.pending(connection, opening.pipeline_id, source, opening.batch_id)
    room = _room(connection, pipeline, source, pending)
    take = offer.take(connection, opening.pipeline_id, room)
    demand = take.records or 0
    if pending.records and demand > room:
        raise _no_room(connection, pipeline, source, pending, demand)
    return take


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


def _insert_files(connection: Connection, opening: Opening, batch_id: int, claim: Claim) -> None:
    keys = {"pipeline_id": opening.pipeline_id, "source": claim.source, "batch_id": batch_id}
    queries.insert_files(connection, [{**asdict(file), **keys} for file in claim.files])
