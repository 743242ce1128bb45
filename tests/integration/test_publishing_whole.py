"""Exactly once with whole stages: rows whose records all arrived are published at once, or with
``publish="complete"`` once nothing is failed, and a replay of the whole batch replaces them.
"""

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, testing
from ledger.batch.outcome.report import exit_code, report
from ledger.batch.outcome.summary import summarize
from ledger.batch.records.explain import explain
from ledger.errors import NotReadyError
from ledger.execution import settle_and_follow
from tests.support.customer_totals import ORDERED, ORDERS, B, sold, totals
from tests.support.dying import Died, dies_at

CUSTOMERS = "customer STRING, country STRING"
SHOP = {
    "orders": [{"id": n, "customer": "a" if n < 4 else "b", "cents": 10 * n} for n in range(1, 6)],
    "customers": [{"customer": "a", "country": "PT"}, {"customer": "b", "country": "NO"}],
}


def joining(lose=(), **options):
    """Orders joined with customers, both tracked; ``lose``: orders that vanish before the join."""
    pipeline = Pipeline("shop", guarantee="exactly_once", max_replays=2, **options)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

    @pipeline.stage(reads="orders", filters="lost")
    def checked(orders):
        return orders.where(~F.col("id").isin([-1, *lose]))

    @pipeline.stage(reads=["checked", "customers"])
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "inner")
        return joined.select("o.id", "customer", "country")

    pipeline.sink("sales", ParquetSink("sales"), reads="sold")
    pipeline.sink("log", ParquetSink("log"), reads="checked")
    return pipeline


def by_customer(schema, bad=(), most=9, **options):
    """How many orders each customer has; ``bad``: orders that are refused; ``most``: how many a
    customer may have.
    """
    pipeline = Pipeline("shop", guarantee="exactly_once", **{"max_replays": 3, **options})
    pipeline.source("orders", FileSource("orders.csv", schema=schema))

    @pipeline.stage(reads="orders", anchors="by_hand")
    def checked(orders):
        refused = F.when(F.col("id").isin(-1, *bad), "bad")
        return orders.select("id", "customer", "_anchor", refused.alias("_failed"))

    @pipeline.stage(reads="checked")
    def counted(orders):
        rows = orders.groupBy("customer").agg(F.count(F.lit(1)).alias("n"))
        return rows.withColumn("_failed", F.when(F.col("n") > most, "too many"))

    pipeline.sink("sales", ParquetSink("sales"), reads="counted")
    return pipeline


def ids(result, sink="sales"):
    return sorted(row["id"] for row in result.rows[sink])


ALL = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("publish", "first"), [("settled", [1, 3, 4, 5]), ("complete", [])])
def test_what_is_published_while_a_record_is_failed(spark, publish, first):
    """The rows of all records that arrived are published at once, or with publish="complete"
    nothing, also in a sink beside the join; the replay brings all.
    """
    result = testing.run_batch(joining([2], publish=publish), SHOP, spark=spark)
    assert result.roots.failed == 1
    assert ids(result) == ids(result, "log") == first
    still = testing.replay(result, joining([2], publish=publish))
    assert ids(still) == ids(still, "log") == first
    again = testing.replay(result, joining(publish=publish))
    assert again.roots.failed == 0
    assert ids(again) == ids(again, "log") == ALL


def test_a_total_that_lacks_a_record_is_called_incomplete(spark):
    """While a record is failed that a published total lacks, report and exit code of its batch say
    so, and what to do; ``explain`` says that a replay takes the whole batch.
    """
    result = testing.run_batch(totals(poison=7), ORDERED, spark=spark)
    database = result.lab.database
    summary = summarize(database, result.batch_id)
    text = "\n".join(report(summary, ()))
    assert f"batch {result.batch_id} of totals (original): incomplete" in text
    lacking = "sink sales: published 2 rows. They lack 1 failed record of batch"
    assert lacking in text
    assert "until a replay replaces them. Replay them: ackledger replay" in text
    assert exit_code(summary) == 3
    (failed,) = result.failed
    first, command, *_ = explain(database, failed.message_id).next
    assert first.endswith("then replay the record, with the whole batch:")
    assert command.startswith("ackledger replay")
    testing.replay(result, totals())
    text = "\n".join(report(summarize(database, result.batch_id), ()))
    assert "complete" in text
    assert "incomplete" not in text
    assert "its rows were replaced by those of a later batch or run" in text


