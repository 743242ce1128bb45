"""Withhold: leave the rows of failed records, or of their units, out of what sinks are to
publish.
"""

import logging
from dataclasses import asdict
from functools import partial, reduce
from operator import or_
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection, Row

from ledger.batch import interventions
from ledger.batch.publishing import publication_errors
from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import ROOT, UNIT
from ledger.core.probes import reached
from ledger.errors import InputError, LostFileError
from ledger.pipeline.steps import SinkStep
from ledger.sinks.options import Bloom
from ledger.spark.failures import failures_of
from ledger.spark.frames.acked import Withheld, emitted_roots, units_of, withheld
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.staging import stage_rows, tracking_columns
from ledger.spark.frames.stored import local_numbers
from ledger.spark.job import Job, require_equal
from ledger.spark.units.units import Replacement
from ledger.storage.manifest import DataFile, Manifest
from ledger.storage.paths import literal
from ledger.store.queries import batches, publications, runs

_FILE = "_ackledger_file"

_log = logging.getLogger(__name__)


def withhold(job: Job, batch_id: int) -> list[str]:
    """Make ready all that is decided of a batch's family and not ready; the sinks. Repeating it
    is harmless. What is wrong with one sink keeps no other waiting; it is raised at the end.
    """
    for number in job.database.transact(lambda c: publications.units_to_rebuild(c, batch_id)):
        _request_rebuild(job, number)
    candidates = job.database.transact(lambda c: publications.pending(c, batch_id))
    rows = [row for row in candidates if not row.ready]
    failures = failures_of(job.pipeline)
    for row in rows:
        with failures.collect(), publication_errors(job.database, job.pipeline, row):
            try:
                _make_ready(job, row)
            except LostFileError:
                if job.database.transact(partial(_is_pending, row=row)):
                    raise
                _log.info("sink %s: another driver has published it", row.sink)
            reached("sink withheld", row.sink)
    failures.raise_first()
    reached("withheld")
    return [row.sink for row in rows]


def _is_pending(connection: Connection, row: Row[Any]) -> bool:
    """Whether a sink's rows are still to be published: once they are, what was staged is gone."""
    return publications.state(connection, row.step_run_id) == "decided"


def _make_ready(job: Job, row: Row[Any]) -> None:
    step = job.pipeline.sink_named(row.sink)
    again = job.database.transact(lambda c: publications.republished(c, row.step_run_id))
    hidden = withheld(job, row.batch_id, step.name)
    if again and hidden.everything:
        # What was to replace published rows failed: these stay.
        job.database.transact(lambda c: publications.cancel(c, row.step_run_id))
        return
    staged, folder = job.manifest(row.step_run_id), _folder(job, row, step)
    # Of a row of several records its position identifies its records, and no staged file has that.
    by_position = hidden.roots is not None and job.pipeline.graph.in_units(step.name)
    if job.publisher(step).keeps_tracking and not by_position and not again:
        files = _clean_files(job, row, step, staged, hidden, folder)
    else:
        files = stage_rows(_remaining_rows(job, row, step, staged, hidden), step, folder).files
    described = [asdict(file) for file in files]

    def record(connection: Connection) -> None:
        publications.set_ready(connection, row.step_run_id, folder, described)
        reached("withholding", row.sink)

    job.database.transact(record)


def _staging(job: Job, row: Row[Any], step: SinkStep) -> str:
    """Where the sink's run has staged."""
    return job.publisher(step).staging(row.batch_id, row.step_run_id)


def _folder(job: Job, row: Row[Any], step: SinkStep) -> str:
    """Where files without the withheld rows go: beside what was staged, for a folder may be
    published as a whole."""
    beside = _staging(job, row, step).rpartition("/")[0]
    return f"{beside}/kept-{row.step_run_id}-{uuid4().hex}"


def _clean_files(
    job: Job, row: Row[Any], step: SinkStep, staged: Manifest, hidden: Withheld, folder: str
) -> tuple[DataFile, ...]:
    """The staged files without a row to be withheld, and the remaining rows of the others in new
    files.
    """
    base, source = _staging(job, row, step), delivered_rows(job, row.batch_id, row.input_run_id)
    schema = source.select(*user_columns(source), *tracking_columns(source)).schema
    reader = job.spark.read.schema(schema).option("basePath", base)
    stored = reader.parquet(*literal(staged.paths))
    rows = stored.withColumn(_FILE, stored.metadataColumn("_metadata")["file_path"])
    counted = hidden.keep(rows).groupBy(_FILE).count().collect()
    counts = {_below(base, unquote(group[_FILE])): int(group["count"]) for group in counted}
    shares = [(file, counts.get(_below(base, file.path), 0)) for file in staged.files]
    clean = [file for file, count in shares if count == file.rows]
    dirty = [(file, count) for file, count in shares if 0 < count < file.rows]
    if not dirty:
        return tuple(clean)
    rest = hidden.keep(reader.parquet(*literal([file.path for file, _ in dirty])))
    written = stage_rows(rest, step, folder)
    what = f"rows of {step.name} in {len(dirty)} files less those withheld"
    require_equal(what, sum(count for _, count in dirty), written.rows)
    return (*clean, *written.files)


