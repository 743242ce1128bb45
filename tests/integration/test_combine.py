"""Combines: totals over all acked rows of a batch and its replays, shown once, whole."""

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, testing
from ledger.batch import follow_ups
from ledger.batch.combine_runs import combines_due
from ledger.batch.outcome.report import sink_advice
from ledger.core.states import Outcome
from ledger.errors import DeclarationError, StageError
from ledger.execution import combine
from tests.support import ledgers, totals
from tests.support.dying import Died, dies_at
from tests.support.ledgers import Ledger
from tests.support.publishing import publish_settled


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_total_waits_for_what_is_replayed(spark, guarantee):
    """A flight lost before the total, and one that fails: no total until both are replayed, then
    the oracle's.
    """
    data = {"flights": totals.FLOWN}
    result = testing.run_batch(
        totals.pipeline(lose=[4], fail=[9], guarantee=guarantee), data, spark=spark
    )
    assert result.roots.failed == 2
    assert totals.daily(result) == []
    assert len(result.rows["departures"]) == 28
    first = testing.replay(result, totals.pipeline(fail=[9], guarantee=guarantee))
    assert totals.daily(first) == []
    second = testing.replay(result, totals.pipeline(guarantee=guarantee))
    assert totals.daily(second) == totals.oracle()


def test_a_total_of_a_source_without_failures_does_not_wait(spark):
    """A combine waits for failed records of the sources that it goes back to, no other; each sink
    says what it has published, or what it waits for and how it is released. A replay changes
    nothing of the total that was there.
    """

    def with_planes(lose=()):
        pipeline = totals.pipeline(lose=lose)
        pipeline.source("planes", FileSource("planes.csv", schema="plane INT"))

        @pipeline.combine(reads="planes")
        def fleet(planes):
            return planes.agg(F.count("*").alias("n"))

        pipeline.sink("planes_now", ParquetSink("planes_now"), reads="fleet")
        return pipeline

    rows = {"flights": totals.FLOWN, "planes": [{"plane": 1}, {"plane": 2}]}
    result = testing.run_batch(with_planes(lose=[4]), rows, spark=spark)
    assert result.rows["planes_now"] == [{"n": 2}]
    assert totals.daily(result) == []
    ledger = Ledger(result.lab.database)
    assert set(map(str, sink_advice(ledger.summary(result.batch_id), "m:p"))) == {
        "sink departures: published 29 rows",
        "sink daily: published nothing. It waits for 1 failed record of batch"
        f" {result.batch_id}. Replay them: ackledger replay m:p --batch {result.batch_id}",
        "sink planes_now: published 1 row",
    }
    again = testing.replay(result, with_planes())
    assert again.rows["planes_now"] == [{"n": 2}]
    assert totals.daily(again) == totals.oracle()
    assert set(map(str, sink_advice(ledger.summary(result.batch_id)))) == {
        "sink departures: published 29 rows",
        f"sink daily: published 2 rows with batch {again.batch_id}",
        f"sink planes_now: published 1 row with batch {again.batch_id}",
    }


def test_a_combine_that_names_no_source_waits_for_all(ledger):
    """A combine whose declaration does not say what it awaits, as one that is older, waits for
    records of every source, and so does its sink.
    """
    flow = ledgers.pipeline()
    flow.source("planes", FileSource("planes.csv", schema="plane INT"))

    @flow.combine(reads="planes")
    def fleet(planes):
        return planes

    flow.sink("now", ParquetSink("now"), reads="fleet")
    batch, _ = ledger.whole_batch(flow, 2, lose_sink=[0])
    ledger.emit(batch, 0, source="planes")
    ledger.settle(batch.batch_id)
    assert combines_due(ledger.database, flow, batch.batch_id)
    for step in ("fleet", "now"):
        ledger.declare(batch.batch_id, step, awaits=None)
    assert not combines_due(ledger.database, flow, batch.batch_id)
    *_, line = map(str, sink_advice(ledger.summary(batch.batch_id)))
    assert line.startswith("sink now: published nothing. It waits for 1 failed record")


