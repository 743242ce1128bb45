"""Emit a source: make each record of its snapshot a root, and post the init deltas."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ledger.batch.claims import claim_of
from ledger.batch.step_runs import OpenedRun, Record, StepOutput, commit
from ledger.core.redaction import Redaction
from ledger.deltas.spans import RootRange, Spans, span_of
from ledger.errors import DeclarationError, InputError, suggestion
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.redacted import check_known
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import Claim, SourceReader
from ledger.sources.parsing.typed import struct
from ledger.spark.failures import read_failure
from ledger.spark.folding.fold import fold
from ledger.spark.job import Job, require_equal
from ledger.spark.origins.choice import origin_of
from ledger.spark.origins.snapshot import UNTRACKED
from ledger.spark.origins.stored import stored_columns
from ledger.spark.session import SPARK_ERRORS
from ledger.spark.tracking import ack_plan_of_source, posted
from ledger.store.queries import batches


def run_source(job: Job, run: OpenedRun, step: SourceStep) -> Record:
    """Emit one source of one batch, and commit the run. Return the run's record."""

    def claim(source: SourceStep) -> Claim:
        return job.database.transact(lambda c: claim_of(c, run.batch.batch_id, source.name))

    stored = stored_columns(job, run, step) if step.source.describes_itself else None
    reader = source_reader(job.spark, job.pipeline, step, claim, stored)
    masks = Redaction.of(job.pipeline.redact).hides_text(reader.schema.names, step.source.layout)
    run = replace(run, masks=masks)
    origin = origin_of(job, run, step, reader)
    with reading(reader):
        snapshot = origin.snapshot(job.folder(run))
    origin.check(snapshot)
    manifest = snapshot.manifest()
    require_equal(f"records of {step.name} in {job.folder(run)}", snapshot.rows, manifest.rows)
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


def source_reader(
    spark: SparkSession,
    pipeline: Pipeline,
    step: SourceStep,
    claim: Callable[[SourceStep], Claim],
    stored: StructType | None = None,
) -> SourceReader:
    """Return the reader of a source, which knows its schema. Raises InputError if the source lacks
    a column of its key, DeclarationError if no source has a column that the pipeline redacts, or if
    the paths of the source's files have its values.

    ``claim``: returns the claim on a source.
    ``stored``: as for ``SourceReader.describe``.
    """

    def described(source: SourceStep, stored: StructType | None) -> SourceReader:
        reader = source.source.reader(spark)
        reader.describe(claim(source), stored)
        for name in pipeline.redact:
            if name in reader.named_in_paths:
                raise DeclarationError(
                    f"pipeline {pipeline.name!r} redacts {name!r}, which is a partition column of"
                    f" source {source.name!r}: the ledger keeps the paths of its files, which have"
                    " the values. Write the table's rows to another table that is not partitioned"
                    f" by {name!r}, and read that one"
                )
        return reader

    reader = described(step, stored)
    names = reader.schema.names
    for name in step.key:
        if name not in names:
            raise InputError(
                f"source {step.name!r} has no column {name!r}, which is to be its key"
                f"{suggestion(name, names)}"
            )
    if pipeline.redact:
        others = [other for other in pipeline.sources() if other.name != step.name]
        schemas = [
            struct(other.source.schema)
            if other.source.schema is not None
            else described(other, None).schema
            for other in others
        ]
        columns = {name for schema in [reader.schema, *schemas] for name in schema.names}
        check_known(pipeline.name, pipeline.redact, columns)
    return reader


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
