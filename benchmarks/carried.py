"""Measure functions alone, and with the records of each row carried through them."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks.measure import Bench, in_turn
from ledger.lineage.anchors import LISTS, NUMBERS, Form
from ledger.lineage.carry import carry

# Millions of orders in a round, which takes two to three seconds without records.
MILLIONS = {"row-wise": 40, "join": 10, "group by": 12, "distinct": 8, "window": 6, "chain": 6}
ORDERS_IN_FILE, CUSTOMERS = 1_000_000, 200_000
_ID = "_anchor"
FORMS: dict[str, Form] = {"numbers": NUMBERS, "lists": LISTS}

Function = Callable[[DataFrame, DataFrame], DataFrame]


def row_wise(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Filters and columns."""
    paid = orders.where("state <> 'cancelled'").withColumn("euros", F.col("cents") / 100)
    return paid.withColumn(
        "day", F.date_add(F.lit("2026-01-01"), (F.col("order") % 365).cast("int"))
    )


def join(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """An inner join of two tracked inputs."""
    return orders.join(customers, "customer")


def group_by(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Totals of each customer."""
    return orders.groupBy("customer").agg(F.sum("cents").alias("cents"), F.count("*").alias("n"))


def distinct(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """States and days of each customer."""
    return orders.select("customer", "state").distinct()


def window(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """The newest order of each customer."""
    newest = Window.partitionBy("customer").orderBy(F.desc("order"))
    return orders.withColumn("rank", F.row_number().over(newest))


def chain(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Filters, a window, a join, a group by, and a distinct of its result."""
    newest = window(row_wise(orders, customers), customers)
    totals = newest.join(customers, "customer").groupBy("country", "rank")
    return totals.agg(F.sum("cents").alias("cents")).select("country", "cents").distinct()


WORKS: dict[str, tuple[Function, int]] = {  # with the number of tracked inputs
    "row-wise": (row_wise, 1),
    "join": (join, 2),
    "group by": (group_by, 1),
    "distinct": (distinct, 1),
    "window": (window, 1),
    "chain": (chain, 2),
}


def measure(session: SparkSession, bench: Bench, rounds: int, home: Path) -> dict[str, Any]:
    """Seconds of each function alone and carried, in turn; medians, and carried over alone. Beside
    these the milliseconds over one record: the fixed part of a round.
    """
    large = _stored(session, home / "carried", max(MILLIONS.values()))
    small = _stored(session, home / "carried_small", 0)
    figures: dict[str, Any] = {}
    for name, (function, tracked) in WORKS.items():
        orders, customers = large
        files = sorted(orders.inputFiles())[: MILLIONS[name]]
        inputs = [session.read.parquet(*files), customers]
        taken = _in_turn(f"carried, {name}", function, inputs, tracked, rounds)
        medians = _medians(taken)
        fixed = _medians(_in_turn(f"carried, {name}, fixed", function, small, tracked, rounds))
        figures[f"carried.{name}.seconds"] = taken
        figures[f"carried.{name}.fixed_ms"] = {each: 1000 * s for each, s in fixed.items()}
        for form in FORMS:
            figures[f"carried.{name}.{form}_over_bare"] = medians[form] / medians["bare"]
    return figures


def _in_turn(
    title: str, function: Function, inputs: list[DataFrame], tracked: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds of a function alone and carried, in each round but the first."""
    bare = [frame.drop(_ID) for frame in inputs]
    variants = {"bare": partial(_run, partial(function, *bare))}
    for form in FORMS:
        variants[form] = partial(_run, partial(_carried, function, inputs, tracked, form))
    return in_turn(variants, rounds, f"{title}: rounds")


def _medians(taken: dict[str, list[float]]) -> dict[str, float]:
    return {variant: statistics.median(values) for variant, values in taken.items()}


def _carried(function: Function, inputs: list[DataFrame], tracked: int, form: str) -> DataFrame:
    """The output with its records; inputs beyond the tracked ones are references."""
    references = [frame.drop(_ID) for frame in inputs[tracked:]]
    return carry(
        lambda *frames: function(*frames, *references), inputs[:tracked], form=FORMS[form]
    ).carried


def _run(make: Callable[[], DataFrame]) -> None:
    make().write.format("noop").mode("overwrite").save()


def _stored(session: SparkSession, folder: Path, millions: int) -> list[DataFrame]:
    """Orders, a million in a file, and customers; of no million one record of each."""
    number = F.col("id")
    rows, buyers = (millions * ORDERS_IN_FILE, CUSTOMERS) if millions else (1, 1)
    orders = session.range(0, rows, 1, max(millions, 1)).select(
        number.alias("order"),
        F.pmod(F.xxhash64("id"), F.lit(buyers)).alias("customer"),
        F.pmod(F.xxhash64("id", F.lit(1)), F.lit(20_000)).alias("cents"),
        F.element_at(
            F.array(*map(F.lit, ("paid", "sent", "cancelled"))), (number % 3 + 1).cast("int")
        ).alias("state"),
        number.alias(_ID),
    )
    customers = session.range(buyers).select(
        number.alias("customer"),
        F.concat(F.lit("c"), number % 50).alias("country"),
        (number + rows).alias(_ID),
    )
    tables = []
    for name, frame in {"orders": orders, "customers": customers}.items():
        frame.write.mode("overwrite").parquet(str(folder / name))
        tables.append(session.read.parquet(str(folder / name)))
    return tables
