"""Measure functions alone, and with the records of each row carried through them."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track

from benchmarks.measure import Bench, seconds
from ledger.lineage.anchors import LISTS, NUMBERS, Form
from ledger.lineage.carry import carry

ORDERS, CUSTOMERS = 1_000_000, 100_000  # records
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
    """Seconds of each function alone and carried, in turn; medians, and carried over alone."""
    folder, console = home / "carried", Console()
    inputs = [_stored(session, folder / name, rows) for name, rows in _tables(session).items()]
    bare = [frame.drop(_ID) for frame in inputs]
    figures: dict[str, Any] = {}
    for name, (function, tracked) in WORKS.items():
        variants = {"bare": partial(_run, partial(function, *bare))}
        for form in FORMS:
            variants[form] = partial(_run, partial(_carried, function, inputs, tracked, form))
        taken: dict[str, list[float]] = {variant: [] for variant in variants}
        for number in track(range(rounds + 1), f"carried, {name}: rounds", console=console):
            for variant, run in variants.items():
                spent = seconds(run)
                if number > 0:
                    taken[variant].append(spent)
        medians = {variant: statistics.median(values) for variant, values in taken.items()}
        figures[f"carried.{name}.seconds"] = taken
        for form in FORMS:
            figures[f"carried.{name}.{form}_over_bare"] = medians[form] / medians["bare"]
    return figures


def _carried(function: Function, inputs: list[DataFrame], tracked: int, form: str) -> DataFrame:
    """The output with its records; inputs beyond the tracked ones are references."""
    references = [frame.drop(_ID) for frame in inputs[tracked:]]
    return carry(
        lambda *frames: function(*frames, *references), inputs[:tracked], form=FORMS[form]
    ).carried


def _run(make: Callable[[], DataFrame]) -> None:
    make().write.format("noop").mode("overwrite").save()


def _tables(session: SparkSession) -> dict[str, DataFrame]:
    number = F.col("id")
    orders = session.range(ORDERS).select(
        number.alias("order"),
        (F.xxhash64("id") % CUSTOMERS + CUSTOMERS).alias("customer"),
        (F.xxhash64("id", F.lit(1)) % 10_000 + 10_000).alias("cents"),
        F.element_at(
            F.array(*map(F.lit, ("paid", "sent", "cancelled"))), (number % 3 + 1).cast("int")
        ).alias("state"),
        number.alias(_ID),
    )
    customers = session.range(2 * CUSTOMERS).select(
        number.alias("customer"),
        F.concat(F.lit("c"), number % 50).alias("country"),
        (number + ORDERS).alias(_ID),
    )
    return {"orders": orders, "customers": customers}


def _stored(session: SparkSession, folder: Path, frame: DataFrame) -> DataFrame:
    frame.write.mode("overwrite").parquet(str(folder))
    return session.read.parquet(str(folder))
