"""Stages that are ordinary functions: anchors are carried, and a plan says whether a stage is
whole.
"""

import re

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, collect_anchors, dropped, failed, testing
from ledger.batch.step_runs import Attempt, open_run
from ledger.batch.whole import note_whole
from ledger.errors import DeclarationError, InputError, StageError
from ledger.store.queries.batches import get_batch
from tests.support.reasons import bare

SCHEMA = "id INT, shop STRING, cents INT"
ROWS = [
    {"id": 1, "shop": "a", "cents": 5},
    {"id": 2, "shop": "a", "cents": 5},
    {"id": 3, "shop": "b", "cents": 7},
    {"id": 4, "shop": None, "cents": None},
]
SHOPS = "shop STRING, city STRING"
CITIES = [{"shop": "a", "city": "Oslo"}, {"shop": "c", "city": "Rome"}]


def declared(function, dedup="none", **options):
    """orders -> a stage of this function -> out. ``options``: of the stage."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=SCHEMA))
    function.__name__ = "changed"
    pipeline.stage(reads="orders", **options)(function)
    pipeline.sink("out", ParquetSink("out", dedup=dedup), reads="changed")
    return pipeline


def of_two(function, **options):
    """orders, shops -> a stage of both -> out. ``options``: of the stage."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=SCHEMA))
    pipeline.source("shops", FileSource("shops.csv", schema=SHOPS))
    function.__name__ = "changed"
    pipeline.stage(reads=["orders", "shops"], **options)(function)
    pipeline.sink("out", ParquetSink("out"), reads="changed")
    return pipeline


def in_sql(orders):
    """The total of each shop in SQL text over a view."""
    orders.createOrReplaceTempView("orders")
    return orders.sparkSession.sql(
        "WITH paid AS (SELECT * FROM orders) SELECT shop, sum(cents) AS cents FROM paid GROUP BY 1"
    )


def numbered(orders):
    """The first order of each shop."""
    window = Window.partitionBy("shop").orderBy("id")
    ranked = orders.withColumn("place", F.row_number().over(window))
    return ranked.where("place = 1").drop("place"), dropped(ranked.where("place > 1"), "later")


def with_itself(orders):
    """Orders beside the others of their shop."""
    others = orders.select(F.col("id").alias("other"), F.col("shop").alias("at"))
    return orders.join(others, F.col("shop").eqNullSafe(F.col("at")))


