"""Write the records of a text to a snapshot where they are read by columns: task by task, without a
way through Spark.

A task writes a file of its records. Those that it could not read are null there, and go on to the
exact parser, in the same task; what comes of them takes the place of these nulls.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger.core.column_names import BETWEEN, ERROR, FILE, NAMES, POSITION, RAW, TEXT
from ledger.deltas.table_writer import TableWriter
from ledger.sources.base import WrittenFiles
from ledger.sources.files.records import records_of
from ledger.sources.files.text import BLOCK_NUMBER, IS_LONG, READ, TextReader, in_tasks, url
from ledger.sources.parsing.typed import with_quotes
from ledger.storage import stores
from ledger.storage.folders import FULL, no_space
from ledger.storage.parquet import SPARK_SCHEMA, read_row_group, stored_file
from ledger.types.spark_arrow import to_arrow_schema

GROUP_BYTES = 64 << 20
_PATH = "_ackledger_path"  # of the file that a task has written
_SPARK_VERSION = "org.apache.spark.version"  # without it dates may be taken for those of Spark 2
_UNREAD = (
    T.StructField(TEXT, T.BinaryType()),
    T.StructField(IS_LONG, T.BooleanType()),
    T.StructField(POSITION, T.LongType()),
    T.StructField(_PATH, T.StringType()),
)


@dataclass(frozen=True)
class Writer:
    """Writes the records of ``reader``.

    ``folder``: of the run. ``part``: which of the run's writers it is. ``by_name``: whether the
    columns of files are read by their names. ``group_bytes``: in memory, of the records that are
    written in one go.
    """

    reader: TextReader
    folder: str
    part: int
    by_name: bool
    group_bytes: int

    def write(self, spark: SparkSession) -> WrittenFiles:
        """Write all records. Raises UnavailableError where the storage is full."""
        few = self.reader.few()
        if few is None:
            return self._in_tasks(spark)
        return self._here(spark, few)

    def _here(self, spark: SparkSession, batches: Sequence[pa.RecordBatch]) -> WrittenFiles:
        """Write what the driver has read."""
        if not batches:
            return WrittenFiles()
        table = pa.Table.from_batches(batches)
        records, unread = self._columns(table), _unread(table, 0)
        if len(unread):
            schema = T.StructType([*_UNREAD])
            parsed = self._parsed(spark.createDataFrame(unread, schema).coalesce(1)).toArrow()
            records = _merged(records, parsed, 0)
        with self._room(), self._file(0) as file:
            file.write(records.columns)
            path = str(file.finish())
        return WrittenFiles((_name(path),), len(records), _failed(records))

    def _in_tasks(self, spark: SparkSession) -> WrittenFiles:
        shares = self.reader.shares
        read = in_tasks(spark, self._read, shares, T.StructType([*_UNREAD]))
        reports = "path string, rows bigint, failed bigint"
        rows = self._parsed(read).mapInArrow(self._finish, reports).collect()
        paths = tuple(_name(row["path"]) for row in rows if row["path"])
        return WrittenFiles(paths, sum(r["rows"] for r in rows), sum(r["failed"] for r in rows))

    def _parsed(self, unread: DataFrame) -> DataFrame:
        """Return the records that the exact parser makes of texts, with ``POSITION``, in order.

        Rows without a text, which have ``_PATH``, are kept.
        """
        texts = unread.withColumn(TEXT, F.col(TEXT).cast("string"))
        parsed = with_quotes(records_of(self.reader.form, texts))
        names = [field.name for field in self.schema.fields if field.name in parsed.columns]
        return parsed.select(POSITION, _PATH, *(f"`{name}`" for name in names))

    def _read(self, numbers: range) -> Iterator[pa.RecordBatch]:
        """Write the records of some blocks; the texts of those that were not read, and at last the
        path of the file."""
        first = 0
        with self._room(), self._file(numbers.start) as file:
            for table in _gathered(self.reader.batches(numbers), self.group_bytes):
                file.write(self._columns(table).columns)
                yield from _unread(table, first).to_batches()
                first += len(table)
            path = file.finish()
        yield pa.RecordBatch.from_pylist(
            [{TEXT: None, IS_LONG: None, POSITION: first, _PATH: path or ""}], _ARROW
        )

    def _finish(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put what was parsed into the file that a task has written; its path, how many records it
        has, and how many of them failed."""
        with _on_disk(batches) as (parsed, end):
            path, rows, failed = end[_PATH], end[POSITION], 0
            if len(parsed):
                path, failed = self._mended(path, parsed)
        yield pa.RecordBatch.from_pydict({"path": [path], "rows": [rows], "failed": [failed]})

    def _mended(self, path: str, parsed: pa.Table) -> tuple[str, int]:
        """Write a file again, with what was parsed; its new path, and how many records failed."""
        places = parsed[POSITION].to_numpy()
        first = failed = 0
        with self._room(), stored_file(path) as stored, self._file(_number(path)) as file:
            for group in range(stored.metadata.num_row_groups):
                table = read_row_group(stored, group, self._arrow.names).cast(self._arrow)
                begin, end = np.searchsorted(places, [first, first + len(table)])
                records = _merged(table, parsed.slice(begin, end - begin), first)
                file.write(records.columns)
                failed += _failed(records)
                first += len(table)
            mended = file.finish()
        with suppress(OSError):  # it does not count any more
            stores.remove_file(path)
        return str(mended), failed

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Name the folder that is full."""
        try:
            yield
        except OSError as exc:
            if exc.errno in FULL:
                raise no_space(self.folder) from exc
            raise

    def _file(self, number: int) -> TableWriter:
        """A new file, which stands in order among those of its run."""
        name = f"part-{self.part:06}-{number:010}-{uuid4().hex}.parquet"
        noted = {SPARK_SCHEMA: self.schema.json(), _SPARK_VERSION: pyspark.__version__}
        # No schema of Arrow's: who reads the file reads the types of Parquet.
        options = {"compression": "zstd", "store_schema": False}
        return TableWriter(f"{self.folder}/{name}", self._arrow, noted, **options)

    @cached_property
    def schema(self) -> T.StructType:
        """Schema of the snapshot."""
        fields = [T.StructField(FILE, T.StringType())]
        fields += [T.StructField(own.name, own.dataType) for own in self.reader.form.schema.fields]
        fields += [T.StructField(RAW, T.BinaryType()), T.StructField(ERROR, T.StringType())]
        fields += [T.StructField(NAMES, T.StringType())] if self.by_name else []
        return T.StructType(fields)

    @cached_property
    def _arrow(self) -> pa.Schema:
        """Arrow schema of the snapshot. Texts that are the same in many rows are dictionaries."""
        arrow = to_arrow_schema(self.schema)
        for place, field in enumerate(arrow):
            if field.name in (FILE, NAMES):
                arrow = arrow.set(place, field.with_type(pa.dictionary(pa.int32(), pa.string())))
        return arrow

    def _columns(self, table: pa.Table) -> pa.Table:
        """Records as the snapshot has them; all but files are null of what was not read."""
        numbers = table[BLOCK_NUMBER].combine_chunks()
        least, greatest = pc.min_max(numbers).values()
        numbers = pc.subtract(numbers, least)
        blocks = self.reader.blocks[least.as_py() : greatest.as_py() + 1]
        columns = {}
        for name, texts in (
            (FILE, [url(block.path) for block in blocks]),
            (NAMES, [BETWEEN.join(self.reader.form.names)] * len(blocks)),
        ):
            if name in self._arrow.names:
                columns[name] = pa.DictionaryArray.from_arrays(
                    numbers, pa.array(texts, pa.string())
                )
        if self.reader.is_by_columns:
            values = table[READ].combine_chunks().flatten()
            columns |= dict(zip(self.reader.form.schema.names, values, strict=True))
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(table), field.type)
            for field in self._arrow
        ]
        return pa.table(arrays, schema=self._arrow)


_ARROW = to_arrow_schema(T.StructType([*_UNREAD]))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _number(path: str) -> int:
    """Return the number that ``_file`` has put into a file's name."""
    return int(_name(path).split("-")[2])