def test_quarantined_records_are_left_out(spark):
    """A record that is quarantined is in no total; taken from quarantine, it makes another in place
    of the first.
    """
    result = testing.run_batch(
        totals.pipeline(fail=[9], max_replays=0), {"flights": totals.FLOWN}, spark=spark
    )
    assert result.roots.quarantined == 1
    assert totals.daily(result) == totals.oracle(without=[9])
    again = testing.replay(result, totals.pipeline(max_replays=0), quarantined=True)
    assert totals.daily(again) == totals.oracle()


def test_a_partial_total_is_replaced(spark):
    """partial=True shows what is acked by then, and the complete total takes its place."""
    result = testing.run_batch(
        totals.pipeline(lose=[4], partial=True), {"flights": totals.FLOWN}, spark=spark
    )
    assert totals.daily(result) == totals.oracle(without=[4])
    again = testing.replay(result, totals.pipeline(partial=True))
    assert totals.daily(again) == totals.oracle()


def test_a_partial_total_of_a_batch_that_holds(spark):
    """With publish="complete" there is no early total: the complete one is the first."""
    options = {"partial": True, "publish": "complete"}
    flown = {"flights": totals.FLOWN}
    result = testing.run_batch(totals.pipeline(lose=[4], **options), flown, spark=spark)
    assert totals.daily(result) == []
    again = testing.replay(result, totals.pipeline(**options))
    assert totals.daily(again) == totals.oracle()


@pytest.mark.parametrize("options", [{}, {"max_pending": 5}], ids=str)
def test_a_clean_batch_has_its_total_at_once(spark, options):
    """Where nothing fails the total is there when the batch is, and the batch is complete: also of
    an interval that has more records than ``max_pending``.
    """
    result = testing.run_batch(totals.pipeline(**options), {"flights": totals.FLOWN}, spark=spark)
    assert totals.daily(result) == totals.oracle()
    rows = Ledger(result.lab.database).rows("SELECT sink, state FROM sink_publication ORDER BY 1")
    assert [tuple(row) for row in rows] == [("daily", "published"), ("departures", "published")]
    assert Ledger(result.lab.database).summary(result.batch_id).outcome is Outcome.COMPLETE


def test_a_total_that_leaves_an_input_out(spark):
    """A combine that reads only the second of its inputs ends, and says that it has read nothing
    of the first.
    """
    pipeline = totals.pipeline()

    @pipeline.stage(reads="flights")
    def all_flights(flights):
        return flights

    @pipeline.combine(reads=["checked", "all_flights"])
    def count(checked, all_flights):
        return all_flights.agg(F.count("*").alias("n"))

    pipeline.sink("counted", ParquetSink("counted"), reads="count")
    result = testing.run_batch(pipeline, {"flights": totals.FLOWN}, spark=spark)
    assert result.rows["counted"] == [{"n": 30}]
    row = Ledger(result.lab.database).row("SELECT input_rows FROM step_run WHERE step = 'count'")
    assert row.input_rows == 0


def test_after_a_whole_stage_the_last_replay_counts(spark):
    """With a whole stage before it, a total holds the batch once: as the last replay made it."""

    def windowed(lose=()):
        pipeline = Pipeline("windowed", guarantee="exactly_once")
        pipeline.source("flights", FileSource("flights.csv", schema=totals.FLIGHTS))

        @pipeline.stage(reads="flights", filters="lost")
        def checked(flights):
            return flights.where(~F.col("flight").isin([-1, *lose]))

        @pipeline.stage(reads="checked", anchors="merged_by_hand")
        def ranked(flights):
            from pyspark.sql import Window

            place = F.row_number().over(Window.partitionBy("carrier").orderBy("flight"))
            return flights.withColumn("place", place)

        @pipeline.combine(reads="ranked")
        def places(ranked):
            return ranked.groupBy("carrier").agg(
                F.sum("place").alias("n"), F.sum("delay").alias("delay")
            )

        pipeline.sink("out", ParquetSink("out"), reads="ranked")
        pipeline.sink("daily", ParquetSink("daily"), reads="places")
        return pipeline

    result = testing.run_batch(windowed(lose=[4]), {"flights": totals.FLOWN}, spark=spark)
    assert (len(result.rows["out"]), result.rows["daily"]) == (29, [])
    again = testing.replay(result, windowed())
    assert len(again.rows["out"]) == 30
    assert totals.daily(again) == [("AA", 210, 300), ("UA", 55, 135)]


