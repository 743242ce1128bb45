"""The pipelines that are measured: those of ``jobs``, with tracking on and off."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import jobs.flights
import jobs.wordcount
from ledger import Bloom, DeltaSink, FileSource, ParquetSink, Pipeline
from ledger.core.states import Guarantee
from ledger.pipeline.steps import SinkStep, StageStep, Step

WAREHOUSE = ParquetSink("warehouse/departures", partition_by=("month", "day"))
COUNTED = "sentence STRING, words INT"


def flights(ackers: int) -> Pipeline:
    """The flights pipeline with as many ackers, up to its warehouse as Parquet files, as by
    hand.
    """
    made = _before_settlement(jobs.flights.pipeline, ackers)
    return _replaced(made, SinkStep("warehouse", WAREHOUSE, "with_weather"))


def flights_clean(ackers: int) -> Pipeline:
    """The same flights, of which none is lost: one without its plane goes on with nulls."""
    made = flights(ackers)
    made.name = "flights_clean"
    step = made.step("with_plane")
    assert isinstance(step, StageStep)
    return _replaced(made, replace(step, function=_with_any_plane))


def _with_any_plane(departures: DataFrame, *, planes: DataFrame) -> DataFrame:
    made = planes.select("tailnum", F.col("year").alias("built"), "manufacturer", "model", "seats")
    return departures.join(F.broadcast(made), "tailnum", "left")


def wordcount(ackers: int) -> Pipeline:
    """The word count pipeline with as many ackers, up to its words, as by hand."""
    return _before_settlement(jobs.wordcount.pipeline, ackers)


def failing(poisoned: bool) -> Pipeline:
    """Flights from source to sink, of which one in a hundred fails while ``poisoned``."""
    source = jobs.flights.pipeline.step("departures")
    made = Pipeline("failing", max_replays=3).with_steps([source])

    @made.stage(reads="departures")
    def check(departures: DataFrame) -> DataFrame:
        bad = F.pmod(F.xxhash64("_anchor.root"), F.lit(100)) == 0
        return departures.withColumn("_failed", F.when(F.lit(poisoned) & bad, "poisoned"))

    made.sink("warehouse", WAREHOUSE, reads="check")
    return made


def guaranteed(variant: str) -> Pipeline:
    """The flights, tracked, under a guarantee: ``once``, ``least``, or ``bloom``: least, with a
    filter.
    """
    made = flights(2)
    made.guarantee = Guarantee.EXACTLY_ONCE if variant == "once" else Guarantee.AT_LEAST_ONCE
    if variant == "bloom":
        sink = replace(WAREHOUSE, dedup=Bloom(capacity=2_000_000))
        made = _replaced(made, SinkStep("warehouse", sink, "with_weather"))
    return made


def sized(name: str, kind: str) -> Pipeline:
    """Numbers straight into a sink: what it takes to show them is what is measured, so nothing
    is tracked.
    """
    made = Pipeline(f"sized_{kind}_{name}", guarantee="exactly_once", ackers=0)
    source = FileSource(f"rows-{name}/*.parquet", schema="id BIGINT", format="parquet")
    made.source("numbers", source)
    path = f"warehouse/sized-{kind}-{name}"
    made.sink("shown", DeltaSink(path) if kind == "delta" else ParquetSink(path), reads="numbers")
    return made


def by_record() -> Pipeline:
    """A record stage that counts the words of each sentence."""
    made = Pipeline("by_record").with_steps([jobs.wordcount.pipeline.step("sentences")])
    made.record_stage(reads="sentences", schema=COUNTED)(counted)
    made.sink("words", jobs.wordcount.pipeline.step("words").sink, reads="counted")
    return made


def counted(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One sentence with the number of its words."""
    sentence = record["sentence"]
    yield {"sentence": sentence, "words": len(sentence.split())}


def acking(pipeline: Pipeline, stage: str, acks: Literal["on_emit", "on_read"]) -> Pipeline:
    """The pipeline, of which one stage acks in this way."""
    step = pipeline.step(stage)
    assert isinstance(step, StageStep)
    return _replaced(pipeline, replace(step, acks=acks))


def _before_settlement(pipeline: Pipeline, ackers: int) -> Pipeline:
    """A copy with as many ackers, without what follows the settlement."""
    made = pipeline.with_steps(pipeline.steps())
    made.ackers = ackers
    return made


def _replaced(pipeline: Pipeline, step: Step) -> Pipeline:
    """A copy that has the step in place of the one of its name."""
    return pipeline.with_steps({**pipeline.graph.steps, step.name: step}.values())
