"""Read the records of text files in tasks: by columns, and as they stand where that is not sure."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from ledger.core.column_names import FILE, TEXT
from ledger.errors import InputError
from ledger.sources.files.blocks import (
    BLOCK,
    Block,
    Cutter,
    cut,
    header_of,
    parts,
    text_lines,
    without,
)
from ledger.sources.files.layouts import encoded
from ledger.sources.files.lines import Format
from ledger.sources.files.multiline import Splitter
from ledger.sources.listing import UNREADABLE, FoundFile, compression
from ledger.sources.vectorized.choice import reader_of
from ledger.sources.vectorized.lines import Lines
from ledger.storage.folders import FULL, no_space

IS_LONG = "_ackledger_long"  # whether a record has more lines than one may have
HERE = 4 << 20  # bytes of all files that the driver reads by itself: no Python worker is started
MOST_HERE = 4 * HERE  # of their records by columns
CUT_HERE = 256 << 20  # bytes of all files that the driver cuts into blocks
_THREADS = 8
_TASK = 32 << 20  # bytes that a task reads
_FEWEST_TASKS = 4  # where there are so many blocks
_PACKED = 5  # about how many bytes come out of one that is compressed
_ROWS = 32_768  # records in one batch on their way to Spark


_FILE = "_ackledger_file_number"
_BETWEEN = "\x1f"  # names of files
_TEXTS = (
    T.StructField(TEXT, T.BinaryType()),
    T.StructField(IS_LONG, T.BooleanType()),
    T.StructField(_FILE, T.IntegerType()),
)


READ = "_ackledger_read"  # what was read of a record by columns, a struct


@dataclass(frozen=True)
class TextReader:
    """Reads files of one form. ``headers``: the line with the names of the columns, by the path
    that has one; it is no record.
    """

    form: Format
    paths: Sequence[str]
    headers: Mapping[str, str]

    @cached_property
    def by_columns(self) -> bool:
        """Whether some records may be read by columns."""
        return reader_of(self.form) is not None

    @cached_property
    def schema(self) -> T.StructType:
        """Of ``batches``: a record's text, null if it was read by columns; whether it is long;
        the number of its file; and, if some are read by columns, ``READ``."""
        # A struct: of many columns Spark makes a method that is too much for the JVM to compile.
        read = T.StructType(
            [T.StructField(str(n), f.dataType) for n, f in enumerate(self.form.schema.fields)]
        )
        return T.StructType([*_TEXTS, *([T.StructField(READ, read)] if self.by_columns else [])])

    def frame(self, spark: SparkSession, files: Sequence[FoundFile]) -> DataFrame:
        """The records of the files, in order: ``FILE`` as a URL; ``TEXT``, a string of raw bytes,
        and ``IS_LONG``, null of one that was read by columns; and, if some may be, ``READ``, null
        of all others. Lazy, but that the files are cut into blocks. ``files``: of ``paths``."""
        rows = self._rows(spark, files)
        urls = F.split(F.lit(_BETWEEN.join(map(_url, self.paths))), _BETWEEN)
        file, text = F.get(urls, F.col(_FILE)).alias(FILE), F.col(TEXT).cast("string").alias(TEXT)
        return rows.select(file, text, IS_LONG, *self.schema.names[len(_TEXTS) :])

    def _rows(self, spark: SparkSession, files: Sequence[FoundFile]) -> DataFrame:
        blocks = self._blocks(spark, files)
        batches = self._few(blocks) if sum(file.bytes for file in files) <= HERE else None
        if not blocks or batches == []:
            return spark.createDataFrame([], self.schema)
        if batches is None:
            return _in_tasks(spark, self.batches, _shared_out(blocks, _TASK), self.schema)
        table = pa.Table.from_batches(batches, self._arrow)
        # In one part: a small source leaves one file, however many cores there are.
        return spark.createDataFrame(table, self.schema).coalesce(1)

    def _few(self, blocks: Sequence[Block]) -> list[pa.RecordBatch] | None:
        """The records of blocks; None where more comes out of them, once they are decompressed,
        than the driver reads."""
        batches: list[pa.RecordBatch] = []
        bytes_ = 0
        for batch in self.batches(blocks):
            batches.append(batch)
            bytes_ += batch.nbytes
            if bytes_ > MOST_HERE:
                return None
        return batches

    def _blocks(self, spark: SparkSession, files: Sequence[FoundFile]) -> list[Block]:
        if sum(file.bytes for file in files) <= CUT_HERE:
            with ThreadPoolExecutor(_THREADS) as pool:
                return [block for own in pool.map(self._cut, files) for block in own]
        rows = _in_tasks(spark, self._cut_all, _shared_out(files, _TASK), "block string").collect()
        return [Block(**json.loads(row["block"])) for row in rows]

    def _cut(self, file: FoundFile) -> list[Block]:
        with _reading(file.path):
            return cut(file.path, self.form, self.headers.get(file.path))

    def _cut_all(self, files: Iterable[FoundFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            blocks = [json.dumps(asdict(block)) for block in self._cut(file)]
            yield pa.RecordBatch.from_pydict({"block": pa.array(blocks, pa.string())})

    def batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """The records of blocks. Raises InputError if a file cannot be read, or has changed since
        it was cut."""
        for block in blocks:
            with _reading(block.path):
                for batch in self._of(block):
                    for first in range(0, len(batch), _ROWS):
                        yield batch.slice(first, _ROWS)

    def _of(self, block: Block) -> Iterator[pa.RecordBatch]:
        cutter = Cutter(self.form)
        header = self.headers.get(block.path) if block.header else None
        is_first = block.offset == 0
        whole = parts(block)
        for part in whole:
            records = cutter.lines(part, is_first=is_first)
            if cutter.breaks_off(records):
                lines = text_lines(part, whole, is_first=is_first)
                yield from self._split(cutter.splitter, block, lines, header)
                return
            number = header_of(records, header)
            header = header if number is None else None
            is_first = False
            yield self._batch(block, without(records, number))

    def _batch(self, block: Block, records: Lines) -> pa.RecordBatch:
        """Each line is a record."""
        reader = reader_of(self.form)
        if reader is None:
            return self._row_batch(block, records.texts(np.ones(len(records), bool)))
        read = reader(records, self.form)
        names = [str(number) for number in range(len(read.columns.columns))]
        is_null = pa.array(~read.was_read)
        structs = pa.StructArray.from_arrays(read.columns.columns, names, mask=is_null)
        return self._row_batch(block, records.texts(~read.was_read), structs)

    def _split(
        self, splitter: Splitter, block: Block, lines: Iterator[str], header: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Some lines are no record."""
        records = _without_header(splitter.records(lines), header)
        while rows := _next_rows(records):
            texts = pa.array([text for text, _ in rows], pa.binary())
            is_long = pa.array([is_long for _, is_long in rows], pa.bool_())
            yield self._row_batch(block, texts, is_long=is_long)

    def _row_batch(
        self,
        block: Block,
        texts: pa.Array,
        structs: pa.Array | None = None,
        is_long: pa.Array | None = None,
    ) -> pa.RecordBatch:
        number = pa.repeat(pa.scalar(self._numbers[block.path], pa.int32()), len(texts))
        columns = [texts, is_long, number, structs][: len(self._arrow)]
        arrays = [
            pa.nulls(len(texts), field.type) if column is None else column
            for column, field in zip(columns, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, self.schema.names)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.paths)}


