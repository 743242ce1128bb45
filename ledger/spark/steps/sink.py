"""Run a sink: stage its rows, ack what is staged, and commit; see ``ledger.batch.publishing``
for what follows.
"""

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from sqlalchemy import Connection

from ledger.batch.state_runs import StepOutput
from ledger.batch.step_runs import OpenedRun, Record, commit, retire
from ledger.core.probes import reached
from ledger.core.states import BatchStatus
from ledger.pipeline.steps import SinkStep
from ledger.sinks.base import Delivery, Publisher
from ledger.spark.dedup.dedup import Deduplicator
from ledger.spark.frames.inputs import input_rows, user_columns
from ledger.spark.frames.refused import Refused, find_refused, without_refused
from ledger.spark.frames.staging import stage_rows, tracking_columns
from ledger.spark.job import Job, Witness, file_rows, require_equal
from ledger.spark.post import fold
from ledger.spark.tracking import posted, sink_tracking
from ledger.spark.units.units import Replacement
from ledger.storage.manifest import Manifest
from ledger.store.queries import batches, publications
from ledger.store.queries import dedup as queries


def run_sink(job: Job, run: OpenedRun, step: SinkStep) -> Record:
    """Run one sink of one batch and commit it; what it recorded. At least once its rows are
    published by the commit, exactly once they stay staged.
    """
    rows = input_rows(job, run)
    publisher = job.publisher(step)
    schema = to_arrow_schema(rows.select(*user_columns(rows)).schema, timezone="UTC")
    publisher.check(schema, by_row=True)
    folder = publisher.staging(run.batch.batch_id, run.run_id)
    dedup = Deduplicator(job, run, step)
    kept = dedup.keep(rows)
    replacement = Replacement(job, run, step)
    wrote, carried = Witness(), Witness()
    tracking = tracking_columns(kept) if publisher.keeps_tracking else []
    columns = [*user_columns(kept), *tracking]
    delivered = wrote.watch(kept.select(*columns))
    others = replacement.carried()
    if others is not None:
        delivered = delivered.unionByName(carried.watch(others), allowMissingColumns=True)
    manifest = stage_rows(delivered, step, folder)
    own = manifest.rows - (0 if others is None else carried.rows)
    require_equal(f"rows of {step.name} in {folder}", wrote.rows, own)
    delivery = _staged_delivery(job, run, step, publisher, manifest, replacement)
    refused = find_refused(job, run, step, publisher, delivery, delivered.schema)
    record, post = _folded(job, run, step, rows, own, dedup.dropped(rows), refused)
    if refused is not None and not run.batch.exactly_once:
        manifest = without_refused(job, step, delivery, delivered.schema, refused)
        shown = record.output_rows + manifest.rows - delivery.rows
        record = replace(record, output_rows=shown)
    commit_sink = _commit_staged if run.batch.exactly_once else _commit_shown
    commit_sink(
        job, run, step, StepOutput(record, file_rows(manifest), post), dedup, replacement, manifest
    )
    dedup.release()
    if refused is not None:
        refused.release()
    return record


def _commit_staged(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    made: StepOutput,
    dedup: Deduplicator,
    replacement: Replacement,
    manifest: Manifest,
) -> None:
    """Commit what is staged: the settlement decides what of it is published."""

    def keep(connection: Connection) -> None:
        dedup.save(connection)
        publications.note_brought_again(connection, run.run_id, replacement.republished)

    commit(job.database, run, made.record, files=made.files, post=made.post, before_commit=keep)


def _commit_shown(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    made: StepOutput,
    dedup: Deduplicator,
    replacement: Replacement,
    manifest: Manifest,
) -> None:
    """Show what is staged as the last act of the commit."""
    publisher = job.publisher(step)
    batch = run.batch
    # From here until the commit no run of the sink counts: were the driver killed in between, the
    # batch could not settle without this sink.
    retire(job.database, run)

    def deliver(connection: Connection) -> None:
        dedup.save(connection)
        if step.sink.replaces_in_one_commit:
            given_way = _given_way(connection, step, run, replacement)
        else:  # folders are removed after the batch is settled
            void = queries.void_deliveries(connection, step.name, batch)
            given_way = {row.batch_id for row in void}
            replaced = [publisher.folder(batch_id) for batch_id in replacement.batches]
            folders = [folder for folder in replaced if folder is not None]
            queries.note_replaced(connection, batch.batch_id, step.name, folders)
        replaces = tuple(sorted(given_way))
        holder = batches.holder(connection, batch.original_id)
        reached("publishing", step.name)
        publisher.publish(_delivery(run, step, publisher, manifest, replaces, holder))
        reached("published", step.name)

    files, published = made.files, publisher.folder(batch.batch_id)
    if published is not None:
        staged = publisher.staging(batch.batch_id, run.run_id)
        files = [{**file, "path": file["path"].replace(staged, published, 1)} for file in files]
    commit(job.database, run, made.record, files=files, post=made.post, before_commit=deliver)


def _staged_delivery(
    job: Job,
    run: OpenedRun,
    step: SinkStep,
    publisher: Publisher,
    manifest: Manifest,
    replacement: Replacement,
) -> Delivery:
    """What is staged, as it would be published now."""
    batch = run.batch

    def look(connection: Connection) -> Delivery:
        if batch.exactly_once:
            given = publications.replaced_batches(connection, batch.batch_id, run.run_id)
            replaced = {*given, *replacement.republished}
        else:
            replaced = _given_way(connection, step, run, replacement)
        holder = batches.holder(connection, batch.original_id)
        return _delivery(run, step, publisher, manifest, tuple(sorted(replaced)), holder)

    return job.database.transact(look)


def _given_way(
    connection: Connection, step: SinkStep, run: OpenedRun, replacement: Replacement
) -> set[int]:
    """Batches whose rows a table stops to show with a run's commit. It never publishes again
    what gave way once, and an abandoned batch may open again.
    """
    void = queries.void_deliveries(connection, step.name, run.batch)
    settled = {row.batch_id for row in void if row.status == BatchStatus.SETTLED}
    return {*replacement.batches, *settled}


def _delivery(
    run: OpenedRun,
    step: SinkStep,
    publisher: Publisher,
    manifest: Manifest,
    replaces: tuple[int, ...],
    holder: int,
) -> Delivery:
    return Delivery(
        sink=f"{run.batch.pipeline}.{step.name}",
        batch_id=run.batch.batch_id,
        version=run.run_id,
        interval_start=run.batch.interval_start,
        original_id=holder,  # parts of one interval are one family to a sink
        folder=publisher.staging(run.batch.batch_id, run.run_id),
        files=manifest.files,
        replaces=replaces,
        interval_end=run.batch.interval_end,
    )


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
