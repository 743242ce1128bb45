"""What a sink delivers once: replays of partly delivered records, and keys over batches."""

import logging
from collections import Counter
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger.errors import ConfigurationError, IntegrityError, StageError
from ledger.execution import settle_and_follow
from ledger.store import embedded
from tests.support.dying import Died, dies_at
from tests.support.runner import END, START

MONTH = END - START
KEYED = {"key": ("k",), "capacity": 10_000}


def numbers(tmp_path, values, name="in.csv"):
    (tmp_path / name).write_text("n\n" + "".join(f"{n}\n" for n in values))


def losses(tmp_path, *pairs):
    (tmp_path / "losses.csv").write_text("n,copy\n" + "".join(f"{n},{copy}\n" for n, copy in pairs))


def splitting(dedup, *, equal=False):
    """Three rows a record, of which those in losses.csv vanish before the sink."""
    pipeline = Pipeline("splitting", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))
    source = FileSource("losses.csv", schema="n INT, copy INT")
    pipeline.reference("losses", source, allow_empty=True)

    @pipeline.stage(reads="numbers")
    def thrice(frame):
        return frame.withColumn("copy", F.explode(F.array(*map(F.lit, (1, 2, 3)))))

    @pipeline.stage(reads="thrice", filters="lost")
    def lossy(frame, *, losses):
        rest = frame.join(F.broadcast(losses), ["n", "copy"], "left_anti")
        return rest.drop("copy") if equal else rest

    pipeline.sink("out", ParquetSink("out", dedup=dedup), reads="lossy")
    return pipeline


def keyed(bloom, path="{{ interval_start | ds }}.csv"):
    """Rows k, v straight from the file of the interval to the sink."""
    pipeline = Pipeline("keyed", guarantee="at_least_once")
    pipeline.source("rows", FileSource(path, schema="k STRING, v INT"))
    pipeline.sink("out", ParquetSink("out", dedup=bloom), reads="rows")
    return pipeline


def write_keys(tmp_path, month, pairs):
    lines = "".join(f"{'' if k is None else k},{v}\n" for k, v in pairs)
    (tmp_path / f"2013-0{month}-01.csv").write_text("k,v\n" + lines)


def month(run, number):
    """Run and settle the batch of one month."""
    start = START.replace(month=number)
    batch = run.open(f"run{number}", start, start + MONTH)
    settlement = run.settled(batch)
    assert settlement.failed == 0
    return batch


@pytest.mark.parametrize("capacity", [10_000, 20_000])
def test_a_key_that_a_later_batch_dropped_comes_with_the_reprocess(
    runner, tmp_path, sink_rows, capacity
):
    """A later batch has left the row out in favour of the one that is run again: it has not
    delivered it, whether its filter can be united with the new one or not."""
    write_keys(tmp_path, 1, [("a", 1), ("b", 1)])
    write_keys(tmp_path, 2, [("a", 2), ("c", 2)])
    run = runner(keyed(Bloom(**KEYED)))
    month(run, 1)
    month(run, 2)
    again = runner(keyed(Bloom(key=("k",), capacity=capacity)))
    again.settled(again.open("again", START, END, reprocess=True))
    assert sink_rows("out", "k", "v") == [("a", 1), ("b", 1), ("c", 2)]


@pytest.mark.parametrize("dedup", ["exact", Bloom(capacity=1000)], ids=["exact", "Bloom"])
def test_a_row_that_a_sink_did_not_get_is_not_taken_for_delivered(
    runner, tmp_path, sink_rows, dedup
):
    """Of a record that failed at the sink itself, which got another number of its rows than there
    are, a replay delivers all rows: none is dropped that the sink may lack.
    """
    numbers(tmp_path, range(5))
    losses(tmp_path)
    misread = {"out": "n <> 3 OR copy <> 2"}
    hurt = runner(
        splitting(dedup), on_read=lambda step, frame: frame.where(misread.get(step, "true"))
    )
    assert hurt.settled(hurt.open()).failed == 1
    assert [tuple(row) for row in hurt.ledger.rows("SELECT step FROM failed_root")] == [("out",)]
    assert (3, 2) not in sink_rows("out", "n", "copy")
    run = runner(splitting(dedup))
    assert run.settled(run.open_replay(1)).failed == 0
    assert {*sink_rows("out", "n", "copy")} == {(n, copy) for n in range(5) for copy in (1, 2, 3)}


