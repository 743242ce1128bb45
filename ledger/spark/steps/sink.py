"""Run a sink: stage its rows, ack what is staged, and commit; see ``ledger.batch.publishing``
for what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from sqlalchemy import Connection

from ledger.batch.publishing import delivery_of
from ledger.batch.step_runs import OpenedRun, Record, StepOutput, commit
from ledger.core.column_names import NUMBERS, POSITION
from ledger.pipeline.steps import SinkStep
from ledger.sinks.base import Delivery
from ledger.spark.dedup.dedup import Deduplicator
from ledger.spark.frames.inputs import input_rows, user_columns
from ledger.spark.frames.misplaced import misplaced_rows
from ledger.spark.frames.refused import Refused, find_refused, plan_of
from ledger.spark.frames.staging import stage_rows, tracking_columns
from ledger.spark.job import Job, Witness, require_equal
from ledger.spark.sink_tracking import SinkTracking
from ledger.spark.tracking import posted
from ledger.storage.manifest import Manifest
from ledger.store.queries import publications


@dataclass(frozen=True)
class StagedRows:
    """Rows that a sink's run has staged.

    ``rows``: the rows as its writer got them, with ``POSITION`` or ``NUMBERS``. ``columns``: those
    that it wrote.
    """

    rows: DataFrame
    columns: Sequence[str]
    manifest: Manifest
    delivery: Delivery


def run_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    """Stage the rows of one sink of one batch, and commit the run. Return the run's record.

    The settlement decides the publication of the rows; with ``at_least_once`` this commit does.
    """
    rows = input_rows(job, run)
    plan_of(step, job.publisher(step), rows)
    dedup = Deduplicator(job, run, step)
    tracking = SinkTracking(job, run, step)
    staged = stage_delivery(job, run, step, dedup.keep(rows), tracking.wrote)
    refused = refused_rows(job, run, step, staged, tracking.wrote)
    duplicates = tracking.tally(dedup.dropped(rows))
    outcome = tracking.fold(rows, duplicates)
    if refused is not None:
        outcome = replace(outcome, fails=[refused.fails()])
    record = Record(
        input_rows=run.input_run.output_rows or 0,
        output_rows=staged.manifest.rows,
        duplicate_rows=duplicates.rows,
        failed_rows=refused.rows if refused else 0,
    )
    record = posted(record, outcome)

    # At least once, unless refused rows are yet to be withheld, or published ones are replaced,
    # which only a settled batch may do.
    decides = not run.batch.exactly_once and not staged.delivery.replaces and refused is None

    def keep(connection: Connection) -> None:
        dedup.save(connection)
        if decides:
            publications.decide_at_commit(connection, run.run_id)

    job.require_inputs(run)
    commit(job.database, run, StepOutput(record, staged.manifest.files, outcome.post), keep)
    dedup.release()
    if refused is not None:
        refused.release()
    return record


def stage_delivery(
    job: Job, run: OpenedRun, step: SinkStep, rows: DataFrame, wrote: Witness
) -> StagedRows:
    """Stage rows for a sink.

    ``rows``: with the columns of ``input_rows``; within a plan, ``NUMBERS`` may replace the others.
    ``wrote``: the witness of ``SinkTracking``.
    """
    publisher = job.publisher(step)
    folder = publisher.staging(run.batch.batch_id, run.run_id)
    own = [name for name in (POSITION, *NUMBERS) if name in rows.columns]
    delivered = rows.select(*user_columns(rows), *tracking_columns(rows), *own)
    delivered = job.on_write(step.name, delivered)
    columns = user_columns(delivered)
    columns += tracking_columns(rows) if publisher.keeps_tracking else []
    manifest = stage_rows(delivered, step, folder, wrote, columns)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    delivery = job.database.transact(
        lambda c: delivery_of(c, publisher, run.batch, step.name, run.run_id, manifest.files)
    )
    return StagedRows(delivered, columns, manifest, delivery)


def refused_rows(
    job: Job, run: OpenedRun, step: SinkStep, staged: StagedRows, wrote: Witness
) -> Refused | None:
    """Return the records whose rows a sink does not take as it is now; None if it takes all rows.

    If ``wrote`` has counted rows that fit in no folder, computes ``staged.rows`` again. Raises what
    ``find_refused`` raises.
    """
    misplaced = misplaced_rows(wrote, staged.rows, step)
    schema = staged.rows.select(*staged.columns).schema
    plan = plan_of(step, job.publisher(step), staged.rows, staged.delivery)
    return find_refused(job, run, step, plan, staged.delivery, schema, misplaced)
