"""``audit`` of functions: numbers, operations and reasons against loops with three-valued logic."""

import gc
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession, Window
from pyspark.sql import functions as F

from ledger import audit
from ledger.auditing.attribution import Attribution
from ledger.auditing.report import AuditReport
from ledger.auditing.sources import ID
from ledger.errors import CarryError, InputError
from tests.support.relations import NOBODY, OPERATIONS, Rows

ORDERS = "id string, state string, cents string, shop string, day int"
SHOPS = {"s1": "DE", "s2": "FR", "s3": "IT"}


def orders(number: int = 400, seed: int = 1) -> list[tuple]:
    """Orders with NULLs, texts that are no numbers, and an unknown shop."""
    pick = random.Random(seed)
    return [
        (
            f"o{at}",
            pick.choice(["paid", "paid", "open", None]),
            pick.choice(["n/a", None, *map(str, range(1, 30))]),
            pick.choice(["s1", "s2", "s31", None]),
            pick.randint(0, 9),
        )
        for at in range(number)
    ]


def shops(spark) -> DataFrame:
    """The shops, one of which has no order."""
    return spark.createDataFrame(list(SHOPS.items()), "shop string, country string")


def placed(orders: DataFrame, shops: DataFrame) -> DataFrame:
    """A job as anybody writes it."""
    paid = orders.where("state = 'paid'")
    parsed = paid.withColumn("cents", F.expr("try_cast(cents AS INT)"))
    valid = parsed.where(F.col("cents").isNotNull()).where(F.col("cents") > 5)
    return valid.join(shops, "shop").groupBy("country").agg(F.sum("cents").alias("cents"))


def expected_of(order: tuple) -> tuple[str, str] | None:
    """The operation that loses an order in ``placed``, and why."""
    _, state, cents, shop, _ = order
    if state is None:
        return "filter", "condition NULL: state = 'paid'"
    if state != "paid":
        return "filter", "condition false: state = 'paid'"
    if cents == "n/a":
        return "filter", "did not parse: TRY_CAST(cents AS INT)"
    if cents is None:
        return "filter", "condition false: cents IS NOT NULL"
    if int(cents) <= 5:
        return "filter", "condition false: cents > 5"
    if shop is None:
        return "inner join", "key NULL: shop"
    return ("inner join", "no partner for shop") if shop not in SHOPS else None


def counts(report: AuditReport) -> Counter:
    """Numbers of records that each operation lost for each reason."""
    return Counter({(loss.operation, loss.reason): loss.records for loss in report.losses})


def test_a_job_as_it_is(spark):
    """Each record that is not in the result is counted once, at its operation, with its reason."""
    rows = orders()
    report = audit(placed, spark.createDataFrame(rows, ORDERS), references={"shops": shops(spark)})
    expected = Counter(filter(None, map(expected_of, rows)))
    assert counts(report) == expected
    (result,) = report.results
    assert result.source.name == "orders"
    assert result.source.records == len(rows)
    assert result.arrived == len(rows) - expected.total()
    loud = {key: n for key, n in expected.items() if not key[1].startswith("condition false")}
    assert report.lost_records == len(result.lost) == sum(loud.values())
    lost = report.lost.collect()
    assert Counter((row.operation, row.reason) for row in lost) == loud
    assert all(row.place.startswith("test_auditing.py:") for row in lost)


def test_the_report_reads_as_a_table(spark):
    """A terminal shows sources, lost records and intended drops with line, number and example."""
    rows = [("o1", "paid", "7", "s1", 0), ("o2", None, "8", "s1", 0), ("o3", "open", "9", "s1", 0)]
    text = str(
        audit(placed, spark.createDataFrame(rows, ORDERS), references={"shops": shops(spark)})
    ).splitlines()
    assert text[0].split() == ["source", "in", "arrived", "lost", "intended"]
    assert text[1].split() == ["orders", "3", "1", "1", "1"]
    assert text[3] == "LOST: these records reach no output"
    assert text[4].startswith("filter  test_auditing.py:")
    assert "condition NULL: state = 'paid'  1  orders: state=NULL, id=o2, cents=8" in text[4]
    assert text[6] == "INTENDED: dropped on purpose"
    assert "condition false: state = 'paid'  1  orders: state=open, id=o3" in text[7]


def test_a_twin_does_not_hide_a_loss(spark):
    """A record that only reaches the output through a dimension made of the records is lost."""

    def with_states(orders: DataFrame) -> DataFrame:
        states = orders.select("state").distinct()
        return orders.where("day > 4").join(states, "state")

    rows = [("a", "paid", "1", "s1", 9), ("b", "paid", "1", "s1", 0), ("c", None, "1", "s1", 9)]
    report = audit(with_states, spark.createDataFrame(rows, ORDERS))
    assert counts(report) == {
        ("filter", "condition false: day > 4"): 1,
        ("inner join", "key NULL: state"): 1,
    }
    assert report.results[0].arrived == 1


