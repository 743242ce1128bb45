"""Read failed records again from their source, by key: for a file, or a table, that was fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from ledger.batch.records.payloads import failed_keys, keep_payloads
from ledger.core.column_names import ERROR, MESSAGE, RAW, is_own
from ledger.sources.base import Claim
from ledger.sources.parsing.typed import from_text
from ledger.spark.frames.stored import local_rows
from ledger.spark.origins.replay import FromRecords, raw
from ledger.spark.origins.snapshot import Snapshot
from ledger.store.queries import payloads
from ledger.types.spark import NESTED

NO_KEY = "its key could not be read when it failed"
SHARED_KEY = "several records of its batch have its key"
NOT_FOUND = "no record of its source that parses has its key"
FOUND_TWICE = "several records of its source have its key"
_KEY, _CLAIMED, _SHARED, _NOW, _TIMES, _PARSED = (
    "_ackledger_key",
    "_ackledger_claimed",
    "_ackledger_shared",
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
        failed = self._failed(fresh.schema)
        claimed = failed.where(_CLAIMED).select(MESSAGE, _KEY)
        keys = F.broadcast(claimed.select(_KEY))
        now = F.struct(*(F.col(f"`{name}`") for name in names))
        parsed = fresh.where(F.col(ERROR).isNull())
        keyed = parsed.select(_key(self.step.key).alias(_KEY), now.alias(_NOW))
        matches = (
            keyed.join(keys, _KEY, "left_semi")
            .groupBy(_KEY)
            .agg(F.count(F.lit(1)).alias(_TIMES), F.first(_NOW).alias(_NOW))
        )
        owned = self._owners(failed).join(keys, _KEY, "left_semi").groupBy(_KEY)
        shared = owned.agg((F.min(MESSAGE) < F.max(MESSAGE)).alias(_SHARED))
        joined = self._contents().join(claimed, MESSAGE, "inner")
        joined = joined.join(matches, _KEY, "left").join(shared, _KEY, "left")
        times = F.col(_TIMES)
        why = F.when(F.col(_KEY).isNull(), NO_KEY).when(F.col(_SHARED), SHARED_KEY)
        why = why.when(times.isNull(), NOT_FOUND).when(times > 1, FOUND_TWICE)
        columns = [F.when(why.isNull(), F.col(_NOW)[name]).alias(name) for name in names]
        raw = F.when(why.isNotNull(), F.col(RAW)).alias(RAW)
        return joined.select(MESSAGE, *columns, raw, why.alias(ERROR))

    def check(self, snapshot: Snapshot) -> None:
        """The files did not change while they were read."""
        self.reader.check_unchanged(self.step.name)

    def _contents(self) -> DataFrame:
        """Return the earlier content of each claimed record: ``MESSAGE``, ``RAW``."""
        if not self.expired:
            texts = (frame.select(MESSAGE, raw(frame).alias(RAW)) for frame in self.stored())
            return reduce(DataFrame.unionByName, texts)
        batch_id, source = self.run.batch.batch_id, self.step.name
        contents = self.job.database.transact(
            lambda c: payloads.claimed_contents(c, batch_id, source)
        )
        columns = {
            MESSAGE: pa.array(list(contents), pa.int64()),
            RAW: pa.array([content.encode() for content in contents.values()], pa.binary()),
        }
        return local_rows(self.job.spark, columns)

    def _owners(self, failed: DataFrame) -> DataFrame:
        """Each record of the original, as far as it is stored, with its key: ``MESSAGE``, ``KEY``.
        One that failed may be there twice."""
        owners = failed.select(MESSAGE, _KEY)
        if self.expired:
            return owners
        stored = self.reader.parse_again(self.snapshot())
        return owners.unionByName(stored.select(MESSAGE, _key(self.step.key).alias(_KEY)))

    def _failed(self, schema: StructType) -> DataFrame:
        """Each record of the original that failed, with its key as ``schema`` has its columns, and
        whether this replay has claimed it: ``MESSAGE``, ``KEY``, ``CLAIMED``."""
        names, original_id = list(self.step.key), self.run.batch.original_id
        keep_payloads(self.job.database, original_id)
        rows = failed_keys(self.job.database, original_id, self.step.name, names)
        claimed = {message for emit in self.emits for message in emit.messages}
        columns = {
            MESSAGE: pa.array([message for message, _, _ in rows], pa.int64()),
            _CLAIMED: pa.array([message in claimed for message, _, _ in rows], pa.bool_()),
            _PARSED: pa.array([parsed for _, _, parsed in rows], pa.bool_()),
        }
        for place, name in enumerate(names):
            columns[name] = pa.array([key[place] for _, key, _ in rows], pa.string())
        typed = [_typed(name, schema[name].dataType, self.reader.formats) for name in names]
        keyed = local_rows(self.job.spark, columns).select(MESSAGE, _CLAIMED, *typed)
        return keyed.select(MESSAGE, _CLAIMED, _key(names).alias(_KEY))


def _typed(name: str, kind: DataType, options: Mapping[str, str]) -> Column:
    """The text of a key's column as the value that it stands for; null where it is none.

    A date of what did not parse is written as in its file, of what did as ISO 8601.
    """
    text = F.col(f"`{name}`")
    if isinstance(kind, NESTED):
        return text
    as_stored = from_text(text, kind, {})
    unparsed = F.coalesce(from_text(text, kind, options), as_stored)
    return F.when(F.col(_PARSED), as_stored).otherwise(unparsed).alias(name)


def _key(names: Sequence[str]) -> Column:
    """The values of the key as text; null if one of them is."""
    texts = [F.col(f"`{name}`").cast("string") for name in names]
    whole = F.concat_ws(_SEPARATOR, *texts)
    return F.when(F.concat(*texts).isNotNull(), whole)
