"""Emit a source: its records go to a snapshot, each becomes a root, and the init deltas are posted."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection

from ledger.queries import batches, replays
from ledger.spark import fold
from ledger.spark.files import read_failure
from ledger.spark.inputs import read_stored
from ledger.spark.job import (
    ERROR,
    MESSAGE,
    POSITION,
    RAW,
    SNAPSHOT,
    Job,
    Witness,
    file_rows,
    require_equal,
)
from ledger.spark.manifest import Manifest, check_files, take_manifest, with_position
from ledger.spark.notify import check_columns
from ledger.spark.reading import Reader, find_files
from ledger.spark.session import SPARK_ERRORS
from ledger.spark.units import replayed_records, with_unit
from ledger.stage_runs import OpenedRun, Record, commit
from ledger.states import BatchKind
from ledger.steps import SourceStep

BROADCAST_MESSAGES = 1_000_000


def run_source(job: Job, run: OpenedRun, step: SourceStep) -> Record:
    """Emit one source of one batch and commit it; what it recorded."""
    reader = Reader(job.spark, step.source)
    check_columns(step, reader.schema.names)
    folder = job.folder(run)
    with _reading():
        wrote = [_write(_records(job, run, step, reader), folder)]
        repeated = reader.repeated_headers()
        if repeated is not None:
            wrote.append(_write(with_unit(job, step, repeated), folder))
    manifest = take_manifest(folder)
    written = sum(witness.rows for witness in wrote)
    require_equal(f"records of {step.name} in {folder}", written, manifest.rows)
    first_root = job.database.transact(lambda c: batches.reserve_roots(c, manifest.rows))
    failing = any(witness.failed for witness in wrote)
    record = _post(job, run, step, manifest, first_root, failing)

    def claim(connection: Connection) -> None:
        if run.batch.kind is BatchKind.REPLAY and job.pipeline.graph.in_units(step.name):
            replays.claim_companions(connection, run.batch.batch_id, run.run_id)

    commit(
        job.database,
        run,
        record,
        files=file_rows(manifest),
        emitted=(first_root, manifest.rows),
        before_commit=claim,
    )
    return record


def _write(records: DataFrame, folder: str) -> Witness:
    """Add records to the snapshot; the witness of what was handed to the writer."""
    wrote = Witness(failed=ERROR)
    wrote.watch(records).write.mode("append").options(**SNAPSHOT).parquet(folder)
    return wrote


@contextmanager
def _reading() -> Iterator[None]:
    """Say which file could not be read, whether Spark noticed when it planned or when it ran."""
    try:
        yield
    except SPARK_ERRORS as exc:
        failure = read_failure(exc)
        if failure is None:
            raise
        raise failure from exc


def _records(job: Job, run: OpenedRun, step: SourceStep, reader: Reader) -> DataFrame:
    """What the batch emits: the records of its files, or the messages that a replay claimed."""
    if run.batch.kind is BatchKind.REPLAY:
        if job.pipeline.graph.in_units(step.name):
            return replayed_records(job, run, step, reader)
        return reader.parse_again(_claimed(job, run, step))
    found = job.database.transact(lambda c: batches.sources(c, run.batch.batch_id))
    path = next(str(row.path) for row in found if row.source == step.name)
    return with_unit(job, step, reader.records(find_files(step.name, step.source, path)))


def _claimed(job: Job, run: OpenedRun, step: SourceStep) -> DataFrame:
    """The messages that a replay claimed, from the snapshot of its original, with ``_message``."""
    batch = run.batch
    messages = job.database.transact(
        lambda c: replays.claimed_messages(c, batch.batch_id, step.name)
    )
    emit = job.database.transact(lambda c: replays.original_emit(c, batch.original_id, step.name))
    manifest = job.manifest(emit.emit_run_id)
    check_files(manifest)
    snapshot = with_position(read_stored(job, manifest), manifest, POSITION)
    claimed = job.spark.createDataFrame(pa.table({MESSAGE: pa.array(messages, pa.int64())}))
    claimed = claimed.withColumn(POSITION, F.col(MESSAGE) - F.lit(emit.first_root))
    if len(messages) <= BROADCAST_MESSAGES:
        claimed = F.broadcast(claimed)
    return snapshot.join(claimed, POSITION, "inner").drop(POSITION)


def _post(
    job: Job,
    run: OpenedRun,
    step: SourceStep,
    manifest: Manifest,
    first_root: int,
    failing: bool,
) -> Record:
    """Post one init delta per root; a record that did not parse, if any is, fails its root at once."""
    if run.batch.ackers == 0:
        return Record(input_rows=manifest.rows, output_rows=manifest.rows)
    stored = with_position(read_stored(job, manifest), manifest, "position")
    stored = with_position(stored, manifest, "root", first_root)
    message = [F.col(MESSAGE).alias("message")] if MESSAGE in stored.columns else []
    rows = stored.select(
        "root",
        "position",
        *([F.col(ERROR), _detail().alias("detail")] if failing else []),
        *message,
    )
    folded = fold.fold_source(rows, run.run_id, job.pipeline.consumers(step.name))
    posted = job.post(run, folded)
    require_equal(f"roots of {step.name} in run {run.run_id}", manifest.rows, posted.rows)
    return Record(
        input_rows=manifest.rows,
        output_rows=manifest.rows - posted.failed_roots,
        failed_rows=posted.failed_roots,
        delta_rows=posted.rows,
        delta_xor=posted.delta_xor,
        emitted_edges=posted.emitted_edges,
        emitted_roots=posted.emitted_roots,
        acked_edges=posted.acked_edges,
    )


def _detail() -> Column:
    """The raw text of a record that did not parse; base64 if it is not UTF-8."""
    text = F.col(RAW).cast("string")
    encoded = F.concat(F.lit("base64:"), F.base64(RAW))
    return F.when(F.col(ERROR).isNotNull(), F.when(F.is_valid_utf8(text), text).otherwise(encoded))
