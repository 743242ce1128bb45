"""Many batches at once, with sweeps, replays and a reader between them."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger.batch.opening import open_batch, open_replay
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.errors import NotReadyError
from ledger.execution import run_steps, settle_and_follow
from ledger.spark.job import Job
from ledger.store import embedded

DAYS, RECORDS, POISON = 4, 60, 7
FIRST = datetime(2013, 1, 1, tzinfo=UTC)


def pipeline(name: str, target: str, poison: int, fixed: bool) -> Pipeline:
    """n -> two rows -> one of which the poison and, until it is fixed, every tenth record loses
    -> three sinks, and a state of one row for each batch that it includes, in order.
    """
    flow = Pipeline(name, guarantee="exactly_once", max_replays=1)
    flow.source("numbers", FileSource("in/{{ interval_start | ds }}.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def halves(numbers):
        return numbers.withColumn("half", F.explode(F.array(F.lit(1), F.lit(2))))

    @flow.stage(reads="halves")
    def checked(halves):
        second = F.col("half") == 2
        bad = second & (F.col("n") % RECORDS == poison)
        lost = second & (F.col("n") % 10 == 0) & F.lit(not fixed)
        return halves.withColumn("_failed", F.when(bad, "poison").when(lost, "for now"))

    flow.sink("folder", ParquetSink(f"{name}/folder"), reads="checked")
    flow.sink("table", DeltaSink(f"{name}/table"), reads="checked")
    flow.sink("report", PostgresSink(target, f"report_{name}"), reads="checked")

    @flow.stateful_stage(reads="checked")
    def course(before, checked):
        place = F.lit(1 if before is None else before.count() + 1).alias("place")
        taken = checked.groupBy().agg(place, F.count("*").alias("rows"), F.sum("n").alias("total"))
        return taken if before is None else before.unionByName(taken)

    flow.sink("history", DeltaSink(f"{name}/course"), reads="course")
    return flow


@pytest.fixture
def target(server_home):
    """The URL of an empty database beside the ledger's."""
    url = embedded.ensure_database(embedded.start(server_home), "target")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        for table in ("report_left", "report_right", "ackledger_commit"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    return url


def readers(folder, target, name):
    """How each sink of records is read: a Counter of n and half."""
    engine = create_engine(target, poolclass=NullPool)

    def counted(rows):
        return Counter((row["n"], row["half"]) for row in rows)

    def report():
        with engine.connect() as connection:
            rows = connection.execute(text(f"SELECT n, half FROM report_{name}")).mappings()
            return counted(rows)

    place = folder / name / "folder"
    return {
        "folder": lambda: counted(ds.dataset(place, partitioning="hive").to_table().to_pylist()),
        "table": lambda: counted(
            DeltaTable(folder / name / "table").to_pyarrow_table().to_pylist()
        ),
        "report": report,
    }


def _check_states(ledger, folder, wanted):
    """Each batch was taken in once, the states in the order of the batches, and they hold every
    row.
    """
    taken = ledger.rows("SELECT pipeline_id, batch_id FROM checkpoint ORDER BY step_run_id")
    for pipeline_id in {row.pipeline_id for row in taken}:
        own = [row.batch_id for row in taken if row.pipeline_id == pipeline_id]
        assert own == sorted(own)
        assert len(own) == 2 * DAYS
    for name in ("left", "right"):
        course = DeltaTable(folder / name / "course").to_pyarrow_table().to_pylist()
        assert sorted(row["place"] for row in course) == list(range(1, 2 * DAYS + 1))
        assert sum(row["rows"] for row in course) == wanted.total()
        assert sum(row["total"] or 0 for row in course) == sum(n for n, _ in wanted.elements())


@pytest.mark.exhaustive
def test_eight_batches_of_two_pipelines(spark, ledger, settings, tmp_path, target):
    """No row twice, input = published + quarantined, the readers saw whole batches only, states
    took in each batch once and in order, nothing is pending.
    """
    names = ("left", "right")
    (tmp_path / "in").mkdir()
    for day in range(DAYS):
        numbers = range(day * RECORDS, (day + 1) * RECORDS)
        text = "n\n" + "\n".join(map(str, numbers)) + "\n"
        (tmp_path / "in" / f"2013-01-0{day + 1}.csv").write_text(text)
    ended, partial, looks = threading.Event(), [], Counter()
    sinks = {name: readers(tmp_path, target, name) for name in names}
    # Of a day, a batch brings what does not fail, and its replay the rest: both halves of each, or
    # nothing.
    wholes = {0, RECORDS - RECORDS // 10 - 1, RECORDS - 1}

    def watch():
        while not ended.is_set():
            for name, sink in product(names, ("folder", "table", "report")):
                with suppress(TableNotFoundError, ProgrammingError, FileNotFoundError):
                    rows = sinks[name][sink]()
                    looks[name, sink] += 1
                    days = Counter(n // RECORDS for n, _ in rows)
                    partial.extend(
                        (name, sink, day) for day in days if days[day] // 2 not in wholes
                    )
                    partial.extend(
                        (name, sink, row) for row in rows if rows[row[0], 1] != rows[row[0], 2]
                    )
            time.sleep(0.05)

    def sweep():
        while not ended.is_set():
            ledger.sweep()
            time.sleep(0.2)

    def work(name, day):
        job = Job(spark, ledger.database, settings, pipeline(name, target, POISON, fixed=False))
        interval = Interval(FIRST + timedelta(days=day), FIRST + timedelta(days=day + 1))
        batch = open_batch(
            ledger.database, settings, job.pipeline, RunKey("", f"day-{day}"), interval
        )
        run_steps(job, batch.batch_id, lambda step, result: None)
        followed(job, batch.batch_id)
        fixed = Job(spark, ledger.database, settings, pipeline(name, target, POISON, fixed=True))
        key = RunKey("", f"replay-{day}")
        again = open_replay(
            ledger.database, settings, fixed.pipeline, key, batch.batch_id, Selection()
        )
        run_steps(fixed, again.batch_id, lambda step, result: None)
        followed(fixed, again.batch_id)

    def followed(job, batch_id):
        """As Airflow's retries: a sweep, or another publisher of the same batch, may be first."""
        for _ in range(600):
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
        assert {sink: look() for sink, look in sinks[name].items()} == dict.fromkeys(
            sinks[name], wanted
        )
    assert len(looks) == 6, "a reader never saw its sink"
    assert partial == []
    _check_states(ledger, tmp_path, wanted)
    assert ledger.row("SELECT count(*) AS n FROM quarantine").n == len(names) * len(poisoned)
    # A state that was not published before the next one came is not published any more.
    shown = "state = 'published' OR state = 'replaced' AND sink = 'history'"
    pending = ledger.rows(f"SELECT * FROM sink_publication WHERE NOT ({shown})")
    assert pending == []
    statuses = ledger.rows("SELECT DISTINCT status, failed, pending FROM batch_status")
    assert [tuple(row) for row in statuses] == [("settled", 0, 0)]
