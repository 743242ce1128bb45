"""What two of a family do side by side, late or again: what is published, and that it comes to
an end.
"""

import threading

import pytest
import sqlalchemy as sa
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import (
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    SqlSource,
    Upsert,
    testing,
)
from ledger.batch import combine_runs, follow_ups
from ledger.batch.outcome.report import advise
from ledger.batch.settlement import Inspection, inspect, settle
from ledger.batch.step_runs import Attempt
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import DeclarationError, InputError, StageError
from ledger.execution import combine, settle_and_follow
from tests.support import totals
from tests.support.dying import Died, dies_at
from tests.support.ledgers import pipeline
from tests.support.publishing import publish_settled
from tests.support.runner import START


def test_two_replays_of_a_held_batch_settle_at_once(ledger):
    """Of two settlements that leave nothing failed one sees it, and decides what is published of
    all three.
    """
    flow = pipeline(publish="complete", guarantee="exactly_once")
    old, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 1])
    ledger.settle(old.batch_id)
    first = ledger.replay(flow, old.batch_id, "first", record=roots[0])
    second = ledger.replay(flow, old.batch_id, "second", record=roots[1])
    for replay in (first, second):
        ledger.run_replay(replay)
    with ledger.database.writer.begin() as connection:
        inspection = inspect(connection, first.batch_id, None)
        assert isinstance(inspection, Inspection)
        settle(connection, inspection, None, now=None, skip_locked=False)  # not committed yet
        other = threading.Thread(target=lambda: ledger.settle(second.batch_id))
        other.start()
        other.join(1)
    other.join()
    assert ledger.row("SELECT count(*) AS n FROM publication").n == 3


def test_a_held_batch_is_decided_when_its_last_replay_is_abandoned(ledger):
    """A replay by hand that is abandoned leaves nothing failed: what was held is published."""
    flow = pipeline(publish="complete", guarantee="exactly_once", max_replays=1)
    old, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 1])
    ledger.settle(old.batch_id)
    failing = ledger.replay(flow, old.batch_id, "failing", record=roots[0])
    again = ledger.emit_replay(failing)
    ledger.run_middle(failing, again, fail={again[0]: "bad"})
    ledger.run_sink(failing, [])
    ledger.settle(failing.batch_id)
    by_hand = ledger.replay(flow, old.batch_id, "by hand", quarantined=True)
    last = ledger.replay(flow, old.batch_id, "last")
    ledger.start(by_hand.batch_id, "source")
    ledger.run_replay(last)
    ledger.settle(last.batch_id)
    assert ledger.row("SELECT count(*) AS n FROM publication").n == 0
    ledger.age(by_hand.batch_id, 100)
    assert ledger.settle(by_hand.batch_id).status is BatchStatus.ABANDONED
    assert ledger.row("SELECT count(*) AS n FROM publication").n == 3


def test_a_partial_combine_follows_the_settlements_not_the_numbers(ledger):
    """Replays that settle out of order are each combined; a combine that began before one is
    fenced.
    """
    flow = pipeline(guarantee="exactly_once")

    @flow.combine(reads="middle", partial=True)
    def total(rows):
        return rows

    flow.sink("daily", ParquetSink("daily"), reads="total")
    old, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 1])
    ledger.settle(old.batch_id)
    first = ledger.replay(flow, old.batch_id, "first", record=roots[0])
    second = ledger.replay(flow, old.batch_id, "second", record=roots[1])
    for replay in (second, first):
        ledger.run_replay(replay)
        ledger.settle(replay.batch_id)
        run = combine_runs.open_due(ledger.database, replay.batch_id, flow.step("total"), Attempt())
        ledger.commit(run)
    again = combine_runs.open_due(ledger.database, second.batch_id, flow.step("total"), Attempt())
    assert again is None


def test_a_combine_that_is_declared_later_is_not_due(ledger):
    """A batch has the combines that its pipeline had when it was opened, and no others."""
    flow = pipeline(guarantee="exactly_once")
    old, _ = ledger.whole_batch(flow, 5)
    ledger.settle(old.batch_id)

    @flow.combine(reads="middle")
    def total(rows):
        return rows

    flow.sink("daily", ParquetSink("daily"), reads="total")
    assert not combine_runs.combines_due(ledger.database, flow, old.batch_id)
    assert (
        combine_runs.open_due(ledger.database, old.batch_id, flow.step("total"), Attempt()) is None
    )
    new, _ = ledger.whole_batch(flow, 5, run_id="new", day=1)
    ledger.settle(new.batch_id)
    assert combine_runs.combines_due(ledger.database, flow, new.batch_id)
    assert (
        combine_runs.open_due(ledger.database, new.batch_id, flow.step("total"), Attempt())
        is not None
    )


