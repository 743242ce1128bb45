"""Records of a replay: failed ones once more, from the snapshot that they were read to last, or
those of the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import MESSAGE, RAW, ROOT, is_own
from ledger.spark.frames.inputs import stored_rows
from ledger.spark.frames.stored import local_numbers, local_rows
from ledger.spark.job import Job
from ledger.spark.origins.base import Origin
from ledger.store.queries import replays, runs
from ledger.store.queries.payloads import EmittedRecords

BROADCAST_MESSAGES = 1_000_000


@dataclass(frozen=True)
class _Replay(Origin):
    @property
    def track(self) -> str | None:
        """None: all records are tracked, because one that is not tracked cannot fail."""
        return None


@dataclass(frozen=True)
class FromRecords(_Replay):
    """The claimed records alone. ``emits``: those that read them last."""

    emits: Sequence[EmittedRecords]

    def read(self) -> DataFrame:
        """The records as they were read last, parsed again."""
        again = map(self.reader.parse_again, self.stored())
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), again)

    def stored(self) -> list[DataFrame]:
        """The records as they are stored, with ``MESSAGE``: a frame for each emit, whose schemas
        may differ."""
        if not self.emits:
            return [self.snapshot().limit(0)]
        return [_stored(self.job, emit) for emit in self.emits]

    def snapshot(self) -> DataFrame:
        """Every record of the original, with ``MESSAGE``."""
        return _snapshot(self.job, self.run.batch.original_id, self.step.name)


@dataclass(frozen=True)
class FromBatch(_Replay):
    """Every record of the original's source, without those that the replay leaves out."""

    def read(self) -> DataFrame:
        """The records as the original read them, parsed again."""
        original = self.run.batch.original_id
        left_out = self.job.database.transact(
            lambda c: replays.messages_left_out(c, original, self.step.name)
        )
        numbers = local_numbers(self.job.spark, MESSAGE, left_out)
        stored = _snapshot(self.job, original, self.step.name)
        return self.reader.parse_again(stored.join(numbers, MESSAGE, "left_anti"))


def raw(stored: DataFrame) -> Column:
    """Return the content of each record for people: its raw text, or the JSON of its fields."""
    fields = [f"`{name}`" for name in stored.columns if not is_own(name)]
    return F.coalesce(RAW, F.to_json(F.struct(*fields)).cast("binary"))


def _stored(job: Job, emit: EmittedRecords) -> DataFrame:
    """Records that a run read, as they are stored, with ``MESSAGE``."""
    roots, messages = pa.array(emit.roots, pa.int64()), pa.array(emit.messages, pa.int64())
    numbers = local_rows(job.spark, {ROOT: roots, MESSAGE: messages})
    if len(roots) <= BROADCAST_MESSAGES:
        numbers = F.broadcast(numbers)
    rows = stored_rows(job, emit.emit_run_id, ROOT, emit.first_root)
    return rows.drop(MESSAGE).join(numbers, ROOT).drop(ROOT)


def _snapshot(job: Job, original_id: int, source: str) -> DataFrame:
    """Every record of an original batch's source, with ``MESSAGE``."""
    emits = job.database.transact(lambda c: runs.emits(c, original_id))
    emit = next(emit for emit in emits if emit.source == source)
    return stored_rows(job, emit.emit_run_id, MESSAGE, emit.first_root)