def branching(least):
    """A branch that loses order 2, and one with a total of all orders from ``least`` on."""
    pipeline = Pipeline("shop", guarantee="exactly_once", max_replays=2)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders", filters="lost")
    def checked(orders):
        return orders.where(F.col("id") != 2)

    @pipeline.stage(reads="orders")
    def counted(orders):
        return orders.where(F.col("id") >= least).groupBy("customer").count()

    pipeline.sink("log", ParquetSink("log"), reads="checked")
    pipeline.sink("sales", ParquetSink("sales"), reads="counted")
    return pipeline


@pytest.mark.parametrize(
    ("least", "words"),
    [
        (
            1,
            "published 1 row, withheld 1 row of failed records. They lack 1 failed record of batch",
        ),
        (3, "published 2 rows"),
    ],
)
def test_only_a_sink_that_lacks_a_record_is_called_incomplete(spark, least, words):
    """A sink lacks a record that failed before it. It lacks one that failed in another branch if it
    withholds a row of it. A total without a row of the record is complete.
    """
    orders = {"orders": SHOP["orders"]}
    result = testing.run_batch(branching(least), orders, spark=spark)
    assert [(record.step, record.content["id"]) for record in result.failed] == [("checked", 2)]
    lines = report(summarize(result.lab.database, result.batch_id), ())
    by_sink = {line.partition(":")[0].strip(): line for line in lines if "sink " in line}
    assert "sink log: published 4 rows. They lack 1 failed record of batch" in by_sink["sink log"]
    assert f"sink sales: {words}" in by_sink["sink sales"]
    assert ("They lack" in by_sink["sink sales"]) is (least == 1)


def test_a_poison_before_the_total(spark):
    """The total lacks it, from the start to the replay that leaves it out: nothing is failed then,
    and nothing to replay.
    """
    without = [("a", 10 * 2 * (190 - 7), 38), B]
    result = testing.run_batch(totals(poison=7), ORDERED, spark=spark)
    for _ in range(2):
        assert sold(result) == without
        result = testing.replay(result, totals(poison=7))
    assert [(record.reason, record.status) for record in result.failed] == [("poisoned", "failed")]
    last = testing.replay(result, totals(poison=7))
    assert (last.roots.total, last.roots.failed) == (20, 0)
    assert sold(last) == without
    with pytest.raises(NotReadyError, match="nothing to replay"):
        testing.replay(last, totals())


def test_half_a_record_never_reaches_a_total_that_is_published(spark):
    """A record that fails after a part of it had reached the total: the total is withheld, and made
    again without the record.
    """
    result = testing.run_batch(totals(late=[3], max_replays=0), ORDERED, spark=spark)
    assert sold(result) == [B]
    again = testing.replay(result, totals(late=[3], max_replays=0))
    assert sold(again) == [("a", 10 * 2 * (190 - 3), 38), B]


def test_a_poison_after_the_total(spark):
    """A total that is refused is not published, quarantines no record, and is published once it is
    fixed.
    """
    result = testing.run_batch(totals(behind=True), ORDERED, spark=spark)
    assert len(result.failed) == 20
    assert sold(result) == [B]
    again = testing.replay(result, totals(behind=True))
    assert {record.status for record in again.failed} == {"failed"}
    fixed = testing.replay(result, totals())
    assert sold(fixed) == [("a", 10 * 2 * 190, 40), B]