def failing_too(dedup, where):
    """Of record 3 one row fails: ``beside`` the sink, in another reader of what it reads, or
    ``before`` it."""
    pipeline = Pipeline("failing", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers")
    def thrice(frame):
        copies = frame.withColumn("copy", F.explode(F.array(*map(F.lit, (1, 2, 3)))))
        return failing(copies) if where == "before" else copies

    if where != "before":

        @pipeline.stage(reads="thrice")
        def checked(frame):
            return failing(frame)

        pipeline.sink("checks", ParquetSink("checks"), reads="checked")
    pipeline.sink("out", ParquetSink("out", dedup=dedup), reads="thrice")
    return pipeline


def failing(frame):
    bad = F.expr("n = 3 AND copy = 3") & F.lit(Path("bad.txt").exists())
    return frame.withColumn("_failed", F.when(bad, "bad"))


@pytest.mark.parametrize("folded_by", ["driver", "executors"], indirect=True)
@pytest.mark.parametrize("where", ["beside", "before", "lost beside"])
@pytest.mark.parametrize("got", ["all", "lost", "swapped"])
def test_a_row_that_a_sink_did_not_get_comes_again_wherever_its_record_failed(
    folded_by, runner, tmp_path, sink_rows, monkeypatch, where, got
):
    """A sink missed a row, or got another twice for it, of a record that is named at another step:
    the replay does not take that row for delivered. A sink that got all of its input gets none
    again.
    """
    monkeypatch.chdir(tmp_path)
    numbers(tmp_path, range(5))
    (tmp_path / "bad.txt").touch()

    def misread(step, frame):
        if step == "checked" and where == "lost beside":
            return frame.where("n <> 3 OR copy <> 1")
        if step != "out" or got == "all":
            return frame
        rest = frame.where("n <> 3 OR copy <> 2")
        doubled = frame.where("n = 3 AND copy = 1")
        return rest.unionByName(doubled) if got == "swapped" else rest

    hurt = runner(failing_too("exact", where), on_read=misread)
    assert hurt.settled(hurt.open()).failed == 1
    (named,) = hurt.ledger.rows("SELECT step, reason, missed_by FROM failed_root")
    missed = None if got == "all" else ["out"]
    assert tuple(named) == ("thrice" if where == "before" else "checked", "bad", missed)
    assert ((3, 2) in sink_rows("out", "n", "copy")) == (got == "all")
    (tmp_path / "bad.txt").unlink()
    run = runner(failing_too("exact", where))
    assert run.settled(run.open_replay(1)).failed == 0
    rows = Counter(sink_rows("out", "n", "copy"))
    assert {*rows} == {(n, copy) for n in range(5) for copy in (1, 2, 3)}
    assert {row for row, times in rows.items() if times > 1} <= {(3, 1), (3, 2), (3, 3)}
    assert got != "all" or rows.total() == len(rows)


@pytest.mark.parametrize("equal", [False, True], ids=["distinct rows", "equal rows"])
@pytest.mark.parametrize(
    "dedup",
    ["none", "exact", Bloom(capacity=1000), Bloom(capacity=1000, error_rate=0.5)],
    ids=["none", "exact", "Bloom", "Bloom of 0.5"],
)
def test_partly_delivered_records_are_completed(runner, tmp_path, sink_rows, dedup, equal):
    """A replay delivers just the rows of a record that were lost; without dedup it repeats the
    others.
    """
    numbers(tmp_path, range(40))
    losses(tmp_path, (7, 2), (8, 1), (8, 2), (8, 3), (9, 3))
    run = runner(splitting(dedup, equal=equal))
    assert run.settled(run.open()).failed == 3
    losses(tmp_path, (9, 1))
    assert run.settled(run.open_replay(1, "first")).failed == 1
    losses(tmp_path)
    assert run.settled(run.open_replay(1, "second")).failed == 0
    rows = Counter(sink_rows("out", "n") if equal else sink_rows("out", "n", "copy"))
    wanted = Counter((n,) if equal else (n, copy) for n in range(40) for copy in (1, 2, 3))
    dropped = [
        row.duplicate_rows
        for row in run.ledger.rows(
            "SELECT duplicate_rows FROM step_progress WHERE step = 'out' ORDER BY batch_id",
        )
    ]
    if dedup == "none":
        assert rows >= wanted
        assert (rows.total(), dropped) == (126, [0, 0, 0])
    else:
        assert rows == wanted
        # Of 7 two rows came before. Of 9 the first replay brings one again and one more, the second
        # all three again; where its rows are equal they count by number: two of two, two of three.
        assert dropped == ([0, 4, 2] if equal else [0, 3, 3])


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda frame: frame, False),
        (lambda frame: frame.where("n <> 7"), True),
        (lambda frame: frame.where("n <> 7").unionByName(frame.where("n = 8").limit(1)), True),
    ],
    ids=["all", "lost", "lost and doubled"],
)
def test_rows_written_and_rows_dropped_are_those_that_were_read(
    runner, tmp_path, sink_rows, caplog, change, refused
):
    """Of a sink that drops what was delivered both together are its input's rows, each once: its
    files say so, without another reading. A row that its writer did not get is missed.
    """
    caplog.set_level(logging.INFO, "ledger.spark.folding.fold")
    numbers(tmp_path, range(10))
    losses(tmp_path, (7, 2), (8, 1))
    run = runner(splitting("exact"))
    assert run.settled(run.open()).failed == 2
    losses(tmp_path)
    replay = run.open_replay(1)
    hurt = runner(
        splitting("exact"), on_write=lambda step, rows: change(rows) if step == "out" else rows
    )
    for step in ("numbers", "thrice", "lossy"):
        hurt.step(replay, step)
    caplog.clear()
    if refused:
        with pytest.raises(IntegrityError, match=r"rows read by out in run .*: wrote"):
            hurt.step(replay, "out")
        return
    hurt.step(replay, "out")
    assert [record.fold_way for record in caplog.records if hasattr(record, "fold_way")] == [
        "1 file one by one, in the driver"
    ]
    assert run.ledger.settle(replay.batch_id).failed == 0