@pytest.mark.parametrize(
    ("makes", "message"),
    [
        (lambda checked: "no frame", "str, expected a DataFrame"),
        (
            lambda checked: checked.withColumn("_ackledger_root", F.lit(1)),
            "'_ackledger_root', a name of the ledger",
        ),
    ],
)
def test_a_combine_that_raises_is_run_again(runner, tmp_path, sink_rows, makes, message):
    """The settlement stands, the run is marked failed, nothing is published; the next call goes
    on.
    """
    totals.written(tmp_path)
    pipeline = totals.pipeline()

    @pipeline.combine(reads="checked")
    def broken(checked):
        return makes(checked)

    pipeline.sink("unused", ParquetSink("unused"), reads="broken")
    run = runner(pipeline)
    batch = run.open()
    with pytest.raises(StageError, match="combine 'broken' returned .*" + message):
        run.settled(batch)
    fixed = totals.pipeline()
    job = runner(fixed).job
    combine(job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()


def test_a_crash_between_the_combine_and_its_sink(runner, tmp_path, sink_rows, monkeypatch):
    """A process that dies after any of its commits leaves something that the next call, and the
    sweeper, sees.
    """
    totals.written(tmp_path)
    run = runner(totals.pipeline())
    job = run.job
    batch = run.open(dag_id="dag")
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    publish_settled(job, batch.batch_id)
    later = run.ledger.row("SELECT now() + interval '1 hour' AS later").later

    for place in ("deciding publication", "recording publication"):
        assert combines_due(job.database, job.pipeline, batch.batch_id)
        assert [batch.batch_id for batch in run.ledger.sweep(now=later).overdue] == [batch.batch_id]
        with dies_at(place), pytest.raises(Died):
            combine(job, batch.batch_id)
    assert [
        (follow_up.follow_up, follow_up.count)
        for follow_up in run.ledger.summary(batch.batch_id).pending
    ] == [("publish", 1)]
    combine(job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()
    assert not combines_due(job.database, job.pipeline, batch.batch_id)
    assert run.ledger.sweep(now=later).overdue == ()
    combine(job, batch.batch_id)
    assert run.ledger.row("SELECT count(*) AS n FROM step_run WHERE step = 'daily'").n == 2


def test_a_partial_total_that_did_not_come_is_noticed(runner, tmp_path, sink_rows):
    """A driver that dies before a partial combine leaves something that ``ackledger publish``, the
    sweeper and the summary see, although a record is failed; afterwards they see nothing.
    """
    totals.written(tmp_path)
    run = runner(totals.pipeline(lose=[4], partial=True))
    job = run.job
    batch = run.open(dag_id="dag")
    run.steps(batch)
    assert run.ledger.settle(batch.batch_id).failed == 1
    publish_settled(job, batch.batch_id)
    later = run.ledger.row("SELECT now() + interval '1 hour' AS later").later

    def noticed():
        return (
            job.database.transact(lambda c: follow_ups.waiting(c, job.pipeline.name)),
            [batch.batch_id for batch in run.ledger.sweep(now=later).overdue],
            [follow_up.follow_up for follow_up in run.ledger.summary(batch.batch_id).pending],
        )

    for place in ("deciding publication", "recording publication"):
        assert combines_due(job.database, job.pipeline, batch.batch_id)
        assert noticed() == ([batch.batch_id], [batch.batch_id], ["combine"])
        with dies_at(place), pytest.raises(Died):
            combine(job, batch.batch_id)
    assert combines_due(job.database, job.pipeline, batch.batch_id)
    assert noticed() == ([batch.batch_id], [batch.batch_id], ["publish"])
    combine(job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle(without=[4])
    assert not combines_due(job.database, job.pipeline, batch.batch_id)
    assert noticed() == ([], [], [])


def test_a_total_that_was_published_and_not_noted_gives_way(
    runner, tmp_path, sink_rows, monkeypatch
):
    """The publisher of the first dies before it notes what the sink has published, the second is
    never published: the third takes the place of both.
    """
    totals.written(tmp_path)
    run = runner(totals.pipeline(lose=[4, 5], partial=True))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    publish_settled(run.job, batch.batch_id)

    with dies_at("recording publication"), pytest.raises(Died):
        combine(run.job, batch.batch_id)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle(without=[4, 5])
    better = runner(totals.pipeline(lose=[5], partial=True))
    refused = StageError("the target refuses it")
    with (
        dies_at("publishing", "daily", raises=refused),
        pytest.raises(StageError, match="refuses it"),
    ):
        better.settled(better.open_replay(batch.batch_id, "first"))
    fixed = runner(totals.pipeline(partial=True))
    fixed.settled(fixed.open_replay(batch.batch_id, "second"))
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()


def test_reprocessing_replaces_the_total(runner, tmp_path, sink_rows):
    """A batch that replaces another replaces its totals, too, those that a replay made included."""
    totals.written(tmp_path)
    run = runner(totals.pipeline(lose=[4]))
    batch = run.open()
    run.settled(batch)
    fixed = runner(totals.pipeline())
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()
    again = fixed.open("again", reprocess=True)
    fixed.settled(again)
    assert sink_rows("daily", "carrier", "n", "delay") == totals.oracle()
    assert sorted(path.name for path in (tmp_path / "daily").glob("ackledger_batch=*")) == [
        f"ackledger_batch={again.batch_id}"
    ]


def test_what_cannot_be_declared():
    """A stage behind a combine is refused."""
    pipeline = totals.pipeline()

    @pipeline.stage(reads="per_carrier")
    def more(per_carrier):
        return per_carrier

    pipeline.sink("more_sink", ParquetSink("more"), reads="more")
    with pytest.raises(DeclarationError, match=r"reads 'per_carrier', a combine.*only sinks"):
        pipeline.steps()


def test_an_aggregate_in_a_tracked_stage_is_warned_of():
    """A total inside a tracked stage would be wrong after a loss: the declaration says so."""
    pipeline = Pipeline("naive")
    pipeline.source("flights", FileSource("flights.csv", schema=totals.FLIGHTS))
    with pytest.warns(UserWarning, match=r"stage 'counted' calls agg, groupBy.*pipeline.combine"):

        @pipeline.stage(reads="flights", anchors="by_hand")
        def counted(flights):
            return flights.groupBy("carrier").agg(F.count("*"))


def test_rows_of_two_types_make_no_total(runner, tmp_path, sink_rows):
    """The stage has changed between the batch and its replay: Spark would make texts numbers."""

    def flow(kind, *bad):
        pipeline = Pipeline("codes", max_replays=3)
        pipeline.source("orders", FileSource("orders.csv", schema="id INT"))

        @pipeline.stage(reads="orders", anchors="by_hand")
        def checked(orders):
            refused = F.when(F.col("id").isin(-1, *bad), "bad").alias("_failed")
            return orders.select(F.col("id").cast(kind).alias("code"), "_anchor", refused)

        @pipeline.combine(reads="checked")
        def codes(orders):
            return orders.select("code")

        pipeline.sink("listed", ParquetSink("listed"), reads="checked")
        pipeline.sink("combined", ParquetSink("combined"), reads="codes")
        return pipeline

    (tmp_path / "orders.csv").write_text("id\n1\n2\n")
    run = runner(flow("int", 2))
    batch = run.open()
    run.settled(batch)
    changed = runner(flow("string"))
    with pytest.raises(StageError, match=r"'code' is (string|int) in one and (string|int) in"):
        changed.settled(changed.open_replay(batch.batch_id))
    assert not (tmp_path / "combined").exists()
