"""Records of a replay: failed ones once more, from the snapshot that they were read to last, alone
or with their units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import starmap

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection

from ledger.batch.state_guards import REBUILD
from ledger.core.column_names import ERROR, MESSAGE, RAW, ROOT, UNIT, is_own
from ledger.core.text import quantity
from ledger.errors import FencedError
from ledger.pipeline.steps import SourceStep
from ledger.spark.frames.anchors import carries_unit
from ledger.spark.frames.inputs import stored_rows
from ledger.spark.frames.stored import local_numbers, local_rows
from ledger.spark.job import Job
from ledger.spark.origins.base import Origin
from ledger.spark.units.carried import with_carried
from ledger.spark.units.units import STATE, included, with_unit
from ledger.store.queries import payloads, replays, runs
from ledger.store.queries.payloads import EmittedRecords

BROADCAST_MESSAGES = 1_000_000
_CLAIMED, _TAKEN = "_ackledger_claimed", "_ackledger_taken"


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
class FromUnits(_Replay):
    """Every record of the claimed records' units but those quarantined."""

    def read(self) -> DataFrame:
        """The records as they were read, parsed again; where stages carry over what they made, with
        ``CARRIED``.
        """
        rows, claimed = self._records(), self._claimed()
        if not claimed:
            return rows.limit(0)
        if carries_unit(self.job.pipeline, self.step.name):
            rows = self._of_units(rows, claimed)
        return with_carried(self.job, self.run, self.step, rows)

    def complete(self, connection: Connection) -> None:
        """Claim the failed records among those that were read because of their unit.

        Raises FencedError if one of these is quarantined by now.
        """
        emitted = (self.run.batch.batch_id, self.run.run_id)
        replays.claim_companions(connection, *emitted)
        quarantined = replays.quarantined_companions(connection, *emitted)
        if quarantined:
            raise FencedError(
                f"{quantity(quarantined, 'record')} that source {self.step.name!r} has read for the"
                f" sake of their unit were quarantined meanwhile: run {self.step.name!r} again,"
                " which leaves them out"
            )

    def _records(self) -> DataFrame:
        """Every record of the source that is not quarantined."""
        original = self.run.batch.original_id
        quarantined = self.job.database.transact(
            lambda c: replays.quarantined_messages(c, original, self.step.name)
        )
        numbers = local_numbers(self.job.spark, MESSAGE, quarantined)
        others = _snapshot(self.job, original, self.step.name).join(numbers, MESSAGE, "left_anti")
        return with_unit(self.job.pipeline, self.step, self.reader.parse_again(others))

    def _claimed(self) -> list[tuple[SourceStep, EmittedRecords]]:
        """The claimed records of each source in units that has some."""
        graph, batch = self.job.pipeline.graph, self.run.batch
        sources = [step for step in self.job.pipeline.sources() if graph.in_units(step.name)]
        keys = (batch.batch_id, batch.original_id)

        def ask(connection: Connection) -> list[tuple[SourceStep, EmittedRecords]]:
            return [
                (step, emit)
                for step in sources
                for emit in payloads.claimed(connection, *keys, step.name)
            ]

        return self.job.database.transact(ask)

    def _of_units(
        self, rows: DataFrame, claimed: list[tuple[SourceStep, EmittedRecords]]
    ) -> DataFrame:
        """The records of the claimed records' units, and the claimed ones that are of none."""
        names = [f"`{name}`" for name in rows.columns]
        own = [number for step, emit in claimed if step is self.step for number in emit.messages]
        of_source = local_numbers(self.job.spark, MESSAGE, own).withColumn(_CLAIMED, F.lit(True))
        units = reduce(DataFrame.unionByName, starmap(self._units, claimed))
        of_units = units.distinct().withColumn(_TAKEN, F.lit(True))
        joined = self._without_included(rows).join(of_units, UNIT, "left")
        joined = joined.join(of_source, MESSAGE, "left")
        return joined.where(F.coalesce(_TAKEN, _CLAIMED)).select(*names)

    def _units(self, step: SourceStep, emit: EmittedRecords) -> DataFrame:
        """The units of a source's records."""
        stored = _stored(self.job, emit)
        parsed = step.source.reader(self.job.spark).parse_again(stored)
        return with_unit(self.job.pipeline, step, parsed).select(UNIT)

    def _without_included(self, rows: DataFrame) -> DataFrame:
        """The records, of no unit and failed where a state over batches includes theirs: it would
        include the rest of it twice. They did not parse before, so that it was not known.
        """
        units = included(self.job, self.run.batch.original_id)
        if units is None:
            return rows
        why = F.concat(
            F.lit("the state '"), STATE, F.lit(f"' includes the rest of its unit: {REBUILD}")
        )
        free, joined = F.col(STATE).isNull(), rows.join(units, UNIT, "left")
        changed = {
            RAW: F.when(free, F.col(RAW)).otherwise(raw(rows)),
            ERROR: F.coalesce(ERROR, why),
            UNIT: F.when(free, F.col(UNIT)),
        }
        return joined.withColumns(changed).drop(STATE)


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
