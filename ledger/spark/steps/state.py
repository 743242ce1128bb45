"""Run a state over batches for one batch, and stage it for the sinks that publish it."""

from pyspark.sql import DataFrame

from ledger.batch.state_runs import StateRun, commit_state
from ledger.batch.step_runs import OpenedRun, Record, StepOutput
from ledger.core.declarations import as_json
from ledger.core.probes import reached
from ledger.core.stateful import StatefulStage
from ledger.pipeline.steps import StateStep
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.side_inputs import side_inputs
from ledger.spark.frames.stored import read_files
from ledger.spark.frames.withheld import not_acked
from ledger.spark.job import Job, Witness
from ledger.spark.steps.results import result_of, stage_result, store_result
from ledger.spark.steps.stage import check_frame
from ledger.storage.manifest import Manifest


def run_state(job: Job, opened: StateRun, step: StateStep) -> Record:
    """Compute the state of one batch, stage it for its sinks, and commit all of it. Return the
    run's record.
    """
    read = not_acked(job, opened.run.batch.batch_id)
    acked = read.keep(delivered_rows(job, opened.run.input_run))
    batch = acked.select(*user_columns(acked))
    reached("batch read", step.name)
    if step.hooks is None:
        return _run_function(job, opened, step, batch)
    return _run_hooks(job, opened, step, step.hooks, batch)


def _run_function(job: Job, opened: StateRun, step: StateStep, batch: DataFrame) -> Record:
    """Compute the new state by a function of the previous state and the batch."""
    assert step.function is not None
    state = None
    if opened.previous is not None:
        state = read_files(job.spark, job.manifest(opened.previous.step_run_id))
    read = Witness()
    arguments = side_inputs(job, opened.run.batch, step)
    rows = result_of(step, step.function, [state, read.watch(batch)], arguments)
    manifest = _stored(job, opened.run, rows)
    job.require_inputs(opened.run)
    record = Record(read.rows if read.within(rows) else 0, manifest.rows)
    of_sinks = {name: _staged(job, sink, manifest) for name, sink in opened.sinks.items()}
    commit_state(job.database, opened, StepOutput(record, manifest.files), of_sinks, None)
    return record


def _run_hooks(
    job: Job, opened: StateRun, step: StateStep, hooks: StatefulStage, batch: DataFrame
) -> Record:
    """Compute the new state by the hooks of an object that keeps the state itself."""
    committed = None if opened.previous is None else opened.previous.snapshot
    if opened.after_failure:
        hooks.roll_back(committed)
    hooks.init_state(committed)
    batch_id = opened.run.batch.batch_id
    state = hooks.finish_batch(batch_id, batch)
    reached("batch finished", step.name)
    manifest = Manifest(())
    if opened.sinks:
        rows = hooks.rows(state)
        check_frame(step, rows)
        manifest = _stored(job, opened.run, rows)
    of_sinks = {name: _staged(job, sink, manifest) for name, sink in opened.sinks.items()}
    record = Record(batch.count(), manifest.rows)
    job.require_inputs(opened.run)
    reached("before snapshot", step.name)
    snapshot = as_json(
        f"commit of stateful {step.name!r}",
        hooks.commit(batch_id, state),
        "a small snapshot, or the key of a large one kept elsewhere",
    )
    reached("snapshot taken", step.name)
    commit_state(job.database, opened, StepOutput(record, manifest.files), of_sinks, snapshot)
    return record


def _stored(job: Job, run: OpenedRun, rows: DataFrame) -> Manifest:
    """Write the rows of a state as the run's own files."""
    reached("before state's rows", run.step)
    return store_result(job, run, rows)


def _staged(job: Job, run: OpenedRun, state: Manifest) -> StepOutput:
    """Stage the rows of a state for the sink of ``run``, and return the sink's output."""
    sink, rows = job.pipeline.sink_named(run.step), read_files(job.spark, state)
    staged = stage_result(job, run, sink, rows, "pipeline")
    record = Record(input_rows=state.rows, output_rows=staged.rows)
    return StepOutput(record, staged.files)
