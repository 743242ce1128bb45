"""Read the records of text files in tasks: by columns, and as they stand where that is not sure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from tempfile import gettempdir
from urllib.parse import quote as escaped

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import BETWEEN, FILE, TEXT
from ledger.core.paths import is_local
from ledger.errors import InputError, quote
from ledger.sources.files.blocks import BLOCK, Block, Cutter, body, cut, text_lines
from ledger.sources.files.layouts import encoded
from ledger.sources.files.lines import Format
from ledger.sources.listing import UNREADABLE, FoundFile, compression
from ledger.sources.vectorized.choice import reader_of
from ledger.sources.vectorized.lines import Lines, Read
from ledger.storage.folders import FULL, no_space
from ledger.types.spark_arrow import to_arrow_schema

IS_LONG = "_ackledger_long"  # whether a record has more lines than one may have
HERE = 4 << 20  # bytes of all blocks that the driver reads by itself: no Python worker is started
MOST_HERE = 4 * HERE  # of their records by columns
CUT_HERE = 256 << 20  # bytes of all files that the driver cuts into blocks
_THREADS = 8
_TASK = 32 << 20  # bytes that a task reads
_FEWEST_TASKS = 4  # where there are so many blocks
_PACKED = 5  # about how many bytes come out of one that is compressed
_ROWS = 32_768  # records in one batch on their way to Spark


BLOCK_NUMBER = "_ackledger_block_number"
_PLACE = "place"  # of a block, as text
_TEXTS = (
    T.StructField(TEXT, T.BinaryType()),
    T.StructField(IS_LONG, T.BooleanType()),
    T.StructField(BLOCK_NUMBER, T.IntegerType()),
)

READ = "_ackledger_read"  # what was read of a record by columns, a struct


def blocks_of(
    spark: SparkSession, files: Sequence[FoundFile], form: Format, headers: Mapping[str, str]
) -> list[Block]:
    """The blocks of files, in order. ``headers``: the line with the names of the columns, by
    path; empty where there were blank lines alone."""

    def cut_one(file: FoundFile) -> list[Block]:
        with _reading(file.path):
            return cut(file.path, form, headers.get(file.path))

    if sum(file.bytes for file in files) <= CUT_HERE:
        with ThreadPoolExecutor(_THREADS) as pool:
            return [block for own in pool.map(cut_one, files) for block in own]

    def cut_some(numbers: range) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            places = [block.place for block in cut_one(files[number])]
            yield pa.RecordBatch.from_pydict({_PLACE: pa.array(places, pa.string())})

    shares = _shares([_weight(file.path, file.bytes) for file in files])
    rows = in_tasks(spark, cut_some, shares, f"{_PLACE} string").collect()
    return [Block.at(row[_PLACE]) for row in rows]


@dataclass(frozen=True)
class TextReader:
    """Reads blocks of one form."""

    form: Format
    blocks: Sequence[Block]

    @cached_property
    def _by_columns(self) -> Callable[[Lines, Format], Read] | None:
        return reader_of(self.form)

    @property
    def is_by_columns(self) -> bool:
        """Whether some records may be read by columns."""
        return self._by_columns is not None

    @property
    def shares(self) -> list[range]:
        """The numbers of the blocks that each task reads."""
        return _shares([_weight(block.path, block.length) for block in self.blocks])

    @cached_property
    def schema(self) -> T.StructType:
        """Schema of ``batches``.

        It has a record's text, null if the record was read by columns; whether it is long; the
        number of its block; and, if some are read by columns, ``READ``.
        """
        fields = list(_TEXTS)
        if self.is_by_columns:
            # A struct: of many columns Spark makes a method that is too much for the JVM.
            own = enumerate(self.form.schema.fields)
            read = T.StructType([T.StructField(str(n), field.dataType) for n, field in own])
            fields.append(T.StructField(READ, read))
        return T.StructType(fields)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The records of the blocks, in order: ``FILE`` as a URL; ``TEXT``, a string of raw bytes,
        and ``IS_LONG``, null of one that was read by columns, and left out where all are known to
        be; and, if some may be, ``READ``, null of all others. Lazy."""
        urls = F.lit(BETWEEN.join(url(block.path) for block in self.blocks))
        file = F.get(F.split(urls, BETWEEN), F.col(BLOCK_NUMBER)).alias(FILE)
        text = [F.col(TEXT).cast("string").alias(TEXT), F.col(IS_LONG)]
        batches = self.few()
        if batches is None:
            rows = in_tasks(spark, self.batches, self.shares, self.schema)
        elif not batches:
            rows = spark.createDataFrame([], self.schema)
        else:
            table = pa.Table.from_batches(batches, self._arrow)
            if self.is_by_columns and table[TEXT].null_count == len(table):
                text = []
            # In one part: a small source leaves one file, however many cores there are.
            rows = spark.createDataFrame(table, self.schema).coalesce(1)
        return rows.select(file, *text, *self.schema.names[len(_TEXTS) :])

    def few(self) -> list[pa.RecordBatch] | None:
        """The records of all blocks; None where these are more than the driver reads, or more comes
        out of them once they are decompressed."""
        if sum(block.length for block in self.blocks) > HERE:
            return None
        batches: list[pa.RecordBatch] = []
        bytes_ = 0
        for batch in self.batches(range(len(self.blocks))):
            batches.append(batch)
            bytes_ += batch.nbytes
            if bytes_ > MOST_HERE:
                return None
        return batches

    def batches(self, numbers: range) -> Iterator[pa.RecordBatch]:
        """The records of some of the blocks. Raises InputError if a file cannot be read, or has
        changed since it was cut."""
        for number in numbers:
            block = self.blocks[number]
            with _reading(block.path):
                for batch in self._of(block):
                    for first in range(0, len(batch), _ROWS):
                        yield self._numbered(batch.slice(first, _ROWS), number)

    def _numbered(self, part: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """Records of a block with its number."""
        columns = {name: part.column(name) for name in part.schema.names}
        columns[BLOCK_NUMBER] = pa.repeat(pa.scalar(number, pa.int32()), len(part))
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(part), field.type)
            for field in self._arrow
        ]
        return pa.RecordBatch.from_arrays(arrays, self.schema.names)

    def _of(self, block: Block) -> Iterator[pa.RecordBatch]:
        cutter, whole = Cutter(self.form), body(block)
        for text in whole:
            records = cutter.lines(text)
            if cutter.breaks_off(records):
                yield from _split(cutter.splitter.records(text_lines(chain([text], whole))))
                return
            yield self._batch(records)

    def _batch(self, records: Lines) -> pa.RecordBatch:
        """Each line is a record."""
        if self._by_columns is None:
            return pa.RecordBatch.from_pydict({TEXT: records.texts(np.ones(len(records), bool))})
        read = self._by_columns(records, self.form)
        names = [str(number) for number in range(len(read.columns.columns))]
        is_null = pa.array(~read.was_read)
        values = pa.StructArray.from_arrays(read.columns.columns, names, mask=is_null)
        return pa.RecordBatch.from_pydict({TEXT: records.texts(~read.was_read), READ: values})

    @cached_property
    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self.schema)