def _remaining_rows(
    job: Job, row: Row[Any], step: SinkStep, staged: Manifest, hidden: Withheld
) -> DataFrame:
    """What the sink has read and staged, without the rows to be withheld, from its stored input."""
    rows = delivered_rows(job, row.batch_id, row.input_run_id)
    rest = hidden.keep(rows)
    if job.database.transact(lambda c: runs.duplicate_rows(c, row.step_run_id)):
        rest = _without_duplicates(job, row, step, staged, rest)
    rest = rest.select(*user_columns(rows), *_tracking(job, step, rows))
    batch = job.database.transact(lambda c: batches.get_batch(c, row.batch_id))
    run = OpenedRun(row.step_run_id, batch, step.name, {})
    others = Replacement(job, run, step).carried(hidden)
    return rest if others is None else rest.unionByName(others, allowMissingColumns=True)


def _tracking(job: Job, step: SinkStep, rows: DataFrame) -> list[str]:
    publisher = job.publisher(step)
    return tracking_columns(rows) if publisher.keeps_tracking else []


def _without_duplicates(
    job: Job, row: Row[Any], step: SinkStep, staged: Manifest, rows: DataFrame
) -> DataFrame:
    """The rows less those that other batches had delivered: by key, they are not among the staged
    ones.
    """
    dedup = step.sink.dedup
    if not isinstance(dedup, Bloom) or not dedup.key:
        raise InputError(
            f"sink {row.sink!r} of batch {row.batch_id} left out duplicates by a key, which the"
            " pipeline no longer declares: declare dedup as it was, and publish again"
        )
    base = _staging(job, row, step)
    reader = job.spark.read.schema(rows.select(*user_columns(rows)).schema)
    staged_rows = reader.option("basePath", base).parquet(*literal(staged.paths))
    keys = staged_rows.select(*(f"`{name}`" for name in dedup.key)).distinct()
    missing = reduce(or_, [F.col(f"`{name}`").isNull() for name in dedup.key])
    names = [f"`{name}`" for name in rows.columns]
    among = rows.join(keys, list(dedup.key), "left_semi").select(*names)
    return rows.where(missing).unionByName(among)


def _request_rebuild(job: Job, batch_id: int) -> None:
    """Units that are withheld although no message of them is to be replayed, for those that
    failed were quarantined: one of the others counts as failed, so that a replay takes the unit
    without them.
    """
    graph = job.pipeline.graph
    failed = job.database.transact(lambda c: publications.failed_roots(c, batch_id))
    spoiling = [row for row in failed if graph.in_units(row.source)]
    roots = _to_rebuild(job, batch_id, spoiling) if any(not row.live for row in spoiling) else []
    step = spoiling[0].step if spoiling else ""
    job.database.transact(lambda c: interventions.request_rebuild(c, batch_id, roots, step, failed))


def _to_rebuild(job: Job, batch_id: int, spoiling: list[Row[Any]]) -> list[int]:
    """A root of each unit in which records were quarantined and nothing is to be replayed."""
    graph = job.pipeline.graph
    failed_roots = local_numbers(job.spark, ROOT, [row.root_id for row in spoiling])
    live = [row.root_id for row in spoiling if row.live]
    sound = [rows.join(failed_roots, ROOT, "left_anti") for rows in emitted_roots(job, batch_id)]
    others = reduce(DataFrame.unionByName, sound)
    if graph.unit:
        units_to_rebuild = units_of(
            job, batch_id, [row.root_id for row in spoiling if not row.live]
        )
        if live:
            units_to_rebuild = units_to_rebuild.join(
                units_of(job, batch_id, live), UNIT, "left_anti"
            )
        others = (
            others.join(units_to_rebuild, UNIT, "left_semi")
            .groupBy(UNIT)
            .agg(F.min(ROOT).alias(ROOT))
        )
    elif live:
        return []
    else:
        others = others.agg(F.min(ROOT).alias(ROOT)).where(F.col(ROOT).isNotNull())
    return [row[ROOT] for row in others.select(ROOT).collect()]


def _below(folder: str, path: str) -> str:
    """A file's path below the folder that it was staged in, however the URL before it is
    written.
    """
    mark = "/".join(folder.rsplit("/", 2)[-2:])
    return path.rsplit(f"/{mark}/", 1)[-1]