def test_timestamps_differ_by_a_microsecond(runner, tmp_path, sink_rows):
    """Rows that differ by a microsecond are different rows: the lost one is the one that is
    delivered.
    """
    numbers(tmp_path, [1])
    losses(tmp_path, (1, 1))
    pipeline = Pipeline("micros", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))
    source = FileSource("losses.csv", schema="n INT, copy INT")
    pipeline.reference("losses", source, allow_empty=True)

    @pipeline.stage(reads="numbers")
    def split(frame):
        return frame.select("*", F.explode(F.array(F.lit(1), F.lit(2))).alias("copy"))

    @pipeline.stage(reads="split", anchors="by_hand")
    def timed(frame, *, losses):
        rest = frame.join(F.broadcast(losses), ["n", "copy"], "left_anti")
        return rest.select(
            "n", F.timestamp_micros(F.col("copy").cast("bigint")).alias("at"), "_anchor"
        )

    pipeline.sink("out", ParquetSink("out", dedup="exact"), reads="timed")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 1
    losses(tmp_path)
    assert run.settled(run.open_replay(1)).failed == 0
    assert [at.microsecond for _, at in sink_rows("out", "n", "at")] == [1, 2]


@pytest.mark.parametrize("error_rate", [0.001, 0.5])
def test_key_over_batches(runner, tmp_path, sink_rows, error_rate):
    """Keys delivered by earlier batches are dropped and acked; however many false maybes, no row
    is lost.
    """
    write_keys(tmp_path, 1, [(k, 1) for k in range(600)])
    write_keys(tmp_path, 2, [(k, 2) for k in range(300, 1200)])
    write_keys(tmp_path, 3, [(k, 3) for k in range(0, 1500, 2)])
    run = runner(keyed(Bloom(**KEYED, error_rate=error_rate)))
    for number in (1, 2, 3):
        month(run, number)
    rows = sink_rows("out", "k", "v")
    wanted = [(str(k), 1) for k in range(600)] + [(str(k), 2) for k in range(600, 1200)]
    wanted += [(str(k), 3) for k in range(1200, 1500, 2)]
    assert Counter(rows) == Counter(wanted)
    entries = run.ledger.rows("SELECT entries FROM dedup_filter ORDER BY step_run_id")
    assert [row.entries for row in entries] == [600, 600, 150]
    assert run.ledger.row(
        "SELECT duplicate_rows FROM step_progress WHERE batch_id = 3 AND step = 'out'",
    ) == (600,)


