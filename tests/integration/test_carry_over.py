"""Carry-over: a replay by unit runs record-wise steps for what failed there, and takes over the
rest.
"""

from collections import Counter
from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from ledger import (
    FailedRecord,
    FileSource,
    ParquetSink,
    Pipeline,
    acked,
    collect_anchors,
    dropped,
    merge_anchors,
    testing,
)
from ledger.batch.records.trace import trace
from ledger.core.states import BatchStatus
from ledger.errors import InputError, StageError
from tests.support.ledgers import Ledger

ORDERS = "id INT, customer STRING, cents INT"
GUARANTEES = [pytest.param("at_least_once", marks=pytest.mark.exhaustive), "exactly_once"]
both_guarantees = pytest.mark.parametrize("guarantee", GUARANTEES)
both_units = pytest.mark.parametrize("unit", [(), ("customer",)])


def orders_of(*numbers, customer="a"):
    return [{"id": n, "customer": customer, "cents": 10 * n} for n in numbers]


SHOP = {"orders": [*orders_of(1, 2, 3, 4), *orders_of(7, 8, customer="b")]}


def without(frame, numbers):
    return frame.where(~F.col("id").isin([-1, *numbers]))


def failing(frame, numbers, reason="refused"):
    return frame.withColumn("_failed", F.when(F.col("id").isin([-1, *numbers]), reason))


def shop(
    seen=None,
    lose=(),
    refuse=(),
    lose_in_total=(),
    behind=False,
    version=0,
    unit=("customer",),
    short=False,
    **options,
):
    """orders -> checked -> a total per customer -> published -> a sink; beside it a list of what
    was checked.

    ``seen``: takes the orders that ``checked`` is called with. ``lose``, ``refuse``: orders that
    it loses, or fails. ``version``: a column of what it makes. ``short``: the sink reads the
    total, and there is no list.
    """
    pipeline = Pipeline(
        "shop", unit=unit, **{"guarantee": "at_least_once", "max_replays": 2, **options}
    )
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def checked(orders):
        if seen is not None:
            seen.append(sorted(row.id for row in orders.select("id").collect()))
        rest = failing(without(orders, lose), refuse)
        return rest.withColumn("version", F.lit(version))

    @pipeline.stage(reads="checked", whole=True)
    def total(orders):
        return (
            without(orders, lose_in_total)
            .groupBy("customer")
            .agg(
                F.sum("cents").alias("cents"),
                F.sort_array(F.collect_list(F.struct("id", "version"))).alias("orders"),
                collect_anchors(),
            )
        )

    if short:
        pipeline.sink("sales", ParquetSink("sales"), reads="total")
        return pipeline

    @pipeline.stage(reads="total")
    def published(totals):
        return totals.withColumn("_failed", F.when(F.lit(behind), "refused"))

    pipeline.sink("sales", ParquetSink("sales"), reads="published")
    pipeline.sink("list", ParquetSink("list"), reads="checked")
    return pipeline


def sales(result):
    """What the sink has published: of each customer the orders with the version that made them."""
    return {
        row["customer"]: {order["id"]: order["version"] for order in row["orders"]}
        for row in result.rows["sales"]
    }


@both_guarantees
@both_units
def test_a_stage_sees_only_what_failed_there(spark, unit, guarantee):
    """In a replay the stage's function gets the lost and the refused order, and the total is of
    all of them.
    """
    seen = []
    options = {"unit": unit, "guarantee": guarantee}
    result = testing.run_batch(shop(seen, lose=[2], refuse=[3], **options), SHOP, spark=spark)
    assert sorted(record.reason for record in result.failed) == ["lost", "refused"]
    again = testing.replay(result, shop(seen, version=1, **options))
    assert seen == [[1, 2, 3, 4, 7, 8], [2, 3]]
    assert again.roots.failed == 0
    assert again.roots.total == (4 if unit else 6)
    assert sales(again) == {"a": {1: 0, 2: 1, 3: 1, 4: 0}, "b": {7: 0, 8: 0}}


