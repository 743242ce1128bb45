"""Withhold the rows of failed records from publication."""

import logging
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import or_
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection

from ledger.batch.publishing import publication_errors
from ledger.core.column_names import ROOTS
from ledger.core.paths import literal
from ledger.core.probes import reached
from ledger.errors import InputError, LostFileError
from ledger.pipeline.steps import SinkStep
from ledger.sinks.base import Publisher
from ledger.sinks.options import Bloom
from ledger.spark.failures import Failures
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.staging import stage_rows, tracking_columns
from ledger.spark.frames.withheld import Withheld, withheld
from ledger.spark.job import Job, require_equal
from ledger.storage.manifest import DataFile, Manifest
from ledger.store.queries import publications, runs
from ledger.store.queries.publications import PendingPublication

_FILE = "_ackledger_file"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _StagedRun:
    """The files that a sink's run has staged.

    ``row``: its pending publication.
    ``base``: the folder of its files.
    """

    row: PendingPublication
    step: SinkStep
    publisher: Publisher
    base: str
    manifest: Manifest


def withhold(job: Job, batch_id: int) -> list[str]:
    """Stage again, without the rows of failed records, the publications of a batch's family that
    are decided and not ready. Return the names of their sinks.

    Safe to repeat. An error of one sink does not stop the others; it is raised at the end.
    """
    candidates = job.database.transact(lambda c: publications.pending(c, batch_id))
    rows = [row for row in candidates if not row.ready]
    failures = Failures(job.pipeline)
    for row in rows:
        with failures.collect(), publication_errors(job, row):
            try:
                _make_ready(job, row)
            except LostFileError:  # once its rows are published, what was staged is gone
                states = job.database.transact(partial(publications.states, batch_id=row.batch_id))
                if states[row.step_run_id] == "decided":
                    raise
                _log.info("sink %s: another driver was faster, nothing is pending", row.sink)
            reached("sink withheld", row.sink)
    failures.raise_first()
    reached("withheld")
    return [row.sink for row in rows]


def _make_ready(job: Job, row: PendingPublication) -> None:
    """Write the files of one publication without the rows to be withheld, and record them in the
    ledger.
    """
    step = job.pipeline.sink_named(row.sink)
    publisher = job.publisher(step)
    hidden = withheld(job, row.batch_id, step.name)
    base = publisher.staging(row.batch_id, row.step_run_id)
    staged = _StagedRun(row, step, publisher, base, job.manifest(row.step_run_id))
    # Beside what was staged, for a folder may be published as a whole.
    folder = f"{base.rpartition('/')[0]}/kept-{row.step_run_id}-{uuid4().hex}"
    rows = delivered_rows(job, job.run(row.input_run_id))
    # Of a row of several records its position identifies its records, and no staged file has that.
    if publisher.keeps_tracking and ROOTS not in rows.columns:
        files = _clean_files(job, staged, rows, hidden, folder)
    else:
        # From the sink's stored input: a row that the sink missed, or got twice, is there once.
        rest = hidden.keep(rows)
        if job.database.transact(lambda c: runs.duplicate_rows(c, row.step_run_id)):
            rest = _without_duplicates(job, staged, rest)
        tracking = tracking_columns(rows) if publisher.keeps_tracking else []
        rest = rest.select(*user_columns(rows), *tracking)
        files = stage_rows(rest, step, folder).files
    job.require_unchanged([row.input_run_id])
    described = [asdict(file) for file in files]

    def record(connection: Connection) -> None:
        publications.set_ready(connection, row.step_run_id, folder, described)
        reached("withholding", row.sink)

    job.database.transact(record)


def _clean_files(
    job: Job, staged: _StagedRun, source: DataFrame, hidden: Withheld, folder: str
) -> tuple[DataFile, ...]:
    """Return the staged files without rows to be withheld. The remaining rows of the other files
    are written to new ones. ``source``: the rows that the sink read.
    """
    base, step, files = staged.base, staged.step, staged.manifest.files
    schema = source.select(*user_columns(source), *tracking_columns(source)).schema
    reader = job.spark.read.schema(schema).option("basePath", base)
    stored = reader.parquet(*literal(staged.manifest.paths))
    rows = stored.withColumn(_FILE, stored.metadataColumn("_metadata")["file_path"])
    groups = hidden.keep(rows).groupBy(_FILE).agg(F.count("*")).collect()
    counts = {_below(base, unquote(name)): count for name, count in groups}
    shares = [(file, counts.get(_below(base, file.path), 0)) for file in files]
    clean = [file for file, count in shares if count == file.rows]
    dirty = [(file, count) for file, count in shares if 0 < count < file.rows]
    if not dirty:
        return tuple(clean)
    rest = hidden.keep(reader.parquet(*literal([file.path for file, _ in dirty])))
    written = stage_rows(rest, step, folder)
    what = f"rows of {step.name} in {len(dirty)} files less those withheld"
    require_equal(what, sum(count for _, count in dirty), written.rows)
    return (*clean, *written.files)


def _without_duplicates(job: Job, staged: _StagedRun, rows: DataFrame) -> DataFrame:
    """Return the rows without those that other batches had delivered: their keys are not among the
    staged rows.
    """
    row, dedup = staged.row, staged.step.sink.dedup
    if not isinstance(dedup, Bloom) or not dedup.key:
        raise InputError(
            f"sink {row.sink!r} of batch {row.batch_id} left out duplicates by a key, which the"
            " pipeline no longer declares: declare dedup as it was, and publish again"
        )
    reader = job.spark.read.schema(rows.select(*user_columns(rows)).schema)
    staged_rows = reader.option("basePath", staged.base).parquet(*literal(staged.manifest.paths))
    keys = staged_rows.select(*(f"`{name}`" for name in dedup.key)).distinct()
    missing = reduce(or_, [F.col(f"`{name}`").isNull() for name in dedup.key])
    names = [f"`{name}`" for name in rows.columns]
    among = rows.join(keys, list(dedup.key), "left_semi").select(*names)
    return rows.where(missing).unionByName(among)


def _below(folder: str, path: str) -> str:
    """Return a file's path relative to the folder that it was staged in, whatever the form of its
    URL.
    """
    mark = "/".join(folder.rsplit("/", 2)[-2:])
    return path.rsplit(f"/{mark}/", 1)[-1]