def test_a_reprocess_with_failures_replaces_the_old_totals(runner, tmp_path, sink_rows):
    """Its combine runs in its replay, and takes the place of what the old family showed."""
    totals.written(tmp_path)
    run = runner(totals.pipeline())
    run.settled(run.open())
    lossy = runner(totals.pipeline(lose=[4]))
    again = lossy.open("again", reprocess=True)
    lossy.settled(again)
    fixed = runner(totals.pipeline())
    fixed.settled(fixed.open_replay(again.batch_id))
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()


def test_an_old_combine_does_not_replace_a_newer_one(runner, tmp_path, sink_rows):
    """A task of the original that is retried after a replay has made the total again changes
    nothing.
    """
    totals.written(tmp_path)
    run = runner(totals.pipeline(fail=[9], max_replays=0))
    batch = run.open()
    with dies_at("deciding publication"), pytest.raises(Died):
        run.settled(batch)
    fixed = runner(totals.pipeline(max_replays=0))
    fixed.settled(fixed.open_replay(batch.batch_id, quarantined=True))
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()
    combine(run.job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()


def test_a_batch_without_its_total_is_not_complete(runner, tmp_path, sink_rows):
    """A process that dies before the combine leaves a batch that says so, and is found to be
    gone on with.
    """
    totals.written(tmp_path)
    run = runner(totals.pipeline())
    job = run.job
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    publish_settled(job, batch.batch_id)
    assert combine_runs.combines_due(job.database, job.pipeline, batch.batch_id)
    summary = run.ledger.summary(batch.batch_id)
    assert summary.outcome is Outcome.INCOMPLETE
    assert "ackledger publish" in str(advise(summary))
    waiting = job.database.transact(lambda c: follow_ups.waiting(c, job.pipeline.name))
    assert waiting == [batch.batch_id]
    assert [item.sink for item in combine(job, batch.batch_id)] == ["daily"]
    assert run.ledger.summary(batch.batch_id).outcome is Outcome.COMPLETE


def ranks(poison):
    """flights -> kept, which fails one -> a rank within the carrier -> a total."""
    flow = Pipeline("ranks", guarantee="exactly_once", max_replays=0)
    flow.source("flights", FileSource("flights.csv", schema=totals.FLIGHTS))

    @flow.stage(reads="flights")
    def checked(flights):
        return flights.withColumn("_failed", F.when(F.col("flight") == poison, "bad"))

    @flow.stage(reads="checked", anchors="merged_by_hand")
    def ranked(flights):
        place = F.row_number().over(Window.partitionBy("carrier").orderBy("flight"))
        return flights.withColumn("place", place)

    @flow.combine(reads="ranked")
    def per(ranked):
        return ranked.groupBy("carrier").agg(F.count("*").alias("n"), F.sum("delay").alias("delay"))

    flow.sink("daily", ParquetSink("daily"), reads="per")
    return flow


def test_a_combine_after_a_whole_stage_waits_for_the_replay(spark):
    """A record whose replays are used up is failed until a replay leaves it out: then the combine
    has the rest, as that replay has made it.
    """
    result = testing.run_batch(ranks(4), {"flights": totals.FLOWN}, spark=spark)
    assert (result.roots.failed, result.roots.quarantined) == (1, 0)
    assert totals.daily(result) == []
    again = testing.replay(result, ranks(4))
    assert totals.daily(again) == totals.oracle(without=[4])


def test_a_combine_of_a_stage_that_an_earlier_batch_did_not_run(spark):
    """A total over the rest alone would be wrong, and is refused."""

    def build(new, lose=()):
        flow = Pipeline("grown", guarantee="exactly_once")
        flow.source("flights", FileSource("flights.csv", schema=totals.FLIGHTS))

        @flow.stage(reads="flights", filters="lost")
        def checked(flights):
            return flights.where(~F.col("flight").isin([-1, *lose]))

        flow.sink("out", ParquetSink("out"), reads="checked")
        if new:

            @flow.stage(reads="checked")
            def more(flights):
                return flights

            @flow.combine(reads="more")
            def per(more):
                return more.groupBy("carrier").agg(F.count("*").alias("n"))

            flow.sink("daily", ParquetSink("daily"), reads="per")
        return flow

    result = testing.run_batch(build(False, [4]), {"flights": totals.FLOWN}, spark=spark)
    with pytest.raises(InputError, match="'per' reads 'more', which batch 1 has not run"):
        testing.replay(result, build(True))


@pytest.fixture
def target(database):
    """The ledger's own database as a target, with a schema of its own."""
    with database.plain.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS target CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA target")
    yield database.url.render_as_string(hide_password=False)
    with database.plain.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA target CASCADE")


def numbers(folder, values):
    (folder / "in.csv").write_text("k,n\n" + "".join(f"{k},{n}\n" for k, n in values))


def in_table(ledger):
    with ledger.database.plain.begin() as connection:
        return sorted(connection.execute(sa.text("SELECT n FROM target.t")).scalars())


def test_a_day_does_not_replace_its_month(runner, tmp_path, target):
    """Intervals replace each other if they are the same, not if they begin together."""
    flow = Pipeline("months", guarantee="exactly_once")
    flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    flow.sink("t", PostgresSink(target, "target.t", mode="replace_interval"), reads="rows")
    run = runner(flow)
    numbers(tmp_path, [("a", n) for n in range(31)])
    run.settled(run.open("month"))
    numbers(tmp_path, [("a", 100)])
    run.settled(run.open("day", START, START.replace(day=2)))
    assert in_table(run.ledger) == [*range(31), 100]


def test_records_of_one_key_fail_and_the_others_are_published(runner, tmp_path, target):
    """Where an upsert could not choose which row to keep, the records of these rows fail, and
    nothing else.
    """
    numbers(tmp_path, [("a", 1), ("a", 2), ("b", 3)])
    flow = Pipeline("keys", guarantee="exactly_once")
    flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    flow.sink("t", PostgresSink(target, "target.t", mode=Upsert("k")), reads="rows")
    run = runner(flow)
    assert run.settled(run.open()).failed == 2
    rows = run.ledger.rows("SELECT DISTINCT step, reason FROM failed_root")
    message = (
        "2 rows of the batch have this key of the sink (k), and nothing says which is the newest"
    )
    assert [tuple(row) for row in rows] == [("t", message)]
    assert in_table(run.ledger) == [3]


@pytest.mark.parametrize("kind", ["combine", "state"])
def test_a_total_with_rows_of_one_key_is_refused_before_it_is_decided(
    runner, tmp_path, target, kind
):
    """Nothing of it is committed, so the fixed function takes its place."""

    def build(rows_of_a_key):
        flow = Pipeline("key_totals", guarantee="exactly_once")
        flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))

        def combined(rows):
            return rows.where(F.col("n") <= rows_of_a_key)

        def checked(state, rows):
            return combined(rows)

        if kind == "combine":
            flow.combine(reads="rows")(combined)
        else:
            flow.stateful_stage(reads="rows")(checked)
        reads = "combined" if kind == "combine" else "checked"
        flow.sink("t", PostgresSink(target, "target.t", mode=Upsert("k")), reads=reads)
        flow.sink("raw", ParquetSink("raw"), reads="rows")
        return flow

    numbers(tmp_path, [("a", 1), ("a", 2)])
    run = runner(build(2))
    batch = run.open()
    with pytest.raises(StageError, match=r"2 rows have the key \{'k': 'a'\}"):
        run.settled(batch)
    assert not run.ledger.rows("SELECT * FROM publication WHERE sink = 't'")
    fixed = runner(build(1))
    settle_and_follow(fixed.job, batch.batch_id)
    assert in_table(run.ledger) == [1]


