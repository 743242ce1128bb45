"""Run a sink: stage its rows, ack what is staged, and commit; see ``ledger.batch.publishing``
for what follows.
"""

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from sqlalchemy import Connection

from ledger.batch.publishing import delivery_of
from ledger.batch.step_runs import OpenedRun, Record, commit
from ledger.core.column_names import CARRIED
from ledger.pipeline.steps import SinkStep
from ledger.sinks.base import Delivery
from ledger.spark.dedup.dedup import Deduplicator
from ledger.spark.frames.inputs import input_rows, user_columns
from ledger.spark.frames.refused import Refused, find_refused
from ledger.spark.frames.staging import stage_rows, tracking_columns
from ledger.spark.job import Job, Witness, file_rows, require_equal
from ledger.spark.post import fold
from ledger.spark.tracking import posted, sink_tracking
from ledger.spark.units.units import Replacement
from ledger.store.queries import publications


def run_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    """Run one sink of one batch and commit it; what it recorded. Its rows are staged, and decided
    to be published by the settlement, or at least once by this commit: see ``_decides``.
    """
    rows = input_rows(job, run)
    publisher = job.publisher(step)
    schema = to_arrow_schema(rows.select(*user_columns(rows)).schema, timezone="UTC")
    publisher.check(schema, by_row=True)
    folder = publisher.staging(run.batch.batch_id, run.run_id)
    dedup = Deduplicator(job, run, step)
    kept = dedup.keep(rows)
    replacement = Replacement(job, run, step)
    tracking = tracking_columns(kept) if publisher.keeps_tracking else []
    columns = [*user_columns(kept), *tracking]
    delivered, wrote = _delivered(kept.select(*columns), replacement.carried())
    manifest = stage_rows(delivered, step, folder, wrote)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, manifest.rows)
    own = manifest.rows - wrote.counted
    delivery = job.database.transact(
        lambda c: delivery_of(
            c, publisher, run.batch, step.name, run.run_id, manifest.files, replacement.batches
        )
    )
    refused = find_refused(job, run, step, publisher, delivery, delivered.drop(CARRIED).schema)
    record, post = _folded(job, run, step, rows, own, dedup.dropped(rows), refused)

    def keep(connection: Connection) -> None:
        dedup.save(connection)
        publications.note_replaced(connection, run.run_id, replacement.batches)
        if _decides(run, delivery, refused):
            publications.decide_at_commit(connection, run.run_id)

    commit(job.database, run, record, files=file_rows(manifest), post=post, before_commit=keep)
    dedup.release()
    if refused is not None:
        refused.release()
    return record


def _delivered(rows: DataFrame, others: DataFrame | None) -> tuple[DataFrame, Witness]:
    """What a sink is to stage, its own rows and those that a replay takes over from the batches it
    replaces, and a witness that counts these, too."""
    if others is None:
        return rows, Witness(counting=lambda frame: F.lit(0))
    own = rows.withColumn(CARRIED, F.lit(False))
    taken = others.withColumn(CARRIED, F.lit(True))
    both = own.unionByName(taken, allowMissingColumns=True)
    return both, Witness(counting=lambda frame: F.count_if(CARRIED))


def _decides(run: OpenedRun, delivery: Delivery, refused: Refused | None) -> bool:
    """Whether a sink's commit decides that its rows are published: at least once, unless refused
    rows are yet to be withheld, or published rows are replaced, which only a settled batch may do.
    """
    return not run.batch.exactly_once and not delivery.replaces and refused is None


def _folded(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    rows: DataFrame,
    held: int,
    dropped: int,
    refused: Refused | None,
) -> tuple[Record, Callable[[Connection], None]]:
    """Ack what the sink holds: every row read is in its files, or was dropped as delivered before.
    The records whose rows the sink refuses fail."""
    record = Record(
        input_rows=run.input_run.output_rows or 0,
        output_rows=held,
        duplicate_rows=dropped,
        failed_rows=refused.rows if refused else 0,
    )
    tracking = sink_tracking(job, run, step)
    outcome = fold(job, run, tracking.rows(rows))
    tracking.check(outcome, held + dropped)
    if refused is not None:
        outcome = replace(outcome, fails=[refused.fails()])
    return posted(record, outcome), outcome.post
