"""Whole stages: rows of several records, and replays of the whole batch."""

from datetime import UTC, datetime, timedelta
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import (
    FileSource,
    ParquetSink,
    Pipeline,
    dropped,
    merge_anchors,
    testing,
)
from ledger.core.states import BatchStatus
from ledger.deltas.stored import anchored_rows
from ledger.errors import InputError, NotReadyError, StageError
from ledger.execution import settle_and_follow
from ledger.spark.folding.runners import by_anchor
from ledger.types.spark import local_rows
from tests.support.ledgers import Ledger
from tests.support.reasons import bare

ORDERS = "id INT, customer STRING, cents INT"
CUSTOMERS = "customer STRING, country STRING"


def orders_of(*numbers, customer="a"):
    return [{"id": n, "customer": customer, "cents": 10 * n} for n in numbers]


def joining(lose=(), partition_by=(), **options):
    """Orders joined with customers, both tracked; ``lose``: orders that vanish before the join."""
    pipeline = Pipeline("shop", guarantee="at_least_once", max_replays=2, **options)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

    @pipeline.stage(reads="orders", filters="lost")
    def checked(orders):
        return orders.where(~F.col("id").isin(list(lose) or [-1]))

    @pipeline.stage(reads=["checked", "customers"], anchors="merged_by_hand")
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "inner")
        return joined.select("o.id", "customer", "country", merge_anchors("o._anchor", "c._anchor"))

    pipeline.sink("sales", ParquetSink("sales", partition_by=partition_by), reads="sold")
    return pipeline


def ids(result, sink="sales"):
    return sorted(row["id"] for row in result.rows[sink])


SHOP = {
    "orders": [*orders_of(1, 2, 3), *orders_of(4, 5, customer="b")],
    "customers": [{"customer": "a", "country": "PT"}, {"customer": "b", "country": "NO"}],
}


def test_a_lost_order_finds_its_partner_in_the_replay(spark):
    """An order lost before a join of two tracked sources is replayed with the whole batch, so with
    the customer it belongs to.
    """
    result = testing.run_batch(joining(lose=[2]), SHOP, spark=spark)
    assert [(record.source, record.step, bare(record.reason)) for record in result.failed] == [
        ("orders", "checked", "filter: condition false: NOT (id IN (2))")
    ]
    assert ids(result) == [1, 3, 4, 5]

    again = testing.replay(result, joining())
    assert (again.roots.total, again.roots.failed) == (7, 0)
    assert ids(again) == [1, 2, 3, 4, 5]


def test_rows_of_a_join_are_acked_for_both_sides(spark):
    """A customer without orders is lost by the inner join; orders and customers that met are
    acked.
    """
    shop = {**SHOP, "customers": [*SHOP["customers"], {"customer": "c", "country": "FR"}]}
    result = testing.run_batch(joining(), shop, spark=spark)
    assert [(record.source, record.step) for record in result.failed] == [("customers", "sold")]
    assert result.roots.acked == 7


def test_no_row_meets_another(spark):
    """A join without a match makes no row at all: everything is lost there, and the batch
    settles.
    """
    shop = {**SHOP, "customers": [{"customer": "z", "country": "FR"}]}
    result = testing.run_batch(joining(), shop, spark=spark)
    assert (result.status, result.roots.acked, result.roots.failed) == ("settled", 0, 6)
    assert {record.step for record in result.failed} == {"sold"}


def latest(lose=()):
    pipeline = Pipeline("latest", guarantee="at_least_once")
    pipeline.source("events", FileSource("events.csv", schema=ORDERS))

    @pipeline.stage(reads="events", filters="lost")
    def checked(events):
        return events.where(~F.col("id").isin(list(lose) or [-1]))

    @pipeline.stage(reads="checked", anchors="merged_by_hand")
    def last(events):
        newest = Window.partitionBy("customer").orderBy(F.desc("id"))
        ranked = events.withColumn("place", F.row_number().over(newest))
        return ranked.where("place = 1"), dropped(ranked.where("place > 1"), "superseded")

    pipeline.sink("sales", ParquetSink("sales"), reads="last")
    return pipeline


