"""Read the records of text files in tasks: by columns, and as they stand where that is not sure."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from ledger.core.column_names import FILE, PREFIX, TEXT
from ledger.errors import InputError
from ledger.sources.files.blocks import (
    Block,
    Cutter,
    cut,
    header_of,
    read_whole,
    text_lines,
    windows,
    without,
)
from ledger.sources.files.layouts import encoded
from ledger.sources.files.lines import Format
from ledger.sources.files.multiline import Splitter
from ledger.sources.listing import UNREADABLE, FoundFile, compression, opened
from ledger.sources.vectorized.choice import reader_of
from ledger.sources.vectorized.lines import Lines
from ledger.storage.folders import FULL, no_space

IS_LONG = "_ackledger_long"  # whether a record has more lines than one may have
WAS_READ = "_ackledger_was_read"  # whether a record was read by columns: then it has no ``TEXT``
HERE = 4 << 20  # bytes of all files that the driver reads by itself: no Python worker is started
CUT_HERE = 256 << 20  # bytes of all files that the driver cuts into blocks
_THREADS = 8
_TASK = 32 << 20  # bytes that a task reads
_FEWEST_TASKS = 4  # where there are so many blocks
_PACKED = 20  # about how many bytes come out of one that is compressed
_ROWS = 32_768  # records in one batch on their way to Spark


_FILE = "_ackledger_file_number"
_BETWEEN = "\x1f"  # names of files
_TEXTS = (
    T.StructField(TEXT, T.BinaryType()),
    T.StructField(IS_LONG, T.BooleanType()),
    T.StructField(_FILE, T.IntegerType()),
)


def read_as(number: int) -> str:
    """What the column is called that has the values of the schema's column of this number."""
    return f"{PREFIX}read_{number}"


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
        the number of its file; and, if some are read by columns, these."""
        fields = self.form.schema.fields if self.by_columns else []
        read = [T.StructField(read_as(n), field.dataType) for n, field in enumerate(fields)]
        return T.StructType([*_TEXTS, *read])

    def frame(self, spark: SparkSession, files: Sequence[FoundFile]) -> DataFrame:
        """The records of the files, in order: ``TEXT``, a string of raw bytes, ``IS_LONG``,
        ``FILE`` as a URL; and, if some are read by columns, ``WAS_READ`` and these. Lazy, but that
        the files are cut into blocks. ``files``: those of ``paths``."""
        rows = self._rows(spark, files)
        urls = F.split(F.lit(_BETWEEN.join(map(_url, self.paths))), _BETWEEN)
        file, text = F.get(urls, F.col(_FILE)).alias(FILE), F.col(TEXT).cast("string").alias(TEXT)
        names = self.schema.names[len(_TEXTS) :]
        was_read = [F.col(TEXT).isNull().alias(WAS_READ)] if names else []
        return rows.select(file, text, IS_LONG, *was_read, *names)

    def _rows(self, spark: SparkSession, files: Sequence[FoundFile]) -> DataFrame:
        blocks = self._blocks(spark, files)
        if not blocks or sum(map(_unpacked, files)) <= HERE:
            schema = to_arrow_schema(self.schema, timezone="UTC")
            table = pa.Table.from_batches(self.batches(blocks), schema)
            return spark.createDataFrame(table, self.schema)
        return _in_tasks(spark, self.batches, _shared_out(blocks, _TASK), self.schema)

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
        with opened(block.path, block.offset) as stream:
            parts = windows(stream) if block.length is None else iter([read_whole(block, stream)])
            for part in parts:
                records = cutter.lines(part, is_first=is_first)
                if cutter.breaks_off(records):
                    lines = text_lines(part, parts, is_first=is_first)
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
        return self._row_batch(block, records.texts(~read.was_read), read.columns.columns)

    def _split(
        self, splitter: Splitter, block: Block, lines: Iterator[str], header: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Some lines are no record."""
        records = _without_header(splitter.records(lines), header)
        kinds = to_arrow_schema(self.schema, timezone="UTC").types[len(_TEXTS) :]
        while rows := list(islice(records, _ROWS)):
            texts = pa.array([encoded(record) for record, _ in rows], pa.binary())
            is_long = pa.array([is_long for _, is_long in rows], pa.bool_())
            columns = [pa.nulls(len(rows), kind) for kind in kinds]
            yield self._row_batch(block, texts, columns, is_long)

    def _row_batch(
        self,
        block: Block,
        texts: pa.Array,
        columns: Sequence[pa.Array] = (),
        is_long: pa.Array | None = None,
    ) -> pa.RecordBatch:
        number = pa.repeat(pa.scalar(self._numbers[block.path], pa.int32()), len(texts))
        is_long = pa.nulls(len(texts), pa.bool_()) if is_long is None else is_long
        return pa.RecordBatch.from_arrays([texts, is_long, number, *columns], self.schema.names)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {path: number for number, path in enumerate(self.paths)}


def _url(path: str) -> str:
    """A path as Spark writes it, without what comes between two."""
    return path.replace(_BETWEEN, quote(_BETWEEN)) if "://" in path else quote(path)


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
    return max(1, _TASK if bytes_ is None else bytes_)


def _unpacked(file: FoundFile) -> int:
    """About how many bytes a file has once it is decompressed."""
    return file.bytes * (1 if compression(file.path) is None else _PACKED)


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
        raise InputError(f"source file {path} cannot be read: {exc}") from exc
