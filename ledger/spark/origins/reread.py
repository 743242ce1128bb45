"""Read failed records again from their source, by key: for a file, or a table, that was fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from ledger.batch.records.payloads import claimed_keys, keep_payloads
from ledger.core.column_names import ERROR, MESSAGE, RAW, is_own
from ledger.sources.base import Claim
from ledger.sources.parsing import values
from ledger.spark.frames.stored import local_rows
from ledger.spark.origins.replay import FromRecords
from ledger.spark.origins.snapshot import Snapshot
from ledger.store.queries import payloads
from ledger.types.spark import NESTED

NO_KEY = "its key could not be read when it failed"
SHARED_KEY = "several failed records have its key"
NOT_FOUND = "no record of its source that parses has its key"
FOUND_TWICE = "several records of its source have its key"
_KEY, _WHY, _NOW, _TIMES, _PARSED = (
    "_ackledger_key",
    "_ackledger_why",
    "_ackledger_now",
    "_ackledger_times",
    "_ackledger_parsed",
)
_SEPARATOR = "\x1f"


@dataclass(frozen=True)
class FromSource(FromRecords):
    """The claimed records as their source has them now. ``claim``: what the original read, where
    the source has it now. ``expired``: the snapshots are gone, and the ledger has what the records
    contained.
    """

    claim: Claim
    expired: bool

    def read(self) -> DataFrame:
        """The schema's columns, ``MESSAGE``, ``RAW``, ``ERROR``. A record that is not found, or not
        alone, by its key fails again with that reason. The source is scanned once.
        """
        fresh = self.reader.records(self.claim)
        names = [name for name in fresh.columns if not is_own(name)]
        wanted = self._wanted(fresh.schema)
        now = F.struct(*(F.col(f"`{name}`") for name in names))
        parsed = fresh.where(F.col(ERROR).isNull())
        keyed = parsed.select(_key(self.step.key).alias(_KEY), now.alias(_NOW))
        keys = wanted.where(F.col(_WHY).isNull()).select(_KEY)
        matches = (
            keyed.join(F.broadcast(keys), _KEY, "left_semi")
            .groupBy(_KEY)
            .agg(F.count(F.lit(1)).alias(_TIMES), F.first(_NOW).alias(_NOW))
        )
        joined = self._contents().join(wanted, MESSAGE, "inner").join(matches, _KEY, "left")
        times = F.col(_TIMES)
        why = F.coalesce(_WHY, F.when(times.isNull(), NOT_FOUND).when(times > 1, FOUND_TWICE))
        columns = [F.when(why.isNull(), F.col(_NOW)[name]).alias(name) for name in names]
        raw = F.when(why.isNotNull(), F.col(RAW)).alias(RAW)
        return joined.select(MESSAGE, *columns, raw, why.alias(ERROR))

    def check(self, snapshot: Snapshot) -> None:
        """The files did not change while they were read."""
        self.reader.check_unchanged(self.step.name)

    def _contents(self) -> DataFrame:
        """What each claimed record was: ``MESSAGE``, ``RAW``."""
        if not (self.expired or self.step.source.by_reference):  # whose file may be another by now
            return reduce(DataFrame.unionByName, map(_raw, self.stored()))
        batch_id, source = self.run.batch.batch_id, self.step.name
        rows = self.job.database.transact(lambda c: payloads.claimed_contents(c, batch_id, source))
        columns = {
            MESSAGE: pa.array([row.message_id for row in rows], pa.int64()),
            RAW: pa.array([row.content.encode() for row in rows], pa.binary()),
        }
        return local_rows(self.job.spark, columns)

    def _wanted(self, schema: StructType) -> DataFrame:
        """Each claimed record with its key, as ``schema`` has its columns, or why it has none to
        look for: ``MESSAGE``, ``KEY``, ``WHY``.
        """
        names, batch = list(self.step.key), self.run.batch
        keep_payloads(self.job.database, batch.original_id)
        rows = claimed_keys(self.job.database, batch, self.step.name, names)
        columns = {
            MESSAGE: pa.array([message for message, _, _ in rows], pa.int64()),
            _PARSED: pa.array([parsed for _, _, parsed in rows], pa.bool_()),
        }
        for place, name in enumerate(names):
            columns[name] = pa.array([key[place] for _, key, _ in rows], pa.string())
        typed = [_typed(name, schema[name].dataType, self.reader.formats) for name in names]
        keyed = local_rows(self.job.spark, columns).select(MESSAGE, *typed)
        keyed = keyed.select(MESSAGE, _key(names).alias(_KEY))
        times = F.count(F.lit(1)).over(Window.partitionBy(_KEY))
        why = F.when(F.col(_KEY).isNull(), NO_KEY).when(times > 1, SHARED_KEY)
        return keyed.withColumn(_WHY, why)


def _typed(name: str, kind: DataType, options: Mapping[str, str]) -> Column:
    """The text of a key's column as the value that it stands for; null where it is none.

    A date of what did not parse is written as in its file, of what did as ISO 8601.
    """
    text = F.col(f"`{name}`")
    if isinstance(kind, NESTED):
        return text
    as_written = values.converted(text, kind, "csv", options)
    as_stored = values.converted(text, kind, "csv", {})
    if as_written is text:  # of a type that is read as it is
        return text.try_cast(kind).alias(name)
    unparsed = F.coalesce(as_written, as_stored)
    return F.when(F.col(_PARSED), as_stored).otherwise(unparsed).alias(name)


def _key(names: Sequence[str]) -> Column:
    """The values of the key as text; null if one of them is."""
    texts = [F.col(f"`{name}`").cast("string") for name in names]
    whole = F.concat_ws(_SEPARATOR, *texts)
    return F.when(F.concat(*texts).isNotNull(), whole)


def _raw(stored: DataFrame) -> DataFrame:
    """What records were, for people, raw text or the JSON of fields: ``MESSAGE``, ``RAW``."""
    fields = [f"`{name}`" for name in stored.columns if not is_own(name)]
    whole = F.coalesce(RAW, F.to_json(F.struct(*fields)).cast("binary"))
    return stored.select(MESSAGE, whole.alias(RAW))