def test_latest_per_key_with_a_replayed_older_row(spark):
    """An older row that is replayed does not replace the newer one of its key, and other keys
    stay.
    """
    events = {"events": [*orders_of(1, 2, 3), *orders_of(7, customer="b")]}
    result = testing.run_batch(latest(lose=[1]), events, spark=spark)
    assert ids(result) == [3, 7]
    again = testing.replay(result, latest())
    assert again.roots.failed == 0
    assert again.roots.total == 4
    assert ids(again) == [3, 7]


def test_the_newest_row_of_a_key_is_replayed(spark):
    """A newer row that was lost replaces, in the replay, what the batch delivered in its
    absence.
    """
    events = {"events": [*orders_of(1, 2, 3), *orders_of(7, customer="b")]}
    result = testing.run_batch(latest(lose=[3]), events, spark=spark)
    assert ids(result) == [2, 7]
    again = testing.replay(result, latest())
    assert ids(again) == [3, 7]


def totals(poison=None, behind=False, lose=None, **options):
    """A total per customer; ``poison``: an order that is refused before the total, or behind it;
    ``lose``: one that the total leaves out.
    """
    options = {"guarantee": "at_least_once", "max_replays": 2, **options}
    pipeline = Pipeline("totals", **options)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def checked(orders):
        bad = F.lit(not behind) & (F.col("id") == F.lit(poison if poison is not None else -1))
        return orders.withColumn("_failed", F.when(bad, "poisoned"))

    @pipeline.stage(reads="checked", filters="lost")
    def total(orders):
        rest = orders.where(F.col("id") != F.lit(lose if lose is not None else -1))
        return rest.groupBy("customer").agg(
            F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("orders")
        )

    @pipeline.stage(reads="total")
    def published(totals):
        bad = F.lit(behind) & (F.col("customer") == "a")
        return totals.withColumn("_failed", F.when(bad, "refused"))

    pipeline.sink("sales", ParquetSink("sales"), reads="published")
    return pipeline


def a_hundred():
    return {"orders": [*orders_of(*range(100)), *orders_of(500, customer="b")]}


@pytest.mark.parametrize(
    "guarantee", [pytest.param("at_least_once", marks=pytest.mark.exhaustive), "exactly_once"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"max_replays": 2, "replay_limit": 1},
        {"max_replays": 2, "max_pending": 1},
        {"max_replays": 1},
        {"max_replays": 3, "replay_backoff": "1h"},
    ],
    ids=["limit of one", "room for one", "one replay", "backoff"],
)
def test_a_poisoned_record_among_100(spark, options, guarantee):
    """Once the poisoned record is quarantined the other 99 are through, and none of them was
    quarantined, whatever the budget and the backoff.
    """
    pipeline, now = totals(poison=50, guarantee=guarantee, **options), datetime.now(UTC)
    again = result = testing.run_batch(pipeline, a_hundred(), spark=spark, now=now)
    while again.roots.failed:
        now += timedelta(days=1)
        again = testing.replay(result, pipeline, now=now)
        assert {record.reason for record in again.failed if record.status == "quarantined"} <= {
            "poisoned"
        }
    assert sorted((row["customer"], row["orders"]) for row in again.rows["sales"]) == [
        ("a", 99),
        ("b", 1),
    ]
    counts = "SELECT acked, quarantined, failed, pending FROM batch_status WHERE batch_id = :b"
    status = Ledger(result.lab.database).row(counts, b=result.batch_id)
    assert tuple(status) == (100, 1, 0, 0)


def test_a_total_that_fails_again_and_again_is_given_up(spark):
    """A row of 100 records that fails is no single record's failure: its records have two replays
    more than one that fails by itself. Then a replay leaves them out, and the rest gets through.
    """
    refusing = totals(behind=True, max_replays=1)
    result = testing.run_batch(refusing, a_hundred(), spark=spark)
    assert {(record.step, record.reason) for record in result.failed} == {("published", "refused")}
    assert len(result.failed) == 100
    for _ in range(3):
        again = testing.replay(result)
        assert (len(again.failed), {record.status for record in again.failed}) == (100, {"failed"})
    rest = testing.replay(result)
    assert (rest.roots.total, rest.roots.failed) == (1, 0)
    assert sorted((row["customer"], row["orders"]) for row in rest.rows["sales"]) == [("b", 1)]
    with pytest.raises(NotReadyError, match="nothing to replay"):
        testing.replay(result)
    fixed = testing.replay(result, totals(max_replays=1), quarantined=True)
    assert fixed.roots.failed == 0
    assert sorted((row["customer"], row["orders"]) for row in fixed.rows["sales"]) == [
        ("a", 100),
        ("b", 1),
    ]