def test_branches_that_are_united(spark):
    """A record arrives by any branch; one that no branch takes has the reason of each."""

    def by_state(orders: DataFrame) -> DataFrame:
        return orders.where("state = 'paid'").union(orders.where("state = 'open'"))

    rows = [("a", "paid", "1", "s1", 1), ("b", "open", "1", "s1", 1), ("c", None, "1", "s1", 1)]
    report = audit(by_state, spark.createDataFrame(rows, ORDERS))
    assert counts(report) == {
        ("filter", "condition NULL: state = 'paid'"): 1,
        ("filter", "condition NULL: state = 'open'"): 1,
    }
    assert (report.results[0].arrived, report.lost_records) == (2, 1)


def test_ranks_explodes_limits_and_outer_joins(spark):
    """Ranks and limits are intended, an empty list is a loss, an optional side stands apart."""

    def newest(orders: DataFrame, shops: DataFrame) -> DataFrame:
        order = Window.partitionBy("shop").orderBy(F.desc("day"), "id")
        ranked = orders.withColumn("rank", F.row_number().over(order)).where("rank <= 2")
        pieces = ranked.withColumn("piece", F.explode(F.split("cents", ",")))
        return pieces.join(shops, "shop", "left").orderBy("id").limit(2)

    rows = [
        ("a", "x", "1", "s1", 9),
        ("b", "x", None, "s1", 8),
        ("c", "x", "1", "s1", 7),
        ("d", "x", "2", "s2", 1),
        ("e", "x", "3", "s2", 1),
    ]
    report = audit(newest, spark.createDataFrame(rows, ORDERS), shops(spark))
    own = Counter(
        {
            (loss.operation, loss.reason, loss.is_intended): loss.records
            for loss in report.losses
            if loss.source.name == "orders"
        }
    )
    assert own == {
        ("filter", "not kept by row_number()", True): 1,
        ("explode", "split(cents, ',', -1) is NULL", False): 1,
        ("limit", "beyond the limit", True): 1,
    }
    dimension = report.results[1]
    assert dimension.note == "optional side of an outer join"
    assert len(dimension.lost) == 0


def test_not_in_with_null_is_loud(spark):
    """NOT IN over a NULL drops every row, and says that the condition is NULL."""

    def others(orders: DataFrame) -> DataFrame:
        orders.createOrReplaceTempView("audited")
        return orders.sparkSession.sql(
            "WITH bad AS (SELECT shop FROM audited WHERE day > 5) "
            "SELECT * FROM audited WHERE shop NOT IN (SELECT shop FROM bad)"
        )

    rows = [("a", "x", "1", "s1", 1), ("b", "x", "1", "s2", 9), ("c", "x", "1", None, 9)]
    report = audit(others, spark.createDataFrame(rows, ORDERS))
    (loss,) = [loss for loss in report.losses if not loss.is_intended]
    assert loss.reason == "condition NULL: NOT (shop IN (subquery))"
    assert loss.place.startswith("test_auditing.py:")


def test_a_consulted_input_stands_apart(spark):
    """No record of the right side of an anti join is expected in the output."""

    def unknown(orders: DataFrame, shops: DataFrame) -> DataFrame:
        return orders.join(shops, "shop", "left_anti")

    rows = [("a", "x", "1", "s1", 1), ("b", "x", "1", "s9", 9)]
    report = audit(unknown, spark.createDataFrame(rows, ORDERS), shops(spark))
    assert counts(report) == {("anti join", "has a partner"): 1}
    assert report.results[1].note.startswith("only consulted")
    assert report.lost_records == 0
    with pytest.raises(InputError, match="no record is lost"):
        report.lost  # noqa: B018


def test_empty_inputs(spark):
    """An input without records has a line with zeros."""
    frame = spark.createDataFrame([], ORDERS)
    report = audit(placed, frame, references={"shops": shops(spark)})
    assert str(report).splitlines()[1].split() == ["orders", "0", "0", "0", "0"]


@pytest.mark.parametrize(
    ("function", "error", "expected"),
    [
        (lambda orders: 3, CarryError, "returned int: expected a DataFrame"),
        (
            lambda orders: orders.sparkSession.range(1),
            CarryError,
            "does not use its input 'orders'",
        ),
        (
            lambda orders: orders.mapInPandas(lambda rows: rows, ORDERS),
            CarryError,
            "cannot be followed through mapInPandas",
        ),
    ],
    ids=["no frame", "not used", "refused"],
)
def test_what_cannot_be_audited_is_refused(spark, function, error, expected):
    """A wrong number is worse than no number."""
    with pytest.raises(error, match=expected):
        audit(function, spark.createDataFrame(orders(3), ORDERS))


def test_an_audit_needs_an_input():
    """Without a frame there is nothing to follow."""
    with pytest.raises(InputError, match=r"audit\(\) needs an input"):
        audit(placed)


def order_frame(spark: SparkSession, rows: list[tuple]) -> DataFrame:
    """Orders with id, state, cents, shop and day."""
    return spark.createDataFrame(rows, ORDERS)


