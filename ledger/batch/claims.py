"""What a batch claims of its sources, in the transaction that opens it.

An interval is claimed by one batch; what exceeds its quota stays in its snapshot and is claimed by
further batches of the interval. Files and ranges of a cursor are claimed by the batch that finds
them unclaimed. An abandoned batch gives everything back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import instead_of_a_second_run
from ledger.core.run_request import Interval
from ledger.core.states import BatchStatus
from ledger.errors import BackPressureError, InputError, NotReadyError, redacted
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.settings import Settings
from ledger.sources.base import Offer, Scope
from ledger.sources.listing import FoundFile
from ledger.store.connection import Database
from ledger.store.queries import batches
from ledger.store.queries import claims as queries
from ledger.store.queries.batches import Batch

Surveys = Mapping[str, Offer | None]  # what incremental sources offer, by name


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
    quota: int | None = None
    remainder_of_batch_id: int | None = None
    first_position: int | None = None
    claimed_after: str | None = None
    claimed_upto: str | None = None
    files: tuple[FoundFile, ...] = ()

    def row(self) -> dict[str, Any]:
        """The values of its row."""
        row = asdict(self)
        del row["files"]
        return row


def survey(database: Database, settings: Settings, pipeline: Pipeline, opening: Opening) -> Surveys:
    """Look at the incremental sources, which may take a while, before anything is locked. What goes
    wrong is told as the pipeline lets it be: a source that counts its records may quote one."""
    interval, most = opening.interval, pipeline.max_pending
    try:
        return {
            step.name: step.source.look(
                Scope(database, settings, pipeline.name, step.name, interval, most)
            )
            for step in _sources(pipeline)
            if step.incremental
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

    Raises InputError when its interval belongs to another batch that left nothing of it,
    BackPressureError when as many records are pending as the pipeline bears.
    """
    interval_owners = {
        step.name: interval_owner
        for step in _sources(pipeline)
        if not step.incremental and not opening.replaces
        for interval_owner in [_interval_owner(connection, opening, step)]
        if interval_owner is not None
    }
    for name, interval_owner in interval_owners.items():
        _check_part(connection, pipeline, opening, name, interval_owner)
    claims = []
    for step in _sources(pipeline):
        room = _room(connection, pipeline, opening, step.name)
        path = _path(settings, step, opening)
        if step.hooks is not None:  # what it reads is known once it has read
            claims.append(Claim(step.name, path))
        elif step.incremental:
            claims.append(_incremental(connection, opening, step, path, room, surveys))
        elif step.name in interval_owners:
            claims.append(_part(connection, step, path, room, interval_owners[step.name]))
        else:
            claims.append(Claim(step.name, path, claimed=not opening.replaces, quota=room))
    if interval_owners and not any(one.quota for one in claims if one.source in interval_owners):
        raise _taken(pipeline, opening, *next(iter(interval_owners.items())))
    return claims


def replay_claims(settings: Settings, pipeline: Pipeline, opening: Opening) -> list[Claim]:
    """A replay claims messages, nothing of a source."""
    return [Claim(step.name, _path(settings, step, opening)) for step in _sources(pipeline)]


def replay_room(connection: Connection, pipeline: Pipeline, replay: Batch) -> int | None:
    """How many messages a replay may claim, of whichever source; None: any number."""
    opening = Opening(
        pipeline.name,
        replay.pipeline_id,
        replay.interval_start,
        replay.interval_end,
        replay.params,
        replay.batch_id,
    )
    rooms = [_room(connection, pipeline, opening, step.name) for step in _sources(pipeline)]
    return min((room for room in rooms if room is not None), default=None)


def insert(
    connection: Connection, opening: Opening, batch_id: int, claims: Iterable[Claim]
) -> None:
    """Write the claims of a new batch."""
    for one in claims:
        interval = {
            "interval_start": opening.interval_start,
            "interval_end": opening.interval_end,
        }
        keys = {"batch_id": batch_id, "pipeline_id": opening.pipeline_id}
        batches.insert_source(connection, {**one.row(), **keys, **interval})
        _insert_files(connection, opening, batch_id, one)


def retake(
    connection: Connection, opening: Opening, batch_id: int, claims: Iterable[Claim]
) -> None:
    """Write the claims of a batch that was abandoned and is opened again."""
    for one in claims:
        queries.update_source(connection, {**one.row(), "batch_id": batch_id})
        _insert_files(connection, opening, batch_id, one)


def first_gap(taken: Sequence[tuple[int, int]], count: int) -> tuple[int, int] | None:
    """The first range (start, end) of positions below ``count`` that none of ``taken`` covers."""
    start = 0
    for low, high in sorted(taken):
        if low > start:
            return start, min(low, count)
        start = max(start, high)
    return (start, count) if start < count else None


def _sources(pipeline: Pipeline) -> list[SourceStep]:
    return [step for step in pipeline.steps() if isinstance(step, SourceStep)]


def _path(settings: Settings, step: SourceStep, opening: Opening) -> str:
    return step.source.path(settings, opening.interval)


