"""Records of CSV files whose quoted values may hold line breaks, read file by file."""

import codecs
import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ledger.spark import files
from ledger.spark.lines import Format, record_pattern

MOST_LINES = 10_000  # of one record: a quote that is open for longer is taken to be never closed
_ROWS = 10_000  # records in one batch on their way to Spark


def text_records(spark: SparkSession, paths: Sequence[str], form: Format, skip: int) -> DataFrame:
    """The records of ``paths`` as ``value``, a string of raw bytes, and ``_file``, where it was read as a URL;
    a file is read by one task.

    ``skip``: the records at the head of each file that are left out.
    """
    tasks = spark.createDataFrame([(path,) for path in paths], "path string")
    read = partial(_read, Splitter(form), skip)
    rows = tasks.repartition(max(1, len(paths))).mapInArrow(read, "value binary, _file string")
    return rows.selectExpr("cast(value AS string) AS value", "_file")


def _read(
    splitter: "Splitter", skip: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            with files.opened(path) as stream:
                records = splitter.records(stream)
                for _ in range(skip):
                    next(records, None)
                yield from _batched(records, path if "://" in path else quote(path))


def _batched(records: Iterator[bytes], file: str) -> Iterator[pa.RecordBatch]:
    while rows := list(islice(records, _ROWS)):
        columns = [pa.array(rows, pa.binary()), pa.array([file] * len(rows), pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["value", "_file"])


class Splitter:
    """Cuts lines into records. A line whose quote is never closed is a record of its own, which does
    not parse; what follows it is read as if it were not there."""

    def __init__(self, form: Format):
        field, opened = record_pattern(form)
        separator = re.escape(form.separator)
        self._quote = form.quote.encode()
        whole, begun = f"{field}(?:{separator}{field})*+", f"(?:{field}{separator})*+{opened}"
        self._whole, self._begun = (re.compile(one.encode(), re.DOTALL) for one in (whole, begun))

    def records(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """The records of ``lines``, which end as they do in the file; without their own line break.
        Empty lines between records are none."""
        waiting: deque[bytes] = deque()
        begun = iter(lines)
        source = chain([next(begun, b"").removeprefix(codecs.BOM_UTF8)], begun)
        while line := (waiting.popleft() if waiting else next(source, b"")):
            record = line.rstrip(b"\r\n")
            if self._quote and self._quote in record and self._begun.fullmatch(record):
                more = self._closing(line, waiting, source)
                record = b"".join([line, *more]).rstrip(b"\r\n") if more else record
            if record:
                yield record

    def _closing(self, first: bytes, waiting: deque[bytes], source: Iterator[bytes]) -> list[bytes]:
        """The lines after ``first`` with which its record ends; none, and all of them waiting, if it
        does not."""
        taken: list[bytes] = []
        while len(taken) < MOST_LINES:
            line = waiting.popleft() if waiting else next(source, b"")
            if not line:
                break
            taken.append(line)
            if self._quote not in line:
                continue
            so_far = b"".join([first, *taken]).rstrip(b"\r\n")
            if self._whole.fullmatch(so_far):
                return taken
            if not self._begun.fullmatch(so_far):
                break
        waiting.extendleft(reversed(taken))
        return []
