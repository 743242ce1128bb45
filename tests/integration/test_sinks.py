"""Every kind of sink in a whole pipeline, under both guarantees, read as its users read it."""

import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import polars
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink, Upsert
from ledger.errors import ConfigurationError, StageError
from ledger.store import embedded
from tests.support.dying import Died, dies_at
from tests.support.publishing import publish_settled
from tests.support.runner import END, START

LOST = {3, 7, 11}
COUNT = 20


@pytest.fixture
def target(server_home):
    """The URL of an empty database beside the ledger's."""
    url = embedded.ensure_database(embedded.start(server_home), "target")
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in ("plain", "latest", "days", "ackledger_commit"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    yield url
    engine.dispose()


def numbers(folder, count=COUNT):
    (folder / "in.csv").write_text(
        "n,at\n" + "\n".join(f"{n},2013-01-0{n % 9 + 1} 05:00:00" for n in range(count))
    )


def spread(target, lose=frozenset(), guarantee="exactly_once", **options) -> Pipeline:
    """n -> (n, half, at) -> a Delta table by half, two tables in PostgreSQL, a folder."""
    pipeline = Pipeline("spread", guarantee=guarantee, **{"max_replays": 2, **options})
    pipeline.source("numbers", FileSource("in.csv", schema="n INT, at TIMESTAMP"))

    @pipeline.stage(reads="numbers")
    def halves(numbers):
        return numbers.withColumn("half", F.explode(F.array(F.lit("a"), F.lit("b"))))

    @pipeline.stage(reads="halves", filters="lost")
    def lossy(halves):
        return halves.where(~(F.col("n").isin([-1, *lose]) & (F.col("half") == "b")))

    @pipeline.stage(reads="lossy", anchors="by_hand")
    def keyed(lossy):
        return lossy.select(F.concat("half", F.col("n").cast("string")).alias("k"), "n", "_anchor")

    pipeline.sink("delta", DeltaSink("delta", partition_by="half"), reads="lossy")
    pipeline.sink("folder", ParquetSink("folder"), reads="lossy")
    pipeline.sink("plain", PostgresSink(target, "plain"), reads="lossy")
    pipeline.sink("latest", PostgresSink(target, "latest", mode=Upsert("k")), reads="keyed")
    return pipeline


def readers(tmp_path, target, *tables):
    """How each sink is read, ``tables`` of PostgreSQL besides: its rows as Counter of n and
    half.
    """
    engine = create_engine(target, poolclass=NullPool)

    def counted(rows):
        return Counter((row["n"], row["half"]) for row in rows)

    def table(name, half):
        with engine.connect() as connection:
            rows = connection.execute(text(f"SELECT n, {half} AS half FROM {name}")).mappings()
            return counted(rows)

    return {
        "delta": lambda: counted(DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist()),
        "polars": lambda: counted(polars.read_delta(str(tmp_path / "delta")).to_dicts()),
        "folder": lambda: counted(
            ds.dataset(tmp_path / "folder", partitioning="hive").to_table().to_pylist()
        ),
        "plain": partial(table, "plain", "half"),
        "latest": partial(table, "latest", "left(k, 1)"),
        **{name: partial(table, name, "half") for name in tables},
    }


def read(tmp_path, target):
    """The rows of each sink, by its own readers."""
    return {name: look() for name, look in readers(tmp_path, target).items()}


def expected(keep=lambda n: True, count=COUNT):
    return Counter((n, half) for n in range(count) if keep(n) for half in "ab")


def every(sink_rows_, rows):
    return dict.fromkeys(sink_rows_, rows) == sink_rows_


def test_rows_of_failed_records_reach_no_sink(runner, tmp_path, target):
    """In every sink: the acked records of the batch, then after the replay all, each row once."""
    numbers(tmp_path)
    run = runner(spread(target, LOST))
    batch = run.open()
    assert run.settled(batch).failed == len(LOST)
    assert every(read(tmp_path, target), expected(lambda n: n not in LOST))
    fixed = runner(spread(target))
    assert fixed.settled(fixed.open_replay(batch.batch_id)).failed == 0
    assert every(read(tmp_path, target), expected())


def test_only_files_with_rows_of_failed_records_are_written_again(runner, tmp_path):
    """In a Delta table the staged files without such a row are committed as they are, the others
    are written again.
    """
    numbers(tmp_path)
    pipeline = Pipeline("grouped", guarantee="exactly_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT, at TIMESTAMP"))

    @pipeline.stage(reads="numbers", anchors="by_hand")
    def grouped(numbers):
        return numbers.select("n", (F.col("n") % 5).alias("group"), "_anchor")

    @pipeline.stage(reads="grouped")
    def lossy(grouped):
        return grouped.withColumn("_failed", F.when(F.col("n").isin([-1, *LOST]), "bad"))

    pipeline.sink("delta", DeltaSink("delta", partition_by="group"), reads="grouped")
    pipeline.sink("other", ParquetSink("other"), reads="lossy")
    run = runner(pipeline)
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    staged = sorted(map(str, (tmp_path / "delta").rglob("part-*.parquet")))
    publish_settled(run.job, batch.batch_id)
    table = DeltaTable(tmp_path / "delta")
    as_staged = [path for path in table.file_uris() if "kept-" not in path]
    written_again = [path for path in table.file_uris() if "kept-" in path]
    assert len(staged) == 5
    assert sorted(as_staged) == [path for path in staged if "group=0" in path or "group=4" in path]
    assert len(written_again) == 3
    rows = table.to_pyarrow_table()
    assert rows.column_names == ["n", "group"]
    assert sorted(rows["n"].to_pylist()) == [n for n in range(COUNT) if n not in LOST]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_reprocessing_replaces_the_rows_of_every_sink(runner, tmp_path, target, guarantee):
    """The old batch's rows, and those of its replay, go at the instant at which the new ones come,
    once the new batch is settled.
    """
    numbers(tmp_path)
    run = runner(spread(target, LOST, guarantee=guarantee))
    batch = run.open()
    run.settled(batch)
    fixed = runner(spread(target, {3}, guarantee=guarantee))
    fixed.settled(fixed.open_replay(batch.batch_id))
    before = read(tmp_path, target)
    numbers(tmp_path, 10)
    job = fixed.job
    again = fixed.open("again", reprocess=True)
    fixed.steps(again)
    assert read(tmp_path, target) == before
    with dies_at("published", "folder"), pytest.raises(Died):
        fixed.settled(again)
    publish_settled(job, again.batch_id)
    of_three = Counter({(3, "a"): 1 if guarantee == "at_least_once" else 0})
    assert every(read(tmp_path, target), expected(lambda n: n != 3, 10) + of_three)