def loud(report: AuditReport) -> Counter:
    """Numbers of records that were lost without intent, by reason."""
    reasons = Counter()
    for loss in report.losses:
        if not loss.is_intended:
            reasons[loss.reason] += loss.records
    return reasons


def quiet(report: AuditReport) -> Counter:
    """How many records were dropped on purpose, by reason."""
    reasons = Counter()
    for loss in report.losses:
        if loss.is_intended:
            reasons[loss.reason] += loss.records
    return reasons


STATES = [("a", "paid", "1", "s1", 1), ("b", None, "2", "s1", 2), ("c", "open", "3", None, 3)]


@pytest.mark.parametrize(
    "read",
    [F.input_file_name, F.input_file_block_start, lambda: F.col("_metadata.file_path")],
    ids=["input_file_name", "input_file_block_start", "_metadata"],
)
def test_names_of_files_are_refused(spark, read):
    """The function gets a copy of its input, so it would read the names of the copy's files."""
    with pytest.raises(CarryError, match=r"test_auditing.py:\d+: .* cannot be audited.*add it as"):
        audit(lambda orders: orders.withColumn("file", read()), order_frame(spark, STATES))


def test_too_many_occurrences_are_refused(spark, monkeypatch):
    """Ids have room for some occurrences of a source, and more are never counted as others."""
    monkeypatch.setattr("ledger.auditing.ids.MAX_OCCURRENCES", 1)

    def joined(orders: DataFrame) -> DataFrame:
        return orders.join(orders.select("id", F.lit(1).alias("x")), "id")

    with pytest.raises(CarryError, match="input 'orders' is used more than 1 times"):
        audit(joined, order_frame(spark, STATES))


def test_each_part_of_a_condition_has_its_reason(spark):
    """A rank or a random value in a condition hides no NULL in another part of it."""

    def newest(orders: DataFrame) -> DataFrame:
        order = Window.partitionBy("shop").orderBy(F.desc("day"))
        ranked = orders.withColumn("n", F.row_number().over(order)).withColumnRenamed("n", "rank")
        return ranked.where("rank = 1 AND state = 'paid'")

    report = audit(newest, order_frame(spark, [*STATES, ("d", "paid", "1", "s2", 1)]))
    # b is the newest of its shop, with a state that is NULL; a is not the newest.
    assert loud(report) == {"condition NULL: state = 'paid'": 1}
    assert quiet(report) == {
        "not kept by row_number()": 1,
        "condition false: state = 'paid'": 1,
    }

    report = audit(
        lambda orders: orders.where((F.rand(1) < 2) & (F.col("state") == "paid")),
        order_frame(spark, STATES),
    )
    assert loud(report) == {"condition NULL: state = 'paid'": 1}
    assert quiet(report) == {"condition false: state = 'paid'": 1}
    assert "(may differ when computed again)" in str(report)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("NOT (state = 'paid' OR day > 5)", lambda s, d: not_(or_(eq(s, "paid"), d > 5))),
        ("state = 'paid' OR day > 5", lambda s, d: or_(eq(s, "paid"), d > 5)),
        ("NOT (state = 'paid') AND day > 3", lambda s, d: and_(not_(eq(s, "paid")), d > 3)),
    ],
    ids=["not or", "or", "not and"],
)
def test_conditions_have_three_values(spark, condition, holds):
    """OR, NOT and AND are true, false or NULL as in SQL."""
    rows = orders(100)
    report = audit(lambda orders: orders.where(condition), order_frame(spark, rows))
    values = Counter(holds(state, day) for _, state, _, _, day in rows)
    assert report.results[0].arrived == values[True]
    assert loud(report).total() == report.lost_records == values[None]
    assert quiet(report).total() == values[False]


def eq(left: object, right: object) -> bool | None:
    """Equality with NULL."""
    return None if left is None or right is None else left == right


def not_(value: bool | None) -> bool | None:
    """NOT with NULL."""
    return None if value is None else not value


def or_(left: bool | None, right: bool | None) -> bool | None:
    """OR with NULL."""
    if left or right:
        return True
    return None if left is None or right is None else False


def and_(left: bool | None, right: bool | None) -> bool | None:
    """AND with NULL."""
    return not_(or_(not_(left), not_(right)))


def parsed(expression: str) -> Callable[[DataFrame], DataFrame]:
    """A function that parses ``cents`` and keeps what is not NULL."""
    return lambda orders: orders.withColumn("c", F.expr(expression)).where("c IS NOT NULL")


def parsed_twice(orders: DataFrame) -> DataFrame:
    """A value that is parsed, calculated with and renamed before it is looked at."""
    cents = orders.withColumn("c", F.expr("try_cast(cents AS INT)")).where("id <> ''")
    more = cents.withColumn("d", F.col("c") + 1).select("id", F.col("d").alias("e")).alias("x")
    return more.where("x.e IS NOT NULL")


