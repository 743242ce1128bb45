"""Emit a source: its records go to a snapshot, each becomes a root, and the init deltas are
posted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import fsspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection, Row

from ledger.batch.source_positions import Position
from ledger.batch.state_runs import StepOutput
from ledger.batch.step_runs import OpenedRun, Record, commit
from ledger.core.column_names import ERROR, MESSAGE, POSITION
from ledger.core.redaction import Redaction
from ledger.core.states import BatchKind
from ledger.errors import InputError, suggestion
from ledger.pipeline.redacted import check_known
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import Claimed, SourceReader
from ledger.sources.listing import FoundFile, require_unchanged
from ledger.sources.parsing.typed import struct
from ledger.spark.failures import read_failure
from ledger.spark.folding.fold import fold
from ledger.spark.frames.inputs import stored_rows
from ledger.spark.frames.redacted import without_found
from ledger.spark.frames.stored import local_numbers
from ledger.spark.job import Job, Witness, file_rows, require_equal, write_files
from ledger.spark.session import SPARK_ERRORS
from ledger.spark.steps import source_state
from ledger.spark.steps.from_source import records_again
from ledger.spark.tracking import posted, source_tracking
from ledger.spark.units.units import replayed_records, with_unit
from ledger.storage.folders import remove_folder
from ledger.storage.manifest import Manifest, take_manifest
from ledger.store.queries import batches, claims, replays
from ledger.store.queries.runs import Emitted

BROADCAST_MESSAGES = 1_000_000

# Untracked records lie in a folder of their own, whose files come last: roots are dense over the
# others.
UNTRACKED_COLUMN = "_ackledger_untracked"
UNTRACKED = f"/{UNTRACKED_COLUMN}=true/"


def run_source(job: Job, run: OpenedRun, step: SourceStep) -> Record:
    """Emit one source of one batch and commit it; what it recorded."""
    reader = step.source.reader(job.spark)
    _check_key(step, reader.schema.names)
    redact = _redacted(job)
    claimed = _claim(job, run, step)
    position = source_state.began(job, run, step)
    folder = job.folder(run)

    def write() -> Witness:
        records = read_records(job, run, step, reader, claimed, position)
        return _write(step, run, without_found(records, redact), folder)

    with _reading(reader):
        wrote = [write()]
        if wrote[0].failed and reader.by_file(job.spark.read.parquet(folder)):
            remove_folder(folder)
            wrote = [write()]
        repeated = reader.repeated_headers()
        if repeated is not None:
            repeated = without_found(with_unit(job, step, repeated), redact)
            wrote.append(_write(step, run, repeated, folder))
    require_unchanged(step.name, _files(job, run, step))
    manifest = take_manifest(folder)
    written = sum(witness.rows for witness in wrote)
    require_equal(f"records of {step.name} in {folder}", written, manifest.rows)
    reader.check_read(step.name, manifest.rows, lambda: job.spark.read.parquet(folder))
    emitted = _reserved(job, manifest)
    malformed = sum(witness.failed for witness in wrote)
    made = _folded(job, run, manifest, emitted, malformed, redact)
    if position is not None and position.again is None:
        source_state.commit_position(job, run, step, position, made, emitted)
        return made.record

    def claim(connection: Connection) -> None:
        if run.batch.kind is BatchKind.REPLAY and job.pipeline.graph.in_units(step.name):
            replays.claim_companions(connection, run.batch.batch_id, run.run_id)

    commit(
        job.database,
        run,
        made.record,
        files=made.files,
        emitted=emitted,
        post=made.post,
        before_commit=claim,
    )
    return made.record


def _check_key(step: SourceStep, names: Sequence[str]) -> None:
    for name in step.key:
        if name not in names:
            raise InputError(
                f"source {step.name!r} has no column {name!r}, which is to be its key"
                f"{suggestion(name, names)}"
            )


def _redacted(job: Job) -> Redaction:
    """What the pipeline redacts. Raises DeclarationError if it is a column of no source."""
    names, sources = job.pipeline.redact, job.pipeline.sources()
    if names:
        known = {name for one in sources for name in struct(one.source.schema).names}
        check_known(job.pipeline.name, names, known)
    return Redaction.of(names)


def _claim(job: Job, run: OpenedRun, step: SourceStep) -> Row[Any]:
    """What the batch has claimed of the source, as ``batches.sources`` has it."""
    found = job.database.transact(lambda c: batches.sources(c, run.batch.batch_id))
    return next(row for row in found if row.source == step.name)


def _reserved(job: Job, manifest: Manifest) -> Emitted:
    """The roots of a snapshot, one for each tracked record."""
    roots = sum(file.rows for file in manifest.files if UNTRACKED not in file.path)
    first_root = job.database.transact(lambda c: batches.reserve_roots(c, roots))
    return Emitted(first_root, roots)


def _write(step: SourceStep, run: OpenedRun, records: DataFrame, folder: str) -> Witness:
    """Add records to the snapshot, the untracked ones after the others; the witness of what was
    handed to the writer.
    """
    wrote = Witness(failed=ERROR)
    watched = wrote.watch(records)
    if step.track is not None and run.batch.kind is BatchKind.ORIGINAL:
        tracked = F.col(ERROR).isNotNull() | F.coalesce(F.expr(step.track), F.lit(True))
        marked = watched.withColumn(UNTRACKED_COLUMN, ~tracked)
        write_files(marked, folder, by=[UNTRACKED_COLUMN])
        _rename_untracked(folder)
        if wrote.rows == 0:
            # Partitioned, nothing writes no file, and a snapshot has its schema from one.
            nothing = records.sparkSession.createDataFrame([], records.schema)
            write_files(nothing, folder)
    else:
        write_files(watched, folder)
    return wrote


def _rename_untracked(folder: str) -> None:
    """Give the files of untracked records names of their own: a task writes both kinds under
    one.
    """
    fs, root = fsspec.core.url_to_fs(folder)
    for path in fs.glob(f"{root}{UNTRACKED}part-*"):
        parent, name = path.rsplit("/", 1)
        fs.mv(path, f"{parent}/untracked-{name}")


@contextmanager
def _reading(reader: SourceReader) -> Iterator[None]:
    """Say which file could not be read, whether Spark noticed when it planned or when it ran."""
    try:
        yield
    except SPARK_ERRORS as exc:
        failure = reader.failure(exc) or read_failure(exc)
        if failure is None:
            raise
        raise failure from exc


def read_records(
    job: Job,
    run: OpenedRun,
    step: SourceStep,
    reader: SourceReader,
    claimed: Row[Any],
    position: Position | None,
) -> DataFrame:
    """What the batch emits: the records that it claimed, or the messages that a replay claimed."""
    if run.batch.kind is BatchKind.REPLAY:
        if job.pipeline.graph.in_units(step.name):
            return replayed_records(job, run, step, reader)
        messages = job.database.transact(
            lambda c: replays.claimed_messages(c, run.batch.batch_id, step.name)
        )
        original = job.database.transact(lambda c: batches.get_batch(c, run.batch.original_id))
        again = bool(messages) and bool((run.batch.selection or {}).get("from_source"))
        if again and original.files_expired_at is not None:
            return records_again(job, run, step, claimed, None)
        stored = _claimed(job, run, step, messages)
        return (
            records_again(job, run, step, claimed, stored) if again else reader.parse_again(stored)
        )
    files = _files(job, run, step)
    require_unchanged(step.name, files)
    mine = Claimed(step.name, claimed.path, files, claimed.claimed_after, claimed.claimed_upto)
    if position is not None:
        return with_unit(job, step, source_state.records(job, reader, mine, position))
    return with_unit(job, step, reader.records(mine))


def _files(job: Job, run: OpenedRun, step: SourceStep) -> tuple[FoundFile, ...]:
    """The files that the batch has claimed, as they were then."""
    rows = job.database.transact(lambda c: claims.files_of(c, run.batch.batch_id, step.name))
    return tuple(FoundFile(row.path, row.bytes, row.modified_at, row.digest) for row in rows)


def _claimed(job: Job, run: OpenedRun, step: SourceStep, messages: list[int]) -> DataFrame:
    """The messages that a replay claimed, from the snapshot of its original, with ``MESSAGE``."""
    batch = run.batch
    emit = job.database.transact(lambda c: replays.original_emit(c, batch.original_id, step.name))
    snapshot = stored_rows(job, emit.emit_run_id, POSITION)
    claimed = local_numbers(job.spark, MESSAGE, messages)
    claimed = claimed.withColumn(POSITION, F.col(MESSAGE) - F.lit(emit.first_root))
    if len(messages) <= BROADCAST_MESSAGES:
        claimed = F.broadcast(claimed)
    return snapshot.join(claimed, POSITION, "inner").drop(POSITION)


def _folded(
    job: Job,
    run: OpenedRun,
    manifest: Manifest,
    emitted: Emitted,
    malformed: int,
    redact: Redaction,
) -> StepOutput:
    """One init delta per root; a record that did not parse fails its root at once, with its raw
    text unless that may have a column of ``redact``."""
    tracking = source_tracking(job, run, redact)
    check = partial(tracking.check, emitted=emitted, written=manifest.rows, failed=malformed)
    outcome = fold(job, run, tracking.records(manifest, emitted), check)
    read, failed = manifest.rows, outcome.posted.failed_roots
    record = Record(input_rows=read, output_rows=read - failed, failed_rows=failed)
    return StepOutput(posted(record, outcome), file_rows(manifest), outcome.post)
