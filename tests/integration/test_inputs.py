"""Several inputs, several readers, several sources: unions, diamonds and fan-out, tracked by
input.
"""

from collections import Counter

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, dropped
from ledger.errors import StageError
from ledger.sources.files import text
from ledger.spark.frames import stored
from tests.support.reasons import bare

COUNT = 20
FAILED = "SELECT step, reason, count(*) FROM failed_root_detail GROUP BY 1, 2 ORDER BY 1, 2"


def numbers(tmp_path, name="in.csv", start=0):
    (tmp_path / name).write_text("n\n" + "".join(f"{n}\n" for n in range(start, start + COUNT)))


def diamond(unite, **options):
    """numbers -> left and right -> united by ``unite`` -> out."""
    pipeline = Pipeline("diamond", max_replays=1)
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers")
    def left(frame):
        return frame.withColumn("side", F.lit("left"))

    @pipeline.stage(reads="numbers")
    def right(frame):
        return frame.withColumn("side", F.lit("right"))

    @pipeline.stage(reads=["left", "right"], **options)
    def united(left, right):
        return unite(left, right)

    pipeline.sink("out", ParquetSink("out"), reads="united")
    return pipeline


def failures(run):
    return [(step, bare(reason), count) for step, reason, count in run.ledger.rows(FAILED)]


def test_diamond(runner, tmp_path, sink_rows):
    """A record split in two branches and united again is acked once both branches have arrived."""
    numbers(tmp_path)
    run = runner(diamond(lambda left, right: left.unionByName(right)))
    batch = run.open()
    for name in ("numbers", "left", "right", "united"):
        run.step(batch, name)
        assert len(run.ledger.rows("SELECT * FROM pending_root")) == COUNT
    run.step(batch, "out")
    assert run.ledger.rows("SELECT * FROM pending_root") == []
    assert run.settled(batch).failed == 0
    expected = Counter((n, side) for n in range(COUNT) for side in ("left", "right"))
    assert Counter(sink_rows("out", "n", "side")) == expected