def parsed_in_branches(orders: DataFrame) -> DataFrame:
    """A value that is parsed in two branches of a union."""
    first = orders.where("day < 5").select("id", F.expr("try_cast(cents AS INT)").alias("c"))
    second = orders.where("day >= 5").select("id", F.expr("try_cast(cents AS INT)").alias("c"))
    return first.union(second).where("c IS NOT NULL")


@pytest.mark.parametrize(
    ("function", "good", "bad", "missing"),
    [
        (
            lambda orders: orders.withColumn("c", F.expr("try_cast(cents AS INT)")).na.drop(
                subset=["c", "id"]
            ),
            "7",
            "n/a",
            None,
        ),
        (
            lambda orders: orders.select(
                "*", F.expr("try_cast(cents AS INT)").alias("c"), F.expr("string(NULL)").alias("n")
            ).na.drop(thresh=3, subset=["c", "id", "day", "n"]),
            "7",
            "n/a",
            None,
        ),
        (parsed_twice, "7", "n/a", None),
        (parsed_in_branches, "7", "n/a", None),
        (parsed("try_to_timestamp(cents, 'yyyy-MM-dd')"), "2024-02-03", "2024-13-03", None),
        (parsed("try_to_date(cents, 'yyyy-MM-dd')"), "2024-02-03", "2024-13-03", None),
        (parsed("try_to_number(cents, '99')"), "12", "x", None),
        (parsed("try_to_binary(cents, 'hex')"), "12", "x", None),
        (parsed("try_parse_json(cents)"), "[1]", "[1", None),
        (parsed("from_json(cents, 'a INT').a"), '{"a": 1}', "{a", '{"b": 1}'),
        (parsed("from_json(cents, 'a INT').a"), '{"a": 1}', '{"a": "x"}', '{"a": null}'),
        (parsed("from_json(cents, 'a STRUCT<b: INT>').a.b"), '{"a": {"b": 1}}', "x", '{"a": {}}'),
        (parsed("get_json_object(cents, '$.a')"), '{"a": 1}', "{a", '{"b": 1}'),
        (parsed("CAST(cents AS INT)"), "7", "n/a", None),
    ],
    ids=[
        "dropna",
        "dropna of some",
        "two columns later",
        "in branches",
        "timestamp",
        "date",
        "number",
        "binary",
        "variant",
        "json",
        "json of another type",
        "json in json",
        "json path",
        "cast",
    ],
)
def test_texts_that_do_not_parse_are_loud(spark, function, good, bad, missing):
    """A text that is no value is lost, wherever it was parsed; a NULL is dropped on purpose."""
    texts = [good, good, bad, bad, bad, missing]
    frame = order_frame(spark, [(f"o{at}", "x", text, "s1", at) for at, text in enumerate(texts)])
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        report = audit(function, frame)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert report.results[0].arrived == 2
    assert [reason.partition(":")[0] for reason in loud(report)] == ["did not parse"]
    assert (report.lost_records, len(report.results[0].intended)) == (3, 1)


def test_dropna_names_its_columns(spark):
    """``dropna`` says for each column that it is NULL, or how many of them have to be there."""
    frame = order_frame(spark, [("a", "x", None, None, 1), ("b", None, "1", "s1", 1), STATES[0]])
    report = audit(lambda orders: orders.dropna(subset=["state", "shop"]), frame)
    assert quiet(report) == {"dropna: shop is NULL": 1, "dropna: state is NULL": 1}
    report = audit(lambda orders: orders.dropna(thresh=2, subset=["state", "cents", "shop"]), frame)
    assert quiet(report) == {"dropna: fewer than 2 of state, cents, shop": 1}


def test_a_self_join_has_one_main_side(spark):
    """An order that is no other order's parent is not lost: its own row is on the other side."""

    def with_parents(orders: DataFrame) -> DataFrame:
        child, parent = orders.alias("child"), orders.alias("parent")
        return child.join(parent, F.col("child.parent") == F.col("parent.id"))

    rows = [("a", None), ("b", "a"), ("c", "z"), ("d", "a")]
    report = audit(with_parents, spark.createDataFrame(rows, "id string, parent string"))
    assert loud(report) == {"key NULL: parent": 1, "no partner for parent": 1}
    assert quiet(report) == {}
    assert report.results[0].arrived == 2


def test_the_side_of_a_rank_is_not_the_main_side(spark):
    """The newest of the orders that are joined to them are a dimension, on whichever side."""

    def with_newest(orders: DataFrame) -> DataFrame:
        order = Window.partitionBy("shop").orderBy(F.desc("day"), "id")
        ranked = orders.withColumn("n", F.row_number().over(order)).where("n = 1")
        return ranked.select("shop", F.col("id").alias("newest")).join(orders, "shop")

    rows = [("a", "x", "1", "s1", 1), ("b", "x", "1", "s1", 2), ("c", "x", "1", None, 3)]
    report = audit(with_newest, order_frame(spark, rows))
    assert loud(report) == {"key NULL: shop": 1}
    assert (report.results[0].arrived, quiet(report)) == (2, {})


