"""Open a batch, or find it again: its row and its claims, in one transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from ledger.batch import claims, state_guards
from ledger.batch.claims import Offer, Opening
from ledger.batch.replays import (
    check_files,
    check_from_source,
    check_replayable,
    check_sources,
    claim_messages,
)
from ledger.batch.step_runs import require_step
from ledger.core.declared_steps import DeclaredStep, whole_stages
from ledger.core.probes import reached
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import BatchKind, BatchStatus, Guarantee
from ledger.errors import DeclarationError, InputError, NotReadyError
from ledger.pipeline.load import target_of
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.sources.base import Claim
from ledger.store.connection import Database
from ledger.store.queries import batches, pipelines
from ledger.store.queries.batches import Batch


def open_batch(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    key: RunKey,
    interval: Interval,
    *,
    reprocess: bool = False,
    guarantee: Guarantee | None = None,
) -> Batch:
    """Open the batch of this run with its claim of the interval, or find it again.

    ``reprocess``: the batch replaces the one that has the interval, once it settles.
    ``guarantee``: None: the pipeline's guarantee, or else that of the settings.

    Raises InputError if another batch has claimed the interval of a source, or if a state over
    batches includes the batch to replace; NotReadyError if the batch to replace is not decided;
    DeclarationError if a sink cannot give the guarantee.
    """
    steps = database.transact(lambda c: batches.latest_steps(c, pipeline.name))
    pipeline = _with_whole_of(pipeline, steps)
    promise = guarantee or pipeline.guarantee or settings.guarantee
    pipeline.check_guarantee(promise)
    incremental = [step.name for step in pipeline.sources() if step.incremental]
    if reprocess and incremental:
        raise InputError(
            f"source {incremental[0]!r} of pipeline {pipeline.name!r} is incremental, it has no"
            " interval to run again: replay what failed"
        )

    def offered() -> list[Offer] | None:
        batch = database.transact(
            lambda c: batches.find_run(c, pipeline.name, key.dag_id, key.run_id)
        )
        if batch is None:
            opening = Opening(
                None, interval.start, interval.end, interval.params, has_interval=not reprocess
            )
            return claims.ask(database, settings, pipeline, opening)
        if batch.status is BatchStatus.ABANDONED:
            return claims.ask(database, settings, pipeline, _opening(vars(batch)))
        return None

    def work(connection: Connection, offers: Sequence[Offer] | None) -> Batch:
        pipeline_id = pipelines.save(connection, _policy(pipeline))
        batch = batches.find_run(connection, pipeline.name, key.dag_id, key.run_id)
        if batch is not None:
            now = batches.database_now(connection)
            return _reopened(connection, pipeline, batch, now, offers)
        values = _values(pipeline, pipeline_id, key, interval) | {"guarantee": promise.value}
        if reprocess:
            values["replaces_batch_id"] = _replaceable(connection, pipeline, values)
        claimed = claims.accept(connection, pipeline, _opening(values), offers)
        opened = _insert(connection, pipeline, values, BatchKind.ORIGINAL, claimed)
        reached("opening batch")
        return opened

    def attempt() -> Batch:
        offers = offered()
        reached("sources asked")
        return database.transact(partial(work, offers=offers))

    return claims.until_accepted(attempt)


def _with_whole_of(pipeline: Pipeline, steps: Sequence[DeclaredStep]) -> Pipeline:
    """Return the pipeline with the whole stages of its last batch. If it cannot have them any more,
    they are left out: its functions may have changed, and a run reads their plans.
    """
    later = pipeline.with_whole(whole_stages(steps))
    try:
        later.steps()
    except DeclarationError:
        return pipeline
    return later


def open_replay(
    database: Database,
    settings: Settings,
    pipeline: Pipeline,
    key: RunKey,
    original_batch_id: int,
    selection: Selection,
    *,
    now: datetime | None = None,
) -> Batch:
    """Open the replay batch of this run with its claim of failed messages, or find it again.

    The replay takes the messages that are due at ``now`` (default: the database's clock), at most
    the pipeline's ``replay_limit``. Its interval and parameters are those of the original. Raises
    NotReadyError if there is nothing to claim, InputError if the pipeline can no longer track the
    rows of a replayed message.
    """
    if not pipeline.tracking:
        raise InputError(
            f"pipeline {pipeline.name!r} has tracking=False, so the ledger would not know what a"
            " replay lost: turn tracking on"
        )

    def work(connection: Connection) -> Batch:
        pipeline_id = pipelines.save(connection, _policy(pipeline))
        batch = batches.find_run(connection, pipeline.name, key.dag_id, key.run_id)
        instant = now or batches.database_now(connection)
        if batch is not None:
            return _reopened(connection, pipeline, batch, instant)
        batches.lock_batch(connection, original_batch_id)  # a reprocess of it may be settling
        original = check_replayable(connection, pipeline, original_batch_id, None)
        check_files(original, pipeline, from_source=selection.from_source)
        if selection.quarantined or selection.accepted:
            state_guards.check_quarantined(connection, pipeline, original)
        replayed = pipeline.with_whole(whole_stages(original.topology))
        values = _values(replayed, pipeline_id, key, original.interval)
        values |= {"original_batch_id": original_batch_id, "selection": selection.as_json()}
        values |= {"guarantee": original.guarantee.value, "publish": original.publish.value}
        claimed = claims.replay_claims(settings, pipeline, _opening(values))
        opened = _insert(connection, pipeline, values, BatchKind.REPLAY, claimed)
        claim_messages(connection, pipeline, opened, instant)
        check_sources(connection, opened.batch_id, pipeline)
        if selection.from_source:
            check_from_source(connection, opened, pipeline)
        reached("opening batch")
        return opened

    return database.transact(work)


def _policy(pipeline: Pipeline) -> dict[str, Any]:
    seconds = {name: getattr(pipeline, f"{name}_seconds") for name in pipelines.DURATIONS}
    return {
        **{name: getattr(pipeline, name) for name in pipelines.POLICY if name not in seconds},
        **{name: timedelta(seconds=x) if x is not None else None for name, x in seconds.items()},
        "name": pipeline.name,
        "target": target_of(pipeline),
        "redact": list(pipeline.redact),
    }


def _values(
    pipeline: Pipeline, pipeline_id: int, key: RunKey, interval: Interval
) -> dict[str, Any]:
    return {
        "pipeline_id": pipeline_id,
        "dag_id": key.dag_id,
        "run_id": key.run_id,
        "interval_start": interval.start,
        "interval_end": interval.end,
        "params": dict(interval.params),
        "original_batch_id": None,
        "selection": None,
        "tracking": pipeline.tracking,
        "topology": pipeline.topology(),
        "replaces_batch_id": None,
        "publish": pipeline.publish.value,
    }


def _opening(values: Mapping[str, Any]) -> Opening:
    """Return the Opening of a batch, from its columns or from the values to insert."""
    return Opening(
        values["pipeline_id"],
        values["interval_start"],
        values["interval_end"],
        values["params"],
        values.get("batch_id"),
        values["original_batch_id"] is None and values["replaces_batch_id"] is None,
    )


def _insert(
    connection: Connection,
    pipeline: Pipeline,
    values: dict[str, Any],
    kind: BatchKind,
    claimed: list[Claim],
) -> Batch:
    """Insert a batch's row and its claims, and return the batch."""
    batch_id = batches.insert_batch(connection, {**values, "kind": kind.value})
    claims.save(connection, pipeline, _opening(values), batch_id, claimed)
    return batches.get_batch(connection, batch_id)


def _replaceable(connection: Connection, pipeline: Pipeline, values: dict[str, Any]) -> int | None:
    """Return the settled batch that has the interval; None if no batch has it. Raises NotReadyError
    while that batch, or one that belongs to it, is not decided.
    """
    interval = values["interval_start"], values["interval_end"]
    statuses = {
        claim.batch_id: claim.status
        for step in pipeline.sources()
        for claim in [
            batches.claiming_batch(connection, values["pipeline_id"], step.name, *interval)
        ]
        if claim is not None
    }
    if not statuses:
        return None
    if len(statuses) > 1:
        raise InputError(
            f"the sources of pipeline {pipeline.name!r} have this interval in batches"
            f" {', '.join(map(str, statuses))}: only one batch can be replaced"
        )
    ((batch_id, status),) = statuses.items()
    others = [*batches.undecided_of(connection, batch_id)]
    if status is not BatchStatus.SETTLED or others:
        busy = f"batch {others[0]} is not" if others else f"it is {status.words}"
        raise NotReadyError(
            f"batch {batch_id} has this interval and can be replaced once it is settled with all"
            f" that belongs to it: {busy}"
        )
    state_guards.check_replaced(connection, pipeline, batch_id)
    return int(batch_id)


def _reopened(
    connection: Connection,
    pipeline: Pipeline,
    batch: Batch,
    instant: datetime,
    offers: Sequence[Offer] | None = None,
) -> Batch:
    """Return a batch that was found again; an abandoned one claims again and is open."""
    if batch.status is not BatchStatus.ABANDONED:
        return batch
    locked = batches.lock_family(connection, batch.batch_id)
    assert locked is not None
    if locked.status is not BatchStatus.ABANDONED:
        return locked
    if locked.kind is BatchKind.REPLAY:
        original = check_replayable(connection, pipeline, locked.original_id, locked.batch_id)
        again = bool((locked.selection or {}).get("from_source")) and not locked.files_expired_at
        check_files(original, pipeline, from_source=again)
        if {"quarantined", "accepted"} & set(locked.selection or ()):
            state_guards.check_quarantined(connection, pipeline, original)
        claim_messages(connection, pipeline, locked, instant)
    else:
        if locked.replaces_batch_id is not None:
            replaced = batches.get_batch(connection, locked.replaces_batch_id)
            others = [*batches.undecided_of(connection, locked.replaces_batch_id, locked.batch_id)]
            if others or replaced.status is not BatchStatus.SETTLED:
                raise NotReadyError(
                    f"batch {locked.batch_id} was abandoned before it replaced batch"
                    f" {replaced.batch_id}, which is {replaced.status.words} now"
                    + (f" and waits for batch {others[0]}" if others else "")
                    + ": reprocess the interval in a new run"
                )
            state_guards.check_replaced(connection, pipeline, replaced.batch_id)
        state_guards.check_reopened(connection, pipeline, locked)
        for step in pipeline.sources():
            require_step(locked, step.name)  # what another source has would be claimed and not read
        opening = _opening(vars(locked))
        claimed = claims.accept(connection, pipeline, opening, offers)
        claims.save(connection, pipeline, opening, locked.batch_id, claimed)
    batches.move_batch(connection, batch.batch_id, BatchStatus.ABANDONED, BatchStatus.OPEN)
    return batches.get_batch(connection, batch.batch_id)