def _gathered(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Batches put together, as many as are written in one go."""
    some: list[pa.RecordBatch] = []
    bytes_ = 0
    for batch in batches:
        some.append(batch)
        bytes_ += batch.nbytes
        if bytes_ >= most:
            yield pa.Table.from_batches(some)
            some, bytes_ = [], 0
    if some:
        yield pa.Table.from_batches(some)


def _unread(table: pa.Table, first: int) -> pa.Table:
    """The records that were not read, with their positions from ``first`` on."""
    is_unread = table[TEXT].is_valid()
    positions = pa.array(np.flatnonzero(is_unread.to_numpy()) + first, pa.int64())
    unread = table.filter(is_unread)
    nothing = pa.nulls(len(unread), pa.string())
    return pa.table([unread[TEXT], unread[IS_LONG], positions, nothing], schema=_ARROW)


def _merged(records: pa.Table, parsed: pa.Table, first: int) -> pa.Table:
    """Records with what was parsed in their places, which are ``POSITION`` - ``first``."""
    rows = np.arange(len(records))
    rows[parsed[POSITION].to_numpy() - first] = len(records) + np.arange(len(parsed))
    columns = []
    for field in records.schema:
        column = records[field.name]
        if field.name in parsed.column_names:
            both = pa.chunked_array(
                [*column.chunks, *parsed[field.name].cast(field.type).chunks], field.type
            )
            column = both.combine_chunks().take(pa.array(rows))
        columns.append(column)
    return pa.table(columns, schema=records.schema)


def _failed(records: pa.Table) -> int:
    return len(records) - int(records[ERROR].null_count)


@contextmanager
def _on_disk(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """The rows of a task but for the last, which are on disk, and the last."""
    with tempfile.NamedTemporaryFile() as file:
        sink: Any = None
        end: dict[str, Any] = {}
        for batch in batches:
            if not len(batch):
                continue
            if batch.column(_PATH)[len(batch) - 1].is_valid:
                end = batch.slice(len(batch) - 1).to_pylist()[0]
                batch = batch.slice(0, len(batch) - 1)
            sink = sink or pa.ipc.new_file(file, batch.schema)
            sink.write_batch(batch)
        sink.close()
        file.flush()
        with pa.memory_map(file.name) as mapped:
            yield pa.ipc.open_file(mapped).read_all(), end
