"""Runs of combines and of the sinks that read them, which follow a settlement.

A combine belongs to the batch of a family that was settled last: the original, or the replay that
left no record of its sources failed. It runs once in that batch. Each later replay of the family
makes another run, whose result replaces the first. A run that began before that replay was settled
is fenced when it commits.
"""

from functools import partial

from sqlalchemy import Connection

from ledger.batch.step_runs import Attempt, OpenedRun, begin_run, committed_runs, require_step
from ledger.errors import FencedError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step
from ledger.store.connection import Database
from ledger.store.queries import batches, following, publications
from ledger.store.queries.batches import Batch


def combines_due(database: Database, pipeline: Pipeline, batch_id: int) -> bool:
    """Return whether a combine of a settled batch is yet to run, or a sink of one to run or
    publish.
    """
    names = [step.name for step in pipeline.combined()]

    def ask(connection: Connection) -> bool:
        pending = publications.pending(connection, batch_id)
        return following.combine_is_due(connection, batch_id, names) or any(
            row.sink in names for row in pending
        )

    return database.transact(ask)


def open_due(database: Database, batch_id: int, step: Step, attempt: Attempt) -> OpenedRun | None:
    """Open a run of a combine, or of a sink that reads one; None if it has run, or may not yet."""

    def work(connection: Connection) -> OpenedRun | None:
        batch = batches.lock_family(connection, batch_id)
        assert batch is not None
        if not following.combine_is_due(connection, batch_id, [step.name]):
            return None
        reads = () if step.reads_family else require_step(batch, step.name).reads
        inputs = partial(committed_runs, steps=reads)
        return begin_run(connection, batch, step.name, attempt, inputs)

    return database.transact(work)


def require_last(connection: Connection, batch: Batch) -> None:
    """Raise FencedError if another batch of the family was settled since the run began. The caller
    is a commit, which has locked the original.
    """
    if not batches.is_last(connection, batch.batch_id):
        raise FencedError(
            f"another batch of the family of batch {batch.original_id} was settled meanwhile: its"
            " combine takes the place of this one"
        )
