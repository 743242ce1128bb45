"""Records that a stage loses, by the operation that lost them; and records that it drops on
purpose.
"""

import re

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, dropped, failed, testing
from ledger.errors import DeclarationError
from tests.support.stage_losses import ROWS, SCHEMA, SHOPS, bare, declared, ledger_rows, verdicts

CASES = {
    "false and NULL": (
        lambda orders: orders.where("cents > 0"),
        {5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1},
    ),
    "conjuncts": (
        lambda orders: orders.where("cents > 0 AND shop = 'a'"),
        {
            4: "filter: condition NULL: shop = 'a'",
            5: "filter: condition NULL: cents > 0",
        },
        {
            "filter: condition false: cents > 0": 1,
            "filter: condition false: shop = 'a'": 1,
        },
    ),
    "inner join": (
        lambda orders, *, shops: orders.join(shops, "shop"),
        {3: "inner join: no partner for shop", 4: "inner join: key NULL: shop"},
        {},
    ),
    "join, then filters": (
        lambda orders, *, shops: orders.where("cents IS NOT NULL")
        .join(shops, "shop")
        .where("cents > 0")
        .where("city = 'Oslo'"),
        {3: "inner join: no partner for shop", 4: "inner join: key NULL: shop"},
        {
            "filter: condition false: cents IS NOT NULL": 1,
            "filter: condition false: cents > 0": 1,
        },
    ),
    "explode": (
        lambda orders: orders.select("id", F.explode("items")),
        {4: "explode: items is empty", 5: "explode: items is NULL"},
        {},
    ),
    "semi join": (
        lambda orders, *, shops: orders.join(shops, "shop", "left_semi"),
        {4: "semi join: key NULL: shop"},
        {"semi join: no partner for shop": 1},
    ),
    "anti join": (
        lambda orders, *, shops: orders.join(shops, "shop", "left_anti"),
        {},
        {"anti join: has a partner": 3},
    ),
    "dropna": (
        lambda orders: orders.dropna(subset=["shop", "cents"]),
        {},
        {"filter: dropna: shop is NULL": 1, "filter: dropna: cents is NULL": 1},
    ),
    "a cast that failed": (
        lambda orders: orders.withColumn("n", F.expr("try_cast(shop AS INT)")).where(
            "n IS NOT NULL"
        ),
        {
            1: "filter: did not parse: TRY_CAST(shop AS INT)",
            2: "filter: did not parse: TRY_CAST(shop AS INT)",
            3: "filter: did not parse: TRY_CAST(shop AS INT)",
            5: "filter: did not parse: TRY_CAST(shop AS INT)",
        },
        {"filter: condition false: n IS NOT NULL": 1},
    ),
    "a rank": (
        lambda orders: orders.withColumn(
            "place", F.row_number().over(Window.partitionBy("shop").orderBy("id"))
        ).where("place = 1"),
        {},
        {"filter: not kept by row_number()": 1},
    ),
    "limit": (
        lambda orders: orders.orderBy("id").limit(2),
        {},
        {"limit: beyond the limit": 3},
    ),
    # A record is lost by one branch and left out by the other.
    "split and union": (
        lambda orders, *, shops: orders.where("cents > 6")
        .join(shops.select("shop"), "shop")
        .select("id")
        .union(orders.where("cents <= 6").select("id")),
        {
            3: "inner join: no partner for shop",
            4: "inner join: key NULL: shop",
            5: "filter: condition NULL: cents > 6",
        },
        {},
    ),
    "self-join": (
        lambda orders: orders.where("id = 1")
        .select("shop")
        .join(orders.where("id = 2").select(F.col("shop").alias("other")), F.expr("shop = other")),
        {1: "inner join: no partner for shop", 2: "inner join: no partner for other"},
        {"filter: condition false: id = 1": 3},
    ),
    # One item of record 3 is lost, the other one is left out.
    "items of a record": (
        lambda orders: orders.select("id", F.explode_outer("items").alias("item"))
        .where("item > 0")
        .where("item > 1"),
        {
            3: "filter: condition NULL: item > 0",
            4: "filter: condition NULL: item > 0",
            5: "filter: condition NULL: item > 0",
        },
        {},
    ),
    "items left out": (
        lambda orders: orders.select("id", F.explode("items").alias("item"))
        .where("coalesce(item, 0) > 0")
        .where("item > 1"),
        {
            4: "explode: items is empty",
            5: "explode: items is NULL",
        },
        {"filter: condition false: coalesce(item, 0) > 0": 1},
    ),
    # Below a filter a UDF sees no value that the filter keeps from it.
    "a guarded function": (
        lambda orders: orders.where("cents > 0").where(
            F.udf(lambda cents: 10 // cents > 0, "boolean")("cents")
        ),
        {5: "filter: condition NULL: cents > 0"},
        {"filter: condition false: cents > 0": 1},
    ),
    "a group": (
        lambda orders: orders.groupBy("shop").agg(F.sum("cents").alias("cents")).where("cents > 5"),
        {},
        {"filter: condition false: cents > CAST(5 AS BIGINT)": 3},
    ),
    "random": (
        lambda orders: orders.withColumn("r", F.rand(1)).where("r < 0").join(
            orders.select(F.col("id").alias("other")), F.expr("id = other")
        ),
        dict.fromkeys(range(1, 6), "filter: condition false: r < CAST(0 AS DOUBLE)"),
        {},
    ),
    "sample": (lambda orders: orders.sample(0.0, seed=1), {}, {"sample: not in the sample": 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_records_are_lost_or_dropped_at_an_operation(spark, name):
    """Each record that did not arrive has the operation that kept it, and is acked only if that was
    meant.
    """
    function, lost, expected_drops = CASES[name]
    losses, drops, _ = verdicts(spark, function)
    assert losses == lost
    assert drops == expected_drops


def paid(orders):
    """Orders above nothing: of record 2 the condition is false, of record 5 it is NULL."""
    return orders.where("cents > 0")


def test_filters_may_lose_records(spark):
    """A false condition is a loss as well with filters="lost", and has its operation."""
    lost, drops, result = verdicts(spark, paid, filters="lost")
    assert (lost, drops) == (
        {2: "filter: condition false: cents > 0", 5: "filter: condition NULL: cents > 0"},
        {},
    )
    rows = ledger_rows(result, "SELECT root_id, cause, operation, place, reason FROM failed_root")
    assert {(row.cause, row.operation) for row in rows} == {("lost", "filter")}
    assert all(row.reason.startswith(f"filter at {row.place}: ") for row in rows)
    line = paid.__code__.co_firstlineno + 2
    assert {row.place for row in rows} == {f"test_operations_that_lose.py:{line}"}
    losses = ledger_rows(result, "SELECT operation, place, reason, records FROM step_run_loss")
    assert sorted((row.operation, row.records) for row in losses) == [("filter", 1), ("filter", 1)]
    assert ledger_rows(result, "SELECT FROM lost_root") == []


def test_expected_losses_are_dropped_with_their_reason(spark):
    """A loss that the author expects is acked and counted with the author's words, and others of
    the same operation are lost.
    """

    def joined(orders, *, shops):
        return orders.join(shops, "shop")

    expected = {"inner join: no partner for shop": "closed shops"}
    lost, drops, result = verdicts(spark, joined, expected=expected)
    assert lost == {4: "inner join: key NULL: shop"}
    assert drops == {"inner join: closed shops": 1}
    (drop,) = ledger_rows(result, "SELECT operation, place FROM step_run_drop")
    assert drop.operation == "inner join"
    assert drop.place.startswith("test_operations_that_lose.py:")


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (["inner join"], "found list, expected a dict of losses"),
        ({"inner join": "why"}, "'inner join' names no loss"),
        ({"inner join: no partner for shop": ""}, "expected why it is meant"),
    ],
)
def test_expected_losses_are_checked(expected, problem):
    """A key that names no loss is refused when the stage is declared."""
    with pytest.raises(DeclarationError, match=re.escape(problem)):
        declared(lambda orders: orders, expected=expected)


def test_what_filters_are_is_checked():
    """Another word is refused."""
    with pytest.raises(DeclarationError, match="filters"):
        declared(lambda orders: orders, filters="kept")


def test_literals_of_conditions_are_redacted(spark):
    """Texts and numbers of a condition may be values of records: a pipeline that redacts masks
    them.
    """

    def named(orders):
        return orders.where("shop = 'a' AND cents > 3")

    lost, drops, _ = verdicts(spark, named, redact=["shop"])
    assert set(lost.values()) == {
        "filter: condition NULL: shop = ***", "filter: condition NULL: cents > ***"
    }  # fmt: skip
    assert drops == {
        "filter: condition false: shop = ***": 1, "filter: condition false: cents > ***": 1,
    } or drops == {"filter: condition false: shop = ***": 2}  # fmt: skip


def test_losses_after_a_group_are_those_of_all_its_records(spark):
    """Downstream of a whole stage a row has several records, which are lost or dropped together."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.json", format="json", schema=SCHEMA))

    @pipeline.stage(reads="orders")
    def totals(orders):
        return orders.groupBy("shop").agg(F.sum("cents").alias("cents"), F.count("*").alias("n"))

    @pipeline.stage(reads="totals")
    def large(totals):
        return totals.where("n > 1 OR cents > 0").where("shop <> 'c'")

    pipeline.sink("out", ParquetSink("out", dedup="none"), reads="large")
    result = testing.run_batch(pipeline, {"orders": ROWS}, spark=spark)
    assert {r.content["id"]: (r.step, bare(r.reason)) for r in result.failed} == {
        4: ("large", "filter: condition NULL: NOT (shop = 'c')")
    }
    drops = ledger_rows(result, "SELECT reason, records FROM step_run_drop")
    assert {bare(drop.reason): drop.records for drop in drops} == {
        "filter: condition false: (n > CAST(1 AS BIGINT)) OR (cents > CAST(0 AS BIGINT))": 1,
        "filter: condition false: NOT (shop = 'c')": 1,
    }


def test_the_losses_of_two_inputs(spark):
    """Each input of a join has its losses: those of the other side have other reasons."""
    pipeline = Pipeline("flow", guarantee="at_least_once")
    pipeline.source("orders", FileSource("orders.json", format="json", schema=SCHEMA))
    pipeline.source("shops", FileSource("shops.csv", schema="shop STRING, city STRING"))

    @pipeline.stage(reads=["orders", "shops"])
    def placed(orders, shops):
        return orders.where("cents > 5").join(shops, "shop")

    pipeline.sink("out", ParquetSink("out", dedup="none"), reads="placed")
    shops = [*SHOPS, {"shop": "c", "city": "Rome"}]
    result = testing.run_batch(pipeline, {"orders": ROWS, "shops": shops}, spark=spark)
    assert sorted((r.source, r.content["shop"], bare(r.reason)) for r in result.failed if
                  r.content["shop"]) == [
        ("orders", "a", "filter: condition NULL: cents > 5"),
        ("shops", "a", "inner join: no partner for shop"),
        ("shops", "b", "inner join: no partner for shop"),
    ]  # fmt: skip
    assert [bare(r.reason) for r in result.failed if r.content["shop"] is None] == [
        "inner join: key NULL: shop"
    ]
    drops = ledger_rows(result, "SELECT reason, records FROM step_run_drop")
    assert [(bare(d.reason), d.records) for d in drops] == [
        ("filter: condition false: cents > 5", 2)
    ]


def test_a_function_with_another_answer_loses_its_records(spark, tmp_path):
    """A record that arrives when the function is computed again is lost, although a filter dropped
    it the first time.
    """
    (tmp_path / "seen").mkdir()

    def is_known(number):
        """False the first time, true the second time."""
        try:
            (tmp_path / "seen" / str(number)).mkdir()
        except FileExistsError:
            return True
        return False

    def fickle(orders):
        return orders.where(F.udf(is_known, "boolean")("id")).join(
            orders.select(F.col("id").alias("other")).where("other > 0"), F.expr("id = other")
        )

    lost, drops, _ = verdicts(spark, fickle, rows=ROWS[:2])
    assert drops == {}
    assert set(lost) == {1, 2}
    assert all("another answer" in reason for reason in lost.values())


@pytest.mark.parametrize("options", [{}, {"filters": "lost"}])
def test_a_replay_takes_what_is_lost_alone(spark, options):
    """Records that were dropped are not replayed; a lost one is, and may be dropped then."""
    lost, _, result = verdicts(spark, paid, **options)
    again = testing.replay(result, declared(lambda orders: orders, **options))
    assert (again.roots.total, again.roots.failed) == (len(lost), 0)


MORE_CASES = {
    # A record is lost in a mark that a filter of the output leaves out.
    "a mark that loses": (
        lambda orders, *, shops: (
            orders.where("cents > 5"),
            failed(orders.where("cents <= 5").join(shops, "shop"), "too cheap"),
        ),
        [{"id": 1, "shop": "a", "cents": 9}, {"id": 6, "shop": "zz", "cents": 1}],
        {6: "inner join: no partner for shop"},
        {},
    ),
    "a dimension of the same records": (
        lambda orders, *, shops: orders.where("cents >= 0").join(
            orders.where("cents < 0").join(shops, "shop").groupBy("shop").agg(F.sum("cents")),
            "shop",
            "left",
        ),
        [
            {"id": 1, "shop": "a", "cents": 5}, {"id": 2, "shop": "a", "cents": -1},
            {"id": 3, "shop": "x", "cents": -3}, {"id": 4, "shop": None, "cents": -3},
        ],
        {3: "inner join: no partner for shop", 4: "inner join: key NULL: shop"},
        {},
    ),
    "a part that did not parse": (
        lambda orders: orders.select("id", F.explode(F.split("shop", ",")).alias("word"))
        .withColumn("n", F.expr("try_cast(word AS INT)"))
        .where("n IS NOT NULL")
        .where("n > 5"),
        [{"id": 1, "shop": "x,3"}, {"id": 2, "shop": "3,4"}, {"id": 3, "shop": "9"}],
        {1: "filter: did not parse: TRY_CAST(word AS INT)"},
        {"filter: condition false: n > 5": 1},
    ),
    "a failing operation": (
        lambda orders, *, shops: orders.select(
            "cents", F.explode(F.expr("sequence(1, 10 DIV cents)")), F.lit("0").alias("shop"), "id"
        ).join(shops.select(F.lit("0").alias("shop"), F.lit(0).alias("cents")), "cents",
               "left_anti"),
        [{"id": 1, "cents": 5}, {"id": 2, "cents": 0}, {"id": 5, "cents": None}],
        None,
        {},
    ),
    "row numbers by a sort": (
        lambda orders, *, shops: orders.coalesce(1)
        .orderBy(F.col("cents").asc_nulls_first())
        .withColumn("n", F.monotonically_increasing_id())
        .join(shops.select(F.length("shop").cast("long").alias("n"), "city"), "n")
        .where("city = 'open'"),
        ROWS,
        None,
        {},
    ),
    "a comma join": (
        lambda orders, *, shops: orders.crossJoin(shops.select(F.col("shop").alias("other")))
        .where("cents BETWEEN 1 AND length(other) * 6"),
        ROWS[:3],
        None,
        {},
    ),
    "a union, then a filter": (
        lambda orders: orders.select("id", "cents").union(orders.select("id", "cents"))
        .where("cents > 0"),
        ROWS[:2],
        {},
        {"filter: condition false: cents > 0": 1},
    ),
    "a rank, then a join": (
        lambda orders, *, shops: orders.withColumn(
            "place", F.row_number().over(Window.partitionBy("shop").orderBy("shop"))
        ).where("place = 1").join(shops, "shop"),
        [{"id": 1, "shop": "a"}, {"id": 2, "shop": "a"}],
        None,
        {},
    ),
    "a group of several records": (
        lambda orders: orders.groupBy("shop").agg(F.sum("cents").alias("cents")).where("cents > 9"),
        [{"id": 1, "shop": "a", "cents": 1}, {"id": 2, "shop": "a", "cents": 2}],
        {},
        {"filter: condition false: cents > CAST(9 AS BIGINT)": 2},
    ),
    "a text with NUL": (
        lambda orders: orders.where(~F.col("shop").contains("\0") & (F.col("shop") != "a")),
        ROWS[:2],
        {},
        {"filter: condition false: NOT (shop = 'a')": 1},
    ),
    "only in a mark": (
        lambda orders, *, shops: (
            orders.where("cents > 0"), dropped(orders.where("cents < -1"), "refund")
        ),
        ROWS[:2],
        {},
        {"filter: condition false: cents > 0": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE_CASES)
def test_a_drop_is_certain(spark, name):
    """A record is dropped only if nothing else may have lost one of its rows; None: it is lost, for
    whatever reason.
    """
    function, rows, lost, expected_drops = MORE_CASES[name]
    losses, drops, result = verdicts(spark, function, rows)
    assert drops == expected_drops
    if lost is None:
        assert losses
        assert len(losses) + result.roots.acked == len(rows)
    else:
        assert losses == lost


def test_an_expected_loss_has_to_be_certain(spark):
    """A plan that may choose other rows the next time drops nothing that is expected, either."""

    def ranked(orders, *, shops):
        place = F.row_number().over(Window.partitionBy("shop").orderBy("shop"))
        return orders.withColumn("place", place).where("place = 1").join(shops, "shop")

    lost, drops, _ = verdicts(
        spark, ranked, ROWS[2:3], expected={"inner join: no partner for shop": "closed shops"}
    )
    assert (lost, drops) == ({3: "inner join: no partner for shop"}, {})


def test_a_long_text_is_redacted(spark):
    """A condition is cut, and a text in it, which has no end then, is masked all the same."""
    lost, drops, _ = verdicts(
        spark, lambda orders: orders.where(F.col("shop") == "secret " + "x" * 100), redact=["shop"]
    )
    assert "secret" not in f"{lost} {drops}"


def test_many_rows_are_dropped_by_several_filters(spark):
    """The rows of each of several filters are found in one pass, and the numbers are those of
    rows.
    """

    def sifted(orders):
        for number in range(5):
            orders = orders.where(f"cents <> {number}")
        return orders

    rows = [{"id": number, "cents": number % 10} for number in range(2_000)]
    lost, drops, result = verdicts(spark, sifted, rows)
    assert lost == {}
    assert set(drops.values()) == {200}
    assert result.roots.acked == 2_000
