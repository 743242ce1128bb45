"""Exactly once downstream of whole stages: rows are withheld, replayed and published by unit."""

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, collect_anchors, merge_anchors, testing
from ledger.core import probes
from ledger.errors import FencedError, NotReadyError, StageError
from tests.support.publishing import publish_settled
from tests.support.unit_totals import ORDERED, ORDERS, B, orders_of, sold, totals

CUSTOMERS = "customer STRING, country STRING"
SHOP = {
    "orders": [{"id": n, "customer": "a" if n < 4 else "b", "cents": 10 * n} for n in range(1, 6)],
    "customers": [{"customer": "a", "country": "PT"}, {"customer": "b", "country": "NO"}],
}


def joining(unit=(), lose=()):
    """Orders joined with customers, both tracked; ``lose``: orders that vanish before the join."""
    pipeline = Pipeline("shop", guarantee="exactly_once", max_replays=2, unit=unit)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

    @pipeline.stage(reads="orders")
    def checked(orders):
        return orders.where(~F.col("id").isin([-1, *lose]))

    @pipeline.stage(reads=["checked", "customers"], whole=True)
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "inner")
        return joined.select("o.id", "customer", "country", merge_anchors("o._anchor", "c._anchor"))

    pipeline.sink("sales", ParquetSink("sales"), reads="sold")
    pipeline.sink("log", ParquetSink("log"), reads="checked")
    return pipeline


def by_customer(schema, bad=(), most=9):
    """How many orders each customer has, as units; ``bad``: orders that are refused; ``most``: how
    many a customer may have.
    """
    pipeline = Pipeline("shop", guarantee="exactly_once", max_replays=3, unit=("customer",))
    pipeline.source("orders", FileSource("orders.csv", schema=schema))

    @pipeline.stage(reads="orders")
    def checked(orders):
        refused = F.when(F.col("id").isin(-1, *bad), "bad")
        return orders.select("id", "customer", "_anchor", refused.alias("_failed"))

    @pipeline.stage(reads="checked", whole=True)
    def counted(orders):
        rows = orders.groupBy("customer").agg(F.count(F.lit(1)).alias("n"), collect_anchors())
        return rows.withColumn("_failed", F.when(F.col("n") > most, "too many"))

    pipeline.sink("sales", ParquetSink("sales"), reads="counted")
    return pipeline


def ids(result, sink="sales"):
    return sorted(row["id"] for row in result.rows[sink])


@pytest.mark.parametrize(("unit", "sound"), [((), []), (("customer",), [4, 5])])
def test_nothing_of_a_unit_is_published_while_a_record_of_it_is_failed(spark, unit, sound):
    """A lost order withholds what its customer bought, also in a sink beside the join; the
    replay brings all.
    """
    result = testing.run_batch(joining(unit, lose=[2]), SHOP, spark=spark)
    assert result.roots.failed == 1
    assert ids(result) == ids(result, "log") == sound
    still = testing.replay(result, joining(unit, lose=[2]))
    assert ids(still) == ids(still, "log") == sound
    again = testing.replay(result, joining(unit))
    assert again.roots.failed == 0
    assert ids(again) == ids(again, "log") == [1, 2, 3, 4, 5]


def test_a_poison_before_the_total(spark):
    """The others of its unit are published once it is quarantined, without it; other units do not
    wait.
    """
    result = testing.run_batch(totals(poison=7), ORDERED, spark=spark)
    assert sold(result) == [B]
    for _ in range(2):
        assert sold(result) == [B]
        result = testing.replay(result, totals(poison=7))
    assert [record.status for record in result.failed if record.reason == "poisoned"] == [
        "quarantined"
    ]
    last = testing.replay(result, totals(poison=7))
    assert last.roots.failed == 0
    assert sold(last) == [("a", 10 * 2 * (190 - 7), 38), B]
    with pytest.raises(NotReadyError, match="nothing to replay"):
        testing.replay(last, totals())