def _room(connection: Connection, pipeline: Pipeline, opening: Opening, source: str) -> int | None:
    if pipeline.max_pending is None:
        return None
    pending = queries.pending_roots(connection, opening.pipeline_id, source, opening.batch_id)
    room = pipeline.max_pending - int(pending.roots)
    if room <= 0 and pending.held:
        raise InputError(
            f"source {source!r} of pipeline {pipeline.name!r}: {pending.roots} records are pending,"
            f" max_pending is {pipeline.max_pending}, and batch {pending.held[0]} is on hold: fix"
            " what holds it, or release it, then run this again"
        )
    if room <= 0:
        raise BackPressureError(
            f"source {source!r} of pipeline {pipeline.name!r}: {pending.roots} records are pending"
            f" in batches {', '.join(map(str, pending.batches))}, max_pending is"
            f" {pipeline.max_pending}: wait until they settle"
        )
    return room


def _interval_owner(connection: Connection, opening: Opening, step: SourceStep) -> Row[Any] | None:
    return batches.claiming_batch(
        connection, opening.pipeline_id, step.name, opening.interval_start, opening.interval_end
    )


def _check_part(
    connection: Connection,
    pipeline: Pipeline,
    opening: Opening,
    source: str,
    interval_owner: Row[Any],
) -> None:
    """Raise unless a batch may read on in what the owner of the interval left, or may have
    left.
    """
    if (
        pipeline.max_pending is None and not interval_owner.remainder
    ) or interval_owner.params != dict(opening.params):
        raise _taken(pipeline, opening, source, interval_owner)
    if interval_owner.status != BatchStatus.SETTLED:
        raise BackPressureError(
            f"source {source!r} of pipeline {pipeline.name!r}: batch {interval_owner.batch_id}"
            f" reads this interval and is {BatchStatus(interval_owner.status).words}: what it"
            " leaves, if anything, is read once it is settled"
        )
    successors = batches.replacing_batches(connection, interval_owner.batch_id)
    if successors:
        raise BackPressureError(
            f"source {source!r} of pipeline {pipeline.name!r}: batch {successors[0]} replaces batch"
            f" {interval_owner.batch_id}, which has this interval: what that one leaves is read"
            " once it is settled"
        )


def _part(
    connection: Connection, step: SourceStep, path: str, room: int | None, interval_owner: Row[Any]
) -> Claim:
    """A part of what the batch that has the interval left; empty if it left nothing."""
    count = (interval_owner.roots or 0) + (interval_owner.remainder or 0)
    gap = _gap(connection, interval_owner, step.name)
    start, end = gap or (count, count)
    quota = end - start if room is None else min(room, end - start)
    return Claim(
        step.name,
        path,
        quota=quota,
        remainder_of_batch_id=interval_owner.batch_id,
        first_position=start,
    )


def _gap(connection: Connection, snapshot: Row[Any], source: str) -> tuple[int, int] | None:
    """What nobody has claimed of a snapshot's remainder. Only a settled batch reads its source no
    more.
    """
    if not snapshot.remainder or snapshot.status != BatchStatus.SETTLED:
        return None
    taken = [
        (0, snapshot.roots),
        *queries.claimed_remainders(connection, snapshot.batch_id, source),
    ]
    return first_gap(taken, snapshot.roots + snapshot.remainder)


def _taken(
    pipeline: Pipeline, opening: Opening, source: str, interval_owner: Row[Any]
) -> InputError:
    start, end = opening.interval_start.isoformat(), opening.interval_end.isoformat()
    interval = Interval(opening.interval_start, opening.interval_end, interval_owner.params)
    instead = instead_of_a_second_run(known_target(pipeline), interval, interval_owner)
    return InputError(
        f"source {source!r} of pipeline {pipeline.name!r}: the interval {start} to {end} belongs to"
        f" batch {interval_owner.batch_id} ({BatchStatus(interval_owner.status).words}; run"
        f" {interval_owner.run_id!r}); a second batch would deliver it twice."
        f" {sentences(instead)}"
    )


def _incremental(
    connection: Connection,
    opening: Opening,
    step: SourceStep,
    path: str,
    room: int | None,
    surveys: Surveys,
) -> Claim:
    """What was left of an earlier snapshot, else what is new."""
    for snapshot in queries.snapshots_with_remainder(connection, opening.pipeline_id, step.name):
        if _gap(connection, snapshot, step.name) is not None:
            return _part(connection, step, path, room, snapshot)
    offer = surveys.get(step.name)
    if offer is None:
        raise NotReadyError(
            f"source {step.name!r}: its batch was abandoned a moment ago and opens anew: run this"
            " again"
        )
    taken = offer.take(connection, opening.pipeline_id, room)
    return Claim(
        step.name,
        path,
        quota=room,
        claimed_after=taken.after,
        claimed_upto=taken.upto,
        files=taken.files,
    )


def _insert_files(connection: Connection, opening: Opening, batch_id: int, one: Claim) -> None:
    keys = {"pipeline_id": opening.pipeline_id, "source": one.source, "batch_id": batch_id}
    queries.insert_files(connection, [{**asdict(file), **keys} for file in one.files])