@pytest.mark.parametrize("publish", ["settled", "complete"])
def test_taken_from_quarantine_a_record_joins_what_is_published(spark, publish):
    """A batch that was published without a record is published with it, in its place. Where the
    record fails again, what is published lacks it as before.
    """
    options = {"max_replays": 0, "publish": publish}
    result = testing.run_batch(totals(poison=7, **options), ORDERED, spark=spark)
    without = [("a", 10 * 2 * (190 - 7), 38), B]
    assert sold(result) == ([] if publish == "complete" else without)
    assert sold(testing.replay(result, totals(poison=7, **options))) == without
    in_vain = testing.replay(result, totals(poison=7, **options), quarantined=True)
    assert (sold(in_vain), in_vain.roots.failed) == (without, 1)
    left_out = testing.replay(result, totals(poison=7, **options))
    assert (sold(left_out), left_out.roots.failed) == (without, 0)
    again = testing.replay(result, totals(**options), quarantined=True)
    assert sold(again) == [("a", 10 * 2 * 190, 40), B]


def test_what_did_not_parse_withholds_nothing(runner, tmp_path, sink_rows):
    """It has touched no row, so that it is quarantined at once, and needs no replay without it; the
    replay in which it parses publishes it with the others.
    """
    lines = ["id,customer,cents", "1,a,10", "2,a,x", "3,b,30", "4,,40", "5,b,x"]
    (tmp_path / "orders.csv").write_text("\n".join(lines) + "\n")
    run = runner(by_customer(ORDERS, max_replays=1))
    batch = run.open()
    assert run.settled(batch).failed == 2
    before = [("a", 1), ("b", 1), (None, 1)]
    assert sink_rows("sales", "customer", "n") == before
    unparsed = "SELECT message_id FROM failed_root_detail ORDER BY 1"
    first, last = [row.message_id for row in run.ledger.rows(unparsed)]
    run.ledger.quarantine("never right", "me", record=last)
    run.settled(run.open_replay(batch.batch_id, "in vain"))
    assert sink_rows("sales", "customer", "n") == before
    statuses = "SELECT status::text FROM failed_message ORDER BY message_id"
    assert [row.status for row in run.ledger.rows(statuses)] == ["quarantined", "quarantined"]
    fixed = runner(by_customer(ORDERS.replace("cents INT", "cents STRING")))
    replay = fixed.open_replay(batch.batch_id, record=first, quarantined=True)
    assert fixed.settled(replay).failed == 0
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("b", 1), (None, 1)]


def test_what_fits_no_more_fails_in_the_replay(runner, tmp_path, sink_rows):
    """An acked record whose value does not fit today's schema is not left out of a replay without a
    word: it fails, and the batch lacks it until it is replayed.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,70000\n3,b,30\n")
    run = runner(by_customer(ORDERS, bad=(1,)))
    batch = run.open()
    assert run.settled(batch).failed == 1
    narrow = runner(by_customer(ORDERS.replace("cents INT", "cents SMALLINT")))
    assert narrow.settled(narrow.open_replay(batch.batch_id)).failed == 1
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]
    fixed = runner(by_customer(ORDERS))
    assert fixed.settled(fixed.open_replay(batch.batch_id, "fixed")).failed == 0
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("b", 1)]


def test_a_published_row_whose_records_are_quarantined_goes(runner, tmp_path, sink_rows):
    """A row of which every record was given up is no longer there after the next replay."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,x\n3,b,30\n")
    run = runner(by_customer(ORDERS))
    batch = run.open()
    run.settled(batch)
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]
    strict = runner(by_customer(ORDERS.replace("cents INT", "cents STRING"), most=1))
    assert strict.settled(strict.open_replay(batch.batch_id)).failed == 2
    done = run.ledger.quarantine("never right", "me", batch_id=batch.batch_id)
    assert done.records == 2
    assert any("ackledger replay" in line for line in done.next)
    strict.settled(strict.open_replay(batch.batch_id, "without"))
    assert sink_rows("sales", "customer", "n") == [("b", 1)]
    with pytest.raises(NotReadyError, match="nothing to replay"):
        strict.open_replay(batch.batch_id, "again")


