"""What a source that keeps its own position gives a batch, and the commit of that position."""

from functools import reduce

from pyspark.sql import DataFrame

from ledger.batch.source_positions import Position, commit_read, position_of
from ledger.batch.state_runs import StepOutput
from ledger.batch.step_runs import OpenedRun
from ledger.core.probes import reached
from ledger.core.states import BatchKind
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import Claimed, SourceReader
from ledger.spark.frames.inputs import read_stored
from ledger.spark.job import Job
from ledger.spark.steps.state import as_json
from ledger.store.queries.runs import Emitted


def began(job: Job, run: OpenedRun, step: SourceStep) -> Position | None:
    """Where the run begins, its source put there; None if it keeps no position, or messages are
    replayed.
    """
    if step.hooks is None or run.batch.kind is BatchKind.REPLAY:
        return None
    position = position_of(job.database, run)
    reached("position taken", step.name)
    if position.again is None:
        committed = None if position.previous is None else position.previous.snapshot
        if position.after_failure:
            step.hooks.roll_back(committed)
        step.hooks.init_state(committed)
    return position


def records(job: Job, reader: SourceReader, claimed: Claimed, position: Position) -> DataFrame:
    """What its batch emits: what it has read before, or what comes now, after what abandoned
    batches had read.
    """
    if position.again is not None:
        return _kept(job, reader, position.again)
    new = reader.records(claimed)
    return reduce(
        DataFrame.unionByName, [_kept(job, reader, run_id) for run_id in position.left], new
    )


def commit_position(
    job: Job,
    run: OpenedRun,
    step: SourceStep,
    position: Position,
    made: StepOutput,
    emitted: Emitted,
) -> None:
    """Ask the source for its state after the records, and commit both."""
    assert step.hooks is not None
    batch_id = run.batch.batch_id
    state = step.hooks.finish_batch(batch_id)
    snapshot = as_json(f"source {step.name!r}", step.hooks.commit(batch_id, state))
    reached("snapshot taken", step.name)
    commit_read(job.database, run, position, made, emitted, snapshot)


def _kept(job: Job, reader: SourceReader, run_id: int) -> DataFrame:
    """What a run has emitted, in today's columns."""
    return reader.parse_again(read_stored(job, job.manifest(run_id)))
