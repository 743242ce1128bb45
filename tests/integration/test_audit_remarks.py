"""Remarks of an audit about records that arrived, against loops with three-valued logic."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ledger import audit
from ledger.auditing.report import AuditReport

ROWS = "id string, k int, v int, w int, ok boolean"
Row = tuple[str, int | None, int | None, int | None, bool | None]
Named = dict[tuple[str, str, str], list[str]]


def random_rows(number: int, seed: int, name: str = "r") -> list[Row]:
    """Rows with doubled keys and NULLs."""
    pick = random.Random(seed)
    return [
        (
            f"{name}{at}",
            pick.choice([None, None, *range(7)]),
            pick.choice([None, *range(4)]),
            pick.choice([None, *range(3)]),
            pick.choice([True, False, None]),
        )
        for at in range(number)
    ]


def frame_of(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """Rows in their order in one partition."""
    return spark.createDataFrame(rows, ROWS).coalesce(1)


def named(report: AuditReport, kind: str) -> Named:
    """The ids of the records in each remark of a kind, by source, operation and text."""
    return {
        (remark.source.name, remark.operation, remark.text): sorted(
            row.id for row in remark.source.rows(report._sources.frame_of(remark.ids)).collect()
        )
        for remark in report.remarks
        if remark.kind == kind
    }


def test_the_report_names_them(spark):
    """A terminal shows each kind of remark with its line, number and an example."""

    def totals(orders: DataFrame, shops: DataFrame) -> DataFrame:
        placed = orders.coalesce(1).dropDuplicates(["day"]).join(shops, "shop", "left")
        return placed.groupBy("country").agg(F.sum("cents").alias("cents"))

    orders = [("o1", "s1", 5, 1), ("o2", "s1", None, 2), ("o3", "s2", 7, 3), ("o4", "s2", 9, 3)]
    shops = [("s1", "DE"), ("s1", "FR"), ("s2", "IT"), ("s9", "x"), ("s9", "y"), (None, "z")]
    report = audit(
        totals,
        spark.createDataFrame(orders, "id string, shop string, cents int, day int").coalesce(1),
        references={"shops": spark.createDataFrame(shops, "shop string, country string")},
    )
    at = r"test_audit_remarks.py:\d+"
    lines = "\n".join(str(report).splitlines()[2:])
    expected = re.compile(
        rf"""
SEVERAL ROWS FROM ONE RECORD: keys of the other side are doubled
left join  {at}  1 doubled key of shop  2  orders: shop=s1, id=o1, cents=5, day=1

MERGED: the kept row of the key has other values
dropDuplicates  {at}  other values in id, cents  1  orders: id=o4, cents=9, shop=s2, day=3