@pytest.mark.parametrize(
    ("unite", "lost"),
    [
        (lambda left, right: left, COUNT),
        (lambda left, right: left.unionByName(right.where("n % 2 = 0")), COUNT // 2),
        (lambda left, right: left.where("n <> 3").unionByName(right.where("n <> 4")), 2),
        (lambda left, right: left.unionByName(left), COUNT),
    ],
    ids=["a branch", "half of a branch", "one of each", "a branch, the other twice"],
)
def test_union_that_loses_part_of_a_branch(runner, tmp_path, unite, lost):
    """A union that loses a branch, or rows of it, is found although the record has other rows
    there.
    """
    numbers(tmp_path)
    run = runner(diamond(unite, anchors="by_hand"))
    assert run.settled(run.open()).failed == lost
    assert failures(run) == [("united", "lost", lost)]
    columns = "producers, emitted_edges, acked_edges"
    row = run.ledger.row(f"SELECT DISTINCT {columns} FROM failed_root")
    assert tuple(row) == ("left, right", 2, 1)


def test_parent_anchored_twice_does_not_cancel_itself(runner, tmp_path, sink_rows):
    """An input row with an even number of output rows is acked once, and each output row
    arrives.
    """
    numbers(tmp_path)
    run = runner(diamond(lambda left, right: left.unionByName(left).unionByName(right)))
    assert run.settled(run.open()).failed == 0
    assert len(sink_rows("out", "n")) == COUNT * 3


def test_marks_over_several_inputs(runner, tmp_path, sink_rows, folded_by):
    """One branch may be dropped lawfully: the record is complete with the other's row."""
    numbers(tmp_path)
    run = runner(diamond(lambda left, right: (left, dropped(right, "the left will do"))))
    assert run.settled(run.open()).failed == 0
    assert len(sink_rows("out", "n")) == COUNT
    drops = run.ledger.rows("SELECT step, reason, records FROM step_drops")
    assert [tuple(row) for row in drops] == [("united", "the left will do", COUNT)]


def test_on_read_over_several_inputs(runner, tmp_path, folded_by):
    """A union that acks on read counts every input of every branch, whatever it emits."""
    numbers(tmp_path)
    pipeline = diamond(lambda left, right: left.where("n < 5").unionByName(right), acks="on_read")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 0
    drops = run.ledger.rows("SELECT reason, records FROM step_drops")
    assert [tuple(row) for row in drops] == [("no output", COUNT - 5)]


def test_emits_one_over_several_inputs(runner, tmp_path, folded_by):
    """With emits="one" each branch's row counts by itself: two rows from two inputs are right."""
    numbers(tmp_path)
    pipeline = diamond(
        lambda left, right: left.unionByName(right).unionByName(right.where("n = 7")), emits="one"
    )
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 1
    assert failures(run) == [("united", "more than one row for an input", 1)]


def test_anchor_without_its_input(runner, tmp_path):
    """In a stage of several inputs the input's name is part of the anchor, and may not be taken
    out.
    """
    numbers(tmp_path)
    smaller = F.struct("_anchor.root", "_anchor.parent")
    run = runner(
        diamond(lambda left, right: left.withColumn("_anchor", smaller), anchors="by_hand")
    )
    with pytest.raises(StageError, match="changed '_anchor' to struct<root:bigint,parent:bigint>"):
        run.steps(run.open())


def test_step_that_reads_a_source_and_its_child(runner, tmp_path, sink_rows):
    """A stage may read a step and what was made of it; a loss is named where it happened."""
    numbers(tmp_path)
    pipeline = Pipeline("shortcut")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers", filters="lost")
    def checked(frame):
        return frame.where("n <> 5")

    @pipeline.stage(reads=["numbers", "checked"], filters="lost")
    def united(numbers, checked):
        return numbers.unionByName(checked.where("n <> 6"))

    pipeline.sink("out", ParquetSink("out"), reads="united")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 2
    assert failures(run) == [
        ("checked", "filter: condition false: NOT (n = 5)", 1),
        ("united", "filter: condition false: NOT (n = 6)", 1),
    ]


def test_fan_out_names_the_reader_that_lost(runner, tmp_path, sink_rows):
    """Of three readers of one step the one that loses a record is named; the record waits for
    all three.
    """
    numbers(tmp_path)
    pipeline = Pipeline("fan_out", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers")
    def all_of_them(frame):
        return frame

    @pipeline.stage(reads="all_of_them", filters="lost")
    def odd(frame):
        return frame.where("n % 2 = 1")

    pipeline.sink("first", ParquetSink("first"), reads="all_of_them")
    pipeline.sink("second", ParquetSink("second"), reads="all_of_them")
    pipeline.sink("third", ParquetSink("third"), reads="odd")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == COUNT // 2
    assert failures(run) == [("odd", "filter: condition false: (n % 2) = 1", COUNT // 2)]
    assert len(sink_rows("first")) == len(sink_rows("second")) == COUNT


def two_sources(lose):
    """Two sources united, of which the second's numbers in losses.csv fail."""
    pipeline = Pipeline("two_sources", max_replays=2)
    pipeline.source("small", FileSource("small.csv", schema="n INT"))
    pipeline.source("large", FileSource("large.csv", schema="n INT"))

    @pipeline.stage(reads=["small", "large"], filters="lost")
    def united(small, large):
        return small.unionByName(large.where(~F.col("n").isin(lose)) if lose else large)

    pipeline.sink("out", ParquetSink("out"), reads="united")
    return pipeline


def test_replay_of_one_source_of_two(runner, tmp_path, sink_rows):
    """A replay re-emits only what failed of the one source; the other is emitted with nothing in
    it.
    """
    numbers(tmp_path, "small.csv")
    numbers(tmp_path, "large.csv", 1000)
    broken = runner(two_sources([1003, 1004]))
    batch = broken.open()
    assert broken.settled(batch).failed == 2
    rows = broken.ledger.rows("SELECT DISTINCT source, step FROM failed_root_detail")
    assert [tuple(row) for row in rows] == [("large", "united")]
    fixed = runner(two_sources([]))
    replay = fixed.open_replay(batch.batch_id)
    assert fixed.settled(replay).failed == 0
    emitted = broken.ledger.rows(
        f"SELECT source, roots FROM batch_source WHERE batch_id = {replay.batch_id} ORDER BY 1",
    )
    assert [tuple(row) for row in emitted] == [("large", 2), ("small", 0)]
    assert Counter(sink_rows("out", "n")) == Counter(
        (n,) for n in [*range(COUNT), *range(1000, 1000 + COUNT)]
    )


def test_a_snapshot_of_many_files(runner, tmp_path, sink_rows, monkeypatch):
    """A step finds the record of each row where the files of its input are joined, not compared."""
    monkeypatch.setattr(stored, "MOST_FILES_COMPARED", 1)
    monkeypatch.setattr(text, "HERE", 0)  # each file is read by a task
    (tmp_path / "in").mkdir()
    for number in range(3):
        numbers(tmp_path, f"in/{number}.csv", number * COUNT)
    pipeline = Pipeline("many")
    pipeline.source("numbers", FileSource("in/*", schema="n INT"))
    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "numbers")
    (files,) = run.ledger.rows("SELECT count(*) FROM step_run_file")
    assert tuple(files) == (3,)
    assert run.settled(batch).failed == 0
    assert sink_rows("out", "n") == sorted([(n,) for n in range(3 * COUNT)], key=repr)
