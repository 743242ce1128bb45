"""Relations with the records of each row, computed by loops: an oracle for carried anchors.

Every relation has two nullable whole numbers, ``k`` and ``v``, and each operation returns such a
relation. ``OPERATIONS`` has each operation twice: in Spark's DataFrame API or SQL, and here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

Row = tuple[int | None, int | None, frozenset[int]]  # k, v, records
Rows = list[Row]
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Operation:
    """``takes``: one or two relations. ``is_monotone``: without one record, rows that do not name
    it stay.
    """

    takes: int
    in_spark: Callable[..., DataFrame]
    by_hand: Callable[..., Rows]
    is_monotone: bool = True


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _joined(how: str, smaller: bool = False) -> Operation:
    def in_spark(left: DataFrame, right: DataFrame) -> DataFrame:
        right = right.withColumnRenamed("v", "w")
        if smaller:
            right = right.withColumnRenamed("k", "k2")
            joined = left.join(right, (F.col("k") == F.col("k2")) & (F.col("v") < F.col("w")), how)
            return joined.select(
                F.coalesce("k", "k2").alias("k"), (F.col("v") + F.col("w")).alias("v")
            )
        return left.join(right, "k", how).select("k", (F.col("v") + F.col("w")).alias("v"))

    def matches(row: Row, other: Row) -> bool:
        if row[0] is None or row[0] != other[0]:
            return False
        if not smaller:
            return True
        return row[1] is not None and other[1] is not None and row[1] < other[1]

    def by_hand(left: Rows, right: Rows) -> Rows:
        pairs = [(a, b) for a, b in product(left, right) if matches(a, b)]
        rows = [(a[0], _plus(a[1], b[1]), a[2] | b[2]) for a, b in pairs]
        if how in ("left", "full"):
            rows += [(a[0], None, a[2]) for a in left if not any(matches(a, b) for b in right)]
        if how in ("right", "full"):
            rows += [(b[0], None, b[2]) for b in right if not any(matches(a, b) for a in left)]
        return rows

    return Operation(2, in_spark, by_hand, is_monotone=how == "inner")


def _grouped(rows: Rows, key: Callable[[Row], Any], make: Callable[[Any, Rows], Any]) -> Rows:
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [
        (*make(value, members), frozenset().union(*(row[2] for row in members)))
        for value, members in groups.items()
    ]


def _sum(rows: Rows) -> int | None:
    values = [row[1] for row in rows if row[1] is not None]
    return sum(values) if values else None


def _distinct(rows: Rows) -> Rows:
    return _grouped(rows, lambda row: row[:2], lambda value, _: value)


def _totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").cast("bigint").alias("v"))


def _per_key(rows: Rows) -> Rows:
    return _grouped(rows, lambda row: row[0], lambda key, members: (key, _sum(members)))


def _everything(rows: Rows) -> Row:
    return None, len(rows), NOBODY.union(*(row[2] for row in rows))


def _rolled_up(rows: Rows) -> Rows:
    total = (None, _sum(rows), NOBODY.union(*(row[2] for row in rows)))
    return [*_per_key(rows), total] if rows else []


def _sql(frame: DataFrame, text: str, **others: DataFrame) -> DataFrame:
    spark = frame.sparkSession
    for name, other in {"x": frame, **others}.items():
        other.createOrReplaceTempView(f"relations_{name}")
    return spark.sql(text)


def _with_twice(frame: DataFrame) -> DataFrame:
    return _sql(
        frame,
        "WITH t AS (SELECT k, CAST(sum(v) AS BIGINT) v FROM relations_x GROUP BY k) "
        "SELECT a.k, a.v + b.v AS v FROM t a JOIN t b ON a.k = b.k",
    )


def _twice(rows: Rows) -> Rows:
    return [(k, _plus(v, v), ids) for k, v, ids in _per_key(rows) if k is not None]


def _keys(rows: Iterable[Row]) -> set[int | None]:
    return {row[0] for row in rows}


def _counted(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", F.count("*").over(Window.partitionBy("k")))


def _exploded(frame: DataFrame) -> DataFrame:
    values = F.when(F.col("v") > 0, F.array(F.col("v"), F.col("v") + 1)).otherwise(
        F.array().cast("array<bigint>")
    )
    return frame.select("k", F.explode(values).alias("v"))


def _pivoted(frame: DataFrame) -> DataFrame:
    return (
        frame.groupBy("k")
        .pivot("v", [0, 1])
        .agg(F.count(F.lit(1)))
        .select("k", F.coalesce(F.col("1"), F.lit(0)).alias("v"))
    )


OPERATIONS: dict[str, Operation] = {
    "where": Operation(
        1, lambda x: x.where("v > 1"), lambda x: [r for r in x if r[1] is not None and r[1] > 1]
    ),
    "dropna": Operation(
        1, lambda x: x.na.drop(subset=["k"]), lambda x: [r for r in x if r[0] is not None]
    ),
    "swap": Operation(
        1,
        lambda x: x.select(F.col("v").alias("k"), F.col("k").alias("v")),
        lambda x: [(v, k, ids) for k, v, ids in x],
    ),
    "udf": Operation(
        1,
        lambda x: x.withColumn("v", F.udf(lambda v: None if v is None else v + 1, "bigint")("v")),
        lambda x: [(k, _plus(v, 1), ids) for k, v, ids in x],
    ),
    "inner": _joined("inner"),
    "left": _joined("left"),
    "right": _joined("right"),
    "full": _joined("full"),
    "inner_on_smaller": _joined("inner", smaller=True),
    "full_on_smaller": _joined("full", smaller=True),
    "semi": Operation(
        2,
        lambda x, y: x.join(y, "k", "left_semi"),
        lambda x, y: [r for r in x if r[0] is not None and r[0] in _keys(y)],
        is_monotone=False,
    ),
    "anti": Operation(
        2,
        lambda x, y: x.join(y, "k", "left_anti"),
        lambda x, y: [r for r in x if r[0] is None or r[0] not in _keys(y)],
        is_monotone=False,
    ),
    "in_subquery": Operation(
        2,
        lambda x, y: _sql(
            x, "SELECT k, v FROM relations_x WHERE k IN (SELECT k FROM relations_y)", y=y
        ),
        lambda x, y: [r for r in x if r[0] is not None and r[0] in _keys(y)],
        is_monotone=False,
    ),
    "union": Operation(2, lambda x, y: x.union(y), lambda x, y: x + y),
    "union_by_name": Operation(
        2, lambda x, y: x.unionByName(y.select("v", "k")), lambda x, y: x + y
    ),
    "distinct": Operation(1, lambda x: x.distinct(), _distinct),
    "select_distinct": Operation(
        1, lambda x: _sql(x, "SELECT DISTINCT k, v FROM relations_x"), _distinct
    ),
    "first_of_key": Operation(
        1,
        lambda x: x.dropDuplicates(["k"]).withColumn("v", F.lit(0).cast("bigint")),
        lambda x: _grouped(x, lambda row: row[0], lambda key, _: (key, 0)),
    ),
    "totals": Operation(1, _totals, _per_key, is_monotone=False),
    "everything": Operation(
        1,
        lambda x: x.agg(F.count("*").alias("v")).select(F.lit(None).cast("bigint").alias("k"), "v"),
        lambda x: [_everything(x)],
        is_monotone=False,
    ),
    "rollup": Operation(
        1,
        lambda x: x.rollup("k").agg(F.sum("v").cast("bigint").alias("v")),
        _rolled_up,
        is_monotone=False,
    ),
    "pivot": Operation(
        1,
        _pivoted,
        lambda x: _grouped(
            x, lambda r: r[0], lambda key, rows: (key, sum(row[1] == 1 for row in rows))
        ),
        is_monotone=False,
    ),
    "intersect": Operation(
        2,
        lambda x, y: x.intersect(y),
        lambda x, y: [
            (k, v, ids | other)
            for k, v, ids in _distinct(x)
            for k2, v2, other in _distinct(y)
            if (k, v) == (k2, v2)
        ],
    ),
    "except": Operation(
        2,
        lambda x, y: x.subtract(y),
        lambda x, y: [r for r in _distinct(x) if r[:2] not in {o[:2] for o in y}],
        is_monotone=False,
    ),
    "explode": Operation(
        1,
        _exploded,
        lambda x: [
            (k, value, ids) for k, v, ids in x if v is not None and v > 0 for value in (v, v + 1)
        ],
    ),
    "count_over": Operation(
        1,
        _counted,
        lambda x: [(k, sum(r[0] == k for r in x), ids) for k, _, ids in x],
        is_monotone=False,
    ),
    "cte_twice": Operation(1, _with_twice, _twice, is_monotone=False),
}
