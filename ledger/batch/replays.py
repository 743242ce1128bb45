"""Conditions of a replay on its original, and the failed messages that it claims."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection

from ledger.batch import claims
from ledger.batch.advice.batches import reprocess
from ledger.batch.records.filters import require_names
from ledger.core.commands import REASON, ackledger
from ledger.core.probes import reached
from ledger.core.redaction import is_masked
from ledger.core.states import BatchKind, BatchStatus
from ledger.errors import InputError, NotReadyError
from ledger.pipeline.contradictions import unit_in_words
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.store.queries import batches, payloads
from ledger.store.queries import replays as replay_queries
from ledger.store.queries.batches import Batch
from ledger.types.ddl import text_type

_Types = Mapping[str, Mapping[str, str]]  # by source and column


def check_replayable(
    connection: Connection, pipeline: Pipeline, original_id: int, excluding_batch_id: int | None
) -> Batch:
    """Return the original if it can be replayed now; otherwise raise the reason.

    ``excluding_batch_id``: the replay, once it exists.
    """
    original = batches.get_batch(connection, original_id)
    _check_original(original, pipeline)
    _check_unit(original, pipeline)
    _check_alone(connection, pipeline, original_id, excluding_batch_id)
    return original


def check_files(original: Batch, pipeline: Pipeline, *, from_source: bool) -> None:
    """Raise InputError if retention has removed the files that a replay of an original would read.
    A replay ``from_source`` reads only those for totals over the whole batch, and for what sinks
    delivered of the original before.
    """
    if original.files_expired_at is None:
        return
    needing = _readers_of_family(original, pipeline)
    if from_source and not needing:
        return
    why = f", and {needing[0]!r} would read them" if from_source else ""
    ways = "" if needing else "read these records again from their source (--from-source), or "
    again = reprocess(original, known_target(pipeline))
    ways += f"read its interval again: {again}"
    if any(step.incremental for step in pipeline.sources()):  # it has no interval
        ways = "deliver the records again, corrected"
    raise InputError(
        f"the files of batch {original.batch_id} of pipeline {pipeline.name!r} were removed by"
        f" retention on {original.files_expired_at:%Y-%m-%d}: nothing of it was failed then{why}."
        f" To process records of it once more, {ways}"
    )


def _readers_of_family(original: Batch, pipeline: Pipeline) -> list[str]:
    """Return the steps of a replay that read what earlier batches of its family have written."""
    readers = [step.name for step in pipeline.combined()]
    if not original.exactly_once:
        readers += [step.name for step in pipeline.sinks() if step.sink.dedup != "none"]
    return readers


def _check_unit(original: Batch, pipeline: Pipeline) -> None:
    """Raise InputError unless the unit of the pipeline is defined as it was, and comes from the
    same place: a replay replaces the rows of whole units.
    """
    now = pipeline.graph.unit
    before = next((step.unit for step in original.topology if step.unit is not None), None)
    if before != now:
        shown = [unit_in_words(unit) for unit in (before, now)]
        raise InputError(
            f"batch {original.batch_id} of pipeline {pipeline.name!r} ran with {shown[0]}, the"
            f" pipeline has {shown[1]} now, so the rows that a replay is to replace are not known:"
            " declare it as it was, or reprocess the interval"
        )
    sources = [
        {step.name: step.unit_types for step in steps if step.kind == "source"}
        for steps in (original.topology, pipeline.topology())
    ]
    had, has = sources
    if now is not None and had.keys() != has.keys():
        raise InputError(
            f"batch {original.batch_id} of pipeline {pipeline.name!r} ran with the sources"
            f" {', '.join(sorted(had))}, the pipeline has {', '.join(sorted(has))} now: a unit"
            " takes the records of all, so declare them as they were, or reprocess the interval"
        )
    _check_unit_types(original, pipeline, had, has)


def _check_unit_types(original: Batch, pipeline: Pipeline, had: _Types, has: _Types) -> None:
    """Raise InputError unless the types of the unit's columns are the same then (``had``) and now
    (``has``). The values are compared as text.
    """
    for name, types in had.items():
        for column, kind in types.items():
            kind_now = has.get(name, {}).get(column, kind)
            if text_type(kind) != text_type(kind_now):
                raise InputError(
                    f"batch {original.batch_id} of pipeline {pipeline.name!r} ran with the unit"
                    f" {column} as {kind} in source {name!r}, the pipeline has {kind_now} now, so"
                    " a record would be of another unit than those that it was withheld with:"
                    " declare it as it was, or reprocess the interval"
                )


def _check_original(original: Batch, pipeline: Pipeline) -> None:
    if original.pipeline != pipeline.name:
        raise InputError(
            f"batch {original.batch_id} is of pipeline {original.pipeline!r}, not {pipeline.name!r}"
        )
    if original.kind is BatchKind.REPLAY:
        raise InputError(
            f"batch {original.batch_id} is a replay: replay its original, batch"
            f" {original.original_batch_id}"
        )
    if original.status is not BatchStatus.SETTLED:
        raise NotReadyError(
            f"batch {original.batch_id} is {original.status.words}: only a settled batch has failed"
            " records to replay"
        )


def _check_alone(
    connection: Connection, pipeline: Pipeline, original_id: int, excluding_batch_id: int | None
) -> None:
    """Raise NotReadyError while the batch is being replaced, or, in a pipeline with units, while
    another replay of it is undecided. Units are replayed whole, and both replays might take parts
    of one.
    """
    for other, kind in batches.undecided_of(connection, original_id, excluding_batch_id).items():
        if kind is BatchKind.ORIGINAL:
            raise NotReadyError(
                f"batch {original_id} is being replaced by batch {other}: nothing of it is replayed"
            )
        if pipeline.graph.unit is not None:
            raise NotReadyError(
                f"batch {original_id} is being replayed by batch {other}, and downstream of a whole"
                " stage it is replayed by one at a time: let that one settle first"
            )


def check_sources(connection: Connection, batch_id: int, pipeline: Pipeline) -> None:
    sources = {step.name for step in pipeline.sources()}
    gone = sorted(set(replay_queries.claimed_sources(connection, batch_id)) - sources)
    if gone:
        raise InputError(
            f"failed records came from source {gone[0]!r}, which pipeline {pipeline.name!r} no"
            f" longer has (it has {', '.join(sorted(sources))}): add it again for the replay, under"
            " its old name"
        )


def check_from_source(connection: Connection, replay: Batch, pipeline: Pipeline) -> None:
    """Raise InputError unless each claimed message can be found again in its source by itself."""
    original = batches.get_batch(connection, replay.original_id)
    for name in replay_queries.claimed_sources(connection, replay.batch_id):
        step = pipeline.source_named(name)
        if step.source.not_reread is not None:
            why = step.source.not_reread
        elif pipeline.graph.in_units(name):
            why = "its records are replayed by unit"
        elif not step.key:
            why = "it has no key: declare it with key=(...), the columns that identify a record"
        elif original.files_expired_at and _has_masked_keys(connection, replay, step):
            why = (
                "the ledger has pseudonyms of their keys, because the pipeline redacted when they"
                f" failed, and retention removed the files that have the keys on"
                f" {original.files_expired_at:%Y-%m-%d}"
            )
        else:
            continue
        again = reprocess(replay, known_target(pipeline))
        instead = f"To read its whole interval again: {again}"
        if step.incremental:
            old = f"{ackledger('quarantine', batch=replay.original_id)} {REASON}"
            instead = f"Deliver the records again, corrected, and quarantine the old: {old}"
        raise InputError(
            f"source {name!r} of pipeline {pipeline.name!r} cannot be read again for the failed"
            f" records of batch {replay.original_id} alone: {why}. {instead}"
        )


def _has_masked_keys(connection: Connection, replay: Batch, step: SourceStep) -> bool:
    failed = payloads.failed_keys(connection, replay.original_id, step.name, step.key)
    return any(is_masked(value) for _, key, _ in failed for value in key)


def claim_messages(
    connection: Connection, pipeline: Pipeline, replay: Batch, instant: datetime
) -> None:
    selection = replay.selection or {}
    limits = [replay.replay_limit, claims.replay_room(connection, pipeline, replay)]
    limit = min((bound for bound in limits if bound is not None), default=None)
    claimed = replay_queries.claim_messages(
        connection, replay.batch_id, replay.original_id, selection, instant, limit
    )
    if claimed == 0:
        asked = {"pipeline": replay.pipeline, "batch_id": replay.original_id, **selection}
        require_names(connection, asked)
        raise NotReadyError(
            f"nothing to replay in batch {replay.original_id}: no failed record "
            f"{'matches ' + str(dict(selection)) if selection else 'is left'} "
            "(those replaying, recovered, quarantined or not due yet are not taken)"
        )
    reached("claiming messages")
