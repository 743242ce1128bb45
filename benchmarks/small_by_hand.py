"""The small batch as one program without a ledger: it reads and writes what the pipeline does."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.small_pipelines import SCHEMA, priced, shipped, taxed


def main() -> None:
    """Read the orders, write each stage's output once, write the warehouse."""
    spark = SparkSession.builder.getOrCreate()
    data = Path(os.environ["ACKLEDGER_DATA"])
    rows = spark.read.schema(SCHEMA).csv(str(data / "orders.csv"), header=True)
    for stage in (priced, taxed, shipped):
        folder = str(data.parent / "by_hand" / stage.__name__)
        stage(rows).write.mode("overwrite").parquet(folder)
        rows = spark.read.parquet(folder)
    rows.write.parquet(str(data / "warehouse" / "bare"))
    spark.stop()


if __name__ == "__main__":
    main()
