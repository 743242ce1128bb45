"""The same work as a good engineer would write it without a ledger.

Read the source directly, same format and codec; a subclass of ``Batches`` says whether each stage's
output is written once, or the whole batch is one plan. The functions of the stages are written out
here, not shared, so that neither side pays for the other's shape.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path

import psycopg2
import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.data import (
    CUSTOMER,
    EVENT,
    FEW_MISSING,
    FLIGHTS_TABLE,
    MEASUREMENT,
    NO_PLANE,
    ORDER,
)
from jobs.flights import FLIGHT, PLANE, WEATHER

ZSTD = {"compression": "zstd"}
CSV = {"header": "true", "nullValue": "NA"}
REPORTS = "ACKLEDGER_BENCH_REPORTS"  # the variable with the URL of a database for reports
REVENUE = "revenue"  # a table there


class Batches:
    """Reads and writes with batch jobs."""

    def __init__(self, spark: SparkSession):
        self.spark = spark
        self.step_seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note the seconds of a step, from what it reads to what it has written."""
        started = time.perf_counter()
        yield
        self.step_seconds[name] = time.perf_counter() - started

    def source(self, format: str, schema: str, path: Path, **options: str) -> DataFrame:
        """Return the frame that a pipeline begins with."""
        return self.spark.read.format(format).schema(schema).options(**options).load(str(path))

    def stage(self, rows: DataFrame, folder: Path) -> None:
        """Write a stage's output, which another step reads."""
        self.write(rows, folder)

    def write(self, rows: DataFrame, folder: Path, *columns: str) -> None:
        """Write rows once, into a folder for each value of ``columns``."""
        rows.write.partitionBy(*columns).options(**ZSTD).parquet(str(folder))

    def read(self, folder: Path) -> DataFrame:
        """Return the output of a stage."""
        return self.spark.read.parquet(str(folder))


class Clustered(Batches):
    """Brings the rows of each folder together before it writes, as the library's sinks do."""

    def write(self, rows: DataFrame, folder: Path, *columns: str) -> None:
        super().write(rows.hint("rebalance", *columns) if columns else rows, folder, *columns)


class OnePlan(Batches):
    """Writes the sink alone: the stages are one plan of Spark, with nothing written in between."""

    def __init__(self, spark: SparkSession):
        super().__init__(spark)
        self._stages: dict[Path, DataFrame] = {}

    def stage(self, rows: DataFrame, folder: Path) -> None:
        self._stages[folder] = rows

    def read(self, folder: Path) -> DataFrame:
        return self._stages[folder]


class OnePlanClustered(OnePlan, Clustered):
    """One plan that brings the rows of each folder together before it writes."""


class Streams(Batches):
    """Reads and writes with Structured Streaming: each step is a query that takes what is there,
    and ends.

    Its checkpoint and the log of its sink are what a stream brings in place of a ledger: each file
    is read once, and each row written once.
    """

    def source(self, format: str, schema: str, path: Path, **options: str) -> DataFrame:
        stream = self.spark.readStream.format(format).schema(schema).options(**options)
        return stream.load(str(path))

    def write(self, rows: DataFrame, folder: Path, *columns: str) -> None:
        checkpoint = {"checkpointLocation": f"{folder}.checkpoint", "path": str(folder)}
        query = rows.writeStream.format("parquet").partitionBy(*columns)
        query.options(**ZSTD, **checkpoint).trigger(availableNow=True).start().awaitTermination()

    def read(self, folder: Path) -> DataFrame:
        written = super().read(folder)
        return self.spark.readStream.schema(written.schema).parquet(str(folder))


def flights(io: Batches, data: Path, out: Path, planes_join: str = "inner") -> None:
    """Parse, join the planes, join the weather, write by day."""
    _parse(io, _departures(io, data), out)
    _planes_and_on(io, data, out, planes_join)


def _planes_and_on(io: Batches, data: Path, out: Path, planes_join: str) -> None:
    with io.step("with_plane"):
        plane = _planes(io, data / "planes.csv")
        with_plane = io.read(out / "parse").join(F.broadcast(plane), "tailnum", planes_join)
        io.stage(with_plane, out / "with_plane")
    _weather_and_sink(io, data, out)


def flights_clean(io: Batches, data: Path, out: Path) -> None:
    """The same, of which no flight is lost."""
    flights(io, data, out, "left")


def flights_delta(io: Batches, data: Path, out: Path) -> None:
    """The clean flights, of the files of a Delta table, which are those of its one version."""
    _parse(io, io.source("parquet", FLIGHT, data / FLIGHTS_TABLE), out)
    _planes_and_on(io, data, out, "left")


def flights_few_lost(io: Batches, data: Path, out: Path) -> None:
    """The same, of which the flights of a few planes are lost."""
    _parse(io, _departures(io, data), out)
    with io.step("with_plane"):
        plane = _planes(io, data / FEW_MISSING)
        listed = io.read(out / "parse").withColumn(
            "tailnum", F.coalesce("tailnum", F.lit(NO_PLANE))
        )
        io.stage(listed.join(F.broadcast(plane), "tailnum", "inner"), out / "with_plane")
    _weather_and_sink(io, data, out)


