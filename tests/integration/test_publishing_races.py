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
    TableSource,
    collect_anchors,
    testing,
)
from ledger.batch import follow_ups, rebuilds
from ledger.batch.combine_runs import combines_due, is_due, open_due
from ledger.batch.opening import open_batch
from ledger.batch.outcome.report import advise
from ledger.batch.outcome.summary import summarize
from ledger.batch.settlement import _settle, settle_once
from ledger.batch.step_runs import Attempt, Record, commit
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import DeclarationError, InputError, StageError
from ledger.execution import combine, settle_and_follow
from tests.support.dying import Died, dies_at
from tests.support.ledgers import (
    age,
    emit_replay,
    one,
    pipeline,
    replayed,
    reprocessed,
    rows,
    run_all,
    run_middle,
    run_sink,
    started,
    whole_batch,
)
from tests.support.publishing import publish_settled
from tests.support.runner import END, START
from tests.support.totals import FLIGHTS, FLOWN, daily, oracle, totals, written
from tests.support.unit_totals import ORDERED, B, sold
from tests.support.unit_totals import totals as unit_totals


def run_replay(database, replay):
    roots = emit_replay(database, replay)
    run_middle(database, replay, roots)
    run_sink(database, replay, roots)


def test_two_replays_of_a_held_batch_settle_at_once(database):
    """Of two settlements that leave nothing failed one sees it, and decides what is published of
    all three.
    """
    made = pipeline(settle="hold", guarantee="exactly_once")
    old, roots = whole_batch(database, made, 5, lose_sink=[0, 1])
    settle_once(database, old.batch_id)
    first = replayed(database, made, old.batch_id, "first", record=roots[0])
    second = replayed(database, made, old.batch_id, "second", record=roots[1])
    for replay in (first, second):
        run_replay(database, replay)
    with database.writer.begin() as connection:
        _settle(connection, first.batch_id, None, False)  # not committed yet
        other = threading.Thread(target=lambda: settle_once(database, second.batch_id))
        other.start()
        other.join(1)
    other.join()
    assert one(database, "SELECT count(*) AS n FROM publication").n == 3


def test_a_held_batch_is_decided_when_its_last_replay_is_abandoned(database):
    """A replay by hand that is abandoned leaves nothing failed: what was held is published."""
    made = pipeline(settle="hold", guarantee="exactly_once", max_replays=1)
    old, roots = whole_batch(database, made, 5, lose_sink=[0, 1])
    settle_once(database, old.batch_id)
    failing = replayed(database, made, old.batch_id, "failing", record=roots[0])
    again = emit_replay(database, failing)
    run_middle(database, failing, again, fail={again[0]: "bad"})
    run_sink(database, failing, [])
    settle_once(database, failing.batch_id)
    by_hand = replayed(database, made, old.batch_id, "by hand", quarantined=True)
    last = replayed(database, made, old.batch_id, "last")
    started(database, by_hand.batch_id, "source")
    run_replay(database, last)
    settle_once(database, last.batch_id)
    assert one(database, "SELECT count(*) AS n FROM publication").n == 0
    age(database, by_hand.batch_id, 100)
    assert settle_once(database, by_hand.batch_id).status is BatchStatus.ABANDONED
    assert one(database, "SELECT count(*) AS n FROM publication").n == 3


def test_a_partial_combine_follows_the_settlements_not_the_numbers(database):
    """Replays that settle out of order are each combined; a combine that began before one is
    fenced.
    """
    made = pipeline(guarantee="exactly_once")

    @made.combine(reads="middle", partial=True)
    def total(rows):
        return rows

    made.sink("daily", ParquetSink("daily"), reads="total")
    old, roots = whole_batch(database, made, 5, lose_sink=[0, 1])
    settle_once(database, old.batch_id)
    first = replayed(database, made, old.batch_id, "first", record=roots[0])
    second = replayed(database, made, old.batch_id, "second", record=roots[1])
    for replay in (second, first):
        run_replay(database, replay)
        settle_once(database, replay.batch_id)
        assert is_due(database, replay.batch_id, made.step("total"))
        run = open_due(database, replay.batch_id, made.step("total"), Attempt())
        commit(database, run, Record())
    assert not is_due(database, second.batch_id, made.step("total"))


