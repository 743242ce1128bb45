"""Input of the benchmarks, made once: the flights of 2013 three times over, sentences, and the
events, orders and customers of a shop.
"""

import csv
import json
import random
from collections import Counter
from pathlib import Path

from deltalake import convert_to_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from demo import data
from jobs.flights import FLIGHT

SENTENCES = 2_000_000
WORDS = 8
PARTS = 4

FLIGHTS_TABLE = "flights_table"
FEW_MISSING = "planes_few_missing.csv"
NO_PLANE = "none"  # a plane of that list, for flights without one
LOST = 1_000  # about so many flights are of planes that it lacks
REPEATS = 3  # of each flight
MEASUREMENT = "id BIGINT, place STRING, amount DOUBLE"

EVENTS = 8_000_000
DAYS = 30
KINDS = ("cart", "purchase", "search", "view")  # as many events of each
ROW_GROUP_BYTES = 8 << 20  # of Parquet files of the shop
EVENT = """
    id BIGINT, day DATE, kind STRING, visitor BIGINT, url STRING, referrer STRING, agent STRING,
    bytes BIGINT, millis BIGINT
"""
ORDERS, CUSTOMERS = 4_000_000, 400_000
ORDER = "id BIGINT, customer BIGINT, day DATE, cents BIGINT, note STRING"
CUSTOMER = "customer BIGINT, country STRING, name STRING"


def write(folder: Path) -> None:
    """Write all input below ``folder``, unless it is there."""
    if not (folder / "complete").exists():
        flights(folder)
        sentences(folder / "sentences" / "2013-01-01")
        (folder / "complete").touch()
    if not (folder / FEW_MISSING).exists():
        few_missing(folder)


def flights(folder: Path) -> None:
    """One file of 1,010,328 flights, the planes and the weather."""
    months = folder / "months"
    data.write_months(months)
    data.write_planes(folder)
    (months / "weather.csv").rename(folder / "weather.csv")
    files = sorted((months / "flights").glob("*.csv"))
    header = files[0].read_text().partition("\n")[0] + "\n"
    target = folder / "flights" / "2013-01-01.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as stream:
        stream.write(header)
        for _ in range(REPEATS):
            for file in files:
                stream.write(file.read_text().removeprefix(header))


def flights_table(session: SparkSession, folder: Path) -> None:
    """Write the flights as a Delta table, unless it is there."""
    table = folder / FLIGHTS_TABLE
    if not (table / "_delta_log").exists():
        rows = session.read.csv(str(folder / "flights"), FLIGHT, header=True, nullValue="NA")
        rows.repartition(PARTS).write.mode("overwrite").parquet(str(table))
        convert_to_deltalake(str(table))


def few_missing(folder: Path) -> None:
    """A list of all planes that flew, but for a few: about ``LOST`` flights are theirs."""
    with (folder / "planes.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    listed = {row[0]: row for row in rows}
    with (folder / "flights" / "2013-01-01.csv").open(newline="") as stream:
        flown = Counter(row["tailnum"] for row in csv.DictReader(stream))
    left = LOST
    with (folder / FEW_MISSING).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        for plane in sorted(flown):
            if plane != "NA" and flown[plane] <= left:
                left -= flown[plane]
                continue
            name = NO_PLANE if plane == "NA" else plane
            writer.writerow(listed.get(plane, [name, *["NA"] * (len(header) - 1)]))


def sentences(folder: Path) -> None:
    """Two million sentences of eight words out of ten thousand, one JSON object a line."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(2013)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(10_000)]
    for part in range(PARTS):
        with (folder / f"part-{part}.jsonl").open("w") as stream:
            for _ in range(SENTENCES // PARTS):
                text = " ".join(dice.choices(words, k=WORDS))
                stream.write(json.dumps({"sentence": text}) + "\n")


def events(session: SparkSession, folder: Path, count: int = EVENTS) -> None:
    """Write events as Parquet, unless they are there. Each file has some days, and is sorted by
    kind: a reader of one kind can skip most row groups.
    """
    number, hashed = F.col("id"), F.xxhash64("id")
    kind = F.array(*map(F.lit, KINDS))[F.pmod(hashed, F.lit(len(KINDS))).cast("int")]
    rows = session.range(0, count, 1, 2 * PARTS).select(
        "id",
        F.date_add(F.lit("2026-01-01"), (number * DAYS / count).cast("int")).alias("day"),
        kind.alias("kind"),
        F.pmod(hashed, F.lit(500_000)).alias("visitor"),
        F.concat(
            F.lit("https://shop.example/product/"), number % 20_000, F.lit("?ref="), hashed
        ).alias("url"),
        F.concat(F.lit("https://search.example/?q="), F.hash("id")).alias("referrer"),
        F.concat(F.lit("Browser/1."), number % 40).alias("agent"),
        F.pmod(F.hash("id"), F.lit(50_000)).cast("bigint").alias("bytes"),
        F.pmod(F.hash("id"), F.lit(900)).cast("bigint").alias("millis"),
    )
    _store(rows.sortWithinPartitions("kind"), folder / "events")


def orders(
    session: SparkSession, folder: Path, count: int = ORDERS, customers: int = CUSTOMERS
) -> None:
    """Write orders and customers as Parquet, unless they are there. Each order has its customer,
    and each customer an order.
    """
    number = F.col("id")
    rows = session.range(0, count, 1, PARTS).select(
        "id",
        (number * 7_919 % customers).alias("customer"),
        F.date_add(F.lit("2026-01-01"), F.pmod(F.hash("id"), F.lit(DAYS))).alias("day"),
        F.pmod(F.xxhash64("id"), F.lit(10_000)).alias("cents"),
        F.concat(F.lit("order "), F.hex(F.xxhash64("id"))).alias("note"),
    )
    _store(rows, folder / "orders")
    people = session.range(0, customers, 1, PARTS).select(
        number.alias("customer"),
        F.concat(F.lit("c"), number % 50).alias("country"),
        F.concat(F.lit("customer "), F.hex(F.xxhash64("id"))).alias("name"),
    )
    _store(people, folder / "customers")


def _store(rows: DataFrame, folder: Path) -> None:
    if not (folder / "_SUCCESS").exists():
        writer = rows.write.mode("overwrite").option("parquet.block.size", ROW_GROUP_BYTES)
        writer.parquet(str(folder))
