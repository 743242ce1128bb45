"""The pipelines that are measured: those of ``jobs``, with tracking on and off."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import jobs.flights
import jobs.wordcount
from benchmarks.data import (
    CUSTOMER,
    EVENT,
    FEW_MISSING,
    FLIGHTS_TABLE,
    MEASUREMENT,
    NO_PLANE,
    ORDER,
)
from benchmarks.plain import REPORTS, REVENUE
from ledger import (
    Bloom,
    DeltaSink,
    DeltaSource,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    dropped,
)
from ledger.core.outcomes import Mark
from ledger.core.states import Guarantee
from ledger.pipeline.steps import SinkStep, SourceStep, StageStep, Step
from ledger.sources.references import Reference
from ledger.sources.registry import source_of

WAREHOUSE = ParquetSink("warehouse/departures", partition_by=("month", "day"))
COUNTED = "sentence STRING, words INT"


def flights(tracking: bool) -> Pipeline:
    """The flights pipeline, tracked or not, up to its warehouse as Parquet files, as by
    hand.
    """
    pipeline_ = _before_settlement(jobs.flights.pipeline, tracking)
    return _replaced(pipeline_, SinkStep("warehouse", WAREHOUSE, "with_weather"))


def flights_clean(tracking: bool) -> Pipeline:
    """The same flights, of which none is lost: one without its plane goes on with nulls."""
    pipeline = flights(tracking)
    pipeline.name = "flights_clean"
    step = pipeline.step("with_plane")
    assert isinstance(step, StageStep)
    return _replaced(pipeline, replace(step, function=_with_any_plane))


def _with_any_plane(departures: DataFrame, *, planes: DataFrame) -> DataFrame:
    built = planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")
    return departures.join(F.broadcast(built), "tailnum", "left")


def flights_delta(tracking: bool) -> Pipeline:
    """The clean flights of a Delta table, which a batch reads where they are."""
    pipeline = flights_clean(tracking)
    pipeline.name = "flights_delta"
    step = pipeline.step("departures")
    assert isinstance(step, SourceStep)
    table = source_of("source 'departures'", DeltaSource(FLIGHTS_TABLE))
    return _replaced(pipeline, replace(step, source=table))


def flights_few_lost(tracking: bool) -> Pipeline:
    """The same flights, joined with a list that lacks few planes: about one in a thousand is
    lost.
    """
    pipeline = flights(tracking)
    pipeline.name = "flights_few_lost"
    planes = FileSource(FEW_MISSING, schema=jobs.flights.PLANE, null_value="NA")
    step = pipeline.step("with_plane")
    assert isinstance(step, StageStep)
    steps = {**pipeline.graph.steps, step.name: replace(step, function=_with_listed_plane)}
    listed = Reference(source_of("reference 'planes'", planes))
    return pipeline.with_steps(steps.values(), {**pipeline.graph.references, "planes": listed})


def _with_listed_plane(departures: DataFrame, *, planes: DataFrame) -> DataFrame:
    built = planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")
    departures_ = departures.withColumn("tailnum", F.coalesce("tailnum", F.lit(NO_PLANE)))
    return departures_.join(F.broadcast(built), "tailnum", "inner")


def wordcount(tracking: bool) -> Pipeline:
    """The word count pipeline, tracked or not, up to its words, as by hand."""
    return _before_settlement(jobs.wordcount.pipeline, tracking)


def shuffled(tracking: bool) -> Pipeline:
    """The word count, whose split leaves the words of a sentence in all of its files."""
    pipeline = wordcount(tracking)
    pipeline.name = "shuffled"
    step = pipeline.step("split")
    assert isinstance(step, StageStep)

    def split(sentences: DataFrame) -> DataFrame:
        rows: DataFrame = step.function(sentences)
        return rows.repartition(4, "word")

    return _replaced(pipeline, replace(step, function=split))


def measurements(folder: str, tracking: bool, lose_every: int | None = None) -> Pipeline:
    """Records of a folder of Parquet files through two stages that each add a column; the second
    one loses one record of so many.
    """
    pipeline = Pipeline("measurements", guarantee="exactly_once", tracking=tracking)
    source = FileSource(f"{folder}/*.parquet", schema=MEASUREMENT, format="parquet")
    pipeline.source("measurements", source)

    @pipeline.stage(reads="measurements")
    def scaled(measurements: DataFrame) -> DataFrame:
        return measurements.withColumn("scaled", F.col("amount") * 1.5)

    @pipeline.stage(reads="scaled", filters="lost")
    def labelled(scaled: DataFrame) -> DataFrame:
        label = F.concat("place", F.lit("-"), F.col("id") % 100)
        labels = scaled.withColumn("label", label)
        return labels.where(F.col("id") % lose_every != 0) if lose_every else labels

    pipeline.sink("measured", ParquetSink("warehouse/measured"), reads="labelled")
    return pipeline


def purchases(tracking: bool) -> Pipeline:
    """Events as Parquet, of which a stage drops all but one kind on purpose: by hand, Spark pushes
    that filter into the reader.
    """
    pipeline = Pipeline("purchases", guarantee="exactly_once", tracking=tracking)
    pipeline.source("events", FileSource("events/*.parquet", schema=EVENT, format="parquet"))

    @pipeline.stage(reads="events")
    def bought(events: DataFrame) -> tuple[DataFrame, Mark]:
        rows = events.where("kind = 'purchase'").select("id", "day", "visitor", "url", "millis")
        return rows, dropped(events.where("kind <> 'purchase'"), "no purchase")

    @pipeline.stage(reads="bought")
    def with_product(bought: DataFrame) -> DataFrame:
        product = F.regexp_extract("url", r"/product/(\d+)", 1).cast("bigint")
        visitor = F.sha2(F.col("visitor").cast("string"), 256)
        return bought.withColumns({"product": product, "visitor": visitor})

    sink = ParquetSink("warehouse/purchases", partition_by=("day",))
    pipeline.sink("warehouse", sink, reads="with_product")
    return pipeline


def revenue(tracking: bool) -> Pipeline:
    """Orders joined with customers, both tracked, and totals of each customer in PostgreSQL."""
    pipeline = Pipeline("revenue", guarantee="exactly_once", tracking=tracking)
    for name, schema in (("orders", ORDER), ("customers", CUSTOMER)):
        source = FileSource(f"{name}/*.parquet", schema=schema, format="parquet")
        pipeline.source(name, source)

    @pipeline.stage(reads=["orders", "customers"])
    def sold(orders: DataFrame, customers: DataFrame) -> DataFrame:
        joined = orders.join(customers, "customer")
        return joined.select("id", "customer", "country", "day", "cents")

    @pipeline.combine(reads="sold")
    def per_customer(sold: DataFrame) -> DataFrame:
        return sold.groupBy("customer", "country").agg(
            F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("day").alias("last")
        )

    pipeline.sink("report", PostgresSink(f"env:{REPORTS}", REVENUE), reads="per_customer")
    return pipeline


def failing(poisoned: bool) -> Pipeline:
    """Flights from source to sink, of which one in a hundred fails while ``poisoned``."""
    source = jobs.flights.pipeline.step("departures")
    pipeline = Pipeline("failing", max_replays=3).with_steps([source])

    @pipeline.stage(reads="departures", anchors="by_hand")
    def check(departures: DataFrame) -> DataFrame:
        bad = F.pmod(F.xxhash64("_anchor.root"), F.lit(100)) == 0
        return departures.withColumn("_failed", F.when(F.lit(poisoned) & bad, "poisoned"))

    pipeline.sink("warehouse", WAREHOUSE, reads="check")
    return pipeline


def guaranteed(variant: str) -> Pipeline:
    """The flights, tracked, under a guarantee: ``once``, ``least``, or ``bloom``: least, with a
    filter.
    """
    pipeline = flights(True)
    pipeline.guarantee = Guarantee.EXACTLY_ONCE if variant == "once" else Guarantee.AT_LEAST_ONCE
    if variant == "bloom":
        sink = replace(WAREHOUSE, dedup=Bloom(capacity=2_000_000))
        pipeline = _replaced(pipeline, SinkStep("warehouse", sink, "with_weather"))
    return pipeline


def sized(name: str, kind: str) -> Pipeline:
    """Numbers straight into a sink: what it takes to show them is what is measured, so nothing
    is tracked.
    """
    pipeline = Pipeline(f"sized_{kind}_{name}", guarantee="exactly_once", tracking=False)
    source = FileSource(f"rows-{name}/*.parquet", schema="id BIGINT", format="parquet")
    pipeline.source("numbers", source)
    path = f"warehouse/sized-{kind}-{name}"
    pipeline.sink(
        "shown", DeltaSink(path) if kind == "delta" else ParquetSink(path), reads="numbers"
    )
    return pipeline


def by_record() -> Pipeline:
    """A record stage that counts the words of each sentence."""
    pipeline = Pipeline("by_record").with_steps([jobs.wordcount.pipeline.step("sentences")])
    pipeline.record_stage(reads="sentences", schema=COUNTED)(counted)
    words = jobs.wordcount.pipeline.step("words")
    assert isinstance(words, SinkStep)
    pipeline.sink("words", words.sink, reads="counted")
    return pipeline


def counted(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One sentence with the number of its words."""
    sentence = record["sentence"]
    yield {"sentence": sentence, "words": len(sentence.split())}


def acking(pipeline: Pipeline, stage: str, acks: Literal["on_emit", "on_read"]) -> Pipeline:
    """The pipeline, of which one stage acks in this way."""
    step = pipeline.step(stage)
    assert isinstance(step, StageStep)
    return _replaced(pipeline, replace(step, acks=acks))


def _before_settlement(pipeline: Pipeline, tracking: bool) -> Pipeline:
    """A copy, tracked or not, without what follows the settlement."""
    tracked = pipeline.with_steps(pipeline.steps())
    tracked.tracking = tracking
    return tracked


def _replaced(pipeline: Pipeline, step: Step) -> Pipeline:
    """A copy that has the step in place of the one of its name."""
    return pipeline.with_steps({**pipeline.graph.steps, step.name: step}.values())
