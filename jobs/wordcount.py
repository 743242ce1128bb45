"""The classic: sentences are split into words, and running totals are kept over batches."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline

pipeline = Pipeline("wordcount")

pipeline.source(
    "sentences",
    FileSource(
        "sentences/{{ interval_start | ds }}/*.jsonl", format="json", schema="sentence STRING"
    ),
)


@pipeline.stage(reads="sentences")
def split(sentences: DataFrame) -> DataFrame:
    """Return one row a word. A sentence without a word fails, by name."""
    words = F.array_remove(F.split(F.lower("sentence"), r"[^\p{L}\p{N}']+"), "")
    return sentences.withColumn("word", F.explode(words)).drop("sentence")


@pipeline.stateful_stage(reads="split")
def totals(before: DataFrame | None, words: DataFrame) -> DataFrame:
    """Count how often each word was seen up to now: replays add what they bring, once."""
    seen = words.groupBy("word").agg(F.count(F.lit(1)).alias("n"))
    both = seen if before is None else before.unionByName(seen)
    return both.groupBy("word").agg(F.sum("n").alias("n"))


pipeline.sink("words", ParquetSink("warehouse/words"), reads="split")
pipeline.sink("counts", DeltaSink("warehouse/counts"), reads="totals")
