"""Records as a snapshot stores them, for replays."""

import json
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ledger.batch.records.failed_rows import copied
from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import ROOT, is_own
from ledger.core.paths import literal
from ledger.core.states import BatchKind
from ledger.errors import LostFileError
from ledger.pipeline.steps import SourceStep
from ledger.spark.frames.inputs import as_copied, stored_rows
from ledger.spark.job import Job
from ledger.storage.manifest import Manifest, check_files, version_file
from ledger.storage.parquet import spark_schema, stored_file
from ledger.storage.versions import version_of
from ledger.store.queries import runs
from ledger.store.queries.payloads import EmittedRecords
from ledger.store.queries.runs import Emit


def emit_of(job: Job, batch_id: int, source: str) -> Emit | None:
    """Return the emit of a source in a batch; None if the batch has no such source."""
    emits = job.database.transact(lambda c: runs.emits(c, batch_id))
    return next((emit for emit in emits if emit.source == source), None)


def stored_columns(job: Job, run: OpenedRun, step: SourceStep) -> StructType | None:
    """Return the columns in which the original of a replay has stored a source's records; None if
    the batch is no replay, or if they are not stored any more.
    """
    if run.batch.kind is not BatchKind.REPLAY:
        return None
    emit = emit_of(job, run.batch.original_id, step.name)
    if emit is None:
        return None
    try:
        manifest = _manifest(job, emit.emit_run_id)
        version = version_of(manifest)
        if version is not None:
            return StructType.fromJson(json.loads(version.schema))
        with stored_file(manifest.paths[0]) as stored:
            fields = StructType.fromJson(spark_schema(stored)).fields
    except LostFileError:  # the batch has expired
        return None
    return StructType([field for field in fields if not is_own(field.name)])


def stored_records(job: Job, emit: EmittedRecords) -> DataFrame:
    """Return records of an emit as a copy has them, with ``ROOT``; others may be among them. Those
    of a version are read where they were copied to, or else from the version.
    """
    paths = copied(_manifest(job, emit.emit_run_id), emit.roots)
    if not paths:
        return stored_rows(job, emit.emit_run_id, ROOT, emit.first_root)
    with stored_file(paths[0]) as stored:
        schema = StructType.fromJson(spark_schema(stored))
    rows = job.spark.read.schema(schema).parquet(*literal(paths))
    return as_copied(rows.dropDuplicates([ROOT]))


def require_stored(job: Job, emit: EmittedRecords) -> None:
    """Raise LostFileError if ``stored_records`` has read records from a version whose files have
    changed since.
    """
    if not copied(_manifest(job, emit.emit_run_id), emit.roots):
        job.require_unchanged([emit.emit_run_id])


def is_there(job: Job, batch_id: int, source: str) -> bool:
    """Return whether the snapshot of a source is there. A copy is there until it expires."""
    emit = emit_of(job, batch_id, source)
    if emit is None:
        return False
    manifest = _manifest(job, emit.emit_run_id)
    try:
        if version_file(manifest) is not None:
            check_files(manifest)
    except LostFileError:
        return False
    return True


def _manifest(job: Job, run_id: int) -> Manifest:
    return Manifest(job.database.transact(partial(runs.files, run_id=run_id)))
