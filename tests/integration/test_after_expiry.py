"""What follows batches that ended before all of their steps had run."""

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.states import BatchStatus
from ledger.execution import settle_and_follow

SCHEMA = "id INT"


def counting(follower, bad=()):
    """numbers -> checked -> out; ``follower``, a state or a combine, counts what was checked."""
    pipeline = Pipeline("counting", max_replays=3)
    pipeline.source("numbers", FileSource("numbers.csv", schema=SCHEMA))

    @pipeline.stage(reads="numbers")
    def checked(numbers):
        return numbers.withColumn("_failed", F.when(F.col("id").isin(-1, *bad), "bad"))

    pipeline.sink("out", ParquetSink("out"), reads="checked")
    if follower == "state":

        @pipeline.stateful_stage(reads="checked")
        def counted(state, numbers):
            new = numbers.agg(F.count(F.lit(1)).alias("n"))
            both = new if state is None else new.unionByName(state)
            return both.agg(F.sum("n").alias("n"))
    else:

        @pipeline.combine(reads="checked", partial=follower == "partial")
        def counted(numbers):
            return numbers.agg(F.count(F.lit(1)).alias("n"))

    pipeline.sink("count", ParquetSink("count"), reads="counted")
    return pipeline


def expire(run, batch):
    """The stage dies, no driver comes back, and the batch is decided."""
    run.step(batch, "numbers")
    run.ledger.start(batch.batch_id, "checked")
    run.ledger.age(batch.batch_id, 10_000)
    assert run.ledger.settle(batch.batch_id).status is BatchStatus.SETTLED


def test_a_state_leaves_out_a_batch_that_never_ran_its_stage(runner, tmp_path, sink_rows):
    """The next batch does not wait for it; what is replayed of it comes to the state then."""
    (tmp_path / "numbers.csv").write_text("id\n1\n2\n")
    run = runner(counting("state"))
    first = run.open_day(1)
    expire(run, first)
    run.settled(run.open_day(2))
    assert sink_rows("count", "n") == [(2,)]
    run.settled(run.open_replay(first.batch_id))
    assert sink_rows("count", "n") == [(4,)]


def test_a_state_leaves_out_a_replay_that_never_ran_its_stage(runner, tmp_path, sink_rows):
    """The replay after it comes to the state."""
    (tmp_path / "numbers.csv").write_text("id\n1\n2\n")
    run = runner(counting("state", bad=[1]))
    first = run.open_day(1)
    run.settled(first)
    fixed = runner(counting("state"))
    expire(fixed, fixed.open_replay(first.batch_id, "dead"))
    fixed.settled(fixed.open_replay(first.batch_id, "again"))
    assert sink_rows("count", "n") == [(2,)]


@pytest.mark.parametrize("follower", ["partial", "whole"])
def test_a_combine_has_nothing_to_do_where_its_stage_never_ran(
    runner, tmp_path, sink_rows, follower
):
    """Nothing is pending of it until a replay has run the stage."""
    (tmp_path / "numbers.csv").write_text("id\n1\n2\n")
    run = runner(counting(follower))
    batch = run.open_day(1)
    expire(run, batch)
    settle_and_follow(run.job, batch.batch_id)
    pending = "SELECT step FROM pending_follow_up WHERE follow_up IN ('combine', 'publish')"
    assert run.ledger.rows(pending) == []


@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_what_an_abandoned_replay_published_is_replaced(runner, tmp_path, sink_rows, dedup):
    """At least once a sink publishes with its commit, and the other source's records never came:
    the next replay takes the place of those rows."""

    def flow(*bad):
        pipeline = Pipeline("two", guarantee="at_least_once", max_replays=5)
        for name in "ab":

            def stage(rows):
                return rows.withColumn("_failed", F.when(F.col("id").isin(-1, *bad), "bad"))

            stage.__name__ = f"of_{name}"
            pipeline.source(name, FileSource(f"{name}.csv", schema=SCHEMA))
            pipeline.stage(reads=name)(stage)
            pipeline.sink(f"s{name}", ParquetSink(f"s{name}", dedup=dedup), reads=f"of_{name}")
        return pipeline

    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("id\n1\n2\n")
    run = runner(flow(2))
    batch = run.open()
    assert run.settled(batch).failed == 2
    fixed = runner(flow())
    dead = fixed.open_replay(batch.batch_id, "dead")
    for step in ("a", "of_a", "sa"):
        fixed.step(dead, step)
    run.ledger.abandon_dead(dead, "b", seconds=10_000)
    fixed.settled(fixed.open_replay(batch.batch_id, "again"))
    assert sink_rows("sa", "id") == sink_rows("sb", "id") == [(1,), (2,)]