@both_guarantees
def test_a_sink_beside_gets_each_row_once(spark, guarantee):
    """A sink that reads a record-wise stage beside the total has every order once after the
    replays.
    """
    options = {"guarantee": guarantee}
    result = testing.run_batch(shop(lose=[2, 7], **options), SHOP, spark=spark)
    testing.replay(result, shop(lose=[2], version=1, **options))
    last = testing.replay(result, shop(version=2, **options))
    counts = Counter((row["id"], row["version"]) for row in last.rows["list"])
    assert counts == Counter([(1, 0), (2, 2), (3, 0), (4, 0), (7, 1), (8, 0)])


def transient(attempt, guarantee, unit):
    """As the shop, with a check that fails 1 % of what it is given, others at each ``attempt``."""
    pipeline = Pipeline("transient", guarantee=guarantee, max_replays=3, unit=unit)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def checked(orders):
        number = F.pmod(F.xxhash64("id", F.lit(attempt)), F.lit(200))
        rest = orders.where(number != 0)
        return rest.withColumn("_failed", F.when(number == 1, "timed out"))

    @pipeline.stage(reads="checked", whole=True)
    def total(orders):
        sums = [F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("orders")]
        return orders.groupBy("customer").agg(*sums, collect_anchors())

    pipeline.sink("sales", ParquetSink("sales"), reads="total")
    pipeline.sink("list", ParquetSink("list"), reads="checked")
    return pipeline


@pytest.mark.parametrize(
    ("unit", "guarantee"),
    [
        (("customer",), "exactly_once"),
        pytest.param((), "exactly_once", marks=pytest.mark.exhaustive),
        pytest.param((), "at_least_once", marks=pytest.mark.exhaustive),
        pytest.param(("customer",), "at_least_once", marks=pytest.mark.exhaustive),
    ],
)
def test_5000_messages_of_a_unit_converge(spark, unit, guarantee):
    """With 1 % transient failures in every run, a unit of 5,000 records is through in a few
    rounds: nothing is quarantined, lost or doubled.
    """
    numbers = range(5_100)
    customer = ["a" if n < 5_000 else "b" for n in numbers]
    records = [{"id": n, "customer": customer[n], "cents": n} for n in numbers]
    result = testing.run_batch(transient(0, guarantee, unit), {"orders": records}, spark=spark)
    assert 20 < len(result.failed) < 100
    rounds, last = 0, result
    while last.roots.failed:
        rounds += 1
        assert rounds <= 5
        last = testing.replay(result, transient(rounds, guarantee, unit))
    assert last.roots.quarantined == 0
    expected = {
        name: (sum(n for n in numbers if customer[n] == name), customer.count(name))
        for name in ("a", "b")
    }
    counts = {row["customer"]: (row["cents"], row["orders"]) for row in last.rows["sales"]}
    assert counts == expected
    assert len(last.rows["sales"]) == 2
    assert Counter(row["id"] for row in last.rows["list"]) == Counter(numbers)


def sometimes(stage, attempt, *columns):
    """Whether a stage fails a row this time: one in twenty, others in each attempt."""
    return F.pmod(F.xxhash64(F.lit(stage), F.lit(attempt), *columns), F.lit(20)) == 0