def test_a_combine_that_is_declared_later_is_not_due(database):
    """A batch has the combines that its pipeline had when it was opened, and no others."""
    made = pipeline(guarantee="exactly_once")
    old, _ = whole_batch(database, made, 5)
    settle_once(database, old.batch_id)

    @made.combine(reads="middle")
    def total(rows):
        return rows

    made.sink("daily", ParquetSink("daily"), reads="total")
    assert not combines_due(database, made, old.batch_id)
    assert open_due(database, old.batch_id, made.step("total"), Attempt()) is None
    new, _ = whole_batch(database, made, 5, run_id="new", day=1)
    settle_once(database, new.batch_id)
    assert combines_due(database, made, new.batch_id)
    assert open_due(database, new.batch_id, made.step("total"), Attempt()) is not None


def test_a_withhold_that_comes_after_the_batch_was_replaced(database):
    """It wakes nothing of a batch that gave way to another."""
    made = pipeline(guarantee="exactly_once", max_replays=0)
    old, roots = whole_batch(database, made, 5, lose_sink=[0])
    settle_once(database, old.batch_id)
    run_all(database, reprocessed(database, made))
    database.transact(lambda c: rebuilds.request(c, old.batch_id, [roots[1]], "sink"))
    assert summarize(database, old.batch_id).roots.failed == 0


def test_a_reprocess_with_failures_replaces_the_old_totals(runner, tmp_path, sink_rows):
    """Its combine runs in its replay, and takes the place of what the old family showed."""
    written(tmp_path)
    run = runner(totals())
    run.settled(run.open())
    lossy = runner(totals(lose=[4]))
    job, key = lossy.job, RunKey("", "again")
    again = open_batch(
        job.database, job.settings, job.pipeline, key, Interval(START, END), reprocess=True
    )
    lossy.settled(again)
    fixed = runner(totals())
    fixed.settled(fixed.open_replay(again.batch_id))
    assert sink_rows("daily", "carrier", "n", "delay") == oracle()


