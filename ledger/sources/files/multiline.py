"""Records of CSV files whose quoted values may hold line breaks, read file by file."""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ledger.core.column_names import FILE, TEXT
from ledger.errors import InputError
from ledger.sources.files import layouts as files
from ledger.sources.files.lines import Format, record_pattern
from ledger.sources.listing import UNREADABLE

MOST_LINES = 10_000  # of one record: a quote that is open for longer is taken to be never closed
_ROWS = 10_000  # records in one batch on their way to Spark


def text_records(
    spark: SparkSession, paths: Sequence[str], form: Format, headers: Mapping[str, str]
) -> DataFrame:
    """The records of ``paths`` as ``TEXT``, a string of raw bytes, and ``FILE``, where it was
    read as a URL; a file is read by one task.

    ``headers``: of files that have one the line with the names of the columns, which is left out.
    """
    tasks = spark.createDataFrame([(path,) for path in paths], "path string")
    read = partial(_read, Splitter(form), dict(headers))
    rows = tasks.repartition(max(1, len(paths))).mapInArrow(read, f"{TEXT} binary, {FILE} string")
    return rows.selectExpr(f"cast({TEXT} AS string) AS {TEXT}", FILE)


def _read(
    splitter: "Splitter", headers: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            try:
                with files.opened_text(path) as lines:
                    records = without_header(splitter.records(lines), headers.get(path))
                    yield from _batched(records, path if "://" in path else quote(path))
            except UNREADABLE as exc:
                raise InputError(f"source file {path} cannot be read: {exc}") from exc


def without_header(records: Iterator[str], header: str | None) -> Iterator[str]:
    """The records but for the first that is the header; blank ones may stand before it."""
    for record in records:
        if record == header:
            break
        yield record
    yield from records


def _batched(records: Iterator[str], file: str) -> Iterator[pa.RecordBatch]:
    while rows := [files.encoded(one) for one in islice(records, _ROWS)]:
        columns = [pa.array(rows, pa.binary()), pa.array([file] * len(rows), pa.string())]
        yield pa.RecordBatch.from_arrays(columns, [TEXT, FILE])


class Splitter:
    """Cuts lines into records. A line whose quote is never closed is a record of its own, which
    does not parse; what follows it is read as if it were not there.
    """

    def __init__(self, form: Format):
        field, opened = record_pattern(form)
        separator = re.escape(form.separator)
        self._quote = form.quote
        whole, begun = f"{field}(?:{separator}{field})*+", f"(?:{field}{separator})*+{opened}"
        self._whole, self._begun = (re.compile(one, re.DOTALL) for one in (whole, begun))

    def records(self, lines: Iterator[str]) -> Iterator[str]:
        """The records of ``lines``, which end as they do in the file; without their own line break.
        Empty lines between records are none."""
        waiting: deque[str] = deque()
        source = iter(lines)
        while line := (waiting.popleft() if waiting else next(source, "")):
            record = line.rstrip("\r\n")
            if self._quote and self._quote in record and self._begun.fullmatch(record):
                more = self._closing(line, waiting, source)
                record = "".join([line, *more]).rstrip("\r\n") if more else record
            if record:
                yield record

    def _closing(self, first: str, waiting: deque[str], source: Iterator[str]) -> list[str]:
        """The lines after ``first`` with which its record ends; none, and all of them waiting,
        if it does not.
        """
        taken: list[str] = []
        while len(taken) < MOST_LINES:
            line = waiting.popleft() if waiting else next(source, "")
            if not line:
                break
            taken.append(line)
            if self._quote not in line:
                continue
            so_far = "".join([first, *taken]).rstrip("\r\n")
            if self._whole.fullmatch(so_far):
                return taken
            if not self._begun.fullmatch(so_far):
                break
        waiting.extendleft(reversed(taken))
        return []
