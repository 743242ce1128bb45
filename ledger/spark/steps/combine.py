"""Run a combine, a function of all acked rows of a family, and the sinks that read one."""

from functools import partial

from sqlalchemy import Connection

from ledger.batch.combine_runs import require_last
from ledger.batch.step_runs import OpenedRun, Record, StepOutput, commit
from ledger.core.probes import reached
from ledger.pipeline.steps import CombineStep, SinkStep
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.side_inputs import side_inputs
from ledger.spark.frames.staging import require_unique_keys
from ledger.spark.frames.stored import read_files
from ledger.spark.frames.withheld import acked_rows, output_runs
from ledger.spark.job import Job, Witness
from ledger.spark.steps.results import result_of, stage_result, store_result
from ledger.store.queries import publications


def run_combine(job: Job, run: OpenedRun, step: CombineStep) -> Record:
    """Run a combine for the family of the run's batch, and commit it. Return the run's record."""
    read = Witness()
    frames = [acked_rows(job, run.batch.original_id, name, step.name) for name in step.inputs]
    arguments = side_inputs(job, run.batch, step)
    rows = result_of(step, step.function, [read.watch(frames[0]), *frames[1:]], arguments)
    manifest = store_result(job, run, rows)
    for sink in job.pipeline.sinks_of(step.name):  # once it is committed the function runs no more
        require_unique_keys(sink, read_files(job.spark, manifest))
    for name in filter(lambda name: job.pipeline.step(name).is_source, step.inputs):
        job.require_unchanged(output_runs(job, run.batch.original_id, name))
    record = Record(read.rows if read.within(rows) else 0, manifest.rows)
    last = partial(require_last, batch=run.batch)
    commit(job.database, run, StepOutput(record, manifest.files), last)
    return record


def run_combined_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    """Stage the result of a combine for a sink. The same commit decides its publication, because
    nothing has to be withheld.
    """
    rows = delivered_rows(job, run.input_run)
    manifest = stage_result(job, run, step, rows.select(*user_columns(rows)), "family")

    def decide(connection: Connection) -> None:
        require_last(connection, run.batch)
        publications.decide_result(connection, run.run_id, "family")
        reached("deciding publication", step.name)

    record = Record(input_rows=run.input_run.output_rows or 0, output_rows=manifest.rows)
    commit(job.database, run, StepOutput(record, manifest.files), decide)
    return record
