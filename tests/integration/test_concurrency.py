"""Many batches at once, with sweeps, replays and a reader between them."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.errors import NotReadyError
from ledger.opening import open_batch, open_replay
from ledger.requests import Interval, RunKey, Selection
from ledger.running import run_steps, settle_and_follow
from ledger.spark.job import Job
from ledger.sweeper import sweep_once
from tests.support.ledgers import one, rows

DAYS, RECORDS, POISON = 4, 60, 7
FIRST = datetime(2013, 1, 1, tzinfo=UTC)


def pipeline(name: str, poison: int, mended: bool) -> Pipeline:
    """n -> two rows -> one of which the poison and, until it is mended, every tenth record loses."""
    made = Pipeline(name, guarantee="exactly_once", max_replays=1)
    made.source("numbers", FileSource("in/{{ interval_start | ds }}.csv", schema="n INT"))

    @made.stage(reads="numbers")
    def halves(numbers):
        return numbers.withColumn("half", F.explode(F.array(F.lit(1), F.lit(2))))

    @made.stage(reads="halves")
    def checked(halves):
        second = F.col("half") == 2
        bad = second & (F.col("n") % RECORDS == poison)
        lost = second & (F.col("n") % 10 == 0) & F.lit(not mended)
        return halves.withColumn("_failed", F.when(bad, "poison").when(lost, "for now"))

    made.sink("folder", ParquetSink(f"{name}/folder"), reads="checked")
    made.sink("table", DeltaSink(f"{name}/table"), reads="checked")
    return made


def shown(folder, name):
    """The rows of both sinks."""
    table = ds.dataset(folder / name / "folder", partitioning="hive", format="parquet").to_table()
    delta = DeltaTable(folder / name / "table").to_pyarrow_table()
    return [Counter((row["n"], row["half"]) for row in one.to_pylist()) for one in (table, delta)]


def test_eight_batches_of_two_pipelines(spark, database, settings, tmp_path):
    """No row twice, input = published + quarantined, the reader saw whole batches only, nothing is left."""
    names = ("left", "right")
    (tmp_path / "in").mkdir()
    for day in range(DAYS):
        numbers = range(day * RECORDS, (day + 1) * RECORDS)
        text = "n\n" + "\n".join(map(str, numbers)) + "\n"
        (tmp_path / "in" / f"2013-01-0{day + 1}.csv").write_text(text)
    ended, partial, looks = threading.Event(), [], []

    def watch():
        while not ended.is_set():
            for name in names:
                if DeltaTable.is_deltatable(str(tmp_path / name / "table")):
                    table = DeltaTable(tmp_path / name / "table").to_pyarrow_table()
                    of = Counter(row["n"] for row in table.to_pylist())
                    looks.append(len(of))
                    partial.extend(n for n, count in of.items() if count != 2)
            time.sleep(0.05)

    def sweep():
        while not ended.is_set():
            sweep_once(database)
            time.sleep(0.2)

    def work(name, day):
        job = Job(spark, database, settings, pipeline(name, POISON, mended=False))
        interval = Interval(FIRST + timedelta(days=day), FIRST + timedelta(days=day + 1))
        batch = open_batch(database, settings, job.pipeline, RunKey("", f"day-{day}"), interval)
        run_steps(job, batch, lambda step, result: None)
        followed(job, batch.batch_id)
        mended = Job(spark, database, settings, pipeline(name, POISON, mended=True))
        key = RunKey("", f"replay-{day}")
        again = open_replay(database, settings, mended.pipeline, key, batch.batch_id, Selection())
        run_steps(mended, again, lambda step, result: None)
        followed(mended, again.batch_id)

    def followed(job, batch_id):
        """As Airflow's retries: a sweep, or another publisher of the same batch, may be first."""
        for _ in range(20):
            try:
                settle_and_follow(job, batch_id)
                return
            except NotReadyError:
                time.sleep(0.5)
        raise AssertionError(f"batch {batch_id} does not come to its end")

    helpers = [threading.Thread(target=helper) for helper in (watch, sweep)]
    for helper in helpers:
        helper.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda task: work(*task), [(n, d) for d in range(DAYS) for n in names]))
    finally:
        ended.set()
        for helper in helpers:
            helper.join()
    poisoned = {day * RECORDS + POISON for day in range(DAYS)}
    wanted = Counter(
        (n, half) for n in range(DAYS * RECORDS) if n not in poisoned for half in (1, 2)
    )
    for name in names:
        assert shown(tmp_path, name) == [wanted, wanted]
    assert looks, "the reader never looked"
    assert partial == []
    assert one(database, "SELECT count(*) AS n FROM quarantine").n == len(names) * len(poisoned)
    left = rows(database, "SELECT * FROM sink_publication WHERE state <> 'published'")
    assert left == []
    statuses = rows(database, "SELECT DISTINCT status, failed, pending FROM batch_status")
    assert [tuple(row) for row in statuses] == [("settled", 0, 0)]