def _split(records: Iterator[tuple[str, bool]]) -> Iterator[pa.RecordBatch]:
    """The records of lines of which some are no record."""
    while rows := _next_rows(records):
        texts = pa.array([text for text, _ in rows], pa.binary())
        is_long = pa.array([is_long for _, is_long in rows], pa.bool_())
        yield pa.RecordBatch.from_pydict({TEXT: texts, IS_LONG: is_long})


def url(path: str) -> str:
    """A path, in which quoted characters stand for those that a URL has not."""
    scheme, separator, rest = ("", "", path) if is_local(path) else path.partition("://")
    return f"{scheme}{separator}{escaped(rest, errors='surrogateescape')}"


def in_tasks(
    spark: SparkSession,
    work: Callable[[range], Iterator[pa.RecordBatch]],
    shares: Sequence[range],
    schema: T.StructType | str,
) -> DataFrame:
    """Return a frame of the batches that ``work`` yields for each share, in order.

    Each share is a Spark task.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(shares[number])

    return spark.range(0, len(shares), 1, len(shares)).mapInArrow(run, schema)


def _shares(weights: Sequence[int]) -> list[range]:
    """Numbers of files or blocks, in order, shared out to tasks by their bytes."""
    whole = sum(weights)
    tasks = min(len(weights), max(_FEWEST_TASKS, math.ceil(whole / _TASK)))
    counts = [0] * tasks
    before = 0
    for weight in weights:
        counts[min(tasks - 1, int(tasks * (before + weight / 2) / whole))] += 1
        before += weight
    ends = [*accumulate(counts)]
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True) if count]


def _weight(path: str, bytes_: int) -> int:
    return max(1, bytes_ * (1 if compression(path) is None else _PACKED))


def _next_rows(records: Iterator[tuple[str, bool]]) -> list[tuple[bytes, bool]]:
    """The next records of a batch, as bytes."""
    rows: list[tuple[bytes, bool]] = []
    size = 0
    for record, is_long in records:
        text = encoded(record)
        rows.append((text, is_long))
        size += len(text)
        if len(rows) == _ROWS or size >= BLOCK:
            break
    return rows


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the file that cannot be read."""
    try:
        yield
    except UNREADABLE as exc:
        if isinstance(exc, OSError) and exc.errno in FULL:  # of what is kept of it
            raise no_space(gettempdir()) from exc
        words = quote(exc) if isinstance(exc, ValueError) else exc
        raise InputError(f"source file {path} cannot be read: {words}") from exc
