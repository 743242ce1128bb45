"""Flights, and a total per carrier that a combine makes of them."""

from collections import Counter

from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline

FLIGHTS = "flight INT, carrier STRING, delay INT"
FLOWN = [{"flight": n, "carrier": "AA" if n % 3 else "UA", "delay": n} for n in range(30)]


def pipeline(lose=(), fail=(), guarantee="exactly_once", partial=False, **options) -> Pipeline:
    """flights -> checked, which may lose or fail some -> the flights, and a total per carrier."""
    flow = Pipeline("totals", guarantee=guarantee, **{"max_replays": 2, **options})
    flow.source("flights", FileSource("flights.csv", schema=FLIGHTS))

    @flow.stage(reads="flights", filters="lost")
    def checked(flights):
        bad = F.col("flight").isin([-1, *fail])
        rest = flights.where(~F.col("flight").isin([-1, *lose]))
        return rest.withColumn("_failed", F.when(bad, "implausible"))

    @flow.combine(reads="checked", partial=partial)
    def per_carrier(checked):
        return checked.groupBy("carrier").agg(
            F.count("*").alias("n"), F.sum("delay").alias("delay")
        )

    flow.sink("departures", ParquetSink("departures"), reads="checked")
    flow.sink("daily", ParquetSink("daily"), reads="per_carrier")
    return flow


def oracle(without=()):
    left = [row for row in FLOWN if row["flight"] not in without]
    counts = Counter()
    for row in left:
        counts[row["carrier"], "n"] += 1
        counts[row["carrier"], "delay"] += row["delay"]
    return sorted((c, counts[c, "n"], counts[c, "delay"]) for c in {r["carrier"] for r in left})


def daily(result):
    return sorted((row["carrier"], row["n"], row["delay"]) for row in result.rows["daily"])


def written(folder):
    lines = [f"{row['flight']},{row['carrier']},{row['delay']}" for row in FLOWN]
    (folder / "flights.csv").write_text("flight,carrier,delay\n" + "\n".join(lines) + "\n")