def test_half_a_record_never_reaches_a_total_that_is_published(spark):
    """A record that is quarantined after a part of it had reached the total: the total is made
    again without it.
    """
    result = testing.run_batch(totals(late=[3], max_replays=0), ORDERED, spark=spark)
    assert sold(result) == [B]
    again = testing.replay(result, totals(late=[3], max_replays=0))
    assert sold(again) == [("a", 10 * 2 * (190 - 3), 38), B]


def test_a_poison_after_the_total(spark):
    """A total that is refused shows nothing of its unit, quarantines no record, and is published
    once it is fixed.
    """
    result = testing.run_batch(totals(behind=True), ORDERED, spark=spark)
    assert len(result.failed) == 20
    assert sold(result) == [B]
    again = testing.replay(result, totals(behind=True))
    assert {record.status for record in again.failed} == {"failed"}
    fixed = testing.replay(result, totals())
    assert sold(fixed) == [("a", 10 * 2 * 190, 40), B]


def test_taken_from_quarantine_a_record_joins_what_is_published(spark):
    """A unit that was published without a record is published with it, in its place; others are
    published once all along. Where the record fails again, what was published without it stays.
    """
    result = testing.run_batch(totals(poison=7, max_replays=0), ORDERED, spark=spark)
    shown = testing.replay(result, totals(poison=7, max_replays=0))
    without = [("a", 10 * 2 * (190 - 7), 38), B]
    assert sold(shown) == without
    in_vain = testing.replay(result, totals(poison=7, max_replays=0), quarantined=True)
    assert sold(in_vain) == without
    again = testing.replay(result, totals(max_replays=0), quarantined=True)
    assert sold(again) == [("a", 10 * 2 * 190, 40), B]


def test_a_unit_that_fails_again_stays_when_another_is_replayed(spark):
    """Of two units that are published without a record each, one fails again in its replay; then
    the replay of the other replaces that one alone, and takes over the first.
    """
    orders = {"orders": [*orders_of(1, 2), *orders_of(7, 8, customer="b")]}
    flow = totals(late=[1, 7], max_replays=0)
    result = testing.run_batch(flow, orders, spark=spark)
    without = [("a", 40, 2), ("b", 160, 2)]
    assert sold(testing.replay(result, flow)) == without
    poisoned = {record.message_id for record in result.failed if record.reason == "poisoned"}
    first, second = sorted(poisoned)
    in_vain = testing.replay(result, flow, record=first, quarantined=True)
    assert sold(in_vain) == without
    again = testing.replay(result, totals(late=[1]), record=second, quarantined=True)
    assert sold(again) == [("a", 40, 2), ("b", 300, 4)]


def test_a_record_that_is_quarantined_while_its_unit_is_read(runner, tmp_path, sink_rows):
    """The replay has read it for the sake of its unit, and is not committed: the source reads
    again, without it.
    """

    def flow(*lost):
        pipeline = Pipeline("shop", guarantee="exactly_once", max_replays=5, unit=("customer",))
        pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

        @pipeline.stage(reads="orders")
        def checked(orders):
            return orders.where(~F.col("id").isin([-1, *lost]))

        @pipeline.stage(reads="checked", whole=True)
        def total(orders):
            return orders.groupBy("customer").agg(F.sum("cents").alias("cents"), collect_anchors())

        pipeline.sink("sales", ParquetSink("sales"), reads="total")
        return pipeline

    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,20\n3,a,30\n")
    run = runner(flow(1, 2))
    batch = run.open()
    run.settled(batch)
    fixed = runner(flow())
    first, second = sorted(
        row.message_id for row in run.ledger.rows("SELECT message_id FROM failed_message")
    )
    replay = fixed.open_replay(batch.batch_id, record=first)

    def quarantine(place, of):
        if place == "files written" and "/orders/" in of:
            run.ledger.quarantine("never to be sold", "me", record=second)

    with probes.listening(quarantine), pytest.raises(FencedError, match=r"1 record .* quarantined"):
        fixed.step(replay, "orders")
    fixed.settled(replay)
    assert sink_rows("sales", "customer", "cents") == [("a", 40)]
    statuses = run.ledger.rows("SELECT status::text FROM failed_message ORDER BY message_id")
    assert [row.status for row in statuses] == ["recovered", "quarantined"]


