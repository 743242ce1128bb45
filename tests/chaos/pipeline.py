"""The pipeline that is hurt: three stages with fan-out, three kinds of sinks, one state over
batches.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import DeltaSink, FailedRecord, FileSource, ParquetSink, Pipeline, PostgresSink
from tests.chaos.data import checksum_sql

NAME = "chaos"
TARGET_URL = "CHAOS_TARGET_URL"
SUBMIT = "CHAOS_SUBMIT"  # variable with the form of the DAG
TABLE = "order_line"
PARQUET, DELTA, POSTGRES, HISTORY = "folder", "table", "reporting", "past"
ORDER = "id BIGINT, day STRING, lines INT, cents BIGINT, region STRING, poison BOOLEAN"
LINE = "id BIGINT, day STRING, line BIGINT, cents BIGINT, region STRING"

pipeline = Pipeline(NAME, guarantee="exactly_once", max_replays=1, message_timeout="1h")
pipeline.source("orders", FileSource("orders/{{ interval_start | ds }}.csv", schema=ORDER))
pipeline.reference("regions", FileSource("regions.csv", schema="region STRING, percent INT"))


@pipeline.stage(reads="orders")
def lines(orders: DataFrame) -> DataFrame:
    """One row for each line of an order."""
    numbers = F.sequence(F.lit(1).cast("bigint"), F.col("lines").cast("bigint"))
    result = orders.withColumn("line", F.explode(numbers))
    cents = (F.col("cents") + F.col("line")).alias("cents")
    return result.select("id", "day", "line", cents, "region", "poison")


@pipeline.record_stage(reads="lines", schema=LINE)
def checked(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A poison order fails in its first line: the others get to the sinks, where no reader may
    see them.
    """
    if line["poison"] and line["line"] == 1:
        raise FailedRecord(f"poison {line['id']}")
    yield {name: value for name, value in line.items() if name != "poison"}


@pipeline.stage(reads="checked", emits="one")
def taxed(lines: DataFrame, *, regions: DataFrame) -> DataFrame:
    """Add the region's tax; lines of a region that is not known yet are lost."""
    return lines.join(F.broadcast(regions), "region", "inner")


@pipeline.stateful_stage(reads="taxed")
def history(before: DataFrame | None, batch: DataFrame) -> DataFrame:
    """One row for each batch that was applied: its place, what it added, how much was there
    before.
    """
    added = batch.agg(
        F.count(F.lit(1)).alias("added"),
        F.coalesce(F.sum(F.expr(checksum_sql())), F.lit(0).cast("bigint")).alias("checksum"),
    )
    if before is None:
        return added.select(
            F.lit(1).cast("bigint").alias("place"),
            "added",
            "checksum",
            F.lit(0).cast("bigint").alias("earlier"),
        )
    places = before.agg(
        (F.max("place") + 1).alias("place"), F.sum("added").cast("bigint").alias("earlier")
    )
    newest = places.crossJoin(added).select("place", "added", "checksum", "earlier")
    return before.unionByName(newest)


pipeline.sink(PARQUET, ParquetSink("warehouse/folder"), reads="lines")
pipeline.sink(DELTA, DeltaSink("warehouse/table"), reads="taxed")
pipeline.sink(POSTGRES, PostgresSink(f"env:{TARGET_URL}", TABLE), reads="taxed")
pipeline.sink(HISTORY, DeltaSink("warehouse/past"), reads="history")