def test_a_total_below_a_union_is_a_branch(spark):
    """A record that arrives only by the total that is added to the rows has arrived."""

    def with_total(orders: DataFrame) -> DataFrame:
        paid = orders.where("state = 'paid'").select("shop", "day")
        return paid.unionByName(orders.groupBy("shop").agg(F.sum("day").alias("day")))

    report = audit(with_total, order_frame(spark, STATES))
    assert report.results[0].arrived == 3
    assert report.losses == []


def test_reasons_of_joins(spark):
    """NULL equals NULL for ``<=>``, and a key has no partner only if nothing else is asked for."""
    frame, others = order_frame(spark, STATES), shops(spark)
    for condition, expected in (
        (lambda o, s: o.shop.eqNullSafe(s.shop), {"no partner for shop": 1}),
        (lambda o, s: o.shop == s.shop, {"key NULL: shop": 1}),
        (
            lambda o, s: (o.shop == s.shop) & (o.day > 1),
            {"no partner by the condition": 1, "key NULL: shop": 1},
        ),
        (lambda o, s: o.day < 0, {"no partner by the condition": 3}),
        (lambda o, s: o.shop == F.lit("s2"), {"no partner by the condition": 3}),
    ):
        report = audit(
            lambda orders, shops, on=condition: orders.join(shops, on(orders, shops)),
            frame,
            references={"shops": others},
        )
        assert loud(report) == expected


@pytest.mark.parametrize(
    ("how", "arrived", "loud_reasons", "quiet_reasons", "note"),
    [
        ("left_semi", 2, {"key NULL: shop": 1}, {"no partner for shop": 1}, ""),
        (
            "right",
            2,
            {},
            {"key NULL: shop": 1, "no partner for shop": 1},
            "optional side of an outer join",
        ),
        ("left", 4, {}, {}, ""),
        ("full", 4, {}, {}, ""),
    ],
)
def test_joins_of_all_kinds(spark, how, arrived, loud_reasons, quiet_reasons, note):
    """Semi, outer and full joins lose what they lose."""
    frame = order_frame(spark, [*STATES, ("d", "paid", "1", "s9", 1)])
    report = audit(
        lambda orders, shops: orders.join(shops, "shop", how),
        frame,
        references={"shops": shops(spark)},
    )
    assert loud(report) == loud_reasons
    assert quiet(report) == quiet_reasons
    assert (report.results[0].arrived, report.results[0].note) == (arrived, note)
    assert ("NOT NEEDED: records that need no row" in str(report)) == bool(note)
    assert "INTENDED" not in str(report) or not note


def test_a_record_with_several_rows_takes_the_loud_reason(spark):
    """One of its rows is dropped on purpose and another is lost: the record is lost."""

    def pieces(orders: DataFrame) -> DataFrame:
        exploded = orders.select("id", F.explode(F.split("cents", ",")).alias("piece"))
        return exploded.where("try_cast(piece AS INT) > 5")

    rows = [("a", "x", "1,n/a", "s1", 1), ("b", "x", "1,2", "s1", 1), ("c", "x", "1,9", "s1", 1)]
    report = audit(pieces, order_frame(spark, rows))
    assert loud(report) == {"condition NULL: TRY_CAST(piece AS INT) > 5": 1}
    assert quiet(report) == {"condition false: TRY_CAST(piece AS INT) > 5": 1}


def test_a_text_that_does_not_parse_is_louder_than_a_drop(spark):
    """One row of a record is dropped on purpose, and the text of another does not parse."""

    def pieces(orders: DataFrame) -> DataFrame:
        exploded = orders.select("id", F.explode(F.split("cents", ",")).alias("piece"))
        parsed = exploded.withColumn("c", F.expr("try_cast(piece AS INT)"))
        return parsed.where("piece <> '1' AND c IS NOT NULL")

    rows = [("a", "x", "1,n/a", "s1", 1), ("b", "x", "1,1", "s1", 1), ("c", "x", "1,9", "s1", 1)]
    report = audit(pieces, order_frame(spark, rows))
    assert loud(report) == {"did not parse: TRY_CAST(piece AS INT)": 1}
    assert quiet(report) == {"condition false: NOT (piece = '1')": 1}


