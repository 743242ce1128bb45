"""``ackledger init --from``: how lookups, names and paths of a job become steps."""

from functools import partial
from textwrap import dedent

import pytest

from tests.support.ported_jobs import pipeline_of, ported_in


@pytest.fixture
def ported(tmp_path):
    """Port a job's text; return what was written. Its imports must be used."""
    return partial(ported_in, tmp_path)


@pytest.fixture
def pipeline_from(ported, tmp_path, monkeypatch):
    """Port a job's text; return the pipeline that the written module declares."""

    def run(text):
        ported(text)
        return pipeline_of(tmp_path / "my_job_pipeline.py", monkeypatch)

    return run


LOOKUPS = dedent("""\
    from pyspark.sql import functions as F
    from pyspark.sql.functions import broadcast


    def distinct_only(drivers):
        drivers = drivers.distinct()
        return drivers


    def zones_of(spark):
        zones = spark.read.schema("zone INT").csv("zones.csv")
        return F.broadcast(zones.dropna())


    def main(spark):
        trips = spark.read.schema("id INT, rate INT").parquet("trips/*.parquet")
        rates = spark.read.schema("rate INT").csv("rates.csv").select("rate")
        rates = rates.dropDuplicates(["rate"])
        vendors = broadcast(spark.read.schema("vendor INT").csv("vendors.csv"))
        drivers = spark.read.schema("driver INT").csv("drivers.csv")
        known = distinct_only(drivers)
        planes = spark.read.schema("plane INT").csv("planes.csv").dropna()
        crews = broadcast(spark.read.schema("crew INT").csv("crews.csv"))
        zones = zones_of(spark)
        df = trips.join(broadcast(rates), "rate").join(vendors, "vendor").join(zones, "zone")
        df = df.join(F.broadcast(known), "driver").join(planes, "plane")
        df = df.join(crews, "crew", "right")
        df.write.parquet("out/trips")


    if __name__ == "__main__":
        main(spark)
    """)


def test_a_frame_that_is_broadcast_later_is_a_reference(pipeline_from):
    """A read is a lookup if a frame made from it is broadcast, under other names and in functions.
    It is a source if that frame is only joined, or if the join keeps its rows.
    """
    pipeline = pipeline_from(LOOKUPS)
    (stage,) = [step for step in pipeline.steps() if step.kind == "stage"]
    assert {*pipeline.references(stage)} == {"rates", "vendors", "drivers", "zones"}
    assert {source.name for source in pipeline.sources()} == {"trips", "planes", "crews"}