def test_a_replay_from_quarantine_that_dies_gives_back_what_it_took(runner, tmp_path, sink_rows):
    """A record is quarantined again then, accepted as before, and one that was given up is left
    out by the next replay.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n4,b,1\n")
    run = runner(by_customer(ORDERS, bad=[1, 3]))
    ledger, batch = run.ledger, run.open()
    run.settled(batch)
    bad = "SELECT message_id FROM failed_root_detail WHERE reason = 'bad' ORDER BY 1"
    first, second = [row.message_id for row in ledger.rows(bad)]
    ledger.quarantine("never right", "me", record=first)
    run.settled(run.open_replay(batch.batch_id, "without the first"))
    ledger.quarantine("never right", "me", record=second)
    dead = run.open_replay(batch.batch_id, "dead", record=first, accepted=True)
    ledger.abandon(dead.batch_id)
    states = "SELECT status::text, given_up FROM failed_message ORDER BY message_id"
    assert ledger.rows(states) == [("quarantined", True), ("failed", True)]
    run.settled(run.open_replay(batch.batch_id, "again"))
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]
    assert ledger.row("SELECT quarantined, accepted, failed FROM batch_status LIMIT 1") == (2, 2, 0)


def test_two_records_given_up_one_after_the_other(runner, tmp_path, sink_rows):
    """A replay leaves out both: what was published in between had neither of them."""
    orders = "".join(f"{n},a,{n}\n" for n in range(10))
    (tmp_path / "orders.csv").write_text("id,customer,cents\n" + orders)
    run = runner(by_customer(ORDERS, bad=[1, 2]))
    ledger, batch = run.ledger, run.open()
    run.settled(batch)
    failed = [row.root_id for row in ledger.rows("SELECT root_id FROM failed_root ORDER BY 1")]
    assert len(failed) == 2
    for root in failed:
        ledger.quarantine("never right", "me", record=root)
    replay = run.open_replay(batch.batch_id)
    assert run.settled(replay).roots == 8
    assert sink_rows("sales", "customer", "n") == [("a", 8)]


@pytest.mark.parametrize("place", ["settled", "withheld", "publishing", "published"])
def test_a_driver_that_dies_between_settlement_and_publication(runner, tmp_path, sink_rows, place):
    """A replay replaces the rows of its batch once, whoever publishes it, and wherever the first
    driver died; none of its own is published of a record that failed once more.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n4,c,1\n")
    run = runner(by_customer(ORDERS, bad=[1, 3]))
    batch = run.open()
    run.settled(batch)
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("c", 1)]
    half = runner(by_customer(ORDERS, bad=[3]))
    replay = half.open_replay(batch.batch_id)
    half.steps(replay)
    with dies_at(place), pytest.raises(Died):
        settle_and_follow(half.job, replay.batch_id)
    settle_and_follow(half.job, replay.batch_id)
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("c", 1)]
    published = "SELECT batch_id, state FROM sink_publication ORDER BY 1"
    expected = [(batch.batch_id, "replaced"), (replay.batch_id, "published")]
    assert run.ledger.rows(published) == expected


def test_a_replay_in_vain_leaves_what_is_pending(runner, tmp_path, sink_rows):
    """With publish="complete" rows that were to be published are published, even if a record that
    was taken from quarantine has failed again before.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n")
    run = runner(by_customer(ORDERS, bad=[1], max_replays=0, publish="complete"))
    batch = run.open()
    run.settled(batch)
    without = run.open_replay(batch.batch_id, "without")
    run.steps(without)
    with dies_at("settled"), pytest.raises(Died):
        settle_and_follow(run.job, without.batch_id)
    in_vain = run.open_replay(batch.batch_id, "in vain", quarantined=True)
    assert run.settled(in_vain).failed == 1
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]


def test_a_clock_that_is_set_back_does_not_reorder_replays(runner, tmp_path, sink_rows):
    """The replay that settles last is published, whatever the clock says."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n")
    run = runner(by_customer(ORDERS, bad=[1]))
    batch = run.open()
    run.settled(batch)
    ahead = "UPDATE batch SET settled_at = settled_at + interval '1 day'"
    run.ledger.change(ahead)
    fixed = runner(by_customer(ORDERS))
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("b", 1)]
