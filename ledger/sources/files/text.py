"""Read the records of text files in tasks: by columns if that is exact, otherwise one by one."""

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

from ledger.core.column_names import BETWEEN, FILE
from ledger.core.paths import is_local
from ledger.errors import InputError, quote
from ledger.sources.base import FoundFile
from ledger.sources.files.blocks import BLOCK, Block, Cutter, body, cut, text_lines
from ledger.sources.files.format import Format
from ledger.sources.files.layouts import encoded
from ledger.sources.files.multiline import TOO_LONG
from ledger.sources.listing import UNREADABLE, compression
from ledger.sources.parsing.exact import OF_FAILED, Parser, stored_schema
from ledger.sources.vectorized import csv, json_lines
from ledger.sources.vectorized.lines import Lines, Read
from ledger.storage.folders import FULL, no_space
from ledger.types.spark import quoted

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


def blocks_of(
    spark: SparkSession, files: Sequence[FoundFile], form: Format, headers: Mapping[str, str]
) -> list[Block]:
    """Return the blocks of files, in order.

    ``headers``: the line with the names of the columns, by path; empty for a file of blank lines.
    """

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
    """Reader of blocks of one form."""

    form: Format
    blocks: Sequence[Block]

    @cached_property
    def _by_columns(self) -> Callable[[Lines, Format], Read] | None:
        by_columns = {"csv": csv, "json": json_lines}[self.form.format]
        return by_columns.read if by_columns.reads(self.form) else None

    @cached_property
    def _parser(self) -> Parser:
        return Parser(self.form)

    @property
    def shares(self) -> list[range]:
        """Return the numbers of the blocks that each task reads."""
        return _shares([_weight(block.path, block.length) for block in self.blocks])

    @cached_property
    def schema(self) -> T.StructType:
        """Schema of ``batches``: a record as ``stored_schema`` has it, with the number of its
        block."""
        number = T.StructField(BLOCK_NUMBER, T.IntegerType())
        return T.StructType([number, *stored_schema(self.form.schema).fields])

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the records of the blocks, in order: ``FILE`` as a URL, the schema's columns,
        ``RAW`` and ``ERROR``. Lazy.
        """
        urls = F.lit(BETWEEN.join(url(block.path) for block in self.blocks))
        file = F.get(F.split(urls, BETWEEN), F.col(BLOCK_NUMBER)).alias(FILE)
        batches = self.few()
        if batches is None:
            rows = in_tasks(spark, self.batches, self.shares, self.schema)
        elif not batches:
            rows = spark.createDataFrame([], self.schema)
        else:
            table = pa.Table.from_batches(batches)
            # In one part: a small source leaves one file, however many cores there are.
            rows = spark.createDataFrame(table, self.schema).coalesce(1)
        return rows.select(file, *(F.col(quoted(name)) for name in self.schema.names[1:]))

    def few(self) -> list[pa.RecordBatch] | None:
        """Return the records of all blocks; None if they have more bytes than the driver reads
        itself.

        Both the blocks and the records in memory are measured.
        """
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
        """Yield the records of some blocks.

        Raises InputError if a file cannot be read, or has changed since it was cut.
        """
        for number in numbers:
            block = self.blocks[number]
            with _reading(block.path):
                for records in self._tables(block):
                    numbered = pa.repeat(pa.scalar(number, pa.int32()), len(records))
                    parts = records.add_column(0, BLOCK_NUMBER, numbered).to_batches(_ROWS)
                    yield from filter(len, parts)  # Spark takes an empty one for the end

    def lines(self, number: int) -> Iterator[Lines]:
        """Yield the records of a block, each of which is a line."""
        block, cutter = self.blocks[number], Cutter(self.form)
        with _reading(block.path):
            for text in body(block):
                yield cutter.lines(text)

    def _tables(self, block: Block) -> Iterator[pa.Table]:
        """Yield the records of a block, part by part."""
        cutter, whole = Cutter(self.form), body(block)
        for text in whole:
            records = cutter.lines(text)
            if cutter.breaks_off(records):
                # From here on some lines are no record.
                rest = cutter.splitter.records(text_lines(chain([text], whole)))
                while rows := _next_rows(rest):
                    failed = {n: TOO_LONG for n, (_, is_long) in enumerate(rows) if is_long}
                    yield self._parser.parse([row for row, _ in rows], failed)
                return
            yield self._parsed(records)

    def _parsed(self, records: Lines) -> pa.Table:
        """Parse lines, each of which is a record: by columns, and exactly where that is not
        possible.
        """
        if self._by_columns is None:
            return self._parser.parse(records.texts(np.arange(len(records))))
        read = self._by_columns(records, self.form)
        unread = np.flatnonzero(~read.was_read)
        exact = self._parser.parse(records.texts(unread))
        nothing = [
            pa.nulls(len(records), field.type) for field in [*exact.schema][-len(OF_FAILED) :]
        ]
        table = pa.table([*read.columns.columns, *nothing], schema=exact.schema)
        if not len(unread):
            return table
        rows = np.arange(len(records))
        rows[unread] = len(records) + np.arange(len(unread))
        return pa.concat_tables([table, exact]).take(pa.array(rows))


def url(path: str) -> str:
    """Return a path as a URL, with characters escaped that a URL may not have."""
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
    """Share out the numbers of files or blocks to tasks by their bytes, in order."""
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
    """Return the next records of a batch, as bytes."""
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
    """Translate an error of reading into an InputError that names the file, or into
    UnavailableError if the disk for what is kept of it is full.
    """
    try:
        yield
    except UNREADABLE as exc:
        if isinstance(exc, OSError) and exc.errno in FULL:  # of what is kept of it
            raise no_space(gettempdir()) from exc
        words = quote(exc) if isinstance(exc, ValueError) else exc
        raise InputError(f"source file {path} cannot be read: {words}") from exc