def test_a_reader_beside_it_sees_whole_batches_in_every_sink(runner, tmp_path, target):
    """Read in a loop from before the first batch, through a replay, to behind a reprocess: each
    sink, by its own reader, shows nothing, what was acked, everything, what took its place, one
    after the other, and never a part.
    """
    numbers(tmp_path)
    wholes = [expected(lambda n: n not in LOST), expected(), expected(count=10)]
    looks, stop = {}, threading.Event()

    def watch(name, look):
        seen = looks.setdefault(name, [])
        while not stop.is_set():
            with suppress(TableNotFoundError, ProgrammingError, FileNotFoundError):
                rows = look()
                if rows and (not seen or seen[-1] != rows):
                    seen.append(rows)

    watched = readers(tmp_path, target, "days")
    threads = [threading.Thread(target=watch, args=pair) for pair in watched.items()]
    for thread in threads:
        thread.start()
    try:
        run, fixed = (runner(_with_days(spread(target, lose), target)) for lose in (LOST, ()))
        batch = run.open()
        run.settled(batch)
        fixed.settled(fixed.open_replay(batch.batch_id))
        numbers(tmp_path, 10)
        fixed.settled(fixed.open("again", reprocess=True))
        time.sleep(2)  # for a last look
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert looks == dict.fromkeys(watched, wholes)


