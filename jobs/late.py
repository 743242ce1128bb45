"""Departures more than an hour late, with their plane.

The filter has two sides. A flight that left on time is dropped on purpose and counts as acked. A
cancelled flight has no delay, so the condition is NULL, neither true nor false: it is lost, as is
a flight whose plane is in no list.
"""

from pyspark.sql import DataFrame

from jobs.flights import FLIGHT, PLANE
from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("late")

pipeline.source(
    "departures",
    FileSource("flights/{{ interval_start | ds }}.csv", schema=FLIGHT, null_value="NA"),
)
pipeline.reference("planes", FileSource("planes.csv", schema=PLANE, null_value="NA"))


@pipeline.stage(reads="departures")
def late(departures: DataFrame, *, planes: DataFrame) -> DataFrame:
    """Keep what left more than an hour late."""
    delayed = departures.where("dep_delay > 60").select("time_hour", "tailnum", "dep_delay")
    return delayed.join(planes.select("tailnum", "model", "seats"), "tailnum")


pipeline.sink("late_departures", ParquetSink("warehouse/late"), reads="late")