def test_what_did_not_parse_is_of_no_unit(runner, tmp_path, sink_rows):
    """It withholds nothing, not what has no values either, nor once it is quarantined; its replay
    publishes the unit that it is of with it.
    """
    lines = ["id,customer,cents", "1,a,10", "2,a,x", "3,b,30", "4,,40", "5,b,x"]
    (tmp_path / "orders.csv").write_text("\n".join(lines) + "\n")
    run = runner(by_customer(ORDERS))
    batch = run.open()
    assert run.settled(batch).failed == 2
    before = [("a", 1), ("b", 1), (None, 1)]
    assert sink_rows("sales", "customer", "n") == before
    unparsed = "SELECT message_id FROM failed_root_detail ORDER BY 1"
    _, last = [row.message_id for row in run.ledger.rows(unparsed)]
    run.ledger.quarantine("never right", "me", record=last)
    publish_settled(run.job, batch.batch_id)
    run.settled(run.open_replay(batch.batch_id, "in vain"))
    assert sink_rows("sales", "customer", "n") == before
    fixed = runner(by_customer(ORDERS.replace("cents INT", "cents STRING")))
    assert fixed.settled(fixed.open_replay(batch.batch_id)).failed == 0
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("b", 1), (None, 1)]


def test_what_fits_no_more_fails_with_its_unit(runner, tmp_path, sink_rows):
    """An acked record that a replay reads for the sake of its unit, and whose value does not fit
    today's schema, is not left out: it fails, and its unit waits for it.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,70000\n3,b,30\n")
    run = runner(by_customer(ORDERS, bad=(1,)))
    batch = run.open()
    assert run.settled(batch).failed == 1
    narrow = runner(by_customer(ORDERS.replace("cents INT", "cents SMALLINT")))
    assert narrow.settled(narrow.open_replay(batch.batch_id)).failed == 1
    assert sink_rows("sales", "customer", "n") == [("b", 1)]
    fixed = runner(by_customer(ORDERS))
    assert fixed.settled(fixed.open_replay(batch.batch_id, "fixed")).failed == 0
    assert sink_rows("sales", "customer", "n") == [("a", 2), ("b", 1)]


def test_a_published_unit_of_which_every_record_is_quarantined(runner, tmp_path, sink_rows):
    """It stays as it was published, for no replay can take its place; a reprocess removes it."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,x\n3,b,30\n")
    run = runner(by_customer(ORDERS))
    batch = run.open()
    run.settled(batch)
    strict = runner(by_customer(ORDERS.replace("cents INT", "cents STRING"), most=1))
    assert strict.settled(strict.open_replay(batch.batch_id)).failed == 2
    run.ledger.quarantine("never right", "me", batch_id=batch.batch_id)
    publish_settled(strict.job, batch.batch_id)
    with pytest.raises(NotReadyError, match="nothing to replay"):
        strict.open_replay(batch.batch_id, "again")
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]
    strict.settled(strict.open("rerun", reprocess=True))
    assert sink_rows("sales", "customer", "n") == [("b", 1)]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_rows_of_another_type_are_not_carried_over(runner, tmp_path, sink_rows, guarantee):
    """Spark would make texts numbers, to have one column of both."""

    def flow(kind, *bad):
        pipeline = Pipeline("shop", guarantee=guarantee, max_replays=0, unit=("customer",))
        pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

        @pipeline.stage(reads="orders")
        def checked(orders):
            return orders.withColumn("_failed", F.when(F.col("id").isin(-1, *bad), "bad"))

        @pipeline.stage(reads="checked", whole=True)
        def total(orders):
            code = F.min("id").cast(kind).alias("code")
            return orders.groupBy("customer").agg(code, collect_anchors())

        pipeline.sink("sales", ParquetSink("sales"), reads="total")
        return pipeline

    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n")
    run = runner(flow("int", 2))
    batch = run.open()
    run.settled(batch)
    if guarantee == "exactly_once":
        run.settled(run.open_replay(batch.batch_id, "without"))
    before = [("a", 1), ("b", 3)]
    assert sink_rows("sales", "customer", "code") == before
    changed = runner(flow("string"))
    again = changed.open_replay(batch.batch_id, "again", quarantined=True)
    with pytest.raises(StageError, match=r"'code' is string in one and int in another"):
        changed.settled(again)
    assert sink_rows("sales", "customer", "code") == before


