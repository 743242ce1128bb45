"""Joins that wait until a group is complete, as in the tests of Storm's acking."""

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, collect_anchors, testing

ROW = "n INT"


def branching(width):
    """A stage that emits ``width`` rows for each."""

    def branch(rows):
        return rows.withColumn("copy", F.explode(F.sequence(F.lit(1), F.lit(width))))

    return branch


def grouped(*frames, size, order=("source", "n", "copy")):
    """Complete groups of ``size`` rows, in order; what is left of the last one is not emitted."""
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    numbered = rows.withColumn("at", F.row_number().over(Window.orderBy(*order)) - 1)
    groups = numbered.groupBy(F.floor(F.col("at") / size).alias("group"))
    result = groups.agg(F.count(F.lit(1)).alias("rows"), collect_anchors())
    return result.where(F.col("rows") == size)


def declared(pipeline, reads, function, name, **options):
    function.__name__ = name
    pipeline.stage(reads=reads, **options)(function)


def three_sources():
    """Sources with a fan-out of 2, 4 and 1 that meet in a join of three, then a fan-out of 2."""
    pipeline = Pipeline("acking", guarantee="at_least_once")
    for name, width in (("one", 2), ("two", 4), ("three", 1)):
        pipeline.source(name, FileSource(f"{name}.csv", schema=ROW))
        declared(pipeline, name, named(name, branching(width)), f"branch_{name}")

    @pipeline.stage(reads=["branch_one", "branch_two", "branch_three"], anchors="merged_by_hand")
    def joined(first, two, three):
        return grouped(first, two, three, size=3)

    declared(pipeline, "joined", branching(2), "again")
    pipeline.sink("out", ParquetSink("out"), reads="again")
    return pipeline


def named(source, branch):
    def stage(rows):
        return branch(rows).withColumn("source", F.lit(source))

    return stage


def failed_sources(result):
    return sorted(record.source for record in result.failed)


def test_three_sources_meet_in_a_join_of_three(spark):
    """A record is acked only when every group that one of its rows is in is complete and went
    on.
    """
    single = [{"n": 1}]
    # one, one, three | two, two, two | two: the last group is not complete, so two is not acked.
    result = testing.run_batch(
        three_sources(), {"one": single, "two": single, "three": single}, spark=spark
    )
    assert failed_sources(result) == ["two"]
    assert len(result.rows["out"]) == 4

    # Two rows more complete it.
    more = {"one": [{"n": 1}, {"n": 2}], "two": single, "three": single}
    whole = testing.run_batch(three_sources(), more, spark=spark)
    assert whole.roots.acked == 4
    assert len(whole.rows["out"]) == 6


def two_paths():
    """One source from which two paths lead to a join of four; each record's rows follow each
    other.
    """
    pipeline = Pipeline("paths", guarantee="at_least_once")
    pipeline.source("words", FileSource("words.csv", schema=ROW))
    declared(pipeline, "words", named("left", branching(1)), "left")
    declared(pipeline, "words", named("right", branching(1)), "right")

    @pipeline.stage(reads=["left", "right"], anchors="merged_by_hand")
    def joined(left, right):
        return grouped(left, right, size=4, order=("n", "source"))

    pipeline.sink("out", ParquetSink("out"), reads="joined")
    return pipeline


@pytest.mark.parametrize(("records", "acked"), [(1, 0), (2, 2), (3, 2)])
def test_two_paths_meet_in_a_join_of_four(spark, records, acked):
    """Nothing is acked after two tuples, both records after four; a third waits for its own
    group.
    """
    words = [{"n": n} for n in range(records)]
    result = testing.run_batch(two_paths(), {"words": words}, spark=spark)
    assert result.roots.acked == acked
    assert result.roots.failed == records - acked


def test_what_did_not_meet_is_completed_by_the_replay(spark):
    """The rest of a group is replayed with the batch, and acked once its partner was lost no
    more.
    """
    lost = testing.lose_rows("right", fraction=1.0)
    result = testing.run_batch(
        two_paths(), {"words": [{"n": 1}, {"n": 2}]}, spark=spark, faults=[lost]
    )
    assert result.roots.acked == 0
    assert result.rows["out"] == []
    assert testing.replay(result).roots.acked == 2
