"""A staged file that is lost after the settlement is staged anew from the sink's kept input."""

from collections import Counter

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger import execution as running
from ledger.batch.publishing import lost, publish
from ledger.batch.settlement import settle_once
from ledger.errors import ConfigurationError, Failures, LostFileError
from ledger.execution import publish_settled, settle_and_follow, withhold
from ledger.store import embedded
from tests.support.dying import Died, dies_at
from tests.support.runner import END

TABLES = ("plain", "totals", "ackledger_commit")
LOST = {3, 7}
COUNT = 12


@pytest.fixture
def target(server_home):
    """An empty database."""
    url = embedded.ensure_database(embedded.start(server_home), "losing")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {', '.join(TABLES)}")
    return url


def pipeline(url, lose=()) -> Pipeline:
    """n -> (n, a), (n, b) -> a sink of each kind, and a total."""
    made = Pipeline("losing", guarantee="exactly_once", max_replays=3)
    made.source("numbers", FileSource("in.csv", schema="n INT"))

    @made.stage(reads="numbers")
    def halves(numbers):
        return numbers.withColumn("half", F.explode(F.array(F.lit("a"), F.lit("b"))))

    @made.stage(reads="halves")
    def lossy(halves):
        return halves.where(~(F.col("n").isin([-1, *lose]) & (F.col("half") == "b")))

    @made.combine(reads="lossy")
    def total(lossy):
        return lossy.agg(F.sum("n").alias("n"))

    @made.stateful_stage(reads="lossy")
    def latest(state, batch):
        return batch if state is None else state.unionByName(batch)

    by_key = Bloom(key=("n", "half"), capacity=1000)
    made.sink("delta", DeltaSink("delta", partition_by="half"), reads="lossy")
    made.sink("folder", ParquetSink("folder", partition_by="half", dedup=by_key), reads="lossy")
    made.sink("plain", PostgresSink(url, "plain"), reads="lossy")
    made.sink("totals", PostgresSink(url, "totals"), reads="total")
    made.sink("states", ParquetSink("states"), reads="latest")
    return made


def shown(folder, url):
    """What each sink of records shows, as Counters of n and half."""
    found = {
        "delta": DeltaTable(folder / "delta").to_pyarrow_table().to_pylist(),
        "folder": ds.dataset(folder / "folder", partitioning="hive").to_table().to_pylist(),
    }
    counted = {name: Counter((r["n"], r["half"]) for r in some) for name, some in found.items()}
    with create_engine(url, poolclass=NullPool).connect() as connection:
        some = connection.exec_driver_sql("SELECT n, half FROM plain")
        counted["plain"] = Counter(tuple(row) for row in some)
    return counted


def every(rows):
    return dict.fromkeys(("delta", "folder", "plain"), rows)


def expected(numbers):
    return Counter((n, half) for n in numbers for half in "ab")


def write(folder, numbers):
    (folder / "in.csv").write_text("n\n" + "\n".join(map(str, numbers)) + "\n")


def lose_one(folder, batch_id, among="**"):
    """Remove a staged file of each sink of records, and cut another one's end off."""
    places = {
        "delta": folder / "delta" / "_ackledger" / f"batch-{batch_id}",
        "folder": folder / "folder" / "_staging" / f"batch={batch_id}",
        "plain": folder / "storage" / "losing" / "plain" / f"batch={batch_id}",
    }
    for name, place in places.items():
        first, *_ = sorted(place.glob(f"{among}/*.parquet"))
        if name == "plain":
            first.write_bytes(first.read_bytes()[:-9])
        else:
            first.unlink()