def test_a_replay_of_a_whole_batch_makes_room_in_a_table(runner, tmp_path, target):
    """Rows of a replay have the keys of the rows that they replace: these leave with them, also
    one whose record is not in the replay. Two rows of one key are refused by name.
    """

    def build(fail, key):
        flow = Pipeline("same_keys", guarantee="exactly_once", max_replays=0)
        flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))

        @flow.stage(reads="rows")
        def checked(rows):
            return rows.withColumn("_failed", F.when(F.col("n") == fail, "bad"))

        @flow.stage(reads="checked", anchors="merged_by_hand")
        def ranked(checked):
            place = F.row_number().over(Window.partitionBy("k").orderBy("n"))
            return checked.withColumn("place", place + key)

        flow.sink("t", PostgresSink(target, "target.t", mode=Upsert("place")), reads="ranked")
        return flow

    numbers(tmp_path, [("a", 1), ("a", 2), ("b", 3)])
    apart = F.when(F.col("k") == "a", 10).otherwise(0)
    run = runner(build(2, apart))
    batch = run.open()
    run.settled(batch)
    assert in_table(run.ledger) == [1, 3]
    run.settled(run.open_replay(batch.batch_id, "without"))
    assert in_table(run.ledger) == [1, 3]
    again = runner(build(-1, F.lit(0)))
    replay = again.open_replay(batch.batch_id, "with", quarantined=True)
    assert again.settled(replay).failed == 2
    failed = "SELECT DISTINCT step, reason FROM failed_root WHERE batch_id = {}"
    ((step, reason),) = again.ledger.rows(failed.format(replay.batch_id))
    assert step == "t", reason
    assert "2 rows of the batch have this key of the sink (place)" in reason
    assert in_table(again.ledger) == [2]
    fixed = runner(build(-1, apart))
    fixed.settled(fixed.open_replay(batch.batch_id, "fixed"))
    assert in_table(fixed.ledger) == [2]  # those given up are left out
    fixed.settled(fixed.open_replay(batch.batch_id, "all", quarantined=True))
    assert in_table(fixed.ledger) == [1, 2, 3]


