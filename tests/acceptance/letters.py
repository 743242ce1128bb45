"""A pipeline that asks for replays by itself and writes down its notifications, one that reads in
parts, and one that withholds and combines.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from ledger import FailedRecord, FileSource, ParquetSink, Pipeline


def _note(name: str, batch_id: int, messages: DataFrame) -> None:
    path = Path(os.environ["ACKLEDGER_DATA"]) / f"{name}-{batch_id}.txt"
    path.write_text("".join(sorted(row["record"]["letter"] for row in messages.collect())))


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
pipeline.reference("numbers", FileSource("known.csv", schema="letter STRING, number INT"))


@pipeline.stage(reads="letters")
def numbered(letters: DataFrame, *, numbers: DataFrame) -> DataFrame:
    """Lose the letters that are not known."""
    return letters.join(numbers, "letter", "inner")


pipeline.sink("shelf", ParquetSink("shelf", dedup="exact"), reads="numbered")

inbox = Pipeline("inbox", max_pending=2)
inbox.source("post", FileSource("inbox/{{ interval_start | ds }}.csv", schema="letter STRING"))
inbox.sink("tray", ParquetSink("tray"), reads="post")

mail = Pipeline("mail")
mail.source("bag", FileSource("mail.csv", schema="letter STRING"))
mail.sink("received", ParquetSink("received"), reads="bag")


@mail.record_stage(reads="bag", schema="letter STRING")
def opened(bag: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Refuse the unreadable letter."""
    if bag["letter"] == "?":
        raise FailedRecord("unreadable")
    yield bag


mail.sink("answered", ParquetSink("answered"), reads="opened")


@mail.combine(reads="opened")
def counted(opened: DataFrame) -> DataFrame:
    """How many of each."""
    return opened.groupBy("letter").count()


mail.sink("counts", ParquetSink("counts"), reads="counted")