def _with_days(pipeline, target):
    pipeline.sink("days", PostgresSink(target, "days", mode="replace_interval"), reads="lossy")
    return pipeline


def test_at_least_once_publishes_rows_at_the_commit(runner, tmp_path, target):
    """The same pipeline at least once: all rows at once; a run that is repeated replaces its
    own.
    """
    numbers(tmp_path)
    run = runner(spread(target, LOST, guarantee="at_least_once"))
    batch = run.open()
    run.steps(batch)
    partly = expected() - Counter((n, "b") for n in LOST)
    assert every(read(tmp_path, target), partly)
    for name in ("delta", "plain", "latest", "folder"):
        run.step(batch, name)
    assert every(read(tmp_path, target), partly)
    run.settled(batch)
    fixed = runner(spread(target, guarantee="at_least_once"))
    fixed.settled(fixed.open_replay(batch.batch_id))
    result = read(tmp_path, target)
    assert result["latest"] == expected()
    del result["latest"]
    assert every(result, partly + expected(lambda n: n in LOST))


def test_an_upsert_keeps_the_newer_interval(runner, tmp_path, target):
    """A row of an older interval that comes later does not overwrite the newer one of its key."""
    numbers(tmp_path)
    run = runner(spread(target))
    later = datetime(2013, 3, 1, tzinfo=UTC), datetime(2013, 4, 1, tzinfo=UTC)
    run.settled(run.open("later", *later))
    (tmp_path / "in.csv").write_text(
        "n,at\n" + "\n".join(f"{n},2013-01-01 00:00:00" for n in range(5))
    )

    earlier = spread(target)
    earlier._steps.pop("latest")
    earlier.sink("latest", PostgresSink(target, "latest", mode=Upsert("k")), reads="constant")

    @earlier.stage(reads="keyed")
    def constant(keyed):
        return keyed.withColumn("n", F.lit(-1))

    older = runner(earlier)
    assert older.settled(older.open("earlier", START, END)).failed == 0
    assert read(tmp_path, target)["latest"] == expected()


def test_a_table_that_does_not_fit_fails_before_anything_is_staged(runner, tmp_path, target):
    """A column that the table lacks is named with the statement that fixes it; nothing is
    written.
    """
    with create_engine(target).begin() as connection:
        connection.execute(text("CREATE TABLE plain (n int, ackledger_batch bigint)"))
    numbers(tmp_path)
    run = runner(spread(target))
    batch = run.open()
    for name in ("numbers", "halves", "lossy"):
        run.step(batch, name)
    with pytest.raises(StageError, match=r"ALTER TABLE"):
        run.step(batch, "plain")
    assert not (tmp_path / "storage" / "spread" / "plain").exists()


def test_an_address_from_the_environment(runner, tmp_path, target, monkeypatch):
    """A sink's URL may stand in a variable; without it the error says which to set."""
    numbers(tmp_path)
    run = runner(spread("env:REPORTING_URL"))
    batch = run.open()
    for name in ("numbers", "halves", "lossy"):
        run.step(batch, name)
    with pytest.raises(ConfigurationError, match="variable REPORTING_URL is not set"):
        run.step(batch, "plain")
    monkeypatch.setenv("REPORTING_URL", target)
    run.settled(batch)
    assert read(tmp_path, target)["plain"] == expected()


def test_a_publish_that_died_after_the_sinks_commit(runner, tmp_path, target):
    """Each sink's own record says that it has published the batch: the next publish adds
    nothing.
    """
    numbers(tmp_path)
    run = runner(spread(target, LOST))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    with dies_at("published", "delta"), pytest.raises(Died):
        publish_settled(run.job, batch.batch_id)
    assert len(publish_settled(run.job, batch.batch_id)) == 4
    assert every(read(tmp_path, target), expected(lambda n: n not in LOST))
