"""Runs of what follows a settlement: combines, and the sinks that read them.

A combine belongs to the batch of a family that was settled last: the original, or the replay
that left no record of it failed. It runs once there; a later replay, of records that had been
quarantined, makes another, whose result takes the place of the first. What began before that one
was settled is fenced when it commits.
"""

from functools import partial

from sqlalchemy import Connection

from ledger.batch.step_runs import Attempt, OpenedRun, begin_run, committed_runs, require_step
from ledger.core.states import BatchStatus, RunState
from ledger.errors import FencedError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import CombineStep, SinkStep, Step
from ledger.store.connection import Database
from ledger.store.queries import batches, combines, publications, runs
from ledger.store.queries.batches import Batch


def combines_due(database: Database, pipeline: Pipeline, batch_id: int) -> bool:
    """Whether a combine of a settled batch is yet to run, or a sink of one to run or publish."""
    if any(_is_undone(database, batch_id, step) for step in pipeline.combined()):
        return True
    pending = database.transact(lambda c: publications.pending(c, batch_id))
    names = {step.name for step in pipeline.combined()}
    return any(row.sink in names for row in pending)


def _is_undone(database: Database, batch_id: int, step: Step) -> bool:
    if isinstance(step, CombineStep):
        return is_due(database, batch_id, step)
    return is_waiting(database, batch_id, step)


def is_due(database: Database, batch_id: int, step: CombineStep) -> bool:
    """Whether a combine has to run for a settled batch."""
    return database.transact(lambda c: _is_due(c, batches.get_batch(c, batch_id), step))


def _is_due(connection: Connection, batch: Batch, step: CombineStep) -> bool:
    """It has not run in this batch, which is the last of its family, and what it needs is
    decided.
    """
    if batch.status is not BatchStatus.SETTLED or not combines.is_last(connection, batch.batch_id):
        return False
    if combines.has_run(connection, batch.batch_id, step.name):
        return False
    return step.partial or not (
        publications.open_failures(connection, batch.original_id)
        or publications.units_to_rebuild(
            connection, batch.original_id
        )  # units are to be asked for again
    )


def open_combine(
    database: Database, batch_id: int, step: CombineStep, attempt: Attempt
) -> OpenedRun | None:
    """Open a run of a combine; None if it is not due. Its inputs are read from all batches of
    the family.
    """

    def work(connection: Connection) -> OpenedRun | None:
        batch = _locked(connection, batch_id)
        if not _is_due(connection, batch, step):
            return None
        require_step(batch, step.name)
        return begin_run(connection, batch, step.name, attempt, lambda found: {})

    return database.transact(work)


def open_combined_sink(
    database: Database, batch_id: int, step: SinkStep, attempt: Attempt
) -> OpenedRun | None:
    """Open a run of a sink that reads a combine; None if it has run, or the combine has not."""

    def work(connection: Connection) -> OpenedRun | None:
        batch = _locked(connection, batch_id)
        if not _is_waiting(connection, batch, step):
            return None
        require_step(batch, step.name)
        inputs = partial(committed_runs, steps=[step.reads])
        return begin_run(connection, batch, step.name, attempt, inputs)

    return database.transact(work)


def is_waiting(database: Database, batch_id: int, step: Step) -> bool:
    """Whether a sink has not published what a combine made in a settled batch."""
    return database.transact(lambda c: _is_waiting(c, batches.get_batch(c, batch_id), step))


def _is_waiting(connection: Connection, batch: Batch, step: Step) -> bool:
    found = runs.runs_of(connection, batch.batch_id)
    committed = {run.step for run in found if run.state is RunState.COMMITTED}
    (reads,) = step.inputs
    ready = batch.status is BatchStatus.SETTLED and combines.is_last(connection, batch.batch_id)
    return ready and reads in committed and step.name not in committed


def require_last(connection: Connection, batch: Batch) -> None:
    """Within a commit, which has locked the original. Raises FencedError if another batch of the
    family was settled since the run began.
    """
    if not combines.is_last(connection, batch.batch_id):
        raise FencedError(
            f"another batch of the family of batch {batch.original_id} was settled meanwhile: its"
            " combine takes the place of this one"
        )


def _locked(connection: Connection, batch_id: int) -> Batch:
    """The batch, locked after its original: of two settlements of a family one looks first."""
    original = batches.get_batch(connection, batch_id).original_id
    batches.lock_batch(connection, original)
    batch = batches.lock_batch(connection, batch_id)
    assert batch is not None
    return batch