def branches(attempt, attempts, unit, guarantee):
    """Orders fan out and pass three stages, returns pass two; united they are joined with
    customers and totalled. Every stage loses rows, others at each ``attempt``, the join in the
    first two. ``attempts``: takes how many orders the first stage was given.
    """
    pipeline = Pipeline("branches", guarantee=guarantee, max_replays=20, unit=unit)
    for name in ("orders", "returns"):
        pipeline.source(name, FileSource(f"{name}.csv", schema=ORDERS))
    pipeline.source(
        "customers", FileSource("customers.csv", schema="customer STRING, country STRING")
    )

    @pipeline.stage(reads="orders")
    def lines(orders):
        attempts.append(orders.count())
        fanned = orders.withColumn("line", F.explode(F.array(F.lit(1), F.lit(2), F.lit(3))))
        return fanned.where(~sometimes("lines", attempt, "id"))

    @pipeline.stage(reads="lines", emits="one")
    def priced(lines):
        return lines.where(~sometimes("priced", attempt, "id", "line"))

    def taxed(line):
        if (line["id"] * 7 + line["line"] * 3 + attempt) % 23 == 0:
            raise FailedRecord("no tax")
        if line["line"] == 3 and line["id"] % 5 == 0:
            yield dropped("free")
        else:
            yield {"id": line["id"], "customer": line["customer"], "cents": line["cents"]}

    pipeline.record_stage(reads="priced", schema=ORDERS)(taxed)

    @pipeline.stage(reads="returns")
    def returned(returns):
        return returns.where(~sometimes("returned", attempt, "id")).withColumn(
            "cents", -F.col("cents")
        )

    @pipeline.stage(reads=["taxed", "returned"])
    def united(taxed, returned):
        return taxed.unionByName(returned).where(~sometimes("united", attempt, "id", "cents"))

    @pipeline.stage(reads=["united", "customers"], whole=True)
    def sold(united, customers):
        rest = united.where(~sometimes("sold", attempt, "id", "cents") | F.lit(attempt > 1))
        joined = rest.alias("u").join(customers.alias("c"), "customer", "inner")
        return joined.select(
            "customer", "country", "cents", merge_anchors("u._anchor", "c._anchor")
        )

    @pipeline.stage(reads="sold", whole=True)
    def totals(sold):
        return sold.groupBy("customer").agg(F.sum("cents").alias("cents"), collect_anchors())

    pipeline.sink("sums", ParquetSink("sums"), reads="totals")
    pipeline.sink("list", ParquetSink("list"), reads="united")
    return pipeline


@pytest.mark.parametrize(
    ("unit", "guarantee"),
    [
        ((), "exactly_once"),
        pytest.param(("customer",), "at_least_once", marks=pytest.mark.exhaustive),
    ],
)
def test_losses_on_every_branch(spark, unit, guarantee):
    """Fan-out, stages in a row, drops, a union and a join with losses at each: the replays end
    with all rows, once, and none runs the first stage for an order that has not failed before
    the join.
    """
    customers = "abc"
    orders = [{"id": n, "customer": customers[n % 3], "cents": 10 + n} for n in range(60)]
    returns = [{"id": n, "customer": customers[n % 3], "cents": 1 + n} for n in range(40)]
    sources = {
        "orders": orders,
        "returns": returns,
        "customers": [{"customer": name, "country": "PT"} for name in customers],
    }
    records = []
    result = testing.run_batch(branches(0, records, unit, guarantee), sources, spark=spark)
    last, failed = result, [60]
    for attempt in range(1, 15):
        if not last.roots.failed:
            break
        again = [
            record for record in last.failed if record.source == "orders" and record.step != "sold"
        ]
        failed.append(len(again))
        last = testing.replay(result, branches(attempt, records, unit, guarantee))
    assert (last.roots.failed, last.roots.quarantined) == (0, 0)
    assert records == failed
    due = Counter((return_["id"], -return_["cents"]) for return_ in returns)
    for order in orders:
        due[order["id"], order["cents"]] = 2 if order["id"] % 5 == 0 else 3
    assert Counter((row["id"], row["cents"]) for row in last.rows["list"]) == due
    sums = Counter()
    for (number, cents), count in due.items():
        sums[customers[number % 3]] += cents * count
    assert {row["customer"]: row["cents"] for row in last.rows["sums"]} == sums
    assert len(last.rows["sums"]) == 3


