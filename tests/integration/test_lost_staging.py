"""A staged file that is lost after the settlement stops its sink."""

import re
from collections import Counter

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger import execution as running
from ledger.batch.advice.batches import reprocess
from ledger.batch.publishing import publish
from ledger.core.probes import listening
from ledger.errors import ConfigurationError, LostFileError
from ledger.execution import withhold
from ledger.execution.follow_ups import settle_and_follow
from ledger.store import embedded
from tests.support.dying import Died, dies_at
from tests.support.publishing import publish_settled
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
    flow = Pipeline("losing", guarantee="exactly_once", max_replays=3)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def halves(numbers):
        return numbers.withColumn("half", F.explode(F.array(F.lit("a"), F.lit("b"))))

    @flow.stage(reads="halves", filters="lost")
    def lossy(halves):
        return halves.where(~(F.col("n").isin([-1, *lose]) & (F.col("half") == "b")))

    @flow.combine(reads="lossy")
    def total(lossy):
        return lossy.agg(F.sum("n").alias("n"))

    @flow.stateful_stage(reads="lossy")
    def latest(state, batch):
        return batch if state is None else state.unionByName(batch)

    by_key = Bloom(key=("n", "half"), capacity=1000)
    flow.sink("delta", DeltaSink("delta", partition_by="half"), reads="lossy")
    flow.sink("folder", ParquetSink("folder", partition_by="half", dedup=by_key), reads="lossy")
    flow.sink("plain", PostgresSink(url, "plain"), reads="lossy")
    flow.sink("totals", PostgresSink(url, "totals"), reads="total")
    flow.sink("states", ParquetSink("states"), reads="latest")
    return flow


def shown(folder, url):
    """What each sink of records shows, as Counters of n and half."""
    rows = {
        "delta": DeltaTable(folder / "delta").to_pyarrow_table().to_pylist(),
        "folder": ds.dataset(folder / "folder", partitioning="hive").to_table().to_pylist(),
    }
    counted = {name: Counter((r["n"], r["half"]) for r in some) for name, some in rows.items()}
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


def staged(folder, batch_id, among="**"):
    """A staged file of each sink of records."""
    places = {
        "delta": folder / "delta" / "_ackledger" / f"batch-{batch_id}",
        "folder": folder / "folder" / "_staging" / f"batch={batch_id}",
        "plain": folder / "storage" / "losing" / "plain" / f"batch={batch_id}",
    }
    return {name: min(place.glob(f"{among}/*.parquet")) for name, place in places.items()}


def lose(files):
    """Remove one file, cut another one's end off, and move the last aside."""
    files["delta"].unlink()
    files["plain"].write_bytes(files["plain"].read_bytes()[:-9])
    files["folder"].rename(files["folder"].with_suffix(".aside"))


def check_lost(job, batch, files):
    """Each sink names its file and the command that reprocesses the batch's interval."""
    again = reprocess(batch)
    for name, path in files.items():
        with pytest.raises(LostFileError, match=re.escape(again)) as error:
            publish(job, batch.batch_id, [name])
        beginning = f"sink {name!r} cannot publish batch {batch.batch_id}: file {path}: expected"
        assert str(error.value).startswith(beginning)
        assert f"publish MODULE:PIPELINE --batch {batch.batch_id}" in str(error.value)


@pytest.mark.parametrize("without", [(), LOST], ids=["as staged", "withheld"])
def test_a_lost_file_stops_its_sink(runner, tmp_path, target, without):
    """A staged file of each kind of sink is gone, or cut off, after a clean settlement, and after
    rows of failed records were withheld: nothing is published. With its file back a sink publishes;
    a reprocess of the interval publishes each row once in all of them.
    """
    run = runner(pipeline(target, without))
    job = run.job
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    assert len(withhold(job, batch.batch_id)) == (3 if without else 0)
    files = staged(tmp_path, batch.batch_id, "**/kept-*/**" if without else "**")
    lose(files)
    check_lost(job, batch, files)
    assert not list((tmp_path / "folder").glob("ackledger_batch=*"))
    files["folder"].with_suffix(".aside").rename(files["folder"])
    publish(job, batch.batch_id, ["folder"])

    again = run.open("again", reprocess=True)
    run.steps(again)
    run.ledger.settle(again.batch_id)
    publish_settled(job, again.batch_id)
    assert shown(tmp_path, target) == every(expected(n for n in range(COUNT) if n not in without))


