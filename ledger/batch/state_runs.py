"""Runs of a state over batches: one at a time for a pipeline and stage, in the batches' order.

A run takes the committed state and the acked rows of one batch. Its commit makes the new state
count and decides, in the same transaction, that the sinks that read the state publish it. A driver
does all states that are due; a driver that finds another one at work lets that one finish.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from ledger.batch.recovery import waits_for
from ledger.batch.step_runs import (
    Attempt,
    OpenedRun,
    StepOutput,
    begin_run,
    commit_in,
    committed_runs,
)
from ledger.core.probes import reached
from ledger.core.states import RunState
from ledger.errors import FencedError, NotReadyError, redacted
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import StateStep
from ledger.storage.folders import remove_run_folder
from ledger.store.connection import Database
from ledger.store.queries import batches, checkpoints, following, pipelines, publications, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.checkpoints import Checkpoint
from ledger.store.queries.runs import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateRun:
    """A running run of a state, with the runs of the sinks that read it.

    ``previous``: the state that it starts from.
    ``after_failure``: whether an attempt after that state was rolled back.
    """

    run: OpenedRun
    sinks: Mapping[str, OpenedRun]
    previous: Checkpoint | None
    after_failure: bool


@dataclass(frozen=True)
class HeldByAnotherDriver:
    """The running run of a state, which belongs to another driver."""

    batch_id: int
    run_id: int


def open_next(
    database: Database, pipeline: Pipeline, step: StateStep, attempt: Attempt
) -> StateRun | HeldByAnotherDriver | None:
    """Open a run for the batch whose state is due; None if none is due. A driver whose lease has
    lapsed is fenced; a living one is not disturbed.
    """

    def work(connection: Connection) -> StateRun | HeldByAnotherDriver | None:
        pipeline_id = pipelines.lock(connection, pipeline.name)
        if pipeline_id is None:
            return None
        other = checkpoints.under_way(connection, pipeline_id, step.name)
        own = other is not None and other.attempt_id == attempt.attempt_id
        if other is not None and other.alive and not own:
            return HeldByAnotherDriver(other.batch_id, other.step_run_id)
        batch_id = checkpoints.due_batch(connection, pipeline.name, [step.name])
        if batch_id is None:
            return None
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        sinks = [sink.name for sink in pipeline.sinks_of(step.name)]
        if not own:  # else the answer to the first try was lost
            checkpoints.fence(connection, pipeline_id, [step.name, *sinks])
        previous = checkpoints.last(connection, pipeline_id, step.name)
        since = 0 if previous is None else previous.step_run_id
        failed = checkpoints.failed_since(connection, pipeline_id, step.name, since)
        inputs = partial(_input_of_state, batch, step)
        run = begin_run(connection, batch, step.name, attempt, inputs)
        state = {step.name: runs.get_run(connection, run.run_id)}
        of_sinks = {
            name: begin_run(connection, batch, name, attempt, lambda _: state) for name in sinks
        }
        return StateRun(run, of_sinks, previous, failed)

    return database.transact(work)


def _input_of_state(batch: Batch, step: StateStep, all_runs: list[Run]) -> dict[str, Run]:
    """Return the committed run of the step that a state reads, in its batch."""
    committed = committed_runs(all_runs, step.inputs)
    if not committed:
        raise NotReadyError(
            f"batch {batch.batch_id} has no committed run of {step.inputs[0]!r}, which"
            f" {step.name!r} reads: the pipeline has changed since. Give the stage a new name; it"
            " then begins with the batches that are opened from now on"
        )
    return committed


def commit_state(
    database: Database,
    opened: StateRun,
    output: StepOutput,
    of_sinks: Mapping[str, StepOutput],
    snapshot: Any,
) -> None:
    """Make the state count and decide what its sinks publish, in one transaction.

    Raises FencedError if the batch is no longer the one whose turn it is, or another driver took
    over.
    """

    def work(connection: Connection) -> None:
        batch = opened.run.batch
        pipelines.lock(connection, batch.pipeline)
        if runs.get_run(connection, opened.run.run_id).state is RunState.COMMITTED:
            return  # the answer to the first try was lost
        _check_turn(connection, opened)
        commit_in(connection, opened.run, output)
        step, run_id = opened.run.step, opened.run.run_id
        checkpoints.insert(connection, batch.pipeline_id, step, batch.batch_id, run_id, snapshot)
        reached("inserting checkpoint", step)
        for name, sink in opened.sinks.items():
            commit_in(connection, sink, of_sinks[name])
            publications.decide_result(connection, sink.run_id, "pipeline")
            reached("deciding publication", name)

    reached("before state's commit", opened.run.step)
    database.transact(work)
    reached("run committed", opened.run.step)


def _check_turn(connection: Connection, opened: StateRun) -> None:
    """Raise FencedError unless the run's batch is still the one that is due. Meanwhile an abandoned
    batch may have been opened again, or this batch may be being replaced.
    """
    batch, step = opened.run.batch, opened.run.step
    last = checkpoints.last(connection, batch.pipeline_id, step)
    due = checkpoints.due_batch(connection, batch.pipeline, [step])
    if due != batch.batch_id or last != opened.previous:
        waits = waits_for(connection, batch.batch_id)
        raise FencedError(
            f"the state {step!r} of batch {batch.batch_id} is not kept:"
            f" {waits[0] if waits else 'another was first'}"
        )


def is_due(database: Database, pipeline: Pipeline) -> bool:
    """Return whether a state has yet to be computed or published for some batch."""
    states = [step.name for step in pipeline.states()]
    sinks = [sink.name for state in states for sink in pipeline.sinks_of(state)]

    def ask(connection: Connection) -> bool:
        due = checkpoints.due_batch(connection, pipeline.name, states)
        late = following.waiting(connection, pipeline.name, ["publish"], steps=sinks)
        return due is not None or bool(late)

    return bool(states) and database.transact(ask)


def acknowledge(database: Database, pipeline: Pipeline, step: StateStep) -> None:
    """Call ``ack_commit`` of the stage for every batch that is committed as a whole, in order. Then
    delete the files of older states.

    Never raises: a call or a deletion that fails is retried the next time.
    """
    states, combines = [state.name for state in pipeline.states()], bool(pipeline.combined())

    def ask(connection: Connection) -> list[int]:
        return checkpoints.unacked(connection, pipeline.name, step.name, states, combines=combines)

    ack = step.hooks.ack_commit if step.hooks is not None else lambda batch_id: None

    def remove(connection: Connection, run_id: int) -> None:
        reached("before state's removal")
        for folder in {file.path.rpartition("/")[0] for file in runs.files(connection, run_id)}:
            remove_run_folder(folder, run_id)
        reached("state removed")
        runs.set_files_removed(connection, [run_id])

    note = partial(checkpoints.set_acked, pipeline=pipeline.name, step=step.name)
    call_in_order(database, pipeline, step.name, database.transact(ask), ack, note)
    for run_id in database.transact(lambda c: checkpoints.outlived(c, pipeline.name, step.name)):
        try:
            database.transact(partial(remove, run_id=run_id))
        except Exception as exc:  # of whichever file system
            _log.warning("files of run %s of %s stay: %s", run_id, step.name, exc)


def call_in_order(
    database: Database,
    pipeline: Pipeline,
    name: str,
    due: Sequence[int],
    call: Callable[[int], object],
    note: Callable[..., None],
) -> None:
    """Call a user's object for each of these batches, which are committed as a whole, in order, up
    to a batch for which it raises. ``note(connection, batch_id=...)`` records each call.
    """
    reached("before acks", name)
    for batch_id in due:
        try:
            call(batch_id)
        except Exception as exc:  # of whatever the user's hook does: the batch is committed
            shown = redacted(exc) if pipeline.redact else exc
            _log.warning("%s is notified of batch %s again: %s", name, batch_id, shown)
            break
        reached("ack returned", name)

        def record(connection: Connection, batch_id: int = batch_id) -> None:
            note(connection, batch_id=batch_id)
            reached("recording ack", name)

        database.transact(record)