def test_an_acked_record_that_fails_in_the_replay_counts_as_failed(spark):
    """A record that was acked, and is lost in a replay of its batch, is failed and replayed in
    turn.
    """
    result = testing.run_batch(totals(poison=50), a_hundred(), spark=spark)
    again = testing.replay(result, totals(lose=7))
    assert [(record.step, bare(record.reason)) for record in again.failed] == [
        ("total", "filter: condition false: NOT (id = 7)")
    ]
    whole = testing.replay(result, totals())
    assert whole.roots.failed == 0
    assert sorted(row["orders"] for row in whole.rows["sales"]) == [1, 100]


def test_the_history_of_a_record_keeps_what_was_acked(spark):
    """A record that was acked, in its batch or in a replay, and failed in a later replay, has all
    of these attempts in its history, each with step and reason, counted through; in every view it
    is failed.
    """
    result = testing.run_batch(totals(poison=1), {"orders": orders_of(0, 1, 2, 3)}, spark=spark)
    testing.replay(result, totals(lose=2))
    counts = "SELECT acked, recovered, failed FROM batch_status WHERE batch_id = :b"
    ledger = Ledger(result.lab.database)
    assert tuple(ledger.row(counts, b=result.batch_id)) == (3, 1, 1)
    listed = "SELECT status, count(*) FROM root_status WHERE batch_id = :b GROUP BY 1 ORDER BY 1"
    assert ledger.rows(listed, b=result.batch_id) == [("acked", 2), ("failed", 1), ("recovered", 1)]
    testing.replay(result, totals(lose=0))
    attempts = ledger.rows(
        "SELECT message_id, attempt, outcome, step, reason FROM replay_history ORDER BY 1, 2",
    )
    what = "filter: condition false: NOT (id = {})"
    histories = {row.message_id: [] for row in attempts}
    for row in attempts:
        reason = row.reason and bare(row.reason)
        histories[row.message_id].append((row.attempt, row.outcome, row.step, reason))
    poisoned, acked = ("failed", "checked", "poisoned"), ("acked", None, None)
    first, second = (("failed", "total", what.format(order)) for order in (2, 0))
    expected = [[acked, acked, second], [poisoned, acked, acked], [acked, first, acked]]
    assert sorted(histories.values(), key=repr) == sorted(
        ([(number, *outcome) for number, outcome in enumerate(history, 1)] for history in expected),
        key=repr,
    )


def test_max_anchors(spark):
    """A row of more records than max_anchors fails its stage with the advice to end tracking
    there.
    """
    with pytest.raises(
        StageError, match="a row of 100 records, max_anchors is 99: end tracking there"
    ):
        testing.run_batch(totals(max_anchors=99), a_hundred(), spark=spark)


