"""Write the records of a text to a snapshot, task by task, without a detour through Spark."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from ledger.core.column_names import BETWEEN, ERROR, FILE, NAMES
from ledger.deltas.table_writer import TableWriter
from ledger.sources.base import WrittenFiles
from ledger.sources.files.text import BLOCK_NUMBER, TextReader, in_tasks, url
from ledger.sources.parsing.exact import stored_schema
from ledger.storage.folders import FULL, no_space
from ledger.storage.parquet import SPARK_SCHEMA
from ledger.types.spark import to_arrow_schema

GROUP_BYTES = 64 << 20
_SPARK_VERSION = "org.apache.spark.version"  # without it dates may be taken for those of Spark 2


@dataclass(frozen=True)
class Writer:
    """Writer of the records of ``reader`` to a snapshot.

    ``folder``: the folder of the run.
    ``part``: number of this writer among those of the run.
    ``by_name``: whether columns are looked up by name.
    ``group_bytes``: bytes in memory of the records that are written at once.
    """

    reader: TextReader
    folder: str
    part: int
    by_name: bool
    group_bytes: int

    def write(self, spark: SparkSession) -> WrittenFiles:
        """Write all records. Raises UnavailableError where the storage is full."""
        few = self.reader.few()
        if few is not None:
            done = [self._write(0, few)] if few else []
        else:

            def work(numbers: range) -> Iterator[pa.RecordBatch]:
                path, rows, failed = self._write(numbers.start, self.reader.batches(numbers))
                report = {"path": [path], "rows": [rows], "failed": [failed]}
                yield pa.RecordBatch.from_pydict(report)

            reports = "path string, rows bigint, failed bigint"
            rows = in_tasks(spark, work, self.reader.shares, reports).collect()
            done = [(row["path"], row["rows"], row["failed"]) for row in rows if row["path"]]
        names = tuple(path.rpartition("/")[2] for path, _, _ in done)
        return WrittenFiles(names, sum(n for _, n, _ in done), sum(n for _, _, n in done))

    def _write(self, number: int, batches: Iterable[pa.RecordBatch]) -> tuple[str, int, int]:
        """Write records to a file; return its path (empty: no records), its records and its failed
        ones.
        """
        rows = failed = 0
        name = f"part-{self.part:06}-{number:010}-{uuid4().hex}.parquet"  # in order in the run
        noted = {SPARK_SCHEMA: self.schema.json(), _SPARK_VERSION: pyspark.__version__}
        # Without Arrow's schema, readers take the types from Parquet's.
        options = {"compression": "zstd", "store_schema": False}
        try:
            with TableWriter(f"{self.folder}/{name}", self._arrow, noted, **options) as file:
                for table in _gathered(batches, self.group_bytes):
                    records = self._columns(table)
                    file.write(records.columns)
                    rows += len(records)
                    failed += len(records) - int(records[ERROR].null_count)
                path = file.finish()
        except OSError as exc:
            if exc.errno in FULL:
                raise no_space(self.folder) from exc
            raise
        return path or "", rows, failed

    @cached_property
    def schema(self) -> T.StructType:
        """Schema of the snapshot: the path of the record's file, the form's columns, and, if
        columns are looked up by name, the names of the file's columns.
        """
        own = stored_schema(self.reader.form.schema).fields
        fields = [T.StructField(FILE, T.StringType())]
        fields += own
        fields += [T.StructField(NAMES, T.StringType())] if self.by_name else []
        return T.StructType(fields)

    @cached_property
    def _arrow(self) -> pa.Schema:
        """Return the Arrow schema of the snapshot. Texts that many rows share are dictionaries."""
        arrow = to_arrow_schema(self.schema)
        for place, field in enumerate(arrow):
            kind = _in_microseconds(field.type)
            if field.name in (FILE, NAMES):
                kind = pa.dictionary(pa.int32(), pa.string())
            arrow = arrow.set(place, field.with_type(kind))
        return arrow

    def _columns(self, table: pa.Table) -> pa.Table:
        """Return records as the snapshot stores them."""
        numbers = table[BLOCK_NUMBER].combine_chunks()
        least, greatest = pc.min_max(numbers).values()
        numbers = pc.subtract(numbers, least)
        blocks = self.reader.blocks[least.as_py() : greatest.as_py() + 1]
        columns = {name: table[name] for name in table.column_names}
        for name, texts in (
            (FILE, [url(block.path) for block in blocks]),
            (NAMES, [BETWEEN.join(self.reader.form.names)] * len(blocks)),
        ):
            if name in self._arrow.names:
                columns[name] = pa.DictionaryArray.from_arrays(
                    numbers, pa.array(texts, pa.string())
                )
        arrays = [columns[field.name].cast(field.type) for field in self._arrow]
        return pa.table(arrays, schema=self._arrow)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times are in microseconds, which is how Spark reads them."""
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_in_microseconds(part.type)) for part in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_microseconds(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind


def _gathered(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Join batches into tables of at least ``most`` bytes in memory; the last may be smaller."""
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
