"""Conditions of a replay on its original, and the failed messages that it claims."""

from datetime import datetime

from sqlalchemy import Connection

from ledger.batch import claims
from ledger.batch.advice.batches import reprocess
from ledger.batch.records.filters import require_names
from ledger.core.commands import REASON, ackledger
from ledger.core.declared_steps import whole_stages
from ledger.core.probes import reached
from ledger.core.redaction import is_masked
from ledger.core.states import BatchKind, BatchStatus
from ledger.errors import InputError, NotReadyError
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.store.queries import batches, payloads
from ledger.store.queries import replays as replay_queries
from ledger.store.queries.batches import Batch


def check_replayable(
    connection: Connection, pipeline: Pipeline, original_id: int, excluding_batch_id: int | None
) -> Batch:
    """Return the original if it can be replayed now. Raises InputError if it never can, and
    NotReadyError while it is not settled, is being replaced or, if a replay takes the whole batch,
    is being replayed.

    ``excluding_batch_id``: the replay, once it exists.
    """
    original = batches.get_batch(connection, original_id)
    if original.pipeline != pipeline.name:
        raise InputError(
            f"batch {original_id} is of pipeline {original.pipeline!r}, not {pipeline.name!r}"
        )
    if original.kind is BatchKind.REPLAY:
        raise InputError(
            f"batch {original_id} is a replay: replay its original, batch"
            f" {original.original_batch_id}"
        )
    if original.status is not BatchStatus.SETTLED:
        raise NotReadyError(
            f"batch {original_id} is {original.status.words}: only a settled batch has failed"
            " records to replay"
        )
    _check_whole(original, pipeline)
    for other, kind in batches.undecided_of(connection, original_id, excluding_batch_id).items():
        if kind is BatchKind.ORIGINAL:
            raise NotReadyError(
                f"batch {original_id} is being replaced by batch {other}: nothing of it is replayed"
            )
        if original.is_whole:
            raise NotReadyError(
                f"batch {original_id} is being replayed by batch {other}, and a batch of a pipeline"
                " with a whole stage has one replay at a time: let that one settle first"
            )
    return original


def check_files(original: Batch, pipeline: Pipeline, *, from_source: bool) -> None:
    """Raise InputError if retention has removed the files that a replay of an original would read.

    A replay ``from_source`` reads only the files that combines read, and those with which sinks
    compare rows (``dedup``). A replay of a whole batch reads its snapshots.
    """
    if original.files_expired_at is None:
        return
    needing = [step.name for step in pipeline.combined()]
    if not original.exactly_once:
        needing += [step.name for step in pipeline.sinks() if step.sink.dedup != "none"]
    rereads = not needing and not original.is_whole
    if from_source and rereads:
        return
    why = f", and {needing[0]!r} would read them" if from_source and needing else ""
    ways = "read these records again from their source (--from-source), or " if rereads else ""
    again = reprocess(original, known_target(pipeline))
    ways += f"read its interval again: {again}"
    if any(step.incremental for step in pipeline.sources()):  # it has no interval
        ways = "deliver the records again, corrected"
    raise InputError(
        f"the files of batch {original.batch_id} of pipeline {pipeline.name!r} were removed by"
        f" retention on {original.files_expired_at:%Y-%m-%d}: nothing of it was failed then{why}."
        f" To process records of it once more, {ways}"
    )


def _check_whole(original: Batch, pipeline: Pipeline) -> None:
    """Raise InputError if the pipeline has gained or lost its whole stage since, or if a replay
    would take the whole batch and its sources have changed.
    """
    again = "declare the pipeline as it was, or reprocess the interval"
    now = pipeline.with_whole(whole_stages(original.topology)).graph.is_whole
    if now != original.is_whole:
        shown = ["a whole stage" if each else "no whole stage" for each in (original.is_whole, now)]
        raise InputError(
            f"batch {original.batch_id} of pipeline {pipeline.name!r} ran with {shown[0]}, the"
            f" pipeline has {shown[1]} now, so what a replay is to replace is not known: {again}"
        )
    had, has = (
        sorted(step.name for step in steps if step.kind == "source")
        for steps in (original.topology, pipeline.topology())
    )
    if now and had != has:
        raise InputError(
            f"batch {original.batch_id} of pipeline {pipeline.name!r} ran with the sources"
            f" {', '.join(had)}, the pipeline has {', '.join(has)} now, and a replay takes the"
            f" records of all: {again}"
        )


def check_sources(connection: Connection, batch_id: int, pipeline: Pipeline) -> None:
    """Raise InputError if a claimed message is of a source that the pipeline no longer has."""
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
        elif replay.is_whole:
            why = "a pipeline with a whole stage replays its whole batch"
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
    """Claim the messages of a replay's selection that are due at ``instant``. Raises NotReadyError
    if there are none.
    """
    selection = replay.selection or {}
    limit = None
    if not replay.is_whole:
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
    if replay.is_whole:
        replay_queries.claim_rest(connection, replay.batch_id, replay.original_id)
    reached("claiming messages")
