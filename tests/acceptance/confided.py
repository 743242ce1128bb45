"""Pipelines that redact a column, and whose own code raises exceptions with its values."""

from pyspark.sql import DataFrame

from ledger import OffsetSource, ParquetSink, Pipeline

MARK = "zq7marker"


class Confiding(OffsetSource):
    """One record; the object that counts raises if it is ``broken``."""

    schema = "id INT, name STRING"

    def __init__(self, broken: bool):
        self.broken = broken

    def latest(self, start: object, room: int | None) -> object:
        if self.broken:
            raise ValueError(f"no offset after {MARK}")
        return 1

    def read(self, spark, start, end):
        return spark.createDataFrame([(1, MARK)], self.schema)


def confided(name: str, asked: bool = False) -> Pipeline:
    """The record into a folder; the source or the stage raises."""
    flow = Pipeline(name, redact=["name"])
    flow.source("people", Confiding(asked))

    @flow.stage(reads="people")
    def greeted(people: DataFrame) -> DataFrame:
        raise ValueError(f"no greeting for {people.first()['name']}")

    flow.sink("out", ParquetSink(name), reads="greeted")
    return flow


asked = confided("asked", asked=True)
greeting = confided("greeting")