@pytest.mark.parametrize("listed", [["s1"], ["s1", None], []], ids=["values", "NULL", "none"])
@pytest.mark.parametrize("how", ["IN", "NOT IN", "EXISTS", "NOT EXISTS"])
def test_subqueries_have_three_values(spark, how, listed):
    """IN and NOT IN are NULL for a NULL on either side, and EXISTS never is."""

    def listed_orders(orders: DataFrame, listed: DataFrame) -> DataFrame:
        orders.createOrReplaceTempView("audited")
        listed.createOrReplaceTempView("listed")
        condition = (
            f"{how} (SELECT 1 FROM listed WHERE listed.shop = audited.shop)"
            if "EXISTS" in how
            else f"audited.shop {how} (SELECT shop FROM listed)"
        )
        return orders.sparkSession.sql(f"SELECT * FROM audited WHERE {condition}")

    def holds(shop: str | None) -> bool | None:
        value: bool | None = False
        for other in listed:
            equal = eq(shop, other)
            value = or_(value, bool(equal) if "EXISTS" in how else equal)
        return not_(value) if "NOT" in how else value

    rows = [(f"o{at}", "x", "1", shop, 1) for at, shop in enumerate(["s1", "s1", "s9", None])]
    lists = spark.createDataFrame([(shop,) for shop in listed], "shop string")
    report = audit(listed_orders, order_frame(spark, rows), references={"listed": lists})
    values = Counter(holds(shop) for _, _, _, shop, _ in rows)
    assert report.results[0].arrived == values[True]
    assert (loud(report).total(), quiet(report).total()) == (values[None], values[False])
    assert all(reason.startswith("condition NULL: ") for reason in loud(report))
    assert all("subquery" in reason for reason in [*loud(report), *quiet(report)])


def test_a_subquery_beside_other_parts(spark):
    """The condition is NULL only if no other part is false."""

    def others(orders: DataFrame) -> DataFrame:
        orders.createOrReplaceTempView("audited")
        return orders.sparkSession.sql(
            "SELECT * FROM audited WHERE state = 'paid' AND shop NOT IN ('s3') AND "
            "shop NOT IN (SELECT shop FROM audited WHERE day = 9)"
        )

    rows = [
        ("a", "paid", "1", "s1", 1),
        ("b", None, "1", "s1", 1),  # state is NULL
        ("c", None, "1", "s2", 1),  # the subquery has the shop
        ("d", "open", "1", None, 1),  # state is false
        ("e", "paid", "1", "s2", 9),  # the subquery has the shop
    ]
    report = audit(others, order_frame(spark, rows))
    assert report.results[0].arrived == 1
    assert loud(report) == {"condition NULL: state = 'paid'": 1}
    assert quiet(report) == {
        "condition false: state = 'paid'": 1,
        "condition false: NOT (shop IN (subquery))": 2,
    }


def test_several_subqueries_in_a_condition(spark):
    """Rows for which one of them is false are counted once."""

    def chosen_orders(orders: DataFrame, shops: DataFrame, states: DataFrame) -> DataFrame:
        for name, frame in {"audited": orders, "listed": shops, "states": states}.items():
            frame.createOrReplaceTempView(name)
        return orders.sparkSession.sql(
            "SELECT * FROM audited WHERE shop NOT IN (SELECT shop FROM listed) "
            "AND state IN (SELECT state FROM states)"
        )

    pairs = [(shop, state) for shop in ("s1", "s9", None) for state in ("paid", "open", None)]
    rows = [(f"o{at}", state, "1", shop, 1) for at, (shop, state) in enumerate(pairs)]
    references = {
        "shops": spark.createDataFrame([("s1",)], "shop string"),
        "states": spark.createDataFrame([("paid",), (None,)], "state string"),
    }
    report = audit(chosen_orders, order_frame(spark, rows), references=references)
    assert report.results[0].arrived == 1
    assert (loud(report).total(), quiet(report).total()) == (5, 3)


def test_conditions_of_udfs(spark):
    """A condition in Python is evaluated again for the records that it dropped."""
    is_paid = F.udf(lambda state: None if state is None else state == "paid", "boolean")
    report = audit(lambda orders: orders.where(is_paid("state")), order_frame(spark, STATES))
    assert (report.results[0].arrived, loud(report).total(), quiet(report).total()) == (1, 1, 1)


def test_duplicates_arrive_or_are_lost_together(spark):
    """A filter above ``dropDuplicates`` sees the rows that were chosen, and no others."""
    rows = [("a", None, "1", "s1", 1), ("b", "paid", "1", "s1", 2), ("c", "paid", "1", "s2", 3)]
    report = audit(
        lambda orders: orders.coalesce(1).dropDuplicates(["shop"]).where("state = 'paid'"),
        order_frame(spark, rows).coalesce(1),
    )
    assert report.results[0].arrived == 1
    assert loud(report) == {"condition NULL: state = 'paid'": 2}


def test_a_limit_without_an_order_is_noted(spark):
    """Losses above rows that are chosen freely say so, and all numbers still add up."""
    frame = order_frame(spark, orders(50))
    report = audit(lambda orders: orders.limit(20).where("state = 'paid'"), frame)
    (result,) = report.results
    assert result.arrived + len(result.lost) + len(result.intended) == 50
    assert "beyond the limit (may differ when computed again)" in str(report)
    report = audit(lambda orders: orders.orderBy("id").limit(20), frame)
    assert (report.results[0].arrived, "may differ" in str(report)) == (20, False)


