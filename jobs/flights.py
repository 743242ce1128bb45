"""Every departure from New York in 2013, month by month, with its plane and the weather.

The join with the planes is an inner one, the mistake that everybody makes: flights whose plane
is not in the list vanish. Nothing here checks for it; the ledger names each of them. The
warehouse gets a month whole, each flight once, and the totals of its days once no flight of it
is missing any more.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, Pipeline

FLIGHT = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,
    arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,
    origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT,
    time_hour TIMESTAMP
"""
PLANE = """
    tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT,
    seats INT, speed INT, engine STRING
"""
WEATHER = """
    origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,
    wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE,
    visib DOUBLE, time_hour TIMESTAMP
"""

pipeline = Pipeline("flights", max_replays=1)

pipeline.source(
    "departures",
    FileSource("flights/{{ interval_start | ds }}.csv", schema=FLIGHT, null_value="NA"),
)
pipeline.reference("planes", FileSource("planes.csv", schema=PLANE, null_value="NA"))
pipeline.reference("weather", FileSource("weather.csv", schema=WEATHER, null_value="NA"))


@pipeline.stage(reads="departures")
def parse(departures: DataFrame) -> DataFrame:
    """Validate. A cancelled flight has no departure time and is valid."""
    wrong = (
        F.when(
            F.col("dep_time").isNull() & F.col("arr_time").isNotNull(), "arrived, never departed"
        )
        .when(F.col("origin") == F.col("dest"), "departed to where it was")
        .when(F.col("distance") <= 0, "no distance")
    )
    return departures.select(
        "*",
        F.make_date("year", "month", "day").alias("date"),
        F.col("dep_time").isNull().alias("cancelled"),
        wrong.alias("_failed"),
    )


@pipeline.stage(reads="parse")
def with_plane(flights: DataFrame, *, planes: DataFrame) -> DataFrame:
    """Add the plane."""
    plane = planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")
    return flights.join(F.broadcast(plane), "tailnum", "inner")


@pipeline.stage(reads="with_plane")
def with_weather(flights: DataFrame, *, weather: DataFrame) -> DataFrame:
    """Add the weather at the origin in the hour of departure, where it was measured."""
    measured = weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    return flights.join(F.broadcast(measured), ["origin", "time_hour"], "left")


@pipeline.combine(reads="with_weather")
def per_day(flights: DataFrame) -> DataFrame:
    """Departures, cancellations and delay of each carrier and day: over all flights of the
    month, or none.
    """
    return flights.groupBy("carrier", "date").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.sum("dep_delay").alias("dep_delay"),
    )


@pipeline.stateful_stage(reads="with_weather")
def on_time(before: DataFrame | None, flights: DataFrame) -> DataFrame:
    """Count, for each carrier, flights and those that left on time, over all months up to now."""
    flown = flights.where("NOT cancelled").groupBy("carrier")
    seen = flown.agg(
        F.count(F.lit(1)).alias("flights"), F.count_if(F.col("dep_delay") <= 0).alias("on_time")
    )
    both = seen if before is None else before.unionByName(seen)
    totals = both.groupBy("carrier")
    return totals.agg(F.sum("flights").alias("flights"), F.sum("on_time").alias("on_time"))


pipeline.sink(
    "warehouse", DeltaSink("warehouse/departures", partition_by=("month",)), reads="with_weather"
)
pipeline.sink("days", DeltaSink("warehouse/days"), reads="per_day")
pipeline.sink("punctuality", DeltaSink("warehouse/punctuality"), reads="on_time")
