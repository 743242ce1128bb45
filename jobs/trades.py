"""The classic split and merge: trades are split in two streams, merged again, and the sums have
to agree.

Nothing has to be prepared: the source makes up trades without end, so many for each batch; its
offset states how many there are up to it, and what they come to. A trade that one of the branches
loses is missing in the sums; the ledger names it, its replay adds it, and then they agree.
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger import DeltaSink, OffsetSource, ParquetSink, Pipeline, dropped
from ledger.core.outcomes import Mark

BATCH = 1000


class Trades(OffsetSource):
    """An endless stream of trades, two purchases for each sale. Its offset: ``trades`` and
    ``cents`` up to there.
    """

    schema = "trade BIGINT, side STRING, cents BIGINT"

    def latest(self, start: Any, room: int | None) -> dict[str, int]:
        """One batch further, by its own count."""
        totals = start or {"trades": 0, "cents": 0}
        first = totals["trades"]
        end = first + (BATCH if room is None else min(room, BATCH))
        cents = sum(100 + 7 * (trade % 97) for trade in range(first, end))
        return {"trades": end, "cents": totals["cents"] + cents}

    def read(self, spark: SparkSession, start: Any, end: Any) -> DataFrame:
        """The trades of one batch."""
        return made_up(spark, start["trades"] if start else 0, end["trades"])


def made_up(spark: SparkSession, first: int, end: int) -> DataFrame:
    """The trades from ``first`` up to ``end``: each number makes the same trade whenever it is
    asked for.
    """
    side = F.when(F.col("id") % 3 == 0, "sell").otherwise("buy")
    cents = (100 + 7 * (F.col("id") % 97)).cast("bigint")
    return spark.range(first, end).select(
        F.col("id").alias("trade"), side.alias("side"), cents.alias("cents")
    )


pipeline = Pipeline("trades")
pipeline.source("trades", Trades())


@pipeline.stage(reads="trades", filters="lost")
def bought(trades: DataFrame) -> tuple[DataFrame, Mark]:
    """The purchases, which cost money. A sale is dropped on purpose: whatever else is missing
    was lost.
    """
    purchases = trades.where("side = 'buy'").withColumn("flow", -F.col("cents"))
    return purchases, dropped(trades.where("side = 'sell'"), "a sale")


@pipeline.stage(reads="trades", filters="lost")
def sold(trades: DataFrame) -> tuple[DataFrame, Mark]:
    """The sales, which bring money."""
    sales = trades.where("side = 'sell'").withColumn("flow", F.col("cents"))
    return sales, dropped(trades.where("side = 'buy'"), "a purchase")


@pipeline.stage(reads=["bought", "sold"])
def merged(bought: DataFrame, sold: DataFrame) -> DataFrame:
    """Both branches as one stream again."""
    return bought.unionByName(sold)


@pipeline.stateful_stage(reads="merged")
def totals(before: DataFrame | None, batch: DataFrame) -> DataFrame:
    """Over all batches, what came out of the merge by side."""
    seen = batch.groupBy("side").agg(
        F.count(F.lit(1)).alias("trades"),
        F.sum("cents").alias("cents"),
        F.sum("flow").alias("flow"),
    )
    both = seen if before is None else before.unionByName(seen)
    return both.groupBy("side").agg(
        F.sum("trades").alias("trades"), F.sum("cents").alias("cents"), F.sum("flow").alias("flow")
    )


@pipeline.combine(reads=["trades", "merged"])
def compared(trades: DataFrame, merged: DataFrame) -> DataFrame:
    """Summarize each batch once nothing of it is missing: what the source gave, and what came out
    of the merge.
    """
    totals = trades.agg(F.count(F.lit(1)).alias("trades"), F.sum("cents").alias("cents"))
    booked = merged.agg(F.count(F.lit(1)).alias("booked"), F.sum("cents").alias("booked_cents"))
    return totals.crossJoin(booked)


pipeline.sink("booked", ParquetSink("warehouse/trades"), reads="merged")
pipeline.sink("positions", DeltaSink("warehouse/positions"), reads="totals")
pipeline.sink("comparison", DeltaSink("warehouse/comparison"), reads="compared")
