"""Whole histories on Spark, with files removed after each step: what becomes of the records, and
what readers see, is what it is without."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.records.trace import trace
from ledger.batch.upkeep.retention import KINDS, gc_once
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.errors import InputError
from ledger.execution import run_steps, settle_and_follow
from ledger.settings import Settings
from ledger.spark.job import Job
from tests.support.runner import START

DAY = timedelta(days=1)
# Days of orders: id, customer, cents. Some ids come again on later days.
DAYS = (
    [(1, "a", 5), (2, "a", 7), (3, "b", 9), (4, "c", 1)],
    [(3, "b", 9), (5, "a", 2), (6, "d", 4)],
    [(1, "a", 5), (5, "a", 2), (7, "b", 3)],
    [(6, "d", 4), (7, "b", 3), (8, "c", 6)],
)


def orders(lost, **options):
    """The days' orders; those ``lost`` vanish in the first stage."""
    pipeline = Pipeline("shop", keep="1d", max_replays=2, **options)
    schema = "id INT, customer STRING, cents INT"
    pipeline.source("orders", FileSource("{{ interval_start | ds }}.csv", schema=schema), key="id")

    @pipeline.stage(reads="orders", filters="lost")
    def checked(frame):
        return frame.where(~F.col("id").isin(list(lost) or [-1]))

    return pipeline


def delivering(lost):
    """Into a folder that takes each id once in three days, and a table that takes all."""
    pipeline = orders(lost)
    dedup = Bloom(capacity=1000, key="id", window_batches=2)
    pipeline.sink("sold", ParquetSink("sold", dedup=dedup), reads="checked")
    pipeline.sink("lake", DeltaSink("lake"), reads="checked")
    return pipeline


def totalling(lost):
    """By customer: shares of the day, the day's totals, and balances over the days."""
    pipeline = orders(lost, publish="complete")

    @pipeline.stage(reads="checked", anchors="merged_by_hand")
    def shared(frame):
        return frame.withColumn("day", F.sum("cents").over(Window.partitionBy("customer")))

    @pipeline.combine(reads="shared")
    def totals(frame):
        return frame.groupBy("customer").agg(F.sum("cents").alias("cents"))

    @pipeline.stateful_stage(reads="shared")
    def balances(state, frame):
        new = frame.select("customer", "cents")
        both = new if state is None else state.unionByName(new)
        return both.groupBy("customer").agg(F.sum("cents").alias("cents"))

    pipeline.sink("shares", ParquetSink("shares"), reads="shared")
    pipeline.sink("days", DeltaSink("days"), reads="totals")
    pipeline.sink("book", DeltaSink("book"), reads="balances")
    return pipeline


class Life:
    """Acts on a ledger and a folder; after each, retention comes days later if it is to."""

    def __init__(self, spark, ledger, folder, pipeline, *, removes):
        ledger.empty()
        folder.mkdir()
        for number, day in enumerate(DAYS):
            lines = "".join(f"{id_},{customer},{cents}\n" for id_, customer, cents in day)
            name = f"{START + number * DAY:%Y-%m-%d}.csv"
            (folder / name).write_text("id,customer,cents\n" + lines)
        settings = Settings(home=folder, storage=str(folder / "storage"), data=str(folder))
        self.job = Job(spark, ledger.database, settings, pipeline(()))
        self.folder, self.pipeline, self.removes = folder, pipeline, removes
        self.ledger, self.acts, self.expired = ledger, 0, []
        self.removed = Counter()  # bytes by kind

    def day(self, number, lost=(), *, reprocess=False):
        job = replace(self.job, pipeline=self.pipeline(lost))
        interval = Interval(START + number * DAY, START + (number + 1) * DAY)
        self._run(job, lambda key: open_batch(*_at(job), key, interval, reprocess=reprocess))

    def replay(self, original, lost=(), **selection):
        job = replace(self.job, pipeline=self.pipeline(lost))
        records = Selection(**selection)
        self._run(job, lambda key: open_replay(*_at(job), key, original, records))

    def accept(self, batch_id):
        self.ledger.accept(batch_id)
        self.gc()

    def _run(self, job, opening):
        self.acts += 1
        batch = opening(RunKey("", f"act {self.acts}"))
        run_steps(job, batch.batch_id, lambda name, result: self.gc())
        settle_and_follow(job, batch.batch_id)
        self.gc()

    def gc(self):
        if self.removes:
            now = self.ledger.now() + timedelta(days=3)
            collected = gc_once(self.ledger.database, now=now)
            assert not collected.errors
            self.removed.update({kind: size.bytes for kind, size in collected.removed.items()})
            self.expired += collected.expired

    def outcome(self):
        """What became of the records, and what readers see."""
        counts = self.ledger.rows(
            "SELECT batch_id, kind, status, total, acked, recovered, failed, quarantined,"
            " superseded FROM batch_status ORDER BY 1",
        )
        records = self.ledger.rows(
            "SELECT message_id, attempt, batch_id, root_id, outcome, step, reason"
            " FROM replay_history ORDER BY 1, 2",
        )
        dropped = self.ledger.rows(
            "SELECT batch_id, step, duplicate_rows FROM step_progress WHERE kind = 'sink'"
            " ORDER BY 1, 2",
        )
        shown = {}
        for step in self.job.pipeline.graph.steps.values():
            if step.kind == "sink":
                shown[step.name] = self._shown(step.sink)
        return counts, records, dropped, shown

    def _shown(self, sink):
        place = str(self.folder / sink.path)
        if isinstance(sink, DeltaSink):
            table = DeltaTable(place).to_pyarrow_table()
        else:
            table = ds.dataset(place, partitioning="hive", format="parquet").to_table()
        return sorted(tuple(row.values()) for row in table.to_pylist())


