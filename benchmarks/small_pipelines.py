"""Five steps that a small batch goes through, once for each form of its DAG."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline

SCHEMA = "id INT, shop STRING, items INT"


def priced(orders: DataFrame) -> DataFrame:
    """Add the cost of an order."""
    return orders.withColumn("cents", F.col("items") * 250)


def taxed(priced: DataFrame) -> DataFrame:
    """Add the tax."""
    return priced.withColumn("tax", (F.col("cents") * 0.19).cast("int"))


def shipped(taxed: DataFrame) -> DataFrame:
    """Add the destination."""
    return taxed.withColumn("place", F.concat(F.lit("to "), "shop"))


def _declared(form: str) -> Pipeline:
    pipeline = Pipeline(f"small_{form}")
    pipeline.source("orders", FileSource("orders.csv", schema=SCHEMA))
    pipeline.stage(reads="orders")(priced)
    pipeline.stage(reads="priced")(taxed)
    pipeline.stage(reads="taxed")(shipped)
    pipeline.sink("warehouse", ParquetSink(f"warehouse/{form}"), reads="shipped")
    return pipeline


stage, batch = _declared("stage"), _declared("batch")