IGNORED: an aggregate skipped these records
sum\(cents\)  {at}  cents is NULL  1  orders: cents=NULL, id=o2, shop=s1, day=2"""
    )
    assert expected.fullmatch(lines), lines
    assert [remark.records for remark in report.remarks] == [2, 1, 1]
    assert report.lost_records == 0


def test_a_job_without_any_has_no_section(spark):
    """A report without remarks has no heading of theirs."""
    rows = [("a", 1, 1, 1, True), ("b", 2, 1, 1, True)]

    def clean(left: DataFrame, right: DataFrame) -> DataFrame:
        joined = left.dropDuplicates(["k", "id"]).join(right.select("k", "w"), "k")
        return joined.groupBy("id").agg(F.sum("v"), F.count("*"))

    report = audit(clean, frame_of(spark, rows).select("id", "k", "v"), frame_of(spark, rows))
    assert report.remarks == []
    assert "SEVERAL" not in str(report)


CONDITIONS: dict[str, tuple[Callable[..., Column], Callable[[Row, Row], bool]]] = {
    "key": (lambda a, b: a.k == b.k, lambda a, b: a[1] is not None and a[1] == b[1]),
    "null safe": (lambda a, b: a.k.eqNullSafe(b.k), lambda a, b: a[1] == b[1]),
    "two keys": (
        lambda a, b: (a.k == b.k) & a.w.eqNullSafe(b.w),
        lambda a, b: a[1] is not None and a[1] == b[1] and a[3] == b[3],
    ),
    "key of an expression": (
        lambda a, b: a.k + 1 == b.k,
        lambda a, b: a[1] is not None and a[1] + 1 == b[1],
    ),
    "more than keys": (
        lambda a, b: (a.k == b.k) & (a.v < b.v),
        lambda a, b: a[1] == b[1] and None not in (a[1], a[2], b[2]) and a[2] < b[2],
    ),
}
KEY_TEXTS = {"two keys": ("k, w", "k, w"), "key of an expression": ("k", "k + 1")}


@pytest.mark.parametrize(
    ("how", "condition"),
    [*product(["inner"], CONDITIONS), ("left", "null safe"), ("right", "key"), ("full", "key")],
)
def test_doubled_keys_of_random_joins(spark, how, condition):
    """The records and keys are those for which loops find several partners."""
    on, matches = CONDITIONS[condition]
    left, right = random_rows(10, 3, "a"), random_rows(12, 1, "b")

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        return left.join(right, on(left, right), how).select(left.id, right.id.alias("other"))

    partners: tuple[defaultdict, defaultdict] = (defaultdict(list), defaultdict(list))
    for a, b in product(left, right):
        if matches(a, b):
            partners[0][a].append(b)
            partners[1][b].append(a)
    expected: Named = {}
    multiplied = [[r for r, others in side.items() if len(others) > 1] for side in partners]
    main = 1 if how == "right" else 0
    for side, name in enumerate(("left", "right")):
        values = {(row[1], row[3] if condition == "two keys" else 0) for row in multiplied[side]}
        is_lookup = how != "full" and side != main and not multiplied[main]
        if values and not is_lookup:
            keys = KEY_TEXTS.get(condition, ("k", "k"))[side]
            text = f"{len(values)} doubled key{'s' * (len(values) > 1)} of {keys}"
            ids = sorted(row[0] for row in multiplied[side])
            expected[name, f"{how} join", text] = ids
    report = audit(joined, frame_of(spark, left), frame_of(spark, right))
    assert named(report, "several rows") == expected


def test_lookups_and_other_joins_are_quiet(spark):
    """Several rows of a dimension, semi, anti and cross joins, and joins without keys are meant."""
    rows, shops = random_rows(12, 3), [("x", 1, 1, 1, True), ("y", 2, 2, 2, True)]

    def lookup(rows: DataFrame, shops: DataFrame) -> DataFrame:
        found_shops = rows.join(shops.select("k", F.col("id").alias("shop")), "k", "left")
        semi = found_shops.join(rows.select("w"), "w", "left_semi")
        anti = semi.join(rows.select("w").where("w = 1"), "w", "left_anti")
        smaller = anti.join(shops.select(F.col("v").alias("x")), F.col("v") < F.col("x"))
        return smaller.crossJoin(shops.select(F.col("w").alias("z")))

    report = audit(lookup, frame_of(spark, rows), frame_of(spark, shops))
    assert named(report, "several rows") == {}


def test_a_followed_dimension_with_doubled_keys(spark):
    """Doubled shops are named if orders that are not followed are doubled as well."""
    shops = spark.createDataFrame([("x", "s1"), ("y", "s1"), ("z", "s2")], "id string, shop string")
    orders = spark.createDataFrame([("s1",), ("s1",), ("s2",), (None,)], "shop string")

    def joined(shops: DataFrame, orders: DataFrame) -> DataFrame:
        return orders.join(shops, "shop", "left")

    report = audit(joined, shops, references={"orders": orders})
    assert named(report, "several rows") == {
        ("shops", "left join", "1 doubled key of shop"): ["x", "y"]
    }
    once = audit(joined, shops, references={"orders": orders.distinct()})
    assert named(once, "several rows") == {}


def test_the_row_that_is_valid_on_a_day(spark):
    """Versions with doubled keys make several rows only where they overlap."""
    versions = [("v1", 1, 0, 5), ("v2", 1, 5, 9), ("v3", 2, 0, 6), ("v4", 2, 4, 9)]
    dimension = spark.createDataFrame(versions, "version string, k int, since int, until int")

    def valid(rows: DataFrame, dimension: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("audited")
        dimension.createOrReplaceTempView("dimension")
        return rows.sparkSession.sql(
            "SELECT id, version FROM audited JOIN dimension "
            "ON audited.k = dimension.k AND v >= since AND v < until"
        )

    rows = [("a", 1, 5, 0, True), ("b", 2, 3, 0, True), ("c", 2, 5, 0, True)]
    report = audit(valid, frame_of(spark, rows), references={"dimension": dimension})
    assert named(report, "several rows") == {("rows", "inner join", "1 doubled key of k"): ["c"]}


def test_joins_of_a_source_with_itself(spark):
    """A record on both sides is one record; rows of groups are named with all their records."""
    rows = random_rows(14, 5)

    def pairs_and_totals(rows: DataFrame) -> DataFrame:
        other = rows.select("k", F.col("id").alias("other"))
        pairs = rows.join(other, "k")
        return pairs.join(rows.groupBy("w").agg(F.max("id").alias("newest")), "w", "left")

    report = audit(pairs_and_totals, frame_of(spark, rows))
    keys = Counter(row[1] for row in rows if row[1] is not None)
    doubled = {key for key, number in keys.items() if number > 1}
    ids = sorted(row[0] for row in rows if row[1] in doubled)
    text = f"{len(doubled)} doubled keys of k"
    assert named(report, "several rows") == {("rows", "inner join", text): ids}


def test_groups_and_unions_that_get_several_rows(spark):
    """Each record of a group and of both branches is named, and untracked rows are not."""
    rows = [("a", 1, 1, 0, None), ("b", 1, 2, 0, None), ("c", 2, 2, 0, None), ("d", 3, 1, 0, None)]
    others = spark.createDataFrame(
        [(1, "x"), (1, "y"), (2, "z"), (9, "z"), (9, "z")], "k int, x string"
    )

    def joined(rows: DataFrame, others: DataFrame) -> DataFrame:
        groups = rows.groupBy("k").agg(F.max("v").alias("v"))
        branches = groups.union(rows.where("v = 1").select("k", "v"))
        united = branches.union(others.selectExpr("k", "0"))
        return united.join(others, "k", "left")

    report = audit(joined, frame_of(spark, rows), references={"others": others})
    assert named(report, "several rows") == {
        ("rows", "left join", "2 doubled keys of k"): ["a", "b"]
    }


def test_a_part_that_is_used_twice_is_named_once(spark):
    """A join above which the job has two branches has one remark."""
    rows = random_rows(9, 2)

    def branches(rows: DataFrame, others: DataFrame) -> DataFrame:
        joined = rows.join(others.select("k", F.col("id").alias("x")), "k")
        return joined.where("v > 1").union(joined.where("v <= 1"))

    report = audit(
        branches, frame_of(spark, rows), references={"others": frame_of(spark, random_rows(9, 3))}
    )
    assert len(report.remarks) == 1


def merged_by_loop(rows: list[Row], keys: list[int]) -> tuple[list[str], set[int]]:
    """The records that ``dropDuplicates`` drops for another one, and where they differ from it."""
    kept_rows: dict[tuple, Row] = {}
    ids, columns = [], set()
    for row in rows:
        first = kept_rows.setdefault(tuple(row[at] for at in keys), row)
        different = {at for at in range(len(row)) if row[at] != first[at]}
        if different:
            ids.append(row[0])
            columns |= different
    return sorted(ids), columns


@pytest.mark.parametrize("keys", [[1], [1, 2], [2, 4], [1, 2, 3, 4]], ids=str)
def test_merged_records(spark, keys):
    """Records whose key has a row with other values are named, NULL keys included."""
    rows = random_rows(40, 7)
    names = ["id", "k", "v", "w", "ok"]
    report = audit(
        lambda rows: rows.coalesce(1).dropDuplicates([names[at] for at in keys]),
        frame_of(spark, rows),
    )
    ids, columns = merged_by_loop(rows, keys)
    text = f"other values in {', '.join(names[at] for at in sorted(columns))}"
    assert named(report, "merged") == {("rows", "dropDuplicates", text): ids}


def test_records_with_equal_values_are_not_merged(spark):
    """Equal rows, ``distinct`` and columns that nothing compares leave nothing to say."""
    rows = [("a", 1, 1, 1, None), ("a", 1, 1, 1, None), ("b", None, 1, 1, True)]
    rows += [("b", None, 1, 1, True), ("c", 2, 1, 1, True)]

    def deduplicated(rows: DataFrame) -> DataFrame:
        same = rows.dropDuplicates(["id"]).distinct().dropDuplicates()
        with_map = rows.select("k", F.create_map(F.lit("x"), F.monotonically_increasing_id()))
        return same.union(rows.union(rows).dropDuplicates(["k"])).join(
            with_map.dropDuplicates(["k"]), "k", "left_semi"
        )

    assert audit(deduplicated, frame_of(spark, rows)).remarks == []

    def maps(rows: DataFrame) -> DataFrame:
        return rows.select("k", F.create_map("id", "w").alias("m")).dropDuplicates(["k"])

    assert audit(maps, frame_of(spark, random_rows(9, 1))).remarks == []


def test_a_record_of_which_a_row_is_kept_is_not_merged(spark):
    """A record has several rows; it is merged if none of them is the row of its key."""
    rows = [("a", 1, 1, 1, None), ("b", 1, 2, 1, None), ("c", 2, 2, 1, None), ("d", 5, 5, 1, None)]

    def pieces(rows: DataFrame) -> DataFrame:
        exploded = rows.select("id", F.explode(F.array("k", "v")).alias("piece"))
        return exploded.coalesce(1).dropDuplicates(["piece"])

    # 1 is kept for a and 2 for b, so nothing is kept for c; both rows of d are equal.
    report = audit(pieces, frame_of(spark, rows))
    assert named(report, "merged") == {("rows", "dropDuplicates", "other values in id"): ["c"]}


def test_a_rank_is_no_merge(spark):
    """``row_number() = 1`` drops records, which the audit lists as intended."""

    def newest(rows: DataFrame) -> DataFrame:
        order = Window.partitionBy("k").orderBy("id")
        return rows.withColumn("n", F.row_number().over(order)).where("n = 1")

    report = audit(newest, frame_of(spark, random_rows(9, 2)))
    assert report.remarks == []
    assert {loss.reason for loss in report.losses} == {"not kept by row_number()"}


def test_many_columns_and_aggregates(spark):
    """More conditions than a bigint has bits are all seen."""
    names = [f"x{at}" for at in range(130)]
    rows = [("a", *([1] * 130)), ("b", *([1] * 129), None), ("c", *([1] * 100), 2, *([1] * 29))]
    schema = ", ".join(["id string", *(f"{name} int" for name in names)])
    wide = spark.createDataFrame(rows, schema).coalesce(1)
    report = audit(lambda wide: wide.coalesce(1).dropDuplicates(["x0"]), wide)
    assert named(report, "merged") == {
        ("wide", "dropDuplicates", "other values in id, x100, x129"): ["b", "c"]
    }
    report = audit(lambda wide: wide.agg(*(F.sum(name).alias(name) for name in names)), wide)
    assert named(report, "ignored") == {("wide", "sum(x129)", "x129 is NULL"): ["b"]}


def test_ignored_by_each_aggregate(spark):
    """An aggregate is named with the records whose argument is NULL, as loops name them."""
    rows = random_rows(40, 11)

    def totals(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(
            F.sum("v"),
            F.avg("w"),
            F.min("v"),
            F.max("w"),
            F.count("v"),
            F.count("*"),
            F.count(F.lit(1)),
            F.count_distinct("v", "w"),
            F.collect_list("w"),
            F.collect_set("v"),
            F.sum(F.col("v") * F.col("w")),
            F.sum(F.coalesce("v", F.lit(0))),
            F.expr("any_value(v)"),
            F.first("v"),
            (F.sum("v") / F.count("w")).alias("ratio"),
            F.count_if("ok"),
            F.collect_list(F.struct("v", "w")),
            F.expr("collect_set(w) RESPECT NULLS").alias("all"),
        )

    def nulls(*columns: int) -> list[str]:
        return sorted(row[0] for row in rows if None in [row[at] for at in columns])

    v, w = nulls(2), nulls(3)
    assert named(audit(totals, frame_of(spark, rows)), "ignored") == {
        ("rows", "sum(v)", "v is NULL"): v,
        ("rows", "avg(w)", "w is NULL"): w,
        ("rows", "min(v)", "v is NULL"): v,
        ("rows", "max(w)", "w is NULL"): w,
        ("rows", "count(v)", "v is NULL"): v,
        ("rows", "count(w)", "w is NULL"): w,
        ("rows", "count(DISTINCT v, w)", "v or w is NULL"): nulls(2, 3),
        ("rows", "collect_list(w)", "w is NULL"): w,
        ("rows", "collect_set(v)", "v is NULL"): v,
        ("rows", "sum(v * w)", "v * w is NULL"): nulls(2, 3),
        ("rows", "count_if(ok)", "ok is NULL"): nulls(4),
    }


def test_ignored_by_sql(spark):
    """FILTER and CASE ask to leave out what is false; NULL is left out in silence."""
    rows = random_rows(40, 13)

    def totals(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("audited")
        return rows.sparkSession.sql(
            "SELECT k, sum(v) FILTER (WHERE ok) x, sum(CASE WHEN w > 1 THEN v END) y, "
            "count(CASE WHEN ok THEN 1 WHEN w = 0 THEN 2 ELSE NULL END) z, "
            "sum(IF(ok, NULL, v)) i, sum(nullif(v, 1)) n "
            "FROM audited GROUP BY k HAVING max(w) >= 0 OR max(w) IS NULL"
        )

    def ids(is_ignored: Callable[[Any, Any, Any], bool]) -> list[str]:
        return sorted(row[0] for row in rows if is_ignored(*row[2:]))

    report = audit(totals, frame_of(spark, rows))
    case = "CASE WHEN ok THEN 1 WHEN (w = 0) THEN 2 ELSE CAST(NULL AS INT) END"
    expected = {
        ("sum(v) FILTER (WHERE ok)", "v is NULL"): ids(lambda v, w, ok: ok is True and v is None),
        ("sum(v) FILTER (WHERE ok)", "condition NULL: ok"): ids(lambda v, w, ok: ok is None),
        ("sum(CASE WHEN (w > 1) THEN v END)", "CASE WHEN (w > 1) THEN v END is NULL"): ids(
            lambda v, w, ok: w is None or (w > 1 and v is None)
        ),
        (f"count({case})", f"{case} is NULL"): ids(
            lambda v, w, ok: not ok and w != 0 and (ok is None or w is None)
        ),
        ("sum(IF(ok, CAST(NULL AS INT), v))", "IF(ok, CAST(NULL AS INT), v) is NULL"): ids(
            lambda v, w, ok: not ok and v is None
        ),
        ("sum(nullif(v, 1))", "nullif(v, 1) is NULL"): ids(lambda v, w, ok: v is None),
        ("max(w)", "w is NULL"): ids(lambda v, w, ok: w is None),
    }
    assert named(report, "ignored") == {("rows", *key): value for key, value in expected.items()}


@pytest.mark.parametrize("how", ["rollup", "cube"])
def test_ignored_in_grouping_sets(spark, how):
    """A key that a grouping set replaces by NULL is not ignored, because the value is there."""
    rows = random_rows(20, 17)

    def totals(rows: DataFrame) -> DataFrame:
        return getattr(rows, how)("k", "v").agg(F.sum("k").alias("x"), F.sum("w").alias("y"))

    assert named(audit(totals, frame_of(spark, rows)), "ignored") == {
        ("rows", "sum(k)", "k is NULL"): sorted(row[0] for row in rows if row[1] is None),
        ("rows", "sum(w)", "w is NULL"): sorted(row[0] for row in rows if row[3] is None),
    }


@pytest.mark.parametrize(
    ("aggregate", "values"),
    [
        (F.sum, [1, None]),
        (F.sum, None),
        (F.collect_list, [0, 1]),
        (F.collect_list, [1, None]),
    ],
    ids=["sum with NULL", "sum of all", "lists of two", "lists with NULL"],
)
def test_ignored_by_a_pivot(spark, aggregate, values):
    """Records whose value is not in the list are named, in both plans that Spark makes."""
    rows = random_rows(30, 19)

    def pivoted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").pivot("w", values).agg(aggregate("v"))

    frame = frame_of(spark, rows)
    listed = {row[3] for row in rows} if values is None else set(values)
    is_sum = aggregate is F.sum
    unlisted = sorted(row[0] for row in rows if row[3] not in listed)
    null = sorted(row[0] for row in rows if row[2] is None and (is_sum or row[3] in listed))
    name = "sum(v)" if is_sum else "collect_list(v)"
    expected = {("rows", name, "v is NULL"): null}
    if unlisted:
        expected["rows", "pivot(w)", "w is not in the list"] = unlisted
    assert named(audit(pivoted, frame), "ignored") == expected


def test_a_pivot_of_two_columns(spark):
    """A pair that is not in the list is named, and NULL in one of them, too."""
    rows = [("a", 1, 1, 0, True), ("b", 1, 2, 0, None), ("c", 2, 3, 1, True), ("d", 2, 4, 1, False)]

    def by_two(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("audited")
        return rows.sparkSession.sql(
            "SELECT * FROM (SELECT k, v, w, ok FROM audited) "
            "PIVOT (sum(v) FOR (w, ok) IN ((0, true) x, (1, true) y))"
        )

    report = audit(by_two, frame_of(spark, rows))
    assert named(report, "ignored") == {
        ("rows", "pivot(w, ok)", "w, ok is not in the list"): ["b", "d"]
    }


def test_a_record_with_several_rows_is_ignored_if_all_are(spark):
    """A join or a union makes several rows of a record; one with a value is enough."""
    rows = [("a", 1, 1, 0, True), ("b", 2, 2, None, True), ("c", 3, None, 1, True)]
    prices = [(1, None), (1, 7), (2, None), (2, None), (3, None)]
    others = spark.createDataFrame(prices, "k int, price int")

    def joined(rows: DataFrame, others: DataFrame) -> DataFrame:
        return rows.join(others, "k").agg(F.sum("price"))

    report = audit(joined, frame_of(spark, rows), references={"others": others})
    assert named(report, "ignored") == {("rows", "sum(price)", "price is NULL"): ["b", "c"]}

    def united(rows: DataFrame) -> DataFrame:
        both = rows.select("id", F.col("v").alias("x")).union(rows.select("id", "w"))
        return both.agg(F.sum(F.when(F.col("x") >= 0, F.col("x"))))

    report = audit(united, frame_of(spark, [*rows, ("d", 0, None, None, None)]))
    assert list(named(report, "ignored").values()) == [["d"]]


def test_ignored_records_of_each_source(spark):
    """A record of either side of a join is named if all rows with it have NULL."""
    rows = [("a", 1, None, 0, True), ("b", 2, None, 0, True), ("c", 2, 5, 0, True)]
    others = [("x", 1, 0, 0, True), ("y", 2, 0, 0, True), ("z", 9, 0, 0, True)]

    def joined(rows: DataFrame, others: DataFrame) -> DataFrame:
        both = rows.join(others.select("k", F.col("id").alias("other")), "k")
        return both.groupBy("other").agg(F.sum("v").alias("v")).agg(F.max("v"), F.count("*"))

    report = audit(joined, frame_of(spark, rows), frame_of(spark, others))
    assert named(report, "ignored") == {
        ("rows", "sum(v)", "v is NULL"): ["a", "b"],
        ("others", "sum(v)", "v is NULL"): ["x"],
        ("rows", "max(v)", "v is NULL"): ["a"],
        ("others", "max(v)", "v is NULL"): ["x"],
    }


def test_windows_ignore_nothing(spark):
    """Sums and neighbours over a window are influence, not arrival."""

    def over(rows: DataFrame) -> DataFrame:
        order = Window.partitionBy("k").orderBy("id")
        return rows.withColumn("s", F.sum("v").over(order)).withColumn("l", F.lag("v").over(order))

    assert audit(over, frame_of(spark, random_rows(9, 2))).remarks == []


def test_no_job_without_a_nullable_argument(spark, monkeypatch):
    """Values that are never NULL are not looked at."""

    def refused(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr("ledger.auditing.ignored.with_any_flag", refused)

    def totals(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(F.count("*"), F.sum(F.coalesce("v", F.lit(0))))

    assert audit(totals, frame_of(spark, random_rows(9, 2))).remarks == []


def share(rows: DataFrame, others: DataFrame) -> DataFrame:
    """A division of values for which a join has left no zero."""
    return rows.join(others, "k").agg(F.sum(F.expr("12 DIV v + w")))


def test_values_are_not_computed_for_other_rows(spark, monkeypatch):
    """A division by zero in a row that a join drops raises no error, in the job or in the audit."""
    rows = [("a", 1, 1, None, True), ("b", 2, 0, 1, True), ("c", 1, 3, 1, True)]
    others = spark.createDataFrame([(1,)], "k int")
    report = audit(share, frame_of(spark, rows), references={"others": others})
    assert list(named(report, "ignored").values()) == [["a"]]


def test_subqueries_and_consulted_sides_have_no_remarks(spark):
    """A total in a subquery or on the right of a semi join has no row of the records."""

    def above(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("audited")
        return rows.sparkSession.sql(
            "SELECT * FROM audited WHERE v >= (SELECT avg(v) FROM audited) "
            "AND k IN (SELECT k FROM audited GROUP BY k HAVING sum(w) > 0)"
        )

    assert audit(above, frame_of(spark, random_rows(20, 2))).remarks == []
