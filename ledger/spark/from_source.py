"""Read failed records again from their source, by key: for a file, or a table, that was fixed."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Row

from ledger import listing
from ledger.listing import find_files
from ledger.payloads import keep_payloads
from ledger.queries import batches, claims, payloads, source_tables
from ledger.sources import FileSource, TableSource
from ledger.spark.job import ERROR, MESSAGE, RAW, RESERVED, Job
from ledger.spark.reading import Reader
from ledger.spark.tables import TableReader, reader_of
from ledger.stage_runs import OpenedRun
from ledger.steps import SourceStep

NO_KEY = "its key could not be read when it failed"
SHARED_KEY = "several failed records have its key"
NOT_FOUND = "no record of its source that parses has its key"
FOUND_TWICE = "several records of its source have its key"
_KEY, _WHY, _NOW, _TIMES = "_key", "_why", "_now", "_times"
_SEPARATOR = "\x1f"


def records_again(
    job: Job, run: OpenedRun, step: SourceStep, claimed: Row[Any], stored: DataFrame
) -> DataFrame:
    """The claimed messages as their source has them now: the schema's columns, ``_message``,
    ``_raw``, ``_error``.

    ``stored``: as their snapshot has them, with ``_message``. One that is not found, or not alone,
    by its key fails again and says so. The source is scanned once.
    """
    fresh = _fresh(job, run, step, claimed)
    names = [name for name in fresh.columns if name not in RESERVED]
    wanted = _wanted(job, run, step)
    now = F.struct(*(F.col(f"`{name}`") for name in names))
    parsed = fresh.where(F.col(ERROR).isNull()).select(_key(step.key).alias(_KEY), now.alias(_NOW))
    keys = wanted.where(F.col(_WHY).isNull()).select(_KEY)
    found = (
        parsed.join(F.broadcast(keys), _KEY, "left_semi")
        .groupBy(_KEY)
        .agg(F.count(F.lit(1)).alias(_TIMES), F.first(_NOW).alias(_NOW))
    )
    old = stored.select(MESSAGE, _raw(stored).alias(RAW))
    joined = old.join(wanted, MESSAGE, "inner").join(found, _KEY, "left")
    times = F.col(_TIMES)
    why = F.coalesce(_WHY, F.when(times.isNull(), NOT_FOUND).when(times > 1, FOUND_TWICE))
    columns = [F.when(why.isNull(), F.col(_NOW)[name]).alias(name) for name in names]
    raw = F.when(why.isNotNull(), F.col(RAW)).alias(RAW)
    return joined.select(MESSAGE, *columns, raw, why.alias(ERROR))


def _fresh(job: Job, run: OpenedRun, step: SourceStep, claimed: Row[Any]) -> DataFrame:
    """All that the source has now of what the original read."""
    reader = reader_of(job.spark, step.source)  # its own: headers are counted for a snapshot alone
    original = run.batch.original_id
    own = _claim(job, original, step)
    if own.rest_of_batch_id is not None:  # it read on where another had begun
        original = own.rest_of_batch_id
        own = _claim(job, original, step)
    if isinstance(step.source, TableSource):
        assert isinstance(reader, TableReader)
        return reader.records(source_tables.claimed_ranges(step.source, own))
    assert isinstance(step.source, FileSource)
    assert isinstance(reader, Reader)
    if step.incremental:
        files = job.database.transact(partial(claims.files_of, batch_id=original, source=step.name))
        there = [file.path for file in files if listing.look_at(file.path) is not None]
        return reader.records(there)
    return reader.records(find_files(step.name, step.source, str(claimed.path)))


def _claim(job: Job, batch_id: int, step: SourceStep) -> Row[Any]:
    found = job.database.transact(partial(batches.sources, batch_id=batch_id))
    return next(row for row in found if row.source == step.name)


def _wanted(job: Job, run: OpenedRun, step: SourceStep) -> DataFrame:
    """Each claimed message with its key, or why it has none to look for: ``_message``, ``_key``,
    ``_why``."""
    batch_id, names = run.batch.batch_id, list(step.key)
    keep_payloads(job.database, run.batch.original_id)
    rows = job.database.transact(lambda c: payloads.claimed_keys(c, batch_id, step.name, names))
    keys = [_joined(row.key) for row in rows]
    times = Counter(keys)
    why = [NO_KEY if key is None else SHARED_KEY if times[key] > 1 else None for key in keys]
    return job.spark.createDataFrame(
        pa.table(
            {
                MESSAGE: pa.array([row.message_id for row in rows], pa.int64()),
                _KEY: pa.array(keys, pa.string()),
                _WHY: pa.array(why, pa.string()),
            }
        )
    )


def _joined(values: Sequence[str | None]) -> str | None:
    return None if any(value is None for value in values) else _SEPARATOR.join(map(str, values))


def _key(names: Sequence[str]) -> Column:
    """The values of the key as text; null if one of them is."""
    texts = [F.col(f"`{name}`").cast("string") for name in names]
    whole = F.concat_ws(_SEPARATOR, *texts)
    return F.when(F.concat(*texts).isNotNull(), whole)


def _raw(stored: DataFrame) -> Column:
    """What a record was, for people: its raw text, or the JSON of its fields."""
    fields = [f"`{name}`" for name in stored.columns if name not in RESERVED]
    return F.coalesce(RAW, F.to_json(F.struct(*fields)).cast("binary"))