# A function, how many rows it has, and which operation makes it whole.
FUNCTIONS = {
    "df.columns": (lambda orders: orders.select(*orders.columns[::-1]), 4, None),
    "struct of all": (lambda orders: orders.select(F.to_json(F.struct("*")).alias("row")), 4, None),
    "toDF": (lambda orders: orders.toDF("one", "two", "three"), 4, None),
    "positional union": (lambda orders: orders.union(orders.where("id = 1")), 5, None),
    "explode": (lambda orders: orders.withColumn("n", F.explode(F.array(F.lit(1), F.lit(2)))), 8,
                None),
    "distinct": (lambda orders: orders.select("shop", "cents").distinct(), 3, "distinct"),
    "dropDuplicates": (lambda orders: orders.dropDuplicates(["shop"]), 3, "dropDuplicates"),
    "groupBy": (lambda orders: orders.groupBy("shop").agg(F.sum("cents")), 3, "groupBy"),
    "pivot": (lambda orders: orders.groupBy("cents").pivot("shop", ["a", "b"]).count(), 3,
              "groupBy"),
    "SQL": (in_sql, 3, "groupBy"),
    "window": (numbered, 3, "a window"),
    "self-join": (with_itself, 6, "a join"),
    "row numbers": (lambda orders: orders.withColumn("n", F.monotonically_increasing_id()), 4,
                    "monotonically_increasing_id()"),
    "sample": (lambda orders: orders.sample(1.0, seed=1), 4, "sample"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_ordinary_function_is_tracked(spark, name):
    """Every record is acked by a function that knows nothing of anchors, and the rows are its
    own.
    """
    function, rows, operation = FUNCTIONS[name]
    result = testing.run_batch(declared(function), {"orders": ROWS}, spark=spark)
    assert (result.roots.acked, result.roots.failed, len(result.rows["out"])) == (4, 0, rows)
    assert not any(column.startswith("_") for column in result.rows["out"][0])
    (step,) = [each for each in steps_of(result) if each.name == "changed"]
    assert step.merges is (operation is not None)


def drops_of(result):
    """Number of records that were dropped on purpose, by reason without the line."""
    rows = result.lab.database.transact(
        lambda c: c.exec_driver_sql("SELECT reason, records FROM ackledger.step_run_drop").all()
    )
    return {re.sub(r"(\.py):\d+", r"\1", row.reason): row.records for row in rows}


def steps_of(result):
    """The steps of a result's batch, as the ledger has them."""
    return result.lab.database.transact(lambda c: get_batch(c, result.batch_id)).topology


def test_a_lost_record_is_found_before_a_group(spark):
    """A record that an ordinary function loses is named, its total is made of the others, and the
    replay of the whole batch replaces it.
    """

    def summed(lost):
        def changed(orders):
            rest = orders.where(~F.col("id").isin(lost))
            return rest.groupBy("shop").agg(F.sum("cents").alias("cents"))

        return declared(changed, filters="lost")

    result = testing.run_batch(summed([1]), {"orders": ROWS}, spark=spark)
    assert [(record.step, bare(record.reason)) for record in result.failed] == [
        ("changed", "filter: condition false: NOT (id IN (1))")
    ]
    assert sorted(row["cents"] or 0 for row in result.rows["out"]) == [0, 5, 7]
    again = testing.replay(result, summed([0]))
    assert (again.roots.total, again.roots.failed) == (4, 0)
    assert sorted(row["cents"] or 0 for row in again.rows["out"]) == [0, 7, 10]


def test_rows_that_no_group_needs_are_replayed_alone(spark):
    """A stage that keeps one row a record is replayed for the failed record alone."""

    def checked(bad):
        def changed(orders):
            return orders.withColumn("_failed", F.when(F.col("id") == bad, "bad"))

        return declared(changed)

    result = testing.run_batch(checked(3), {"orders": ROWS}, spark=spark)
    again = testing.replay(result, checked(0))
    assert (result.roots.failed, again.roots.total) == (1, 1)
    assert sorted(row["id"] for row in again.rows["out"]) == [1, 2, 3, 4]


def test_two_inputs_that_are_joined(spark):
    """A row of two records is anchored to both: the shop without an order is lost, and so are the
    orders without a shop.
    """
    flow = of_two(lambda orders, shops: orders.join(shops, "shop"))
    result = testing.run_batch(flow, {"orders": ROWS, "shops": CITIES}, spark=spark)
    assert sorted((record.source, record.step) for record in result.failed) == [
        ("orders", "changed"), ("orders", "changed"), ("shops", "changed"),
    ]  # fmt: skip
    assert (result.roots.acked, len(result.rows["out"])) == (3, 2)


@pytest.mark.parametrize(
    ("function", "words", "lost"),
    [
        (lambda orders, shops: orders.join(shops, "shop", "left_semi"), "a semi join", [3, 4]),
        (lambda orders, shops: orders.join(shops, "shop", "left_anti"), "an anti join", [1, 2]),
        (lambda orders, shops: orders.where(F.col("shop").isNotNull()).join(
            shops.select("shop"), "shop", "left_semi"), "a semi join", [3, 4]),
    ],
)  # fmt: skip
def test_an_input_that_only_decides_is_acked(spark, function, words, lost):
    """Records of the right side of a semi or anti join have no row of their own: they are acked as
    consulted, and counted.
    """
    data = {"orders": ROWS, "shops": CITIES}
    flow = of_two(function, filters="lost")
    result = testing.run_batch(flow, data, spark=spark)
    assert [record.content["id"] for record in result.failed] == lost
    drops = drops_of(result)
    reason = f"consulted by the right side of {words} at test_ordinary_stages.py"
    assert drops[reason] == 2


def test_marks_of_ordinary_frames(spark):
    """Frames that a function drops or fails need no anchor either, and may be aggregates."""

    def changed(orders):
        big = orders.groupBy("shop").agg(F.count("*").alias("n")).where("n > 1")
        rest = orders.where("shop = 'b'")
        return rest, dropped(big, "many"), failed(orders.where("shop IS NULL").select("id"), "none")

    result = testing.run_batch(declared(changed), {"orders": ROWS}, spark=spark)
    assert [(record.step, record.reason) for record in result.failed] == [("changed", "none")]
    assert (result.roots.acked, [row["id"] for row in result.rows["out"]]) == (3, [3])


def test_a_function_that_cannot_be_carried(spark):
    """It is refused with its line and what to do; nothing is written or lost."""
    cases = {
        r"test_ordinary_stages.py:\d+: rows cannot be followed through mapInPandas": (
            lambda orders: orders.mapInPandas(lambda rows: rows, SCHEMA)
        ),
        r"'changed' does not use its input 'orders' \(id, shop, cents\), or takes it out": (
            lambda orders: orders.sparkSession.createDataFrame(orders.collect(), SCHEMA)
        ),
        r"uses '_anchor', which the library carries by itself: leave it out": (
            lambda orders: orders.select("id", "_anchor")
        ),
        r"calls|uses '_anchor', which the library carries": (
            lambda orders: orders.groupBy("id").agg(collect_anchors())
        ),
        r"returned int, expected a DataFrame": lambda orders: 1,
        r"3 rows that come from no record of its inputs": (
            lambda orders: orders.unionByName(
                orders.sparkSession.createDataFrame([(9, "z", 9)] * 3, SCHEMA)
            )
        ),
        r"1 rows that come from no record .* the total of no rows": (
            lambda orders: orders.where("id > 9").agg(F.count("*").alias("n"))
        ),
    }
    for message, function in cases.items():
        with pytest.raises(StageError, match=message):
            testing.run_batch(declared(function), {"orders": ROWS}, spark=spark)


def test_by_hand_is_what_the_refusal_says(spark):
    """A function that cannot be carried returns ``_anchor`` itself."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=SCHEMA))

    @pipeline.stage(reads="orders", anchors="by_hand")
    def changed(orders):
        return orders.mapInPandas(lambda rows: rows, orders.schema)

    pipeline.sink("out", ParquetSink("out"), reads="changed")
    result = testing.run_batch(pipeline, {"orders": ROWS}, spark=spark)
    assert (result.roots.acked, result.roots.failed) == (4, 0)


def test_a_chain_after_a_group(spark):
    """Rows of several records go on through ordinary functions, and are merged with rows of one."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.csv", schema=SCHEMA))

    @pipeline.stage(reads="orders")
    def totals(orders):
        return orders.groupBy("shop").agg(F.sum("cents").alias("total"))

    @pipeline.stage(reads="totals")
    def named(totals):
        return totals.withColumn("name", F.coalesce("shop", F.lit("?")))

    @pipeline.stage(reads=["orders", "named"])
    def shares(orders, named):
        shops = named.select(F.col("shop").alias("at"), "name", "total")
        return orders.join(shops, F.col("shop").eqNullSafe(F.col("at"))).drop("at")

    pipeline.sink("out", ParquetSink("out"), reads="shares")
    result = testing.run_batch(pipeline, {"orders": ROWS}, spark=spark)
    assert (result.roots.acked, result.roots.failed) == (4, 0)
    assert sorted((row["id"], row["total"]) for row in result.rows["out"]) == [
        (1, 10), (2, 10), (3, 7), (4, None),
    ]  # fmt: skip
    merges = {step.name: step.merges for step in steps_of(result) if step.kind == "stage"}
    assert merges == {"totals": True, "named": True, "shares": True}