def _departures(io: Batches, data: Path) -> DataFrame:
    return io.source("csv", FLIGHT, data / "flights", **CSV)


def _parse(io: Batches, departures: DataFrame, out: Path) -> None:
    with io.step("parse"):
        parsed = departures.select(
            "*",
            F.make_date("year", "month", "day").alias("date"),
            F.col("dep_time").isNull().alias("cancelled"),
            F.when(
                F.col("dep_time").isNull() & F.col("arr_time").isNotNull(),
                "arrived, never departed",
            )
            .when(F.col("origin") == F.col("dest"), "departed to where it was")
            .when(F.col("distance") <= 0, "no distance")
            .alias("failed"),
        )
        io.stage(parsed.where("failed IS NULL").drop("failed"), out / "parse")


def _planes(io: Batches, path: Path) -> DataFrame:
    planes = io.spark.read.schema(PLANE).csv(str(path), **CSV)
    return planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")


def _weather_and_sink(io: Batches, data: Path, out: Path) -> None:
    with io.step("with_weather"):
        weather = io.spark.read.schema(WEATHER).csv(str(data / "weather.csv"), **CSV)
        measured = weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
        with_weather = io.read(out / "with_plane").join(
            F.broadcast(measured), ["origin", "time_hour"], "left"
        )
        io.stage(with_weather, out / "with_weather")
    with io.step("warehouse"):
        io.write(io.read(out / "with_weather"), out / "warehouse", "month", "day")


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
    counts = sentences.mapInArrow(count, "sentence STRING, words INT")
    counts.write.options(**ZSTD).parquet(str(out / "counted"))


def wordcount(io: Batches, data: Path, out: Path) -> None:
    """Split sentences into words, write them."""
    with io.step("split"):
        sentences = io.source("json", "sentence STRING", data / "sentences" / "2013-01-01")
        words = F.array_remove(F.split(F.lower("sentence"), r"[^\p{L}\p{N}']+"), "")
        io.stage(sentences.select(F.explode(words).alias("word")), out / "split")
    with io.step("words"):
        io.write(io.read(out / "split"), out / "words")


def measurements(io: Batches, data: Path, out: Path) -> None:
    """Compute a column of each record, then another, write them."""
    with io.step("scaled"):
        rows = io.source("parquet", MEASUREMENT, data)
        io.stage(rows.withColumn("scaled", F.col("amount") * 1.5), out / "scaled")
    with io.step("labelled"):
        label = F.concat("place", F.lit("-"), F.col("id") % 100)
        io.stage(io.read(out / "scaled").withColumn("label", label), out / "labelled")
    with io.step("measured"):
        io.write(io.read(out / "labelled"), out / "measured")


def purchases(io: Batches, data: Path, out: Path) -> None:
    """Keep events of one kind, compute columns of them, write by day."""
    with io.step("bought"):
        events = io.source("parquet", EVENT, data / "events").where("kind = 'purchase'")
        io.stage(events.select("id", "day", "visitor", "url", "millis"), out / "bought")
    with io.step("with_product"):
        product = F.regexp_extract("url", r"/product/(\d+)", 1).cast("bigint")
        visitor = F.sha2(F.col("visitor").cast("string"), 256)
        bought = io.read(out / "bought")
        with_product = bought.withColumns({"product": product, "visitor": visitor})
        io.stage(with_product, out / "with_product")
    with io.step("warehouse"):
        io.write(io.read(out / "with_product"), out / "warehouse", "day")


def revenue(io: Batches, data: Path, out: Path) -> None:
    """Join orders and customers, copy the totals of each customer into PostgreSQL."""
    with io.step("sold"):
        orders = io.source("parquet", ORDER, data / "orders")
        customers = io.source("parquet", CUSTOMER, data / "customers")
        sold = orders.join(customers, "customer")
        io.stage(sold.select("id", "customer", "country", "day", "cents"), out / "sold")
    with io.step("combine"):
        totals = io.read(out / "sold").groupBy("customer", "country")
        per_customer = totals.agg(
            F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("day").alias("last")
        )
        io.stage(per_customer, out / "per_customer")
        _copy(io.read(out / "per_customer"), os.environ[REPORTS])


def _copy(totals: DataFrame, url: str) -> None:
    """Make the table, and copy rows into it, each partition on a connection of its own."""
    address, table = url.replace("+psycopg2", ""), REVENUE
    columns = "customer bigint, country text, orders bigint, cents bigint, last date"
    with closing(psycopg2.connect(address)) as own, own, own.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} ({columns})")

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = csv.WriteOptions(include_header=False)
        with closing(psycopg2.connect(address)) as own, own, own.cursor() as cursor:
            for batch in batches:
                rows = BytesIO()
                csv.write_csv(batch, rows, options)
                rows.seek(0)
                cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv)", rows)
        yield from ()

    totals.mapInArrow(send, "none INT").collect()