def test_null_keys_and_own_repeats_are_no_duplicates(runner, tmp_path, sink_rows):
    """A null key is never a duplicate, and a record is never its own: a batch may repeat its
    keys.
    """
    write_keys(tmp_path, 1, [(None, 1), (None, 2), ("a", 1), ("a", 2)])
    write_keys(tmp_path, 2, [(None, 1), ("a", 3), ("b", 1), ("b", 1)])
    run = runner(keyed(Bloom(**KEYED)))
    first = month(run, 1)
    month(run, 2)
    assert Counter(sink_rows("out", "k", "v")) == Counter(
        [(None, 1), (None, 2), ("a", 1), ("a", 2), (None, 1), ("b", 1), ("b", 1)]
    )
    assert first.batch_id == 1


def test_rerun_of_an_open_batch_drops_nothing(runner, tmp_path, sink_rows):
    """A sink that runs again replaces what it delivered: its own earlier run is no earlier
    delivery.
    """
    write_keys(tmp_path, 1, [(k, 1) for k in range(10)])
    run = runner(keyed(Bloom(**KEYED)))
    batch = run.open()
    run.steps(batch)
    run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 0
    assert len(sink_rows("out", "k")) == 10


def test_open_batches_do_not_drop_in_each_others_favour(runner, tmp_path, sink_rows):
    """What an open batch delivered is not counted on: after its re-run no key is missing from
    the sink.
    """
    write_keys(tmp_path, 1, [("a", 1)])
    write_keys(tmp_path, 2, [("a", 2)])
    run = runner(keyed(Bloom(**KEYED)))
    first = run.open("run1")
    run.steps(first)
    second = run.open("run2", START.replace(month=2), START.replace(month=3))
    assert run.settled(second).failed == 0
    run.step(first, "out")
    assert run.ledger.settle(first.batch_id).failed == 0
    assert ("a",) in sink_rows("out", "k")


def test_window_of_batches(runner, tmp_path, sink_rows):
    """Outside the window of latest batches a key is new again."""
    for number, key in ((1, "a"), (2, "b"), (3, "a"), (4, "a")):
        write_keys(tmp_path, number, [(key, number)])
    run = runner(keyed(Bloom(**KEYED, window_batches=1)))
    for number in (1, 2, 3, 4):
        month(run, number)
    assert sink_rows("out", "k", "v") == [("a", 1), ("a", 3), ("b", 2)]


def test_capacity_is_enforced_on_the_sum(runner, tmp_path, sink_rows):
    """More entries than the capacity, in one batch or in all together, is an error; another
    capacity fixes it.
    """
    write_keys(tmp_path, 1, [(k, 1) for k in range(6)])
    write_keys(tmp_path, 2, [(k, 1) for k in range(10, 16)])
    write_keys(tmp_path, 3, [(k, 1) for k in range(5, 20)])
    run = runner(keyed(Bloom(key=("k",), capacity=11)))
    month(run, 1)
    month(run, 2)
    third = run.open("run3", START.replace(month=3), START.replace(month=4))
    run.step(third, "rows")
    with pytest.raises(
        ConfigurationError,
        match=r"2 earlier batches of sink 'out' would hold 12 entries, its capacity is 11",
    ):
        run.step(third, "out")
    larger = runner(keyed(Bloom(key=("k",), capacity=100)))
    larger.step(third, "out")
    assert run.ledger.settle(third.batch_id).failed == 0
    assert Counter(sink_rows("out", "k")) == Counter(
        (str(k),) for k in [*range(6), *range(10, 16), *range(6, 10), *range(16, 20)]
    )


def test_capacity_of_one_batch(runner, tmp_path):
    """A batch with more keys than the filter's capacity fails before it writes a row."""
    write_keys(tmp_path, 1, [(k, 1) for k in range(6)])
    run = runner(keyed(Bloom(key=("k",), capacity=5)))
    batch = run.open()
    run.step(batch, "rows")
    with pytest.raises(
        ConfigurationError,
        match=r"this batch would hold 6 entries, its capacity is 5.*Raise capacity",
    ):
        run.step(batch, "out")
    assert not (tmp_path / "out").exists()


