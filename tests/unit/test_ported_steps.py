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


def test_unknown_paths_are_told_apart(pipeline_from, tmp_path):
    """Sources and sinks whose paths are not known have the names of their steps in the paths, so
    the pipeline is valid as it is written.
    """
    pipeline = pipeline_from(
        dedent("""\
        def main(spark, config):
            orders = spark.read.schema("id INT").csv(config["in"].strip())
            refunds = spark.read.schema("id INT").parquet(config["refunds"].strip())
            rates = spark.read.schema("id INT").jdbc(config["url"], "rates")
            kept = orders.join(refunds, "id").union(rates)
            kept.write.parquet(config["out"].strip())
            open_orders = kept.where("id > 3")
            open_orders.write.parquet(config["open"].strip())
            for_all = kept.distinct()
            for_all.write.parquet(config["first"] + "/all")
            few = kept.limit(3)
            few.write.parquet(config["second"] + "/all")
            few.write.jdbc(config["url"], config["table"].strip())
            few.write.jdbc(config["url"], config["other"].strip())


        def start(spark):
            main(spark, load(sys.argv[1]))
        """)
    )
    text = (tmp_path / "my_job_pipeline.py").read_text()
    for name in ("orders", "refunds", "rates"):
        assert text.count(f'FileSource("TODO_{name}", ') == 1
    places = [sink.sink.place for sink in pipeline.sinks()]
    assert len({*places}) == len(places) == 6
    assert places[:3] == ["path 'TODO_kept_out'", "path 'TODO_open_orders_out'", "path 'TODO/all'"]


def test_options_of_a_write_are_listed(ported):
    """Options that a sink does not have are left to do, however they are given. Modes, formats and
    partitions are carried over from any place.
    """
    result = ported(
        dedent("""\
        orders = spark.read.schema("id INT").csv("orders.csv")
        orders.write.option("compression", "gzip").option("maxRecordsPerFile", 9).parquet("out/a")
        orders.write.parquet("out/b", "overwrite", ["id"], "zstd")
        orders.write.bucketBy(4, "id").sortBy("id").saveAsTable("shop.c", mode="append")
        orders.write.save("out/d", "delta", "overwrite", "id", replaceWhere="id > 3")
        orders.write.option("batchsize", 9).jdbc("jdbc:x", "e", "append", {"user": "me"})
        orders.write.insertInto("f", True)
        orders.write.mode("append").partitionBy("id").parquet("out/g")
        """)
    )
    left_out = [line for line in result.todo if "left out" in line]
    assert left_out == [
        "my_job.py:2: a has options that are left out: compression, maxRecordsPerFile",
        "my_job.py:3: b has options that are left out: compression",
        "my_job.py:4: c has options that are left out: bucketBy, sortBy",
        "my_job.py:5: d has options that are left out: replaceWhere",
        "my_job.py:6: e has options that are left out: batchsize",
        "my_job.py:7: f has options that are left out: overwrite",
    ]
    assert 'ParquetSink("out/b", partition_by=("id",))' in result.text
    assert 'DeltaSink("out/d", partition_by=("id",))' in result.text
    overwrite = [line.split(": ")[1] for line in result.todo if " overwrites" in line]
    assert [line.split()[0] for line in overwrite] == ["b", "d"]


def test_steps_have_telling_names(ported):
    """A step whose variable says nothing is named after its function, its output, or the function
    that it is in.
    """
    result = ported(
        dedent("""\
        def valid(spark):
            df = spark.read.schema("id INT").csv("orders.csv")
            df2 = df.where("id > 3")
            return df2


        def write_totals(spark, path):
            finalDF = valid(spark).groupBy("id").count()
            finalDF.write.parquet(path)


        def read_refunds(spark, path):
            return spark.read.schema("id INT").csv(path)


        def load(spark, path):
            return spark.read.schema("id INT").csv(path)


        def main(spark, path):
            df = read_refunds(spark, path).union(load(spark, path))
            df.write.parquet("out/refunds")
            df_1 = valid(spark)
            df_1.write.parquet("out/all")
            result_df = df_1.distinct()
            result_df.write.parquet("out/singles")
            write_totals(spark, path)
        """)
    )
    assert "def refunds_rows(read_refunds: DataFrame, rows: DataFrame)" in result.text
    assert "def valid(orders: DataFrame)" in result.text
    assert "def singles_rows(valid: DataFrame)" in result.text
    assert "def write_totals(orders_2: DataFrame)" in result.text


def test_a_read_of_what_the_job_wrote_has_one_line(ported):
    """Its stage is to be read instead, so neither its schema nor its path is to be written. A read
    before the write is a source.
    """
    result = ported(
        dedent("""\
        def main(spark, args):
            before = spark.read.parquet(args.out + "/clean")
            orders = spark.read.schema("id INT").csv(args.orders)
            orders.union(before).write.parquet(args.out + "/clean")
            clean = spark.read.parquet(args.out + "/clean")
            clean.distinct().write.parquet("out/distinct")


        def run(spark):
            args = parser.parse_args()
            main(spark, args)
        """)
    )
    lines = [line.partition(": ")[2] for line in result.todo if line.startswith("my_job.py:5:")]
    assert lines == ["reads what my_job.py:4 writes: read its stage instead"]
    lines = [line.partition(": ")[2] for line in result.todo if line.startswith("my_job.py:2:")]
    assert [line[:20] for line in lines] == ["before reads a path ", "before has no schema"]
    assert 'FileSource("{{ params.out }}/clean"' in result.text
