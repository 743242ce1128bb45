"""Orders, and a total per customer that a whole stage makes."""

from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline

ORDERS = "id INT, customer STRING, cents INT"


def totals(poison=None, behind=False, late=(), **options):
    """A total per customer; ``poison``: refused before the total, or behind it. ``late``: orders
    one of whose two parts is refused, so that the other part reaches the total.
    """
    pipeline = Pipeline("totals", guarantee="exactly_once", **{"max_replays": 2, **options})
    pipeline.source("orders", FileSource("orders.csv", schema=ORDERS))

    @pipeline.stage(reads="orders")
    def halves(orders):
        return orders.withColumn("part", F.explode(F.array(F.lit(1), F.lit(2))))

    @pipeline.stage(reads="halves")
    def checked(halves):
        refused = F.lit(not behind) & (F.col("id") == F.lit(poison if poison is not None else -1))
        half = F.col("id").isin([-1, *late]) & (F.col("part") == 2)
        return halves.withColumn("_failed", F.when(refused | half, "poisoned"))

    @pipeline.stage(reads="checked")
    def total(halves):
        return halves.groupBy("customer").agg(
            F.sum("cents").alias("cents"), F.count(F.lit(1)).alias("parts")
        )

    @pipeline.stage(reads="total")
    def published(totals):
        bad = F.lit(behind) & (F.col("customer") == "a")
        return totals.withColumn("_failed", F.when(bad, "refused"))

    pipeline.sink("sales", ParquetSink("sales"), reads="published")
    return pipeline


def orders_of(*numbers, customer="a"):
    return [{"id": n, "customer": customer, "cents": 10 * n} for n in numbers]


ORDERED = {"orders": [*orders_of(*range(20)), *orders_of(500, customer="b")]}


def sold(result):
    return sorted((row["customer"], row["cents"], row["parts"]) for row in result.rows["sales"])


B = ("b", 10_000, 2)
