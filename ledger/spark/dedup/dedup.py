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
from ledger.spark.frames.inputs import delivered_rows, user_columns
from ledger.spark.frames.staging import require_key_columns
from ledger.spark.frames.withheld import Withheld, withheld
from ledger.spark.job import Job
from ledger.store.queries import batches, runs
from ledger.store.queries import dedup as queries
from ledger.store.queries.dedup import EarlierDelivery
from ledger.types.spark import local_rows

# Written out to the last microsecond: JSON's default keeps milliseconds.
_EXACT = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class Deduplicator:
    """Drops rows of one sink's run that other batches have already delivered."""

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
        """Return the rows to deliver: input rows without those that other batches delivered."""
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
        """Return the input rows that are duplicates; None if there are none. They are searched
        again, as a check of ``keep``.
        """
        if self._dedup == "none" or self._duplicates(rows) is None:
            return None
        return self._identified(rows, self._key).join(self._required(rows), IDENTITY, "left_semi")

    def release(self) -> None:
        """Free what was cached."""
        if self._cached is not None:
            self._cached.unpersist()

    def save(self, connection: Connection) -> None:
        """Store the filter of the rows that this run delivers, in the transaction that commits the
        run.
        """
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
        """Return the committed runs of this sink in the settled batches to compare with."""
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
        """Return the distinct identities in this batch that were delivered before; None if there
        are none. The result is cached.
        """
        if self._searched or not self._earlier:
            return self._cached
        candidates = (
            self._identified(rows, self._key).select(IDENTITY).where(F.col(IDENTITY).isNotNull())
        )
        dedup = self._dedup
        if isinstance(dedup, Bloom):
            # One filter of all earlier deliveries, if each has one that can be asked.
            shape = (list(self._key), dedup.capacity, dedup.error_rate)
            if all((row.key, row.capacity, row.error_rate) == shape for row in self._earlier):
                filters = [bloom.Filter(bytes(row.filter), row.entries) for row in self._earlier]
                whose = f"the {len(filters)} earlier batches of sink {self._step.name!r}"
                united = bloom.unite(filters, dedup, whose)
                candidates = candidates.where(bloom.maybe(united.data, IDENTITY))
        delivered = [
            self._identified(self._delivered_by(row), self._key, row.batch_id, row.kind).select(
                IDENTITY
            )
            for row in self._earlier
        ]
        duplicates = (
            candidates.distinct()
            .join(reduce(DataFrame.unionByName, delivered), IDENTITY, "left_semi")
            .persist()
        )
        self._cached = None if duplicates.isEmpty() else duplicates
        self._searched = True
        return self._cached

    def _required(self, rows: DataFrame) -> DataFrame:
        duplicates = self._duplicates(rows)
        assert duplicates is not None
        return duplicates

    @cached_property
    def _replaces(self) -> bool:
        """Whether this family replaces another one."""
        original = self._run.batch.original_id
        batch = self._job.database.transact(lambda c: batches.get_batch(c, original))
        return batch.replaces_batch_id is not None

    def _delivered_by(self, earlier: EarlierDelivery) -> DataFrame:
        """Return the rows of its kept input that a sink delivered with an earlier batch.

        Rows of records that the sink may not have got once each are left out, because it is not
        known which of them it has. In a family that replaces another, rows that the sink had
        dropped as delivered by the replaced one are left out too: its filter lacks them.
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
        """Return the rows with ``IDENTITY``; it is null, so never a duplicate's, where a key column
        is null.
        """
        if key:
            number = F.sha2(_canonical(*(f"`{name}`" for name in key)), 256)
            missing = reduce(lambda a, b: a | b, [F.col(f"`{name}`").isNull() for name in key])
            return rows.withColumn(IDENTITY, F.when(~missing, number))
        batch = self._run.batch
        if (kind or batch.kind) == BatchKind.ORIGINAL:
            with_message = rows.withColumn(DELIVERED, F.col(ROOT))
        else:  # the message that a root is an attempt of
            messages = self._job.database.transact(
                lambda c: queries.messages_of_roots(c, batch_id or batch.batch_id)
            )
            table = {
                ROOT: pa.array(list(messages), pa.int64()),
                DELIVERED: pa.array(list(messages.values()), pa.int64()),
            }
            with_message = rows.join(local_rows(self._job.spark, table), ROOT, "inner")
        row_hash = F.sha2(_canonical(*user_columns(rows)), 256)
        hashed = with_message.withColumn(IDENTITY, row_hash)
        equal = Window.partitionBy(DELIVERED, IDENTITY).orderBy(POSITION)
        ordinal = F.row_number().over(equal).cast("string")
        return hashed.withColumn(
            IDENTITY, F.concat_ws("/", F.col(DELIVERED).cast("string"), IDENTITY, ordinal)
        )


def _canonical(*columns: str) -> Column:
    """Return a row as text in which no two different rows are equal: JSON with every null written
    out.
    """
    return F.to_json(F.struct(*columns), _EXACT)
