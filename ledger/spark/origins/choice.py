"""Origins: the places that the records of a source's run come from, and which of them a run has.

A batch reads what it has claimed. A replay reads the claimed records again from the snapshot that
they were read to last, or from their source, or it reads the whole batch again.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType
from sqlalchemy import Connection

from ledger.batch.claims import claim_of, reread_claim
from ledger.batch.records.payloads import failed_keys, keep_payloads
from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import ERROR, MESSAGE, RAW, ROOT, is_own
from ledger.core.states import BatchKind
from ledger.pipeline.steps import SourceStep
from ledger.sources.base import Claim, SourceReader
from ledger.sources.listing import require_unchanged
from ledger.sources.parsing.typed import from_text, no_rows
from ledger.sources.version_rows import count_rows
from ledger.spark.frames.inputs import as_copied, stored_rows
from ledger.spark.frames.stored import local_numbers
from ledger.spark.job import Job
from ledger.spark.origins.snapshot import ClaimedVersion, Copy, Snapshot
from ledger.spark.origins.stored import emit_of, is_there, require_stored, stored_records
from ledger.store.queries import batches, payloads, replays
from ledger.store.queries.payloads import EmittedRecords
from ledger.types.spark import NESTED, local_rows

BROADCAST_MESSAGES = 1_000_000
# Reasons why a record cannot be read again from its source.
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
class Origin(ABC):
    """The place from which one run of a source reads its records. ``reader``: the reader of the
    source.
    """

    job: Job
    run: OpenedRun
    step: SourceStep
    reader: SourceReader

    @property
    def track(self) -> str | None:
        """SQL expression that selects the records to track. None: all records, as in a replay,
        because an untracked record cannot fail.
        """
        return None if self.run.batch.kind is BatchKind.REPLAY else self.step.track

    @abstractmethod
    def read(self) -> DataFrame:
        """Return all records, as ``SourceReader.records`` does; in a replay with ``MESSAGE``.
        Lazy.
        """

    def snapshot(self, folder: str) -> Snapshot:
        """Return the records as the batch can read them again: a copy in the run's ``folder``."""
        copy = Copy(folder, self.track)
        copy.write(self.read())
        return copy

    def check(self, snapshot: Snapshot) -> None:
        """Raise InputError unless the snapshot has all records that could be read."""
        return  # what was stored once is complete

    def complete(self, connection: Connection) -> None:
        """Finish the run, at the end of the commit's transaction."""
        return


def origin_of(job: Job, run: OpenedRun, step: SourceStep, reader: SourceReader) -> Origin:
    """Return the origin of the records in a run of a source. ``reader``: the reader of that
    source.
    """
    batch = run.batch
    if batch.kind is not BatchKind.REPLAY:
        claim = job.database.transact(lambda c: claim_of(c, batch.batch_id, step.name))
        return FromClaim(job, run, step, reader, claim)
    if batch.is_whole:
        return FromBatch(job, run, step, reader)

    def choose(connection: Connection) -> FromRecords:
        emits = payloads.claimed(connection, batch.batch_id, batch.original_id, step.name)
        if not emits or not (batch.selection or {}).get("from_source"):
            return FromRecords(job, run, step, reader, emits)
        original = batches.get_batch(connection, batch.original_id)
        claim = reread_claim(connection, batch, step.name)
        expired = original.files_expired_at is not None
        return FromSource(job, run, step, reader, emits, claim, expired)

    origin = job.database.transact(choose)
    if isinstance(origin, FromSource) and not origin.expired:
        return replace(origin, expired=not is_there(job, batch.original_id, step.name))
    return origin


@dataclass(frozen=True)
class FromClaim(Origin):
    """Records that the batch has claimed from its source."""

    claim: Claim

    def read(self) -> DataFrame:
        """Return the claimed records. Raises InputError if a claimed file has changed since."""
        return self.reader.records(self._claimed)

    def snapshot(self, folder: str) -> Snapshot:
        """Return the version that is claimed, or a copy.

        The source's reader writes the copy where it can. If records are tracked by an expression,
        Spark writes it.
        """
        if self.step.track is not None:
            return super().snapshot(folder)
        version = self.reader.version(self._claimed)
        if version is not None:
            return ClaimedVersion(folder, version, count_rows(self.job.spark, version))
        copy = Copy(folder, None)
        if not copy.written_by(self.reader, self._claimed):
            copy.write(self.read())
        return copy

    def check(self, snapshot: Snapshot) -> None:
        """Raise InputError unless the files are as they were claimed and the reader missed
        nothing.
        """
        require_unchanged(self.step.name, self._claimed.files)
        self.reader.check_unchanged(self.step.name)
        self.reader.check_read(
            self.step.name,
            snapshot.rows,
            lambda: snapshot.stored(self.job.spark),
        )

    @cached_property
    def _claimed(self) -> Claim:
        """Return the claim, with its files as they were before they were read."""
        return replace(self.claim, files=tuple(require_unchanged(self.step.name, self.claim.files)))