def test_an_old_combine_does_not_replace_a_newer_one(runner, tmp_path, sink_rows):
    """A task of the original that is retried after a replay has made the total again changes
    nothing.
    """
    written(tmp_path)
    run = runner(totals(fail=[9], max_replays=0))
    batch = run.open()
    with dies_at("deciding publication"), pytest.raises(Died):
        run.settled(batch)
    fixed = runner(totals(max_replays=0))
    fixed.settled(fixed.open_replay(batch.batch_id, quarantined=True))
    assert sink_rows("daily", "carrier", "n", "delay") == oracle()
    combine(run.job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == oracle()


def test_a_batch_without_its_total_is_not_complete(runner, tmp_path, sink_rows):
    """A process that dies before the combine leaves a batch that says so, and is found to be
    gone on with.
    """
    written(tmp_path)
    run = runner(totals())
    job = run.job
    batch = run.open()
    run.steps(batch)
    settle_once(job.database, batch.batch_id)
    publish_settled(job, batch.batch_id)
    assert combines_due(job.database, job.pipeline, batch.batch_id)
    found = summarize(job.database, batch.batch_id)
    assert found.outcome is Outcome.INCOMPLETE
    assert "ackledger publish" in str(advise(found))
    waiting = job.database.transact(lambda c: follow_ups.waiting(c, job.pipeline.name))
    assert waiting == [batch.batch_id]
    assert [one.sink for one in combine(job, batch.batch_id)] == ["daily"]
    assert summarize(job.database, batch.batch_id).outcome is Outcome.COMPLETE


def ranks(poison):
    """flights -> kept, which fails one -> a rank within the carrier, which makes carriers units
    -> a total.
    """
    made = Pipeline("ranks", guarantee="exactly_once", max_replays=0)
    made.source("flights", FileSource("flights.csv", schema=FLIGHTS))

    @made.stage(reads="flights")
    def kept(flights):
        return flights.withColumn("_failed", F.when(F.col("flight") == poison, "bad"))

    @made.stage(reads="kept", whole=True, unit="carrier")
    def ranked(kept):
        place = F.row_number().over(Window.partitionBy("carrier").orderBy("flight"))
        return kept.withColumn("place", place)

    @made.combine(reads="ranked")
    def per(ranked):
        return ranked.groupBy("carrier").agg(F.count("*").alias("n"), F.sum("delay").alias("delay"))

    made.sink("daily", ParquetSink("daily"), reads="per")
    return made


def test_a_combine_after_units_waits_for_the_sound_records(spark):
    """Where only a combine reads units, those of a record that was quarantined are asked for again,
    too.
    """
    result = testing.run_batch(ranks(4), {"flights": FLOWN}, spark=spark)
    assert (result.roots.failed, result.roots.quarantined) == (1, 1)
    assert daily(result) == []
    again = testing.replay(result, ranks(4))
    assert daily(again) == oracle(without=[4])


def test_a_combine_does_not_overtake_the_withhold(runner, tmp_path):
    """As long as nobody has asked for the sound records of a unit, its total is not due,
    although none is failed.
    """
    written(tmp_path)
    run = runner(ranks(4))
    batch = run.open()
    run.steps(batch)
    assert settle_once(run.job.database, batch.batch_id).failed == 1
    assert not combines_due(run.job.database, run.job.pipeline, batch.batch_id)
    assert combine(run.job, batch.batch_id) == []
    found = summarize(run.job.database, batch.batch_id)
    assert [one.follow_up for one in found.pending] == ["rebuild"]
    assert found.outcome is Outcome.INCOMPLETE
    waiting = run.job.database.transact(lambda c: follow_ups.waiting(c, run.job.pipeline.name))
    assert waiting == [batch.batch_id]


def two(lose_b=(), union=False):
    """A total of source a, by the batch as unit, and beside it source b, record by record."""
    made = Pipeline("two", guarantee="exactly_once")
    made.source("a", FileSource("a.csv", schema="k STRING, n INT"))
    made.source("b", FileSource("b.csv", schema="k STRING, n INT"))

    @made.stage(reads="a", whole=True)
    def counted(a):
        return a.groupBy("k").agg(F.count("*").alias("n"), collect_anchors())

    @made.stage(reads="b")
    def part(b):
        return b.where(~F.col("n").isin([-1, *lose_b]))

    if union:

        @made.stage(reads=["a", "b"])
        def both(a, b):
            return a.unionByName(b)

        made.sink("all", ParquetSink("all"), reads="both")
    made.sink("part_sink", ParquetSink("part"), reads="part")
    made.sink("counts", ParquetSink("counts"), reads="counted")

    @made.combine(reads="counted")
    def total(counted):
        return counted.groupBy().agg(F.sum("n").alias("n"))

    made.sink("totals", ParquetSink("totals"), reads="total")
    return made


def test_a_replay_of_another_source_does_not_empty_a_total(spark):
    """The last replay brought nothing of the unit: the total is of the batch that did."""
    given = {
        "a": [{"k": "x", "n": n} for n in range(5)],
        "b": [{"k": "y", "n": n} for n in range(10, 15)],
    }
    result = testing.run_batch(two(lose_b=[12]), given, spark=spark)
    assert result.rows["totals"] == []
    assert testing.replay(result, two()).rows["totals"] == [{"n": 5}]


def test_a_held_batch_waits_for_units_to_be_made_anew(spark):
    """With settle="hold" nothing is published while a unit has to be made again without what was
    quarantined.
    """
    options = {"max_replays": 0, "settle": "hold"}
    result = testing.run_batch(unit_totals(poison=7, **options), ORDERED, spark=spark)
    assert result.roots.failed == 1
    assert sold(result) == []
    again = testing.replay(result, unit_totals(poison=7, **options))
    assert sold(again) == [("a", 10 * 2 * (190 - 7), 38), B]


def test_a_combine_of_a_stage_that_an_earlier_batch_did_not_run(spark):
    """A total over the rest alone would be wrong, and is refused."""

    def made(new, lose=()):
        made = Pipeline("grown", guarantee="exactly_once")
        made.source("flights", FileSource("flights.csv", schema=FLIGHTS))

        @made.stage(reads="flights")
        def kept(flights):
            return flights.where(~F.col("flight").isin([-1, *lose]))

        made.sink("out", ParquetSink("out"), reads="kept")
        if new:

            @made.stage(reads="kept")
            def more(kept):
                return kept

            @made.combine(reads="more")
            def per(more):
                return more.groupBy("carrier").agg(F.count("*").alias("n"))

            made.sink("daily", ParquetSink("daily"), reads="per")
        return made

    result = testing.run_batch(made(False, [4]), {"flights": FLOWN}, spark=spark)
    with pytest.raises(InputError, match="'per' reads 'more', which batch 1 has not run"):
        testing.replay(result, made(True))


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


def in_table(database):
    with database.plain.begin() as connection:
        return sorted(connection.execute(sa.text("SELECT n FROM target.t")).scalars())


def test_a_day_does_not_replace_its_month(runner, tmp_path, target):
    """Intervals replace each other if they are the same, not if they begin together."""
    made = Pipeline("months", guarantee="exactly_once")
    made.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    made.sink("t", PostgresSink(target, "target.t", mode="replace_interval"), reads="rows")
    run = runner(made)
    numbers(tmp_path, [("a", n) for n in range(31)])
    run.settled(run.open("month"))
    numbers(tmp_path, [("a", 100)])
    run.settled(run.open("day", START, START.replace(day=2)))
    assert in_table(run.job.database) == [*range(31), 100]


def test_records_of_one_key_fail_and_the_others_are_published(runner, tmp_path, target):
    """Where an upsert could not tell which row to keep, the records of these rows fail, and
    nothing else.
    """
    numbers(tmp_path, [("a", 1), ("a", 2), ("b", 3)])
    made = Pipeline("keys", guarantee="exactly_once")
    made.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    made.sink("t", PostgresSink(target, "target.t", key="k", mode="upsert"), reads="rows")
    run = runner(made)
    assert run.settled(run.open()).failed == 2
    found = rows(run.job.database, "SELECT DISTINCT step, reason FROM failed_root")
    said = "2 rows of the batch have this key of the sink (k), and nothing says which is the newest"
    assert [tuple(row) for row in found] == [("t", said)]
    assert in_table(run.job.database) == [3]


@pytest.mark.parametrize("kind", ["combine", "state"])
def test_a_total_with_rows_of_one_key_is_refused_before_it_is_decided(
    runner, tmp_path, target, kind
):
    """Nothing of it is committed, so the fixed function takes its place."""

    def made(rows_of_a_key):
        made = Pipeline("key_totals", guarantee="exactly_once")
        made.source("rows", FileSource("in.csv", schema="k STRING, n INT"))

        def combined(rows):
            return rows.where(F.col("n") <= rows_of_a_key)

        def kept(state, rows):
            return combined(rows)

        if kind == "combine":
            made.combine(reads="rows")(combined)
        else:
            made.stateful_stage(reads="rows")(kept)
        reads = "combined" if kind == "combine" else "kept"
        made.sink("t", PostgresSink(target, "target.t", key="k", mode="upsert"), reads=reads)
        made.sink("raw", ParquetSink("raw"), reads="rows")
        return made

    numbers(tmp_path, [("a", 1), ("a", 2)])
    run = runner(made(2))
    batch = run.open()
    with pytest.raises(StageError, match=r"2 rows have the key \{'k': 'a'\}"):
        run.settled(batch)
    assert not rows(run.job.database, "SELECT * FROM publication WHERE sink = 't'")
    fixed = runner(made(1))
    settle_and_follow(fixed.job, batch.batch_id)
    assert in_table(run.job.database) == [1]


def test_carried_rows_of_one_key_are_refused_before_anything_is_decided(runner, tmp_path, target):
    """A replay of a unit is staged with the rows of the others: two of one key among them fail
    its sink.
    """

    def made(fail, key):
        made = Pipeline("carried_keys", guarantee="exactly_once", max_replays=0)
        made.source("rows", FileSource("in.csv", schema="k STRING, n INT"))

        @made.stage(reads="rows")
        def checked(rows):
            return rows.withColumn("_failed", F.when(F.col("n") == fail, "bad"))

        @made.stage(reads="checked", whole=True, unit="k")
        def ranked(checked):
            place = F.row_number().over(Window.partitionBy("k").orderBy("n"))
            return checked.withColumn("place", place + key)

        made.sink("t", PostgresSink(target, "target.t", key="place", mode="upsert"), reads="ranked")
        return made

    numbers(tmp_path, [("a", 1), ("a", 2), ("b", 3)])
    run = runner(made(2, F.when(F.col("k") == "a", 10).otherwise(0)))
    batch = run.open()
    run.settled(batch)
    shown = run.open_replay(batch.batch_id, "without")
    run.settled(shown)
    assert in_table(run.job.database) == [1, 3]
    again = runner(made(-1, F.lit(0)))
    replay = again.open_replay(batch.batch_id, "with", quarantined=True)
    for name in ("rows", "checked", "ranked"):
        again.step(replay, name)
    with pytest.raises(StageError, match=r"no record is theirs; the first: 2 rows .* \(place\)"):
        again.step(replay, "t")


def test_a_sink_that_refuses_keeps_no_other_waiting(runner, tmp_path, target, sink_rows):
    """What is wrong with one sink is raised once the others show the batch."""
    numbers(tmp_path, [("a", 1)])
    made = Pipeline("refusing", guarantee="exactly_once")
    made.source("rows", FileSource("in.csv", schema="k STRING, n INT"))
    made.sink("t", PostgresSink(target, "target.t"), reads="rows")
    made.sink("z", ParquetSink("z"), reads="rows")
    run = runner(made)
    batch = run.open()
    run.steps(batch)
    settle_once(run.job.database, batch.batch_id)
    with run.job.database.plain.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE target.t (n int, ackledger_batch bigint)")
    with pytest.raises(StageError):
        publish_settled(run.job, batch.batch_id)
    assert sink_rows("z", "n") == [(1,)]


def test_a_sink_that_refuses_keeps_no_other_flow_waiting(runner, tmp_path, target, sink_rows):
    """One source's target takes no rows; the total and the state of the other source are made
    and published.
    """
    numbers(tmp_path, [("a", 1)])
    made = Pipeline("flows", guarantee="exactly_once")
    for name in ("refused", "sound"):
        made.source(name, FileSource("in.csv", schema="k STRING, n INT"))
    made.sink("t", PostgresSink(target, "target.t"), reads="refused")

    @made.combine(reads="sound")
    def total(sound):
        return sound.agg(F.sum("n").alias("n"))

    @made.stateful_stage(reads="sound")
    def latest(state, batch):
        return batch

    made.sink("totals", ParquetSink("totals"), reads="total")
    made.sink("states", ParquetSink("states"), reads="latest")
    run = runner(made)
    batch = run.open()
    run.steps(batch)
    with run.job.database.plain.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE target.t (n int, ackledger_batch bigint)")
    with pytest.raises(StageError):
        settle_and_follow(run.job, batch.batch_id)
    assert sink_rows("totals", "n") == [(1,)]
    assert sink_rows("states", "k", "n") == [("a", 1)]


def only(made):
    made.steps()


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: only(two(union=True)), "'both' of pipeline 'two' reads both source 'a'"),
        (lambda: totals(partial=True, settle="hold"), "is partial, and settle='hold'"),
        (
            lambda: Pipeline("x", guarantee="at_least_once", settle="hold"),
            "at least once they publish it at once",
        ),
    ],
)
def test_what_could_not_be_right_is_refused(declare, message):
    """Declarations under which a sink could not show each record once."""
    with pytest.raises(DeclarationError, match=message):
        declare()


def test_an_incremental_source_has_no_interval_to_replace():
    """Its batches read what is new, so none of them takes another's place."""
    made = Pipeline("claims")
    made.source("t", TableSource("sqlite:///x.db", "t", cursor="id", schema="id BIGINT"))
    made.sink("out", PostgresSink("postgresql://x", "out", mode="replace_interval"), reads="t")
    with pytest.raises(DeclarationError, match="'t' is incremental"):
        made.steps()