def test_a_sink_that_refuses_keeps_no_other_waiting(runner, tmp_path, target, sink_rows):
    """What is wrong with one sink is raised once the others show the batch."""
    numbers(tmp_path, [("a", 1)])
    flow = Pipeline("refusing", guarantee="exactly_once")
    flow.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    flow.sink("t", PostgresSink(target, "target.t"), reads="rows")
    flow.sink("z", ParquetSink("z"), reads="rows")
    run = runner(flow)
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    run.ledger.change("CREATE TABLE target.t (n int, ackledger_batch bigint)")
    with pytest.raises(StageError):
        publish_settled(run.job, batch.batch_id)
    assert sink_rows("z", "n") == [(1,)]


def test_a_sink_that_refuses_keeps_no_other_flow_waiting(runner, tmp_path, target, sink_rows):
    """One source's target takes no rows; the total and the state of the other source are made
    and published.
    """
    numbers(tmp_path, [("a", 1)])
    flow = Pipeline("flows", guarantee="exactly_once")
    for name in ("refused", "sound"):
        flow.source(name, FileSource("in.csv", schema="k STRING, n INT"))
    flow.sink("t", PostgresSink(target, "target.t"), reads="refused")

    @flow.combine(reads="sound")
    def total(sound):
        return sound.agg(F.sum("n").alias("n"))

    @flow.stateful_stage(reads="sound")
    def latest(state, batch):
        return batch

    flow.sink("totals", ParquetSink("totals"), reads="total")
    flow.sink("states", ParquetSink("states"), reads="latest")
    run = runner(flow)
    batch = run.open()
    run.steps(batch)
    run.ledger.change("CREATE TABLE target.t (n int, ackledger_batch bigint)")
    with pytest.raises(StageError):
        settle_and_follow(run.job, batch.batch_id)
    assert sink_rows("totals", "n") == [(1,)]
    assert sink_rows("states", "k", "n") == [("a", 1)]


def test_what_could_not_be_right_is_refused():
    """A declaration under which a sink could not show each record once."""
    with pytest.raises(DeclarationError, match="at least once they publish it at once"):
        Pipeline("x", guarantee="at_least_once", publish="complete")


def test_an_incremental_source_has_no_interval_to_replace():
    """Its batches read what is new, so none of them takes another's place."""
    flow = Pipeline("claims")
    flow.source("t", SqlSource("sqlite:///x.db", "t", cursor="id", schema="id BIGINT"))
    flow.sink("out", PostgresSink("postgresql://x", "out", mode="replace_interval"), reads="t")
    with pytest.raises(DeclarationError, match="'t' is incremental"):
        flow.steps()