@dataclass(frozen=True)
class FromRecords(Origin):
    """Only the records that a replay has claimed. ``emits``: the runs that last read them."""

    emits: Sequence[EmittedRecords]

    def read(self) -> DataFrame:
        """Return the records as they were last read, parsed again."""
        again = map(self.reader.parse_again, self.stored())
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), again)

    def stored(self) -> list[DataFrame]:
        """Return the records as they are stored, with ``MESSAGE``: a frame for each emit, whose
        schemas may differ.
        """
        frames = []
        for emit in self.emits:
            roots, messages = pa.array(emit.roots, pa.int64()), pa.array(emit.messages, pa.int64())
            numbers = local_rows(self.job.spark, {ROOT: roots, MESSAGE: messages})
            if len(roots) <= BROADCAST_MESSAGES:
                numbers = F.broadcast(numbers)
            rows = stored_records(self.job, emit)
            frames.append(rows.drop(MESSAGE).join(numbers, ROOT).drop(ROOT))
        if not frames and self.step.source.describes_itself:  # its files may be gone
            return [_no_records(self)]
        return frames or [_snapshot_of(self).limit(0)]

    def check(self, snapshot: Snapshot) -> None:
        """Raise LostFileError if the files of a version changed while they were read."""
        for emit in self.emits:
            require_stored(self.job, emit)


@dataclass(frozen=True)
class FromBatch(Origin):
    """Every record of the original's source, without those that the replay leaves out."""

    def read(self) -> DataFrame:
        """Return the records as the original read them, parsed again."""
        original = self.run.batch.original_id
        left_out = self.job.database.transact(
            lambda c: replays.messages_left_out(c, original, self.step.name)
        )
        numbers = local_numbers(self.job.spark, MESSAGE, left_out)
        return self.reader.parse_again(_snapshot_of(self).join(numbers, MESSAGE, "left_anti"))

    def check(self, snapshot: Snapshot) -> None:
        """Raise LostFileError if the files of a version changed while they were read."""
        _require_snapshot(self)


def _snapshot_of(origin: Origin) -> DataFrame:
    """Return every record of the original batch's source, with ``MESSAGE``."""
    emit = emit_of(origin.job, origin.run.batch.original_id, origin.step.name)
    if emit is None:
        return _no_records(origin)
    return stored_rows(origin.job, emit.emit_run_id, MESSAGE, emit.first_root)


def _require_snapshot(origin: Origin) -> None:
    """Raise LostFileError if the files of a version that ``_snapshot_of`` returns have changed."""
    emit = emit_of(origin.job, origin.run.batch.original_id, origin.step.name)
    if emit is not None:
        origin.job.require_unchanged([emit.emit_run_id])


def _no_records(origin: Origin) -> DataFrame:
    """Return no records, with the columns of a copy and ``MESSAGE``."""
    nothing = as_copied(no_rows(origin.job.spark, origin.reader.schema))
    return nothing.withColumn(MESSAGE, F.lit(None).cast("bigint"))


@dataclass(frozen=True)
class FromSource(FromRecords):
    """The claimed records as their source has them now, found by key: after a file, or a table, was
    fixed.

    ``claim``: what the original read, where the source has it now. ``expired``: the snapshot is
    gone, and the ledger has what the records contained.
    """

    claim: Claim
    expired: bool

    def read(self) -> DataFrame:
        """Return the schema's columns, ``MESSAGE``, ``RAW``, ``ERROR``. A record fails again if the
        source has no record with its key, or several. The source is scanned once.
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
        """Raise InputError or LostFileError if the files changed while they were read."""
        self.reader.check_unchanged(self.step.name)
        if not self.expired:
            super().check(snapshot)
            _require_snapshot(self)

    def _contents(self) -> DataFrame:
        """Return the earlier content of each claimed record: ``MESSAGE``, ``RAW``."""
        if not self.expired:
            texts = []
            for frame in self.stored():
                fields = [f"`{name}`" for name in frame.columns if not is_own(name)]
                as_json = F.to_json(F.struct(*fields)).cast("binary")  # of a record without a text
                texts.append(frame.select(MESSAGE, F.coalesce(RAW, as_json).alias(RAW)))
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
        """Return each record of the original, as far as it is stored, with its key: ``MESSAGE``,
        ``KEY``. One that failed may be there twice.
        """
        owners = failed.select(MESSAGE, _KEY)
        if self.expired:
            return owners
        stored = self.reader.parse_again(_snapshot_of(self))
        return owners.unionByName(stored.select(MESSAGE, _key(self.step.key).alias(_KEY)))

    def _failed(self, schema: StructType) -> DataFrame:
        """Return each record of the original that failed, and whether this replay has claimed it:
        ``MESSAGE``, ``KEY`` in the types of ``schema``, ``CLAIMED``.
        """
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
    """Return the value of a key's text in the type of its column; null if the text has no such
    value.

    Dates of a record that did not parse are written as in its file, others as ISO 8601.
    """
    text = F.col(f"`{name}`")
    if isinstance(kind, NESTED):
        return text
    as_stored = from_text(text, kind, {})
    unparsed = F.coalesce(from_text(text, kind, options), as_stored)
    return F.when(F.col(_PARSED), as_stored).otherwise(unparsed).alias(name)


def _key(names: Sequence[str]) -> Column:
    """Return the values of the key as one text; null if one of them is null."""
    texts = [F.col(f"`{name}`").cast("string") for name in names]
    whole = F.concat_ws(_SEPARATOR, *texts)
    return F.when(F.concat(*texts).isNotNull(), whole)
