"""Drop the rows of a batch that a sink has delivered with other batches before.

A row's identity is its key, or (message, hash of the row, ordinal among equal rows of that
message). A Bloom filter only spares the look-up: every "maybe" is verified against the kept inputs
of the earlier deliveries, so no row is ever dropped on chance.

Only settled batches count as earlier. What an open batch delivered may yet be replaced by a re-run,
and a row dropped in its favour would be lost with it.
"""

from collections.abc import Sequence
from functools import cached_property, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from sqlalchemy import Connection

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import DELIVERED, IDENTITY, POSITION, ROOT
from ledger.core.states import BatchKind
from ledger.pipeline.steps import SinkStep
from ledger.sinks.options import Bloom, is_keyed
from ledger.spark.dedup import bloom
from ledger.spark.frames.acked import Withheld, withheld
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.staging import require_key_columns
from ledger.spark.frames.stored import local_rows
from ledger.spark.job import Job
from ledger.store.queries import batches, runs
from ledger.store.queries import dedup as queries
from ledger.store.queries.dedup import EarlierDelivery

# Written out to the last microsecond: JSON's default keeps milliseconds.
_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class Deduplicator:
    """Drops, from what one sink run is about to write, what other batches delivered."""

    def __init__(self, job: Job, run: OpenedRun, step: SinkStep):
        self._job = job
        self._run = run
        self._step = step
        # Exactly once nothing of a failed record was ever published: only a key has anything to
        # compare.
        without = run.batch.exactly_once and not is_keyed(step.sink.dedup)
        self._dedup = "none" if without else step.sink.dedup
        self._key = self._dedup.key if isinstance(self._dedup, Bloom) else ()
        self._filter: bloom.Filter | None = None
        self._cached: DataFrame | None = None
        self._searched = False

    def keep(self, rows: DataFrame) -> DataFrame:
        """The rows to deliver: input rows less those that other batches delivered."""
        if self._dedup == "none":
            return rows
        require_key_columns(self._step, rows.columns)
        if self._duplicates(rows) is None:
            remaining = rows
        else:
            remaining = self._identified(rows, self._key).join(
                self._required(rows), IDENTITY, "left_anti"
            )
        if isinstance(self._dedup, Bloom):
            identified = (
                remaining if IDENTITY in remaining.columns else self._identified(rows, self._key)
            )
            present = identified.where(F.col(IDENTITY).isNotNull())
            self._filter = bloom.build(present, IDENTITY, self._dedup)
        return remaining.drop(IDENTITY, DELIVERED)

    def dropped(self, rows: DataFrame) -> DataFrame | None:
        """The input rows that are duplicates, found by themselves and not as what ``keep`` leaves
        out; None if there are none.
        """
        if self._dedup == "none" or self._duplicates(rows) is None:
            return None
        return self._identified(rows, self._key).join(self._required(rows), IDENTITY, "left_semi")

    def release(self) -> None:
        """Free what was cached."""
        if self._cached is not None:
            self._cached.unpersist()

    def save(self, connection: Connection) -> None:
        """Keep the filter of what this run delivers, in the transaction that commits it."""
        if self._filter is None:
            return
        assert isinstance(self._dedup, Bloom)
        queries.insert_filter(
            connection,
            {
                "run": self._run.run_id,
                "key": list(self._key),
                "capacity": self._dedup.capacity,
                "error_rate": self._dedup.error_rate,
                "entries": self._filter.entries,
                "filter": self._filter.data,
            },
        )

    @cached_property
    def _earlier(self) -> list[EarlierDelivery]:
        """Committed runs of this sink in the settled batches to compare with."""
        batch, sink = self._run.batch, self._step.name
        if self._key:
            assert isinstance(self._dedup, Bloom)
            limit = self._dedup.window_batches
            return self._job.database.transact(
                lambda c: queries.pipeline_deliveries(
                    c, sink, batch.batch_id, batch.pipeline_id, limit
                )
            )
        return self._job.database.transact(
            lambda c: queries.family_deliveries(c, sink, batch.batch_id, batch.original_id)
        )

    def _duplicates(self, rows: DataFrame) -> DataFrame | None:
        """Identities of this batch that were delivered before, distinct; None if there are none."""
        if not self._searched:
            self._cached, self._searched = self._find(rows), True
        return self._cached

    def _required(self, rows: DataFrame) -> DataFrame:
        duplicates = self._duplicates(rows)
        assert duplicates is not None
        return duplicates

    def _find(self, rows: DataFrame) -> DataFrame | None:
        if not self._earlier:
            return None
        candidates = (
            self._identified(rows, self._key).select(IDENTITY).where(F.col(IDENTITY).isNotNull())
        )
        united = self._united_filter()
        if united is not None:
            candidates = candidates.where(bloom.maybe(united.data, IDENTITY))
        duplicates = candidates.distinct().join(self._delivered(), IDENTITY, "left_semi").persist()
        return None if duplicates.isEmpty() else duplicates

    def _united_filter(self) -> bloom.Filter | None:
        """One filter of all earlier deliveries; None if one of them has none that can be asked."""
        if not isinstance(self._dedup, Bloom):
            return None
        shape = (list(self._key), self._dedup.capacity, self._dedup.error_rate)
        if any((row.key, row.capacity, row.error_rate) != shape for row in self._earlier):
            return None
        filters = [bloom.Filter(bytes(row.filter), row.entries) for row in self._earlier]
        return bloom.unite(
            filters, self._dedup, f"the {len(filters)} earlier batches of sink {self._step.name!r}"
        )

    def _delivered(self) -> DataFrame:
        """Identities of all earlier deliveries, from their kept inputs."""
        frames = [
            self._identified(self._got(row), self._key, row.batch_id, row.kind)
            for row in self._earlier
        ]
        return reduce(DataFrame.unionByName, [frame.select(IDENTITY) for frame in frames])

    @cached_property
    def _replaces(self) -> bool:
        """Whether this family replaces another one."""
        original = self._run.batch.original_id
        batch = self._job.database.transact(lambda c: batches.get_batch(c, original))
        return batch.replaces_batch_id is not None

    def _got(self, earlier: EarlierDelivery) -> DataFrame:
        """The rows that a sink has got of its kept input, but for those of records of which it may
        not have got each row once: which of these it has is not known. Of what it dropped in favour
        of a family that this one replaces nothing else is left: its own filter has only what it
        delivered.
        """
        sink = self._step.name
        hidden = withheld(self._job, earlier.batch_id, sink)
        rows = hidden.keep(delivered_rows(self._job, self._job.run(earlier.input_run_id)))
        if earlier.key and self._replaces:
            names = [f"`{name}`" for name in rows.columns]
            identified = self._identified(rows, earlier.key)
            rows = identified.where(bloom.maybe(bytes(earlier.filter), IDENTITY)).select(*names)
        missed = self._job.database.transact(
            lambda c: runs.roots_missed_by(c, earlier.batch_id, sink)
        )
        return Withheld(self._job, missed).keep(rows)

    def _identified(
        self,
        rows: DataFrame,
        key: Sequence[str],
        batch_id: int | None = None,
        kind: str | None = None,
    ) -> DataFrame:
        """The rows with ``IDENTITY``; null, so never a duplicate, where a key column is null."""
        if key:
            number = F.sha2(_canonical(*(f"`{name}`" for name in key)), 256)
            missing = reduce(lambda a, b: a | b, [F.col(f"`{name}`").isNull() for name in key])
            return rows.withColumn(IDENTITY, F.when(~missing, number))
        batch = self._run.batch
        with_message = self._with_message(rows, batch_id or batch.batch_id, kind or batch.kind)
        row_hash = F.sha2(_canonical(*user_columns(rows)), 256)
        hashed = with_message.withColumn(IDENTITY, row_hash)
        equal = Window.partitionBy(DELIVERED, IDENTITY).orderBy(POSITION)
        ordinal = F.row_number().over(equal).cast("string")
        return hashed.withColumn(
            IDENTITY, F.concat_ws("/", F.col(DELIVERED).cast("string"), IDENTITY, ordinal)
        )

    def _with_message(self, rows: DataFrame, batch_id: int, kind: str) -> DataFrame:
        """The rows with the message that their root is an attempt of."""
        if kind == BatchKind.ORIGINAL:
            return rows.withColumn(DELIVERED, F.col(ROOT))
        messages = self._job.database.transact(lambda c: queries.messages_of_roots(c, batch_id))
        table = {
            ROOT: pa.array(list(messages), pa.int64()),
            DELIVERED: pa.array(list(messages.values()), pa.int64()),
        }
        return rows.join(local_rows(self._job.spark, table), ROOT, "inner")


def _canonical(*columns: str) -> Column:
    """A row as text in which no two different rows are equal: JSON with every null written out."""
    return F.to_json(F.struct(*columns), _EXACT)