def test_lost_files_are_staged_anew(runner, tmp_path, target, monkeypatch):
    """A staged file of each kind of sink is gone, or cut off, after a clean settlement, after one
    with failed records, and after their rows were withheld: publishing completes, each row once. So
    it does for a total and for a state."""
    run = runner(pipeline(target, LOST))
    write(tmp_path, range(20, 24))
    clean = run.open("clean")
    run.steps(clean)
    settle_once(run.job.database, clean.batch_id)
    lose_one(tmp_path, clean.batch_id)
    job = run.job
    with pytest.raises(LostFileError, match="publish again, or in Airflow clear `withhold`"):
        publish(job.database, job.settings, job.pipeline, clean.batch_id)
    publish_settled(job, clean.batch_id)
    assert shown(tmp_path, target) == every(expected(range(20, 24)))

    write(tmp_path, range(COUNT))
    batch = run.open("failing", END, END.replace(month=END.month + 1))
    run.steps(batch)
    settle_once(job.database, batch.batch_id)
    lose_one(tmp_path, batch.batch_id)
    assert sorted(withhold(job, batch.batch_id)) == ["delta", "folder", "plain"]
    assert withhold(job, batch.batch_id) == []
    lose_one(tmp_path, batch.batch_id, "**/kept-*/**")
    assert len(lost(job.database, job.settings, job.pipeline, batch.batch_id, Failures(str))) == 3
    publish_settled(job, batch.batch_id)
    acked = [n for n in range(COUNT) if n not in LOST]
    assert shown(tmp_path, target) == every(expected([*acked, *range(20, 24)]))

    fixed = runner(pipeline(target))
    replay = fixed.open_replay(batch.batch_id)
    fixed.steps(replay)
    settle_once(job.database, replay.batch_id)
    publish_settled(fixed.job, replay.batch_id)

    with dies_at("publishing"):
        with pytest.raises(Died):
            running.combine(fixed.job, replay.batch_id)
        with pytest.raises(Died):
            running.advance_states(fixed.job)
    for place in (tmp_path / "storage" / "losing" / "totals", tmp_path / "states" / "_staging"):
        for path in place.rglob("*.parquet"):
            path.unlink()
    running.advance_states(fixed.job)
    settle_and_follow(fixed.job, replay.batch_id)
    assert shown(tmp_path, target) == every(expected([*range(COUNT), *range(20, 24)]))
    with create_engine(target, poolclass=NullPool).connect() as connection:
        totals = connection.exec_driver_sql("SELECT n FROM totals").scalars().all()
    assert totals == [2 * sum(range(COUNT))]
    states = ds.dataset(tmp_path / "states", partitioning="hive").to_table().to_pylist()
    found = Counter((row["n"], row["half"]) for row in states)
    assert found == expected([*range(COUNT), *range(20, 24)])


def test_a_broken_sink_keeps_nothing_else_waiting(runner, tmp_path, target, monkeypatch):
    """While the address of one sink is missing, what is lost of the others is staged anew, what
    failed is withheld there, and all of them publish; the error is raised at the end. So it is
    for the sinks of a total and of a state.
    """
    monkeypatch.setenv("LOSING_URL", target)
    run = runner(pipeline("env:LOSING_URL", LOST))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    job = run.job
    settle_once(job.database, batch.batch_id)
    first, *_ = sorted((tmp_path / "delta" / "_ackledger").rglob("*.parquet"))
    first.unlink()
    monkeypatch.delenv("LOSING_URL")
    with pytest.raises(ConfigurationError, match="LOSING_URL"):
        publish_settled(job, batch.batch_id)
    rest = expected(n for n in range(COUNT) if n not in LOST)
    found = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert Counter((row["n"], row["half"]) for row in found) == rest
    monkeypatch.setenv("LOSING_URL", target)
    fixed = runner(pipeline("env:LOSING_URL"))
    replay = fixed.open_replay(batch.batch_id)
    fixed.steps(replay)
    settle_once(job.database, replay.batch_id)
    publish_settled(fixed.job, replay.batch_id)
    assert shown(tmp_path, target) == every(expected(range(COUNT)))
    monkeypatch.delenv("LOSING_URL")
    with pytest.raises(ConfigurationError, match="LOSING_URL"):
        running.combine(fixed.job, replay.batch_id)
    running.advance_states(fixed.job)
    states = ds.dataset(tmp_path / "states", partitioning="hive").to_table().to_pylist()
    assert Counter((row["n"], row["half"]) for row in states) == expected(range(COUNT))


def test_a_staging_anew_that_died_leaves_nothing_to_show(runner, tmp_path, target):
    """Files that were staged anew by a process that died are not published when the lost one is
    back.
    """
    run = runner(pipeline(target))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    settle_once(run.job.database, batch.batch_id)
    first, *_ = sorted((tmp_path / "folder" / "_staging").rglob("*.parquet"))
    aside = first.rename(tmp_path / "aside")
    with dies_at("files written"), pytest.raises(Died):
        withhold(run.job, batch.batch_id)
    assert list((tmp_path / "folder" / "_staging").rglob("kept-*/**/*.parquet"))
    aside.rename(first)
    publish_settled(run.job, batch.batch_id)
    assert shown(tmp_path, target) == every(expected(range(COUNT)))
