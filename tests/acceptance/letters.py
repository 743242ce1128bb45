"""A pipeline of three steps that asks for replays by itself."""

from pyspark.sql import DataFrame

from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("letters", auto_replay=True, max_replays=2)
pipeline.source("letters", FileSource("letters/{{ params.file }}.csv", schema="letter STRING"))
pipeline.reference("known", FileSource("known.csv", schema="letter STRING, number INT"))


@pipeline.stage(reads="letters")
def numbered(letters: DataFrame, *, known: DataFrame) -> DataFrame:
    """Lose the letters that are not known."""
    return letters.join(known, "letter", "inner")


pipeline.sink("shelf", ParquetSink("shelf", dedup="exact"), reads="numbered")