def _url(path: str) -> str:
    """A path, in which quoted characters stand for those that a URL has not."""
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{quote(rest, errors='surrogateescape')}"


def _in_tasks(
    spark: SparkSession,
    work: Callable[[Sequence[Any]], Iterator[pa.RecordBatch]],
    tasks: Sequence[Sequence[Any]],
    schema: T.StructType | str,
) -> DataFrame:
    """What ``work`` returns for each task, in order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(tasks[number])

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, schema)


def _shared_out(parts: Sequence[Any], size: int) -> list[list[Any]]:
    """Files or blocks, in order, in tasks of about as many bytes."""
    weights = [_weight(part) for part in parts]
    tasks = min(len(parts), max(_FEWEST_TASKS, math.ceil(sum(weights) / size)))
    shares: list[list[Any]] = [[] for _ in range(tasks)]
    before = 0
    for part, weight in zip(parts, weights, strict=True):
        middle = before + weight / 2
        shares[min(tasks - 1, int(tasks * middle / sum(weights)))].append(part)
        before += weight
    return [share for share in shares if share]


def _weight(part: FoundFile | Block) -> int:
    bytes_ = part.bytes if isinstance(part, FoundFile) else part.length
    return max(1, bytes_ * (1 if compression(part.path) is None else _PACKED))


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


def _without_header(
    records: Iterator[tuple[str, bool]], header: str | None
) -> Iterator[tuple[str, bool]]:
    """The records but for the first that is the header; blank ones may stand before it."""
    if header is not None:
        for record, is_long in records:
            if record == header:
                break
            yield record, is_long
    yield from records


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the file that cannot be read."""
    try:
        yield
    except UNREADABLE as exc:
        if isinstance(exc, OSError) and exc.errno in FULL:  # of what is kept of it
            raise no_space(gettempdir()) from exc
        quotes = [str(exc)] if isinstance(exc, ValueError) else []
        raise InputError(f"source file {path} cannot be read: {exc}", quotes=quotes) from exc
