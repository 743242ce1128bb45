"""A pipeline that asks for replays by itself and writes down what it is told, and one that reads in parts."""

import os
from pathlib import Path

from pyspark.sql import DataFrame

from ledger import FileSource, ParquetSink, Pipeline


def _note(name: str, batch_id: int, messages: DataFrame) -> None:
    path = Path(os.environ["ACKLEDGER_DATA"]) / f"{name}-{batch_id}.txt"
    path.write_text("".join(sorted(row["letter"] for row in messages.collect())))


def on_ack(batch_id: int, messages: DataFrame) -> None:
    """Write down the acked letters."""
    _note("acked", batch_id, messages)


def on_fail(batch_id: int, messages: DataFrame) -> None:
    """Write down the failed letters."""
    _note("failed", batch_id, messages)


pipeline = Pipeline("letters", auto_replay=True, max_replays=2)
pipeline.source(
    "letters",
    FileSource("letters/{{ params.file }}.csv", schema="letter STRING"),
    on_ack=on_ack,
    on_fail=on_fail,
)
pipeline.reference("known", FileSource("known.csv", schema="letter STRING, number INT"))


@pipeline.stage(reads="letters")
def numbered(letters: DataFrame, *, known: DataFrame) -> DataFrame:
    """Lose the letters that are not known."""
    return letters.join(known, "letter", "inner")


pipeline.sink("shelf", ParquetSink("shelf", dedup="exact"), reads="numbered")

inbox = Pipeline("inbox", max_pending=2)
inbox.source("post", FileSource("inbox/{{ interval_start | ds }}.csv", schema="letter STRING"))
inbox.sink("tray", ParquetSink("tray"), reads="post")