def _at(job):
    return job.database, job.settings, job.pipeline


def deliveries(life):
    """Records fail, are replayed twice, quarantined and accepted; days come whose ids were sold
    before; one is replaced."""
    life.day(0, lost=[2, 4])
    life.replay(1, lost=[2, 4])  # nothing recovers
    life.day(1)
    life.replay(1, lost=[4])  # 2 recovers, 4 is quarantined
    life.accept(1)
    life.day(2, lost=[7])
    life.day(1, reprocess=True)
    life.replay(5)
    life.day(3)


def totals(life):
    """Replays of whole batches; states in order."""
    life.day(0, lost=[2])
    life.day(1, lost=[5])
    life.replay(1, lost=[2])
    life.replay(2)
    life.replay(1)
    life.day(2)
    life.day(3)


# What gc removes in the course of a history. The rest there is none of here: what is staged is
# moved when it is published, older states go as soon as a newer one is committed, no attempt dies.
# test_gc.py has gc remove those, and test_spans.py root files.
REMOVED = {
    deliveries: {"snapshots", "outputs", "filters"},
    totals: {"snapshots", "outputs", "results"},
}
ELSEWHERE = {"staged", "states", "dead attempts", "root files"}


@pytest.mark.parametrize(("pipeline", "history"), [(delivering, deliveries), (totalling, totals)])
def test_a_history_ends_the_same_with_its_files_removed(spark, ledger, tmp_path, pipeline, history):
    """Every batch, record and row is as without, although files of each kind went after its
    steps."""
    plain = Life(spark, ledger, tmp_path / "plain", pipeline, removes=False)
    history(plain)
    expected = plain.outcome()
    life = Life(spark, ledger, tmp_path / "removed", pipeline, removes=True)
    history(life)
    assert life.outcome() == expected
    assert {kind for kind, size in life.removed.items() if size > 0} == REMOVED[history]
    states = list((life.folder / "storage" / "shop").glob("balances/batch=*/run=*"))
    assert len(states) == (history is totals)  # the newest
    assert life.expired


def test_each_kind_of_file_is_removed_by_some_test():
    """A kind that is new is in one of the histories, or in one of these."""
    assert ELSEWHERE.union(*REMOVED.values()) == set(KINDS)


def test_what_is_gone_is_reported(spark, ledger, tmp_path):
    """Once files have expired, trace says since when, explain how to process the record again, and
    a replay reads it from its source."""
    life = Life(spark, ledger, tmp_path / "shop", delivering, removes=True)
    life.pipeline = plainly
    life.job = replace(life.job, pipeline=plainly(()))
    life.day(0, lost=[2])
    life.replay(1, lost=[2])
    life.replay(1, lost=[2])
    life.accept(1)
    record = ledger.row("SELECT message_id FROM failed_message").message_id
    assert life.expired == [1]
    with pytest.raises(InputError, match=r"batch \d+ .*removed by retention.*ackledger explain"):
        trace(ledger.database, record)
    explanation = " ".join(ledger.explain(record).next)
    assert "--from-source" in explanation
    with pytest.raises(InputError, match="--from-source"):
        life.replay(1, quarantined=True, accepted=True)
    life.replay(1, quarantined=True, accepted=True, from_source=True)
    assert ledger.row("SELECT status FROM failed_message").status == "recovered"


def plainly(lost):
    """One sink, and nothing that reads a family."""
    pipeline = orders(lost)
    pipeline.sink("sold", ParquetSink("sold"), reads="checked")
    return pipeline
