"""Where tracking ends: any stage may be the last tracked one, and what follows it is not
guarded.
"""

from collections import Counter

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, dropped
from ledger.deltas import spans
from ledger.errors import StageError
from tests.support.reasons import bare

COUNT = 30


def numbers(tmp_path):
    (tmp_path / "in.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(COUNT)))


def totalled(total=None, dedup="none"):
    """numbers -> odd (drops the even) -> totals (unanchored) -> doubled -> out; odd -> kept."""
    pipeline = Pipeline("totals", guarantee="at_least_once")
    pipeline.source("numbers", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads="numbers")
    def odd(frame):
        return frame.where("n % 2 = 1"), dropped(frame.where("n % 2 = 0"), "even")

    def totals(frame):
        return frame.groupBy((F.col("n") % 5).alias("rest")).count()

    pipeline.stage(reads="odd", acks="untracked")(total or totals)

    @pipeline.stage(reads=(total or totals).__name__)
    def doubled(frame):
        return frame.withColumn("twice", F.col("count") * 2)

    pipeline.sink("out", ParquetSink("out", dedup=dedup), reads="doubled")
    pipeline.sink("kept", ParquetSink("kept"), reads="odd")
    return pipeline


def test_any_stage_may_be_the_last_tracked_one(runner, tmp_path, sink_rows):
    """Records are acked once an unanchored stage has read them; what it makes of them flows on
    without anchors.
    """
    numbers(tmp_path)
    run = runner(totalled())
    batch = run.open()
    assert run.settled(batch).failed == 0
    assert Counter(sink_rows("out", "rest", "count", "twice")) == Counter(
        (n, 3, 6) for n in range(5)
    )
    assert len(sink_rows("kept")) == COUNT // 2
    rows = run.ledger.rows("SELECT step, delta_rows FROM step_run ORDER BY step_run_id")
    assert {row.step: row.delta_rows for row in rows} == {
        "numbers": COUNT,
        "odd": COUNT,
        "totals": COUNT // 2,
        "doubled": 0,
        "out": 0,
        "kept": COUNT // 2,
    }


def test_a_run_that_folds_nothing_writes_nothing(runner, tmp_path, monkeypatch):
    """Where records share rows of the ledger the runs that add to them leave files, and no others:
    a settlement needs none of theirs.
    """
    numbers(tmp_path)
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    run = runner(totalled())
    run.steps(run.open())
    rows = run.ledger.rows("SELECT step FROM step_run WHERE root_files IS NOT NULL ORDER BY 1")
    assert [row.step for row in rows] == ["kept", "numbers", "odd", "totals"]


def test_a_loss_before_the_end_is_still_found(runner, tmp_path):
    """In front of the unanchored stage every record is guarded as ever."""
    numbers(tmp_path)
    pipeline = totalled()

    @pipeline.stage(reads="odd", filters="lost")
    def picky(frame):
        return frame.where("n > 10")

    pipeline.sink("more", ParquetSink("more"), reads="picky")
    run = runner(pipeline)
    assert run.settled(run.open()).failed == 5
    rows = run.ledger.rows("SELECT DISTINCT step, reason FROM failed_root_detail")
    assert [(row.step, bare(row.reason)) for row in rows] == [
        ("picky", "filter: condition false: n > 10")
    ]


def test_rerun_of_untracked_steps(runner, tmp_path, sink_rows):
    """Running the untracked steps again before the settlement replaces what they delivered."""
    numbers(tmp_path)
    run = runner(totalled())
    batch = run.open()
    run.steps(batch)
    for name in ("totals", "doubled", "out"):
        run.step(batch, name)
    assert run.settled(batch).failed == 0
    assert len(sink_rows("out", "rest")) == 5


def failing(frame):
    return frame.withColumn("_failed", F.lit("no"))


def marking(frame):
    return frame.groupBy("n").count(), dropped(frame, "x")


@pytest.mark.parametrize(
    ("total", "message"),
    [(failing, "no record can fail"), (marking, "tracking ends there or before")],
)
def test_nothing_fails_where_nothing_is_tracked(runner, tmp_path, total, message):
    """An unanchored stage cannot fail or drop records, and says so."""
    numbers(tmp_path)
    run = runner(totalled(total))
    with pytest.raises(StageError, match=message):
        run.steps(run.open())