def test_the_frame_of_lost_records_keeps_their_columns(spark):
    """Own columns get another name if it is taken, and types that differ become strings."""
    reasons = spark.createDataFrame([(1, "x", None), (2, "y", 3)], "code int, Reason string, k int")
    keys = spark.createDataFrame([("z", 4)], "code string, key int")

    def joined(reasons: DataFrame, keys: DataFrame) -> DataFrame:
        return reasons.join(keys, reasons.k == keys.key)

    report = audit(joined, reasons, keys)
    assert report.lost_records == 3
    lost = report.lost
    assert lost.schema["code"].dataType.simpleString() == "string"
    rows = {row.code: row for row in lost.collect()}
    assert rows["1"].Reason == "x"
    assert rows["1"].lost_reason == "key NULL: k"
    assert (rows["z"].Reason, rows["z"].source) == (None, "keys")
    own = report.lost_of("reasons")
    assert own.schema["code"].dataType.simpleString() == "int"
    assert own.columns == ["code", "Reason", "k", "source", "operation", "place", "lost_reason"]
    with pytest.raises(InputError, match="no source 'x': expected one of reasons, keys"):
        report.lost_of("x")


def test_reasons_keep_the_names_of_fields(spark):
    """Only the qualifier of a column is left out, and texts in quotes stay as they are."""

    def deep(orders: DataFrame) -> DataFrame:
        frame = orders.selectExpr("id", "named_struct('x', day) AS a").alias("o")
        return frame.where("o.a.x > 100 AND o.id <> 'o.id it''s'")

    report = audit(deep, order_frame(spark, STATES))
    assert quiet(report) == {"condition false: a.x > 100": 3}


def test_two_equal_filters_have_their_own_lines(spark):
    """Each filter has the line that made it, however alike they are."""

    def two(orders: DataFrame) -> DataFrame:
        first = orders.where("day > 2")
        second = orders.where("day > 2")
        return first.where("state = 'open'").union(second.where("state = 'paid'"))

    report = audit(two, order_frame(spark, STATES))
    places = {loss.place for loss in report.losses if "day > 2" in loss.reason}
    lines = sorted(int(place.partition(":")[2]) for place in places)
    assert lines[1] == lines[0] + 1


def test_a_join_of_two_inputs_below_one_that_fails(spark):
    """If the operations are computed one by one, each has the records of all of its inputs."""

    def shares(orders: DataFrame, shops: DataFrame) -> DataFrame:
        share = F.expr("CAST(100 / (CAST(cents AS INT) - 10) AS BIGINT)")
        joined = orders.join(shops, "shop").withColumn("n", share)
        return joined.join(spark.range(200).toDF("n"), "n").where("cents <> '10'")

    rows = [("a", "s1", "20"), ("b", "s1", "10"), ("c", "s9", "20")]
    shops = spark.createDataFrame([("s1",), ("s2",)], "shop string")
    report = audit(
        shares, spark.createDataFrame(rows, "id string, shop string, cents string"), shops
    )
    assert [(loss.source.name, loss.operation, loss.reason) for loss in report.losses] == [
        ("orders", "inner join", "no partner for shop"),
        ("shops", "inner join", "no partner for shop"),
        ("orders", "filter", "reason not known: DIVIDE_BY_ZERO"),
    ]


def test_an_input_that_is_only_consulted(spark):
    """An audit of inputs that have no row of their own says so."""
    report = audit(
        lambda orders, shops: shops.join(orders, "shop", "left_anti"),
        order_frame(spark, STATES),
        references={"shops": shops(spark)},
    )
    (result,) = report.results
    assert (result.arrived, report.lost_records) == (0, 0)
    assert result.note.startswith("only consulted")


def test_inputs_that_cannot_be_copied(spark):
    """Streams, equal names and types that Parquet does not have are refused with what to do."""
    with pytest.raises(CarryError, match="'orders' is a streaming frame: read its source as a bat"):
        audit(lambda orders: orders, spark.readStream.format("rate").load())
    with pytest.raises(InputError, match="'orders' has columns with equal names, A, a: rename one"):
        audit(lambda orders: orders, spark.createDataFrame([(1, 2)], "a int, A int"))
    with pytest.raises(InputError, match="cannot be copied to Parquet"):
        audit(lambda orders: orders, spark.sql("SELECT make_interval(1) AS a"))


def test_a_copy_that_is_not_whole_is_refused(spark, monkeypatch):
    """Executors that write to folders of their own leave a copy without some records."""
    write = DataFrameWriter.parquet

    def torn(writer: DataFrameWriter, path: str, *args: object, **options: object) -> None:
        write(writer, path, *args, **options)
        next(Path(path.removeprefix("file://")).glob("part-*")).unlink()

    monkeypatch.setattr(DataFrameWriter, "parquet", torn)
    with pytest.raises(InputError, match=r"has \d+ of 50 records: expected all.*Pass folder="):
        audit(lambda orders: orders, order_frame(spark, orders(50)).repartition(2))