def test_a_file_that_is_lost_before_rows_are_withheld(runner, tmp_path, target):
    """The sink stays as it is, with the file named; what is not lost is withheld and published."""
    run = runner(pipeline(target, LOST))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    lost = staged(tmp_path, batch.batch_id)["delta"]
    lost.unlink()
    with pytest.raises(LostFileError, match=rf"sink 'delta' cannot publish .*{lost.name}.*gone"):
        publish_settled(run.job, batch.batch_id)
    rows = run.ledger.rows("SELECT sink, state FROM sink_publication ORDER BY sink")
    states = [("delta", "decided"), ("folder", "published"), ("plain", "published")]
    assert [tuple(row) for row in rows] == states


def test_a_lost_file_of_a_total_or_a_state(runner, tmp_path, target):
    """The sink of a total names it. So does that of a state, and the state of the next batch takes
    its place."""
    run = runner(pipeline(target))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    publish_settled(run.job, batch.batch_id)
    with dies_at("publishing"):
        with pytest.raises(Died):
            running.combine(run.job, batch.batch_id)
        with pytest.raises(Died):
            running.advance_states(run.job)
    for place in (tmp_path / "storage" / "losing" / "totals", tmp_path / "states" / "_staging"):
        for path in place.rglob("*.parquet"):
            path.unlink()
    with pytest.raises(LostFileError, match=r"^sink 'totals' cannot publish batch \d+: file"):
        running.combine(run.job, batch.batch_id)
    with pytest.raises(LostFileError, match=r"^sink 'states' cannot publish batch \d+: file"):
        running.advance_states(run.job)
    write(tmp_path, range(20, 24))
    second = run.open("second", END, END.replace(month=END.month + 1))
    run.settled(second)
    states = ds.dataset(tmp_path / "states", partitioning="hive").to_table().to_pylist()
    counts = Counter((row["n"], row["half"]) for row in states)
    assert counts == expected([*range(COUNT), *range(20, 24)])


def test_a_broken_sink_keeps_nothing_else_waiting(runner, tmp_path, target, monkeypatch):
    """While the address of one sink is missing, what failed is withheld in the others, and all of
    them publish; the error is raised at the end. So it is for the sinks of a total and of a state.
    """
    monkeypatch.setenv("LOSING_URL", target)
    run = runner(pipeline("env:LOSING_URL", LOST))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    job = run.job
    run.ledger.settle(batch.batch_id)
    monkeypatch.delenv("LOSING_URL")
    with pytest.raises(ConfigurationError, match="LOSING_URL"):
        publish_settled(job, batch.batch_id)
    rest = expected(n for n in range(COUNT) if n not in LOST)
    rows = DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()
    assert Counter((row["n"], row["half"]) for row in rows) == rest
    monkeypatch.setenv("LOSING_URL", target)
    fixed = runner(pipeline("env:LOSING_URL"))
    replay = fixed.open_replay(batch.batch_id)
    fixed.steps(replay)
    run.ledger.settle(replay.batch_id)
    publish_settled(fixed.job, replay.batch_id)
    assert shown(tmp_path, target) == every(expected(range(COUNT)))
    monkeypatch.delenv("LOSING_URL")
    with pytest.raises(ConfigurationError, match="LOSING_URL"):
        running.combine(fixed.job, replay.batch_id)
    running.advance_states(fixed.job)
    states = ds.dataset(tmp_path / "states", partitioning="hive").to_table().to_pylist()
    assert Counter((row["n"], row["half"]) for row in states) == expected(range(COUNT))


def test_no_reprocess_is_advised_of_what_a_state_includes(runner, tmp_path, target):
    """A state that includes the batch cannot be taken back, so the error names no reprocess."""
    run = runner(pipeline(target))
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    staged(tmp_path, batch.batch_id)["folder"].unlink()
    with pytest.raises(LostFileError):
        settle_and_follow(run.job, batch.batch_id)
    with pytest.raises(LostFileError, match="the state 'latest' includes the batch") as error:
        publish(run.job, batch.batch_id, ["folder"])
    assert "--reprocess" not in str(error.value)


def test_another_driver_publishes_while_rows_are_withheld(runner, tmp_path, target):
    """A driver that comes too late finds the staged files gone, and loses nothing by it."""
    run = runner(pipeline(target, LOST))
    job = run.job
    write(tmp_path, range(COUNT))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    reached_by = []

    def publish_meanwhile(point, of):
        if point == "sink withheld" and not reached_by:
            reached_by.append(of)
            publish_settled(job, batch.batch_id)

    with listening(publish_meanwhile):
        assert withhold(job, batch.batch_id) == ["delta", "folder", "plain"]
    assert reached_by == ["delta"]
    assert shown(tmp_path, target) == every(expected(n for n in range(COUNT) if n not in LOST))
