"""Whole stages of a batch, which the plans of its runs show."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from ledger.batch.advice.batches import reprocess
from ledger.batch.step_runs import OpenedRun
from ledger.core.declared_steps import DeclaredStep, whole_stages
from ledger.core.states import BatchKind, RunState
from ledger.errors import InputError
from ledger.pipeline.load import known_target
from ledger.pipeline.pipeline import Pipeline
from ledger.store.connection import Database
from ledger.store.queries import batches, pipelines, runs
from ledger.store.queries.batches import Batch


def note_whole(
    database: Database, pipeline: Pipeline, run: OpenedRun, gathering: Sequence[str]
) -> None:
    """Note in the steps of a run's batch whether its stage is whole, before it writes.

    ``gathering``: the operations of its plan whose rows depend on which other rows there are, with
    their lines. Raises InputError if a replay has a part of its batch and the stage is whole now;
    DeclarationError if the pipeline cannot have a whole stage there.
    """
    if run.batch.kind is BatchKind.REPLAY:
        if gathering and not run.batch.is_whole:
            raise _not_whole_before(pipeline, run, gathering[0])
        return

    def work(connection: Connection) -> None:
        if not _differs(batches.get_batch(connection, run.batch.batch_id), run.step, gathering):
            return
        pipelines.lock(connection, pipeline.name)
        batch = batches.lock_batch(connection, run.batch.batch_id)
        assert batch is not None
        is_running = runs.get_run(connection, run.run_id).state is RunState.RUNNING
        if not (is_running and _differs(batch, run.step, gathering)):
            return  # a run that was superseded is refused when it commits
        steps = _steps_with(batch, pipeline, run.step, bool(gathering))
        version = batches.declare_steps(connection, batch.pipeline_id, steps)
        batches.set_steps(connection, batch.batch_id, version)

    database.transact(work)


def _differs(batch: Batch, step: str, gathering: Sequence[str]) -> bool:
    """Return whether a stage is not as its batch has it. One that reads a whole stage is never
    noted: the batch is replayed as a whole in any case.
    """
    merging = {each.name for each in batch.topology if each.merges}
    (reads,) = (each.reads for each in batch.topology if each.name == step)
    return merging.isdisjoint(reads) and bool(gathering) != (step in merging)


def _steps_with(
    batch: Batch, pipeline: Pipeline, step: str, is_whole: bool
) -> tuple[DeclaredStep, ...]:
    """Return the steps of a batch with what follows from a stage being whole or not."""
    others = whole_stages(batch.topology) - {step}
    steps = pipeline.with_whole(others | {step} if is_whole else others).topology()
    declared = {each.name: each for each in steps}
    return tuple(
        replace(each, merges=declared[each.name].merges, awaits=declared[each.name].awaits)
        if each.name in declared
        else each
        for each in batch.topology
    )


def _not_whole_before(pipeline: Pipeline, run: OpenedRun, operation: str) -> InputError:
    original = run.batch.original_id
    return InputError(
        f"stage {run.step!r} has {operation}, so its rows depend on all records of the batch. This"
        f" replay of batch {original} has only some of them, because the stage had no such"
        " operation then, or never committed. Nothing is lost or published. Run the whole interval"
        f" again: {reprocess(run.batch, known_target(pipeline))}"
    )