def test_copies_are_removed(spark, tmp_path):
    """The copies of the inputs go with the report, and at once if the audit fails."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    frame = order_frame(spark, STATES)
    report = audit(lambda orders: orders.where("day > 1"), frame, folder=folder)
    assert len(list(folder.iterdir())) == 1
    del report
    gc.collect()
    assert list(folder.iterdir()) == []
    with pytest.raises(CarryError, match="returned int"):
        audit(lambda orders: 3, frame, folder=folder)
    assert list(folder.iterdir()) == []
    lost = audit(lambda orders: orders.where("state = 'paid'"), frame, folder=folder).lost
    gc.collect()
    assert [row.id for row in lost.collect()] == ["b"]
    (tmp_path / "[x]").mkdir()
    with pytest.raises(InputError, match=r"expected a folder without"):
        audit(lambda orders: orders, frame, folder=tmp_path / "[x]")


def test_a_plan_that_is_too_deep_is_refused(spark, monkeypatch):
    """Too many operations on top of each other are said, with what to write instead."""

    def too_deep(*args: object) -> None:
        raise RecursionError

    monkeypatch.setattr("ledger.auditing.outputs.main_routes", too_deep)
    with pytest.raises(CarryError, match="too many operations on top of each other"):
        audit(lambda orders: orders, order_frame(spark, STATES))


def counted_orders(orders: DataFrame) -> DataFrame:
    """Open orders of shops with three orders or more."""
    number = F.count("*").over(Window.partitionBy("shop"))
    return orders.withColumn("n", number).where("n >= 3").where("state = 'open'")


def has_right_reasons(spark: SparkSession) -> bool:
    """Whether an audit sees all rows of a window, and not only those of missing records."""
    rows = [(f"o{at}", "open" if at == 0 else "paid", "1", "s1", 1) for at in range(3)]
    report = audit(counted_orders, order_frame(spark, rows))
    return quiet(report) == {"condition false: state = 'open'": 2}


def test_windows_are_computed_over_all_rows(spark, monkeypatch):
    """A window's values need the records that arrived; without them reasons would be others."""
    assert has_right_reasons(spark)
    monkeypatch.setattr(Attribution, "is_row_wise", lambda *_: True)
    assert not has_right_reasons(spark)


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    """Up to five operations over two inputs, each of which is used once; the last is the output."""
    free, newest, plan = [0, 1], None, []
    for number in range(draw(st.integers(1, 5))):
        operands = [] if newest is None else [newest]
        is_binary = len(operands) + len(free) > 1 and draw(st.booleans())
        while len(operands) < 1 + is_binary:
            operands.append(free.pop(0))
        if is_binary and draw(st.booleans()):
            operands.reverse()
        names = [name for name, each in OPERATIONS.items() if each.takes == 1 + is_binary]
        names = [name for name in names if name != "cte_twice"]
        plan.append((draw(st.sampled_from(sorted(names))), tuple(operands)))
        newest = number + 2
    return plan


def pairs() -> st.SearchStrategy[list[tuple[int | None, int | None]]]:
    """Up to seven rows with NULLs and doubled keys."""
    value = st.none() | st.integers(0, 3)
    return st.lists(st.tuples(value, value), max_size=7)


@settings(
    max_examples=6,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=plans(), first=pairs(), second=pairs())
def test_random_audits_find_what_loops_name(spark, plan, first, second):
    """Records that arrive are those that the loops name, and all numbers add up."""
    used = sorted({at for _, operands in plan for at in operands if at < 2})
    inputs = [(first, second)[at] for at in used]
    relations = {
        at: [(k, v, frozenset({(at, row)})) for row, (k, v) in enumerate((first, second)[at])]
        for at in used
    }

    def function(*frames: DataFrame) -> DataFrame:
        results = dict(zip(used, frames, strict=True))
        for at, (name, operands) in enumerate(plan):
            results[at + 2] = OPERATIONS[name].in_spark(*(results[each] for each in operands))
        return results[len(plan) + 1]

    results: dict[int, Rows] = dict(relations)
    for at, (name, operands) in enumerate(plan):
        results[at + 2] = OPERATIONS[name].by_hand(*(results[each] for each in operands))
    named = NOBODY.union(*(row[2] for row in results[len(plan) + 1]))
    report = audit(
        function, *(spark.createDataFrame(rows, "k bigint, v bigint") for rows in inputs)
    )
    for at, result, rows in zip(used, report.results, inputs, strict=True):
        assert result.source.records == len(rows)
        arrived = Counter(rows[row] for source, row in named if source == at)
        assert result.arrived == arrived.total()
        missing = [*result.lost, *result.intended]
        frame = result.source.rows(missing_frame(spark, missing)).select("k", "v")
        assert Counter(map(tuple, frame.collect())) == Counter(rows) - arrived
        assert len(result.unplaced) == 0


def missing_frame(spark: SparkSession, ids: list[int]) -> DataFrame:
    """Ids of records as a frame."""
    return spark.createDataFrame([(int(each),) for each in ids], f"{ID} bigint")