def write_orders(folder):
    (folder / "orders.csv").write_text("id,shop,cents\n1,a,5\n2,a,x\n3,b,7\n")


def test_later_batches_know_the_whole_stages(runner, tmp_path):
    """A batch notes what its plans show, and the next one begins with it; a function that no longer
    gathers changes it again.
    """
    write_orders(tmp_path)

    def run(day, function):
        run = runner(declared(function))
        batch = run.open_day(day)
        run.settled(batch)
        after = run.job.database.transact(lambda c: get_batch(c, batch.batch_id))
        return batch.is_whole, after.is_whole

    assert run(1, lambda orders: orders.select("*")) == (False, False)
    assert run(2, lambda orders: orders.distinct()) == (False, True)
    assert run(3, lambda orders: orders.distinct()) == (True, True)
    assert run(4, lambda orders: orders.select("*")) == (True, False)
    assert run(5, lambda orders: orders.select("*")) == (False, False)


def test_a_function_that_gathers_only_in_the_replay(runner, tmp_path):
    """A replay of a part of a batch through a function that groups since is refused: its totals
    would be of that part. Nothing is published.
    """
    write_orders(tmp_path)
    run = runner(declared(lambda orders: orders))
    batch = run.open()
    assert run.settled(batch).failed == 1
    (tmp_path / "orders.csv").write_text("id,shop,cents\n1,a,5\n2,a,6\n3,b,7\n")
    other = runner(declared(lambda orders: orders.groupBy("shop").agg(F.sum("cents").alias("id"))))
    again = other.open_replay(batch.batch_id)
    other.step(again, "orders")
    with pytest.raises(InputError, match=r"groupBy at test_ordinary_stages.py:\d+, so its rows"):
        other.step(again, "changed")


def test_a_sink_that_cannot_follow_a_whole_stage(runner, tmp_path):
    """A contradiction to a whole stage is said when its plan shows that it is one, before it
    writes.
    """
    write_orders(tmp_path)
    run = runner(declared(lambda orders: orders.distinct(), dedup="exact"))
    batch = run.open()
    run.step(batch, "orders")
    with pytest.raises(DeclarationError, match='expected dedup="none"'):
        run.step(batch, "changed")


def test_a_sink_that_a_whole_stage_had_ruled_out(runner, tmp_path):
    """A batch opens though the last one had a whole stage that the sink does not go with: the
    function may have changed, which its run shows.
    """
    write_orders(tmp_path)
    first = runner(declared(lambda orders: orders.distinct()))
    first.settled(first.open_day(1))
    run = runner(declared(lambda orders: orders.select("*"), dedup="exact"))
    batch = run.open_day(2)
    assert run.settled(batch).failed == 1


def test_an_older_attempt_changes_nothing(runner, tmp_path):
    """The plan of a run counts only as long as it runs: a newer attempt may have committed
    with another plan.
    """
    write_orders(tmp_path)
    run = runner(declared(lambda orders: orders.distinct()))
    batch, database = run.open(), run.job.database
    run.step(batch, "orders")
    older = open_run(database, batch.batch_id, "changed", Attempt())
    run.step(batch, "changed")
    note_whole(database, run.job.pipeline, older, [])
    assert database.transact(lambda c: get_batch(c, batch.batch_id)).is_whole