def kinds(seen, refuse=()):
    """A stage of each way to ack in a row: on read, with drops, explicit, and one that may
    refuse.
    """
    pipeline = Pipeline("kinds", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    def noting(name, frame):
        seen[name] = sorted(row.id for row in frame.select("id").collect())
        return frame

    @pipeline.stage(reads="orders", acks="on_read")
    def quiet(orders):
        return without(noting("quiet", orders), [1])

    @pipeline.stage(reads="quiet")
    def noted(orders):
        orders_ = noting("noted", orders)
        return orders_.where("id <> 2"), dropped(orders_.where("id = 2"), "void")

    @pipeline.stage(reads="noted", acks="explicit")
    def notified(orders):
        orders_ = noting("notified", orders)
        return orders_.where("id <> 3"), acked(orders_.where("id = 3"))

    @pipeline.stage(reads="notified")
    def last(orders):
        return failing(noting("last", orders), refuse)

    @pipeline.stage(reads="last", whole=True)
    def total(orders):
        return orders.groupBy().agg(
            F.sort_array(F.collect_list("id")).alias("ids"), collect_anchors()
        )

    pipeline.sink("sums", ParquetSink("sums"), reads="total")
    return pipeline


def test_stages_that_drop_ack_or_only_read(spark, folded_by):
    """What was dropped, acked or swallowed is not asked for again, nor counted again; what
    failed passes all.
    """
    seen = {}
    result = testing.run_batch(
        kinds(seen, refuse=[4]), {"orders": orders_of(*range(1, 7))}, spark=spark
    )
    assert [record.reason for record in result.failed] == ["refused"]
    again = testing.replay(result, kinds(seen))
    assert seen == {"quiet": [4], "noted": [4], "notified": [4], "last": [4]}
    assert [row["ids"] for row in again.rows["sums"]] == [[4, 5, 6]]
    counted = Ledger(result.lab.database).rows(
        "SELECT r.batch_id = :b AS first, r.step, d.reason, d.records "
        "FROM step_run_drop d JOIN step_run r USING (step_run_id) ORDER BY r.step",
        b=result.batch_id,
    )
    assert [tuple(row) for row in counted] == [
        (True, "noted", "void", 1),
        (True, "quiet", "no output", 1),
    ]


@both_guarantees
def test_a_failure_at_a_whole_stage_or_after_carries_everything(spark, guarantee):
    """What was lost at the total, or refused behind it, has all its rows before: the step runs
    for nothing.
    """
    seen = []
    options = {"unit": (), "guarantee": guarantee}
    result = testing.run_batch(shop(lose_in_total=[2], **options), SHOP, spark=spark)
    again = testing.replay(result, shop(seen, behind=True, version=1, **options))
    assert {record.step for record in again.failed} == {"published"}
    last = testing.replay(result, shop(seen, version=2, **options))
    assert seen == [[], []]
    assert last.roots.failed == 0
    assert sales(last) == {"a": dict.fromkeys((1, 2, 3, 4), 0), "b": {7: 0, 8: 0}}
    assert sorted(row["id"] for row in last.rows["list"]) == [1, 2, 3, 4, 7, 8]


@both_guarantees
def test_a_quarantined_record_leaves_and_comes_back(spark, guarantee):
    """A record that is quarantined takes its rows with it; driven again it runs, and the others are
    carried over.
    """
    seen = []
    options = {"max_replays": 1, "guarantee": guarantee}
    result = testing.run_batch(shop(refuse=[3], **options), SHOP, spark=spark)
    last = testing.replay(result, shop(seen, refuse=[3], version=1, **options))
    assert last.roots.quarantined == 1
    if guarantee == "exactly_once":  # the unit is published by a replay without it
        last = testing.replay(result, shop(seen, version=2, **options))
        assert seen.pop() == []
    assert sales(last) == {"a": dict.fromkeys((1, 2, 4), 0), "b": {7: 0, 8: 0}}
    assert 3 not in [row["id"] for row in last.rows["list"]]
    fixed = testing.replay(result, shop(seen, version=3, **options), quarantined=True)
    assert seen == [[3], [3]]
    assert sales(fixed) == {"a": {1: 0, 2: 0, 3: 3, 4: 0}, "b": {7: 0, 8: 0}}


def test_rows_come_from_the_latest_batch_that_made_them(spark):
    """Each record's rows are those of its last run, whichever units were replayed in between; a
    record whose rows are carried over and that the total loses is named so.
    """
    seen = []
    result = testing.run_batch(shop(lose=[2], refuse=[7], short=True), SHOP, spark=spark)
    losing = shop(seen, lose_in_total=[1], version=1, short=True)
    first = testing.replay(result, losing, reason="lost")
    assert ("total", "lost") in [(record.step, record.reason) for record in first.failed]
    assert first.roots.failed == 1
    testing.replay(result, shop(seen, version=2, short=True), reason="refused")
    last = testing.replay(result, shop(seen, version=3, short=True))
    assert seen == [[2], [7], []]
    assert last.roots.failed == 0
    assert sales(last) == {"a": {1: 0, 2: 1, 3: 0, 4: 0}, "b": {7: 2, 8: 0}}


def test_columns_that_changed(spark):
    """Rows that are carried over cannot be united with others: the error says what there is and
    what to do.
    """
    result = testing.run_batch(shop(lose=[2]), SHOP, spark=spark)
    with pytest.raises(
        StageError,
        match=r"version string; batch 1, .* rows of 3 records .*version int: .* reprocess",
    ):
        testing.replay(result, shop(version="new"))


def with_a_stage_more():
    steps = shop().graph.steps
    total = replace(steps["total"], inputs=("sorted_out",))
    pipeline = shop().with_steps({**steps, "total": total}.values())
    pipeline.stage(reads="checked")(sorted_out)
    return pipeline


def with_other_inputs():
    pipeline = Pipeline("shop", guarantee="at_least_once", unit="customer")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.stage(reads="orders")(published)
    pipeline.stage(reads="published", whole=True)(checked)
    pipeline.sink("sales", ParquetSink("sales"), reads="checked")
    return pipeline


def with_a_stage_that_was_whole():
    pipeline = Pipeline("shop", guarantee="at_least_once", unit="customer")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))
    pipeline.stage(reads="orders")(checked)
    pipeline.stage(reads="checked")(total)
    pipeline.stage(reads="total", whole=True)(published)
    pipeline.sink("sales", ParquetSink("sales"), reads="published")
    return pipeline


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (with_a_stage_more, r"'sorted_out': .* stages were checked, total, published"),
        (with_other_inputs, r"'published': .* it read total there"),
        (with_a_stage_that_was_whole, r"'total': .* of several records, or not tracked"),
    ],
    ids=["not there", "other inputs", "whole"],
)
def test_a_stage_that_was_not_there(spark, changed, message):
    """A stage that the batch did not have, or had with other inputs, or as a whole one, has no
    rows to carry over.
    """
    result = testing.run_batch(shop(lose=[2]), SHOP, spark=spark)
    with pytest.raises(InputError, match=message):
        testing.replay(result, changed())


