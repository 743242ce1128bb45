"""The same work as a good engineer would write it without a ledger.

Read the source directly, write each stage's output once, same format and codec. The functions of
the stages are written out here, not shared, so that neither side pays for the other's shape.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.flights import FLIGHT, PLANE, WEATHER

ZSTD = {"compression": "zstd"}


def flights(spark: SparkSession, data: Path, out: Path, planes_join: str = "inner") -> None:
    """Parse, join the planes, join the weather, write by day."""
    csv = {"header": "true", "nullValue": "NA"}
    departures = spark.read.schema(FLIGHT).csv(str(data / "flights" / "2013-01-01.csv"), **csv)
    planes = spark.read.schema(PLANE).csv(str(data / "planes.csv"), **csv)
    weather = spark.read.schema(WEATHER).csv(str(data / "weather.csv"), **csv)

    parsed = departures.select(
        "*",
        F.make_date("year", "month", "day").alias("date"),
        F.col("dep_time").isNull().alias("cancelled"),
        F.when(
            F.col("dep_time").isNull() & F.col("arr_time").isNotNull(), "arrived, never departed"
        )
        .when(F.col("origin") == F.col("dest"), "departed to where it was")
        .when(F.col("distance") <= 0, "no distance")
        .alias("failed"),
    )
    parsed.where("failed IS NULL").drop("failed").write.options(**ZSTD).parquet(str(out / "parse"))

    plane = planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")
    with_plane = spark.read.parquet(str(out / "parse")).join(
        F.broadcast(plane), "tailnum", planes_join
    )
    with_plane.write.options(**ZSTD).parquet(str(out / "with_plane"))

    measured = weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    with_weather = spark.read.parquet(str(out / "with_plane")).join(
        F.broadcast(measured), ["origin", "time_hour"], "left"
    )
    with_weather.write.options(**ZSTD).parquet(str(out / "with_weather"))

    departures = spark.read.parquet(str(out / "with_weather"))
    departures.write.partitionBy("month", "day").options(**ZSTD).parquet(str(out / "warehouse"))


def flights_clean(spark: SparkSession, data: Path, out: Path) -> None:
    """The same, of which no flight is lost."""
    flights(spark, data, out, "left")


def counted(spark: SparkSession, snapshot: list[str], out: Path) -> None:
    """Count the words of each sentence in Python, on Arrow batches."""
    schema = pa.schema([("sentence", pa.string()), ("words", pa.int32())])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {"sentence": row["sentence"], "words": len(row["sentence"].split())}
                for row in batch.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(rows, schema)

    sentences = spark.read.parquet(*snapshot).select("sentence")
    made = sentences.mapInArrow(count, "sentence STRING, words INT")
    made.write.options(**ZSTD).parquet(str(out / "counted"))


def wordcount(spark: SparkSession, data: Path, out: Path) -> None:
    """Split sentences into words, write them."""
    sentences = spark.read.schema("sentence STRING").json(str(data / "sentences" / "2013-01-01"))
    words = F.array_remove(F.split(F.lower("sentence"), r"[^\p{L}\p{N}']+"), "")
    split = sentences.select(F.explode(words).alias("word"))
    split.write.options(**ZSTD).parquet(str(out / "split"))
    spark.read.parquet(str(out / "split")).write.options(**ZSTD).parquet(str(out / "words"))
