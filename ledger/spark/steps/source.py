"""Emit a source: write its records to a snapshot, make each a root, and post the init deltas."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from ledger.batch.step_runs import OpenedRun, Record, StepOutput, commit
from ledger.core.redaction import Redaction
from ledger.deltas.spans import RootRange, Spans, span_of
from ledger.errors import InputError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.redacted import check_known
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import SourceReader
from ledger.sources.parsing.typed import struct
from ledger.spark.failures import read_failure
from ledger.spark.folding.fold import fold
from ledger.spark.job import Job, require_equal
from ledger.spark.origins.choice import origin_of
from ledger.spark.origins.snapshot import UNTRACKED, Snapshot
from ledger.spark.session import SPARK_ERRORS
from ledger.spark.tracking import ack_plan_of_source, posted
from ledger.store.queries import batches


def run_source(job: Job, run: OpenedRun, step: SourceStep) -> Record:
    """Emit one source of one batch, and commit the run. Return the run's record."""
    reader = source_reader(job.spark, job.pipeline, step)
    masks = _redaction(job.pipeline).hides_text(reader.schema.names, step.source.layout)
    run = replace(run, masks=masks)
    origin = origin_of(job, run, step, reader)
    snapshot = Snapshot(job.folder(run), origin.track)
    with reading(reader):
        origin.write(snapshot)
    origin.check(snapshot)
    manifest = snapshot.manifest()
    require_equal(f"records of {step.name} in {snapshot.folder}", snapshot.rows, manifest.rows)
    with reading(reader):
        nulls = list(reader.null_columns(manifest.paths))
    roots = sum(file.rows for file in manifest.files if UNTRACKED not in file.path)
    span = span_of(roots) if run.batch.tracking else 1
    first_root = job.database.transact(lambda c: batches.reserve_roots(c, roots, span))
    emitted = RootRange(first_root, roots, span)
    plan = ack_plan_of_source(job, run, manifest, emitted, snapshot.failed, keeps_text=not masks)
    outcome = fold(job, run, plan.portions, plan.check, Spans([emitted]))
    read, failed = manifest.rows, outcome.posted.failed_roots
    record = Record(read, output_rows=read - failed, failed_rows=failed, null_columns=nulls)
    record = posted(record, outcome)
    output = StepOutput(record, manifest.files, outcome.post, emitted=emitted)
    commit(job.database, run, output, origin.complete)
    return record


def source_reader(spark: SparkSession, pipeline: Pipeline, step: SourceStep) -> SourceReader:
    """Return the reader of a source. Raises InputError if the source lacks a column of its key,
    DeclarationError if no source has a column that the pipeline redacts.
    """
    reader = step.source.reader(spark)
    names = reader.schema.names
    for name in step.key:
        if name not in names:
            raise InputError(
                f"source {step.name!r} has no column {name!r}, which is to be its key"
                f"{suggestion(name, names)}"
            )
    _redaction(pipeline)
    return reader


def _redaction(pipeline: Pipeline) -> Redaction:
    """Return the pipeline's redaction. Raises DeclarationError if it has a column of no source."""
    names, sources = pipeline.redact, pipeline.sources()
    if names:
        columns = {name for step in sources for name in struct(step.source.schema).names}
        check_known(pipeline.name, names, columns)
    return Redaction.of(names)


@contextmanager
def reading(reader: SourceReader) -> Iterator[None]:
    """Translate errors of reading a source in this block, from planning or running, to errors that
    name the file.
    """
    try:
        yield
    except SPARK_ERRORS as exc:
        failure = reader.failure(exc) or read_failure(exc)
        if failure is None:
            raise
        raise failure from exc