@pytest.mark.parametrize("folded_by", ["driver", "threads", "executors", "exchange"], indirect=True)
def test_self_join_anchors_each_record_once(spark, folded_by):
    """In a self join the record that meets itself is anchored once, and exactly the unmatched
    ones fail.
    """
    pipeline = Pipeline("pairs", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders", anchors="merged_by_hand")
    def pairs(orders):
        left, right = orders.alias("l"), orders.alias("r")
        joined = left.join(right, F.expr("l.customer = r.customer AND l.id <= r.id"), "inner")
        rest = joined.where("l.id <> 5 AND r.id <> 5")
        return rest.select("l.id", merge_anchors("l._anchor", "r._anchor"))

    pipeline.sink("sales", ParquetSink("sales"), reads="pairs")
    result = testing.run_batch(pipeline, {"orders": SHOP["orders"]}, spark=spark)
    assert result.roots.acked == 4
    assert [(record.step, record.reason) for record in result.failed] == [("pairs", "lost")]


def test_two_rows_of_one_record_meet_again(spark):
    """Two descendants of a record in one row are two inputs acked and one edge: they do not
    cancel.
    """
    pipeline = Pipeline("meet", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def halves(orders):
        return orders.withColumn("half", F.explode(F.array(F.lit(1), F.lit(2))))

    @pipeline.stage(reads="halves", anchors="merged_by_hand")
    def met(halves):
        left, right = halves.where("half = 1").alias("l"), halves.where("half = 2").alias("r")
        return left.join(right, "id", "inner").select("id", merge_anchors("l._anchor", "r._anchor"))

    pipeline.record_stage(reads="met", schema="id INT")(as_it_is)
    pipeline.sink("sales", ParquetSink("sales"), reads="as_it_is")
    result = testing.run_batch(pipeline, {"orders": orders_of(1, 2, 3)}, spark=spark)
    assert (result.roots.acked, ids(result)) == (3, [1, 2, 3])
    lost = testing.run_batch(
        pipeline,
        {"orders": orders_of(*range(40))},
        spark=spark,
        faults=[testing.lose_rows("met", fraction=0.4, seed=2)],
    )
    assert 0 < len(lost.failed) < 40
    assert {record.step for record in lost.failed} == {"met"}
    assert len(lost.rows["sales"]) == 40 - len(lost.failed)


def as_it_is(record):
    yield {"id": record["id"]}


def test_a_row_that_comes_from_no_record_is_refused(spark):
    """A row with an empty anchor is an error, not an untracked row."""
    pipeline = Pipeline("outer", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

    @pipeline.stage(reads=["orders", "customers"], anchors="merged_by_hand")
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "full_outer")
        return joined.select("customer", merge_anchors("o._anchor"))

    pipeline.sink("sales", ParquetSink("sales"), reads="sold")
    shop = {**SHOP, "customers": [*SHOP["customers"], {"customer": "c", "country": "FR"}]}
    with pytest.raises(StageError, match="1 rows that come from no record"):
        testing.run_batch(pipeline, shop, spark=spark)


def test_merging_without_saying_whole_is_refused(spark):
    """merge_anchors in a stage that is not declared whole names what to declare."""
    pipeline = Pipeline("union", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders", anchors="by_hand")
    def total(orders):
        return orders.groupBy("customer").agg(F.collect_set("_anchor").alias("_anchor"))

    pipeline.sink("sales", ParquetSink("sales"), reads="total")
    with pytest.raises(StageError, match='declare it with anchors="merged_by_hand"'):
        testing.run_batch(pipeline, {"orders": SHOP["orders"]}, spark=spark)


def test_a_record_that_did_not_parse_joins_the_others(runner, tmp_path, sink_rows):
    """A record that parses only in the replay is part of the total then."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,x\n3,b,30\n")

    def build(schema):
        shop = Pipeline("totals", guarantee="at_least_once")
        shop.source("orders", FileSource("orders.csv", schema=schema))

        @shop.stage(reads="orders")
        def total(orders):
            return orders.groupBy("customer").agg(F.count(F.lit(1)).alias("orders"))

        shop.sink("sales", ParquetSink("sales"), reads="total")
        return shop

    first = runner(build(ORDERS))
    batch = first.open()
    assert first.settled(batch).failed == 1
    assert sink_rows("sales", "customer", "orders") == [("a", 1), ("b", 1)]
    fixed = runner(build("id INT, customer STRING, cents STRING"))
    assert fixed.settled(fixed.open_replay(batch.batch_id)).failed == 0
    assert sink_rows("sales", "customer", "orders") == [("a", 2), ("b", 1)]


def test_two_replays_of_a_whole_batch(runner, tmp_path):
    """While one replay of a batch is open another is refused: each takes all of it."""
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,x\n2,b,x\n")
    pipeline = Pipeline("totals", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.stage(reads="orders", anchors="merged_by_hand")(again)
    pipeline.sink("sales", ParquetSink("sales"), reads="again")
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == 2
    run.open_replay(batch.batch_id, "one", record=1)
    with pytest.raises(NotReadyError, match="has one replay at a time: let that one"):
        run.open_replay(batch.batch_id, "two")


def test_one_parent_in_several_partitions(spark):
    """Rows of one record in many tasks count as one: just the records without any row are lost."""
    pipeline = Pipeline("scattered", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders", filters="lost")
    def scattered(orders):
        rows = orders.withColumn("copy", F.explode(F.sequence(F.lit(1), F.lit(8))))
        rest = rows.where("id % 3 <> 0 OR id % 2 = 0 AND copy = 5")
        return rest.repartition(7, F.xxhash64("id", "copy"))

    pipeline.sink("sales", ParquetSink("sales"), reads="scattered")
    result = testing.run_batch(pipeline, {"orders": orders_of(*range(1, 31))}, spark=spark)
    assert (result.roots.acked, len(result.failed)) == (25, 5)
    assert {record.step for record in result.failed} == {"scattered"}
    assert len({row["id"] for row in result.rows["sales"]}) == 25


def test_lists_are_taken_apart_alike_by_spark_and_numpy(spark):
    """The rows of several anchors that are exchanged are those that a file of lists has: which
    anchor is its row's first of a root, and whether the row has others.
    """
    random, inputs = Random(1), ("one", "two")
    lists = []
    for _ in range(200):
        drawn = [
            (random.randint(1, 4), random.randint(1, 4), random.choice(inputs))
            for _ in range(random.choice([0, 1, 1, 2, 3, 5]))
        ]
        lists.append(
            [
                dict(zip(("root", "parent", "input"), values, strict=True))
                for values in sorted(drawn)
            ]
        )
    anchor = pa.struct([("root", pa.int64()), ("parent", pa.int64()), ("input", pa.string())])
    columns = {
        "_ackledger_anchors": pa.array(lists, pa.list_(anchor)),
        "_ackledger_position": pa.array(range(200), pa.int64()),
        "_failed": pa.array([random.choice([None, None, "b", "a"]) for _ in lists]),
    }
    in_spark = by_anchor(local_rows(spark, columns)).toArrow()
    actual, _ = anchored_rows(in_spark, in_spark["_ackledger_position"].to_numpy(), inputs)
    expected, _ = anchored_rows(pa.table(columns), np.arange(200), inputs)
    for name in ("root", "parent", "position", "input", "first", "shared"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name)), name
    assert np.array_equal(actual.failed.codes, expected.failed.codes)
    assert actual.failed.words == expected.failed.words


def clicks_beside_orders(lose=()):
    """Orders that a total takes and, beside them, clicks that are handed on one by one."""
    pipeline = totals()
    pipeline.source("clicks", FileSource("clicks.csv", schema=ORDERS))

    @pipeline.stage(reads="clicks", filters="lost")
    def clicked(clicks):
        return clicks.where(~F.col("id").isin(list(lose) or [-1]))

    pipeline.sink("hits", ParquetSink("hits"), reads="clicked")
    return pipeline


def test_a_replay_takes_the_sources_beside(spark):
    """A replay takes all sources of the batch, and replaces the rows of all sinks."""
    rows = {"orders": SHOP["orders"], "clicks": orders_of(8, 9)}
    result = testing.run_batch(clicks_beside_orders([9]), rows, spark=spark)
    assert (ids(result, "hits"), len(result.rows["sales"])) == ([8], 2)
    again = testing.replay(result, clicks_beside_orders())
    assert again.roots.total == 7
    assert (ids(again, "hits"), len(again.rows["sales"])) == ([8, 9], 2)


def test_a_replay_that_dies_after_its_sink_has_replaced_nothing_yet(spark):
    """What a replay replaces goes at the instant at which its own rows come, once it is settled."""
    result = testing.run_batch(totals(poison=2), {"orders": SHOP["orders"]}, spark=spark)
    dead = testing.replay(result, totals(), faults=[testing.crash_at("steps_committed")])
    assert dead.crashed
    assert sorted(row["orders"] for row in dead.rows["sales"]) == [2, 2]
    assert sorted(row["orders"] for row in testing.resume(dead).rows["sales"]) == [2, 3]


def test_a_replay_that_expires_replaces_nothing(runner, tmp_path, sink_rows):
    """A replay whose sink was superseded and died is abandoned: the old rows stay, and its records
    are failed as before.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,10\n2,a,x\n")
    pipeline = Pipeline("totals", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.stage(reads="orders", anchors="merged_by_hand")(again)
    pipeline.sink("sales", ParquetSink("sales"), reads="again")
    run = runner(pipeline)
    first = run.open()
    run.settled(first)
    before = sink_rows("sales", "id")
    replay = run.open_replay(first.batch_id)
    run.steps(replay)
    run.step(replay, "again")  # supersedes what its sink has staged
    run.ledger.start(replay.batch_id, "sales")
    run.ledger.age(replay.batch_id, 10_000)
    assert settle_and_follow(run.job, replay.batch_id).status is BatchStatus.ABANDONED
    assert sink_rows("sales", "id") == before != []
    assert run.ledger.row("SELECT status, attempts FROM failed_message") == ("failed", 1)


def test_a_replay_opened_again_is_newer_than_its_number(runner, tmp_path, sink_rows):
    """What an abandoned replay brings when it is opened again is not taken back by one that ran
    meanwhile.
    """
    (tmp_path / "orders.csv").write_text(
        "id,customer,cents\n1,a,10\n2,a,10\n3,a,10\n7,b,10\n8,b,10\n"
    )

    def build(lose):
        shop = Pipeline("latest", guarantee="at_least_once", max_replays=9)
        shop.source("orders", FileSource("orders.csv", schema=ORDERS))

        @shop.stage(reads="orders", filters="lost")
        def checked(orders):
            return orders.where(~F.col("id").isin(lose))

        @shop.stage(reads="checked")
        def total(orders):
            return orders.groupBy("customer").agg(F.count(F.lit(1)).alias("orders"))

        shop.sink("sales", ParquetSink("sales"), reads="total")
        return shop

    run = runner(build([3, 8]))
    first = run.open()
    run.settled(first)
    dead = run.open_replay(first.batch_id, "dead")
    run.ledger.abandon_dead(dead, "orders", seconds=10_000)
    run.settled(run.open_replay(first.batch_id, "meanwhile"))  # loses 3 and 8 again
    fixed = runner(build([8]))
    fixed.settled(fixed.open_replay(first.batch_id, "dead"))  # opened again: brings 3
    assert sink_rows("sales", "customer", "orders") == [("a", 3), ("b", 1)]
    last = runner(build([99]))
    last.settled(last.open_replay(first.batch_id, "last"))  # brings 8
    assert sink_rows("sales", "customer", "orders") == [("a", 3), ("b", 2)]


def test_a_pipeline_that_is_not_what_the_batch_had(spark):
    """A replay is refused if a whole stage came or went, or a source of a batch to replay whole."""
    result = testing.run_batch(totals(poison=2), {"orders": SHOP["orders"]}, spark=spark)
    plain = Pipeline("totals", guarantee="at_least_once")
    plain.source("orders", FileSource("orders.csv", schema=ORDERS))
    plain.sink("sales", ParquetSink("sales"), reads="orders")
    with pytest.raises(InputError, match="ran with a whole stage, the pipeline has no whole stage"):
        testing.replay(result, plain)
    with pytest.raises(
        InputError, match="ran with the sources orders, the pipeline has clicks, orders"
    ):
        testing.replay(result, clicks_beside_orders())


def test_an_abandoned_replay_gives_back_what_it_found(runner, tmp_path, ledger):
    """Messages that a replay from quarantine took along are failed again afterwards, not
    quarantined.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,x\n2,a,10\n")
    (tmp_path / "customers.csv").write_text("customer,country\na,x\n")
    pipeline = Pipeline("shop", guarantee="at_least_once", max_replays=1)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema="customer STRING, country INT"))

    @pipeline.stage(reads=["orders", "customers"])
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "inner")
        return joined.select("o.id")

    pipeline.sink("sales", ParquetSink("sales"), reads="sold")
    run = runner(pipeline)
    first = run.open()
    assert run.settled(first).failed == 3
    run.settled(run.open_replay(first.batch_id, "one"))
    status = "SELECT status, failed_replays, given_up FROM failed_message ORDER BY message_id"
    before = ledger.rows(status)
    assert sorted(row.status for row in before) == ["failed", "quarantined", "quarantined"]
    again = run.open_replay(first.batch_id, "two", quarantined=True)
    run.step(again, "orders")
    ledger.abandon_dead(again, "customers", seconds=10_000)
    assert ledger.rows(status) == before


def test_a_record_lost_beside_a_whole_stage_is_its_own_failure(spark):
    """A source that a record-wise and a whole stage read: what the record-wise one loses again
    and again is given up by itself, and quarantined by the replay that leaves it out.
    """
    pipeline = totals()

    @pipeline.stage(reads="orders", filters="lost")
    def listed(orders):
        return orders.where("id <> 4")

    pipeline.sink("list", ParquetSink("list"), reads="listed")
    pipeline.max_replays = 1
    result = testing.run_batch(pipeline, {"orders": SHOP["orders"]}, spark=spark)
    assert [(record.step, record.status) for record in result.failed] == [("listed", "failed")]
    again = testing.replay(result)
    assert [record.status for record in again.failed] == ["failed"]
    rest = testing.replay(result)
    assert (rest.roots.total, rest.roots.failed, len(rest.rows["list"])) == (4, 0, 4)


def test_backoff_and_failures_of_others_do_not_quarantine_them(spark):
    """A poisoned customer makes its orders miss their partner: it is quarantined, they are not,
    whatever the backoff.
    """

    def shop(poisoned):
        options = {"guarantee": "at_least_once", "max_replays": 1, "replay_backoff": "1h"}
        pipeline = Pipeline("shop", **options)
        pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
        pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

        @pipeline.stage(reads="customers")
        def checked(customers):
            bad = F.lit(poisoned) & (F.col("customer") == "a")
            return customers.withColumn("_failed", F.when(bad, "poisoned"))

        @pipeline.stage(reads=["orders", "checked"])
        def sold(orders, customers):
            joined = orders.alias("o").join(customers.alias("c"), "customer", "inner")
            return joined.select("o.id", "customer")

        pipeline.sink("sales", ParquetSink("sales"), reads="sold")
        return pipeline

    now = datetime.now(UTC)
    result = testing.run_batch(shop(True), SHOP, spark=spark, now=now)
    assert sorted(record.source for record in result.failed) == [
        "customers",
        "orders",
        "orders",
        "orders",
    ]
    with pytest.raises(NotReadyError, match="not due yet"):
        testing.replay(result, now=now + timedelta(minutes=59))
    later = now + timedelta(hours=2)
    again = testing.replay(result, now=later, source="customers")
    status = {(record.source, record.status) for record in again.failed}
    assert status == {("customers", "failed"), ("orders", "failed")}
    later += timedelta(hours=9)
    without = testing.replay(result, now=later)
    assert {(record.source, record.status) for record in without.failed} == {("orders", "failed")}
    fixed = testing.replay(result, shop(False), now=later + timedelta(hours=9), quarantined=True)
    assert ids(fixed) == [1, 2, 3, 4, 5]
    assert fixed.roots.failed == 0


def test_a_null_among_the_anchors_is_refused(spark):
    """A list that an outer join has put a null into is an error, not a root without a batch."""
    pipeline = Pipeline("outer", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.source("customers", FileSource("customers.csv", schema=CUSTOMERS))

    @pipeline.stage(reads=["orders", "customers"], anchors="merged_by_hand")
    def sold(orders, customers):
        joined = orders.alias("o").join(customers.alias("c"), "customer", "left")
        both = F.array(F.get("o._anchor", F.lit(0)), F.get("c._anchor", F.lit(0)))
        return joined.select("o.id", both.alias("_anchor"))

    pipeline.sink("sales", ParquetSink("sales"), reads="sold")
    with pytest.raises(StageError, match="5 rows that come from no record"):
        testing.run_batch(pipeline, {"orders": SHOP["orders"]}, spark=spark)


def again(rows):
    return rows