def test_key_that_is_no_column(runner, tmp_path):
    """A key that the rows lack fails the sink, with what may have been meant."""
    write_keys(tmp_path, 1, [("a", 1)])
    run = runner(keyed(Bloom(key=("kk",), capacity=5)))
    batch = run.open()
    run.step(batch, "rows")
    with pytest.raises(
        StageError, match=r"deduplicates by 'kk', which its input lacks; did you mean 'k'"
    ):
        run.step(batch, "out")


def test_delivery_that_no_longer_counts_is_removed(runner, tmp_path, sink_rows):
    """Rows shown by a run that was superseded, in a batch that expired, are not delivered beside
    their replay.
    """
    numbers(tmp_path, range(5))
    losses(tmp_path)
    run = runner(splitting("exact"))
    batch = run.open()
    run.steps(batch)
    run.step(batch, "thrice")  # supersedes what reads it; nothing behind it runs again
    run.ledger.change(
        "INSERT INTO step_run (batch_id, step, state, attempt_id, try_number, opened_at,"
        f" lease_until) VALUES ({batch.batch_id}, 'lossy', 'running',"
        " 'ffffffff-ffff-7fff-bfff-ffffffffffff', 2, now(), now() - interval '2 hours')"
    )
    assert run.ledger.settle(batch.batch_id).failed == 5
    assert len(sink_rows()) == 15
    replay = run.open_replay(batch.batch_id)
    assert run.settled(replay).failed == 0
    assert Counter(sink_rows("out", "n", "copy")) == Counter(
        {(n, copy): 1 for n in range(5) for copy in (1, 2, 3)}
    )


@pytest.mark.parametrize("kind", ["delta", "folder"])
def test_what_a_superseded_run_published_gives_way_to_the_replay(runner, tmp_path, kind):
    """Rows of a run that died before the ledger noted them, and that was superseded, in a batch
    that expired without another: the replay replaces them.
    """
    numbers(tmp_path, range(5))
    pipeline = Pipeline("superseded", guarantee="at_least_once", message_timeout="10s")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))
    pipeline.stage(reads="numbers")(same)
    pipeline.sink("out", DeltaSink("out") if kind == "delta" else ParquetSink("out"), reads="same")
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "numbers")
    run.step(batch, "same")
    with dies_at("published"), pytest.raises(Died):
        run.step(batch, "out")
    run.step(batch, "same")
    run.ledger.start(batch.batch_id, "out")
    run.ledger.age(batch.batch_id, 100)
    assert run.ledger.settle(batch.batch_id).failed == 5
    assert run.settled(run.open_replay(batch.batch_id)).failed == 0
    if kind == "delta":
        table = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    else:
        table = ds.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert sorted(table["n"].to_pylist()) == list(range(5))


def same(rows):
    return rows


@pytest.mark.parametrize("kind", ["delta", "postgres"])
def test_what_a_dead_run_published_in_a_table_is_there_once(runner, tmp_path, server_home, kind):
    """A run that died after the table's commit, before the ledger had noted it: the next process
    that publishes finds the rows there.
    """
    numbers(tmp_path, range(5))
    url = embedded.ensure_database(embedded.start(server_home), "dead_run")
    table = PostgresSink(url, "out", dedup="exact")
    pipeline = Pipeline("tables", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))
    pipeline.sink(
        "out", DeltaSink("out", dedup="exact") if kind == "delta" else table, reads="numbers"
    )
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "numbers")
    with dies_at("published"), pytest.raises(Died):
        run.step(batch, "out")
    assert settle_and_follow(run.job, batch.batch_id).failed == 0
    (state,) = run.ledger.rows("SELECT state FROM sink_publication")
    assert state == ("published",)
    if kind == "delta":
        rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()["n"].to_pylist()
    else:
        with closing(psycopg2.connect(url.replace("+psycopg2", ""))) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT n FROM out")
            rows = [n for (n,) in cursor.fetchall()]
    assert sorted(rows) == list(range(5))
