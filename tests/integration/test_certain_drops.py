"""Records that a stage drops on purpose: only what is certain, and all that is."""

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import dropped
from tests.support.stage_losses import ROWS, verdicts


def rows_of(*rows):
    """Orders of a number, a shop and cents."""
    return [dict(zip(("id", "shop", "cents"), row, strict=True)) for row in rows]


TWO = rows_of((1, "a", 1), (2, "zz", 2))


def by_id():
    """Rows of a shop by their number."""
    return Window.partitionBy("shop").orderBy("id")


def any_order():
    """Rows of a shop in any order."""
    return Window.partitionBy("shop").orderBy("shop")


def views(orders, shops):
    """Make both frames views, and return the function that runs a query of them."""
    orders.createOrReplaceTempView("certain_orders")
    shops.createOrReplaceTempView("certain_shops")
    return orders.sparkSession.sql


LOST = {
    "a cross join on true": lambda orders, *, shops: orders.join(
        shops.withColumnRenamed("shop", "other"), F.lit(True)
    ).where("cents > length(other) * 100"),
    "a join on one side": lambda orders, *, shops: orders.join(
        shops.withColumnRenamed("shop", "other"), F.expr("cents > 0")
    ).where("concat(shop, 'x') = other"),
    # Below a group, a value that depends on the order of its rows.
    "the first of a group": lambda orders, *, shops: orders.groupBy("shop")
    .agg(F.first("cents").alias("cents"))
    .where("cents > 5")
    .join(shops, "shop"),
    "one of equal rows": lambda orders: orders.dropDuplicates(["shop"]).where("cents > 6"),
    "a window in a subquery": lambda orders, *, shops: views(orders, shops)(
        "SELECT * FROM (SELECT o.*, (SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY 1) n "
        "FROM certain_shops)) AS n FROM certain_orders o) WHERE n > cents + 5 AND id > 7"
    ),
    "a rank and a value": lambda orders: orders.withColumn(
        "n", F.row_number().over(any_order())
    ).where("n > 1 AND cents > 0"),
    "a value of a row before": lambda orders: orders.withColumn(
        "before", F.lag("cents", 1, 0).over(any_order())
    ).where("before > 9"),
    "a key of equal rows": lambda orders, *, shops: orders.dropDuplicates(["cents"]).join(
        shops.where("shop = 'b'"), "shop", "left_semi"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_may_be_lost_is_no_drop(spark, name):
    """A record is lost if an operation may have lost one of its rows."""
    lost, drops, _ = verdicts(spark, LOST[name], TWO)
    assert drops == {}
    assert set(lost) == {1, 2}


def fickle(folder, first, later):
    """A function of a number whose first answer for it is another than the later ones."""

    def answer(number):
        try:
            (folder / str(number)).mkdir()
        except FileExistsError:
            return later
        return first

    return F.udf(answer, "boolean")


def test_a_row_that_arrives_when_computed_again_was_lost(spark, tmp_path):
    """One row of each record is left out, the other is lost the first time, and arrives later."""
    is_known = fickle(tmp_path, None, True)

    def split(orders):
        return orders.where("cents > 5").union(orders.where(is_known("id")))

    lost, drops, _ = verdicts(spark, split, TWO)
    assert drops == {}
    assert all("another answer" in reason for reason in lost.values())
    assert set(lost) == {1, 2}


def test_a_random_condition_could_have_been_null(spark, tmp_path):
    """A function that is declared to be random could have returned NULL the first time."""
    is_known = fickle(tmp_path, None, False).asNondeterministic()
    lost, drops, _ = verdicts(spark, lambda orders: orders.where(is_known("id")), TWO)
    assert (set(lost), drops) == ({1, 2}, {})


DROPPED = {
    "a filter, then a rank": (
        lambda orders: orders.where("cents > 0")
        .withColumn("n", F.row_number().over(by_id()))
        .where("n = 1"),
        [*ROWS, {"id": 6, "shop": "a", "cents": 9}],
        {5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1, "filter: not kept by row_number()": 1},
    ),
    "a filter, then a limit": (
        lambda orders: orders.where("cents > 0").orderBy("id").limit(2),
        ROWS,
        {5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1, "limit: beyond the limit": 1},
    ),
    "items, then a limit": (
        lambda orders: orders.select("id", F.explode("items").alias("item"))
        .where("item > 1")
        .orderBy("id")
        .limit(1),
        [{"id": 1, "items": [1, 2]}, {"id": 2, "items": [1, 3]}, {"id": 3, "items": [None, 3]},
         {"id": 4, "items": [1]}, {"id": 5, "items": []}],
        {3: "filter: condition NULL: item > 1", 5: "explode: items is empty"},
        {"filter: condition false: item > 1": 1, "limit: beyond the limit": 1},
    ),
    "a dimension by a rank": (
        lambda orders, *, shops: orders.where("cents > 0").join(
            shops.withColumn("n", F.row_number().over(any_order())).where("n = 1"), "shop"
        ),
        ROWS,
        {
            3: "inner join: no partner for shop",
            4: "inner join: key NULL: shop",
            5: "filter: condition NULL: cents > 0",
        },
        {"filter: condition false: cents > 0": 1},
    ),
    "a filter, then a subquery": (
        lambda orders, *, shops: views(orders, shops)(
            "SELECT * FROM (SELECT * FROM certain_orders WHERE cents > 0) "
            "WHERE shop IN (SELECT shop FROM certain_shops WHERE shop = 'b')"
        ),
        ROWS,
        {4: "filter: condition NULL: shop IN (subquery)", 5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1, "filter: condition false: shop IN (subquery)": 2},
    ),
    "a filter, then the time": (
        lambda orders: orders.where("cents > 0").where(
            "current_timestamp() < timestamp'2020-01-01'"
        ),
        ROWS,
        {5: "filter: condition NULL: cents > 0"},
        {
            "filter: condition false: cents > 0": 1,
            "filter: condition false: current_timestamp() < TIMESTAMP '2020-01-01 00:00:00'": 3,
        },
    ),
    # Spark calls the function only where the rest of the condition is true.
    "a function that a condition guards": (
        lambda orders: orders.where(
            (F.col("cents") != 0) & F.udf(lambda cents: 10 // cents > 1, "boolean")("cents")
        ),
        ROWS,
        {5: "filter: condition NULL: NOT (cents = 0)"},
        {
            "filter: condition false: NOT (cents = 0)": 1,
            "filter: condition false: <lambda>(cents)": 2,
        },
    ),
    "a total of a partition": (
        lambda orders, *, shops: orders.withColumn(
            "total", F.sum("cents").over(Window.partitionBy("shop"))
        ).where("total > 5").join(shops, "shop"),
        rows_of((1, "a", 2), (2, "a", 3), (3, "b", 6), (4, "c", 6)),
        {4: "inner join: no partner for shop"},
        {"filter: condition false: total > CAST(5 AS BIGINT)": 2},
    ),
    "rows of a stack": (
        lambda orders: orders.select("id", F.expr("stack(2, cents, id) AS v")).where("v > 7"),
        ROWS,
        {5: "filter: condition NULL: v > 7"},
        {"filter: condition false: v > 7": 3},
    ),
    "a cross join with a filter of its own": (
        lambda orders, *, shops: orders.where("cents > 0").crossJoin(shops.select("city")),
        ROWS,
        {5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_what_is_certain_is_a_drop(spark, name):
    """A record is dropped below an operation whose rows may be others the next time, if none of its
    rows comes to that operation.
    """
    function, rows, expected_losses, expected_drops = DROPPED[name]
    lost, drops, _ = verdicts(spark, function, rows)
    assert lost == expected_losses
    assert drops == expected_drops


REDACTED = {
    "a name with a quote": lambda orders: orders.select(
        "id", F.col("shop").alias("it's")
    ).where("`it's` = 'secret' OR `it's` = 'other'"),
    "names of a pivot": lambda orders: orders.withColumn("shop", F.lit("secret"))
    .groupBy("id").pivot("shop").agg(F.sum("cents")).where("secret > 5"),
    "names of texts of a pivot": lambda orders: orders.withColumn("shop", F.lit("secret"))
    .groupBy("id").pivot("shop").agg(F.first("shop")).where("secret <> 'x' AND secret = 'secrets'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REDACTED)
def test_names_that_may_be_values_are_redacted(spark, name):
    """Names of columns that a pivot makes of values are masked, and texts beside any name."""
    lost, drops, _ = verdicts(spark, REDACTED[name], ROWS, redact=["shop"])
    assert lost or drops
    assert "secret" not in f"{lost} {drops}"


def test_an_error_in_a_mark_loses_the_records(spark, tmp_path):
    """If a mark cannot be computed again, no record is dropped that it may have lost."""

    def checked(number):
        (tmp_path / str(number)).mkdir()  # fails the second time
        return False

    def marked(orders):
        marks = orders.where(F.udf(checked, "boolean")("id"))
        return orders.where("cents > 5"), dropped(marks, "refund")

    lost, drops, _ = verdicts(spark, marked, TWO)
    assert drops == {}
    assert lost == dict.fromkeys((1, 2), "filter: reason not known: PythonException")