def sorted_out(rows):
    return rows


def published(rows):
    return rows


def total(rows):
    return rows


def checked(rows):
    return rows.withColumn("version", F.lit(0))


def halves(lose=False, behind=False):
    """Each order in two rows, of which one of order 2 may be lost before a total that is refused
    behind.
    """
    pipeline = Pipeline("halves", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def split(orders):
        return orders.withColumn("half", F.explode(F.array(F.lit(1), F.lit(2))))

    @pipeline.stage(reads="split")
    def checked(split):
        return split.where(~(F.lit(lose) & (F.col("id") == 2) & (F.col("half") == 1)))

    @pipeline.stage(reads="checked", whole=True)
    def total(rows):
        return rows.groupBy().agg(F.count(F.lit(1)).alias("halves"), collect_anchors())

    @pipeline.stage(reads="total")
    def published(totals):
        return totals.withColumn("_failed", F.when(F.lit(behind), "refused"))

    pipeline.sink("sums", ParquetSink("sums"), reads="published")
    return pipeline


def test_a_record_that_failed_before_and_after_the_total_runs_again(spark):
    """A record that lost a row before the total is its own failure, although a row of it failed
    with others later: it runs again, and the lost row is there.
    """
    data = {"orders": orders_of(1, 2, 3)}
    result = testing.run_batch(halves(lose=True, behind=True), data, spark=spark)
    assert sorted((record.step, record.reason) for record in result.failed) == [
        ("checked", "lost"),
        ("published", "refused"),
        ("published", "refused"),
    ]
    again = testing.replay(result, halves())
    assert again.roots.failed == 0
    assert [row["halves"] for row in again.rows["sums"]] == [6]


def beside(seen, lose=(), **options):
    """A total, and beside it a stage that loses the same orders as the total."""
    pipeline = Pipeline("beside", guarantee="at_least_once", **options)
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders", whole=True)
    def total(orders):
        return without(orders, lose).groupBy().agg(F.sum("id").alias("sum"), collect_anchors())

    @pipeline.stage(reads="orders")
    def listed(orders):
        seen.append(sorted(row.id for row in orders.select("id").collect()))
        return without(orders, lose)

    pipeline.sink("sums", ParquetSink("sums"), reads="total")
    pipeline.sink("list", ParquetSink("list"), reads="listed")
    return pipeline


def test_a_record_lost_at_the_total_and_beside_it_runs_again(spark):
    """A record lost by a total and by a stage beside it is the latter's: it runs again there."""
    seen = []
    result = testing.run_batch(beside(seen, [2]), {"orders": orders_of(1, 2, 3)}, spark=spark)
    assert [(record.step, record.reason) for record in result.failed] == [("listed", "lost")]
    again = testing.replay(result, beside(seen))
    assert seen == [[1, 2, 3], [2]]
    assert again.roots.failed == 0
    assert sorted(row["id"] for row in again.rows["list"]) == [1, 2, 3]
    assert [row["sum"] for row in again.rows["sums"]] == [6]


def test_a_step_that_never_committed_runs_for_all(runner, tmp_path, ledger, sink_rows):
    """Records of a batch that expired run again, those too that the total beside the missing
    step had lost.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,a,1\n")
    seen = []
    run = runner(beside(seen, [2]))
    first = run.open()
    for name in ("orders", "total", "sums"):
        run.step(first, name)
    ledger.start(first.batch_id, "listed")
    ledger.age(first.batch_id, 10_000)
    assert ledger.settle(first.batch_id).failed == 3
    fixed = runner(beside(seen))
    assert fixed.settled(fixed.open_replay(first.batch_id)).failed == 0
    assert seen == [[1, 2, 3]]
    assert sink_rows("list", "id") == [(1,), (2,), (3,)]
    assert sink_rows("sums", "sum") == [(6,)]


@both_guarantees
def test_a_replay_that_dies_recovers_nothing(runner, tmp_path, ledger, sink_rows, guarantee):
    """Records whose rows a replay was to carry over are not recovered while the stage that does
    so is missing; a stage that runs twice hands them on once.
    """
    (tmp_path / "orders.csv").write_text("id,customer,cents\n1,a,1\n2,a,1\n3,a,1\n")
    options = {"unit": (), "guarantee": guarantee}
    run = runner(shop(lose_in_total=[2], **options))
    first = run.open()
    assert run.settled(first).failed == 1
    fixed = runner(shop(version=1, **options))
    dead = fixed.open_replay(first.batch_id, "dead")
    fixed.step(dead, "orders")
    ledger.start(dead.batch_id, "checked")
    ledger.age(dead.batch_id, 10_000)
    settlement = ledger.settle(dead.batch_id)
    assert (settlement.status, settlement.failed) == (BatchStatus.SETTLED, 3)
    last = fixed.open_replay(first.batch_id, "last")
    fixed.step(last, "orders")
    fixed.step(last, "checked")
    assert fixed.settled(last).failed == 0
    assert sink_rows("sales", "cents") == [(3,)]
    assert sink_rows("list", "id") == [(1,), (2,), (3,)]


def test_the_rows_of_a_carried_record_are_traced(spark):
    """Those of the earlier attempt stand for it, and none of it counts as lost; of one for which
    the stage ran again its own.
    """
    hurt = testing.run_batch(shop(lose=[1]), SHOP, spark=spark)
    again = testing.replay(hurt, shop())
    ledger = Ledger(again.lab.database)
    emitted = "SELECT message_id, root_id FROM replay_root WHERE batch_id = :id"
    roots = {row.message_id: row.root_id for row in ledger.rows(emitted, id=again.batch_id)}
    (lost,) = (record.message_id for record in hurt.failed if record.step == "checked")
    fresh, carried = roots.pop(lost), max(roots.values())

    def walked(branch):
        yield branch
        for branche in branch.branches:
            yield from walked(branche)

    for root, reason in ((fresh, None), (carried, "taken over from an earlier attempt")):
        traced = trace(ledger.database, root)
        assert traced.batch_id == again.batch_id
        (checked,) = traced.tree.branches
        assert (checked.step, checked.fate, checked.reason) == ("checked", "passed on", reason)
        fates = {(item.step, str(item.fate)) for item in walked(traced.tree)}
        assert {("sales", "acked"), ("list", "acked")} <= fates
        assert "lost" not in {fate for _, fate in fates}