def test_a_quarantined_record_whose_replay_dies_keeps_nothing_back(runner, tmp_path, sink_rows):
    """It is given back to quarantine, and the rest of its unit is asked for again."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,b,1\n4,b,1\n")
    run = runner(by_customer(ORDERS, bad=[1, 3]))
    ledger, batch = run.ledger, run.open()
    run.settled(batch)
    bad = "SELECT message_id FROM failed_root_detail WHERE reason = 'bad' ORDER BY 1"
    poisoned = [row.message_id for row in ledger.rows(bad)]
    ledger.quarantine("never right", "me", record=poisoned[0])
    dead = run.open_replay(batch.batch_id, "dead", record=poisoned[0], accepted=True)
    ledger.quarantine("never right", "me", record=poisoned[1])
    publish_settled(run.job, batch.batch_id)
    ledger.abandon(dead.batch_id)
    publish_settled(run.job, batch.batch_id)
    run.settled(run.open_replay(batch.batch_id, "again"))
    assert sink_rows("sales", "customer", "n") == [("a", 1), ("b", 1)]


def test_the_batch_as_unit_and_a_quarantined_record(spark):
    """The same where the whole batch is the unit: nothing, then all but the poison, then all."""
    result = testing.run_batch(totals(poison=7, unit=(), max_replays=0), ORDERED, spark=spark)
    assert sold(result) == []
    shown = testing.replay(result, totals(poison=7, unit=(), max_replays=0))
    without = [("a", 10 * 2 * (190 - 7), 38), B]
    assert sold(shown) == without
    in_vain = testing.replay(result, totals(poison=7, unit=(), max_replays=0), quarantined=True)
    assert sold(in_vain) == without
    again = testing.replay(result, totals(unit=(), max_replays=0), quarantined=True)
    assert sold(again) == [("a", 10 * 2 * 190, 40), B]


@pytest.mark.parametrize("unit", [(), ("customer",)])
def test_two_records_of_a_unit_quarantined_one_after_the_other(runner, tmp_path, sink_rows, unit):
    """The unit is published without both, be it that a publish came between them."""
    orders = "".join(f"{n},a,{n}\n" for n in range(10))
    (tmp_path / "orders.csv").write_text("id,customer,cents\n" + orders)
    pipeline = Pipeline("refunds", guarantee="exactly_once", max_replays=5, unit=unit)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def checked(orders):
        return orders.withColumn("_failed", F.when(F.col("id").isin(1, 2), "poisoned"))

    @pipeline.stage(reads="checked", whole=True)
    def total(orders):
        return orders.groupBy("customer").agg(F.sum("cents").alias("cents"), collect_anchors())

    pipeline.sink("sales", ParquetSink("sales"), reads="total")
    run = runner(pipeline)
    ledger, batch = run.ledger, run.open()
    run.settled(batch)
    failed = [row.root_id for row in ledger.rows("SELECT root_id FROM failed_root ORDER BY 1")]
    assert len(failed) == 2
    for root in failed:
        ledger.quarantine("never right", "me", record=root)
        publish_settled(run.job, batch.batch_id)
    run.settled(run.open_replay(batch.batch_id))
    assert sink_rows("sales", "customer", "cents") == [("a", 45 - 1 - 2)]
