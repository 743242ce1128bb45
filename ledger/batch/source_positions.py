"""Runs of a source that keeps its own position: each reads on where the last committed one has
stopped.

One run reads at a time, whichever batch it is of; the next batch reads on as soon as that one
has committed, and does not wait for its settlement. The position is committed with what was
read, in one transaction, so it never goes back: what a batch has read stays its own. When its
source runs again it emits that once more, and when it is abandoned the next run takes it over,
both from the kept snapshot of the records.
"""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ledger.batch.state_runs import HeldByAnotherDriver, StepOutput, tell_acked
from ledger.batch.step_runs import OpenedRun, commit_in
from ledger.core.probes import reached
from ledger.core.states import RunState
from ledger.errors import FencedError, NotReadyError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SourceStep
from ledger.store.connection import Database
from ledger.store.queries import checkpoints, runs, source_states
from ledger.store.queries.checkpoints import Checkpoint
from ledger.store.queries.runs import Emitted

# How long to wait for a run of another batch that reads the source, and how often to look.
WAIT_SECONDS = 300.0
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Position:
    """Where a run of the source begins. ``again``: the run with which its batch has read
    already, nothing is read; else ``previous``: the committed state, ``after_failure``: an
    attempt after it was rolled back, ``left``: runs whose batches were abandoned and whose
    records this one takes over.
    """

    again: int | None = None
    previous: Checkpoint | None = None
    after_failure: bool = False
    left: tuple[int, ...] = ()


def position_of(database: Database, run: OpenedRun) -> Position:
    """Where the run begins, once no run of another batch that came before it reads; one whose
    lease has lapsed is fenced. Raises NotReadyError if that takes too long, FencedError if a
    later run has read on.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer = database.transact(lambda c: _position(c, run))
        if isinstance(answer, Position):
            return answer
        if time.monotonic() > deadline:
            raise NotReadyError(
                f"source {run.step!r} is being read by run {answer.run_id} of batch"
                f" {answer.batch_id}, and what comes after that is not known before it has ended:"
                f" run {run.step} of batch {run.batch.batch_id} again then"
            )
        time.sleep(POLL_SECONDS)


def _position(connection: Connection, run: OpenedRun) -> Position | HeldByAnotherDriver:
    batch, source = run.batch, run.step
    checkpoints.lock_pipeline(connection, batch.pipeline)
    again = source_states.emitted_by(connection, batch.pipeline_id, source, batch.batch_id)
    if again is not None:
        return Position(again)
    while (
        other := source_states.reading_before(connection, batch.pipeline_id, source, run.run_id)
    ) is not None:
        if other.alive:
            return HeldByAnotherDriver(other.batch_id, other.step_run_id)
        runs.fence_run(connection, other.step_run_id)
    previous = checkpoints.last(connection, batch.pipeline_id, source)
    if previous is not None and previous.step_run_id > run.run_id:
        raise _overtaken(run, previous)
    since = 0 if previous is None else previous.step_run_id
    return Position(
        None,
        previous,
        source_states.failed_since(connection, batch.pipeline_id, source, since),
        tuple(source_states.left_by_abandoned(connection, batch.pipeline_id, source)),
    )


def commit_read(
    database: Database,
    run: OpenedRun,
    position: Position,
    output: StepOutput,
    emitted: Emitted,
    snapshot: Any,
) -> None:
    """Make the records of the run count and the position after them the source's, in one
    transaction.

    Raises FencedError if another run has read from the same position meanwhile.
    """

    def work(connection: Connection) -> None:
        batch = run.batch
        checkpoints.lock_pipeline(connection, batch.pipeline)
        if runs.get_run(connection, run.run_id).state is RunState.COMMITTED:
            return  # the answer to the first try was lost
        last = checkpoints.last(connection, batch.pipeline_id, run.step)
        if last is not None and last != position.previous:
            raise _overtaken(run, last)
        commit_in(
            connection, run, output.record, files=output.files, emitted=emitted, post=output.post
        )
        if source_states.take_over(connection, position.left) != len(position.left):
            raise FencedError(
                f"run {run.run_id} of {run.step} took over what an abandoned batch had read, and"
                f" that one has been opened again: run {run.step} again"
            )
        checkpoints.insert(
            connection, batch.pipeline_id, run.step, batch.batch_id, run.run_id, snapshot
        )
        reached("inserting checkpoint", run.step)

    database.transact(work)
    reached("run committed", run.step)


def _overtaken(run: OpenedRun, other: Checkpoint) -> FencedError:
    return FencedError(
        f"run {run.run_id} of {run.step} began to read where run {other.step_run_id} of batch"
        f" {other.batch_id} has read on: run {run.step} of batch {run.batch.batch_id} again"
    )


def acknowledge(database: Database, pipeline: Pipeline, step: SourceStep) -> None:
    """Tell a stateful source of every batch that is committed as a whole; it never fails."""
    due = database.transact(lambda c: source_states.unacked(c, pipeline.name, step.name))
    tell_acked(database, pipeline, step.name, step.hooks, due)
