"""The classic: sentences are split into words. Totals are a query over the sink.

SELECT word, count(*) FROM parquet.`warehouse/words` GROUP BY word
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("wordcount")

pipeline.source(
    "sentences",
    FileSource(
        "sentences/{{ interval_start | ds }}/*.jsonl", format="json", schema="sentence STRING"
    ),
)


@pipeline.stage(reads="sentences")
def split(sentences: DataFrame) -> DataFrame:
    """One row a word, anchored to its sentence; a sentence without a word fails, by name."""
    words = F.array_remove(F.split(F.lower("sentence"), r"[^\p{L}\p{N}']+"), "")
    return sentences.select(F.explode(words).alias("word"), "_anchor")


pipeline.sink("words", ParquetSink("warehouse/words"), reads="split")
