"""Find a source's files and check them before a record is read."""

import codecs
import csv
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampType,
)

from ledger.errors import InputError
from ledger.spark.lines import Format

_log = logging.getLogger(__name__)

# Unsigned integers, as Spark reads them.
_WIDENED = {
    pa.uint8(): ShortType(),
    pa.uint16(): IntegerType(),
    pa.uint32(): LongType(),
    pa.uint64(): DecimalType(20, 0),
}
_NO_CODEC = ("BROTLI", "LZO")

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a pattern."""
    return [_PATTERN.sub(r"\\\1", path) for path in paths]


@dataclass(frozen=True)
class Layout:
    """CSV files with the same columns. ``headers``: the line with their names, by file that has it."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    headers: Mapping[str, str]


def layouts(paths: list[str], schema: StructType, columns: str, form: Format) -> list[Layout]:
    """The files by the columns of their headers; a file without records may lack it.

    ``columns``: whether a header has the schema's names ``in_order``, or is read ``by_name``. Raises
    InputError naming file, expected and found names where it is otherwise.
    """
    with ThreadPoolExecutor(8) as pool:
        lines = dict(zip(paths, pool.map(_first_line, paths), strict=True))
    found: dict[tuple[str, ...], list[str]] = {}
    for path, line in lines.items():
        names = schema.names if line is None else _names(path, line, form)
        check = _check_names if columns == "by_name" else _check_order
        check(path, names, schema)
        found.setdefault(tuple(names), []).append(path)
    return [
        Layout(names, tuple(own), {path: text for path in own if (text := lines[path]) is not None})
        for names, own in found.items()
    ]


def _names(path: str, header: str, form: Format) -> list[str]:
    names = next(
        csv.reader(
            [header],
            delimiter=form.separator,
            quotechar=form.quote or None,
            escapechar=None if form.escape == form.quote else form.escape or None,
            quoting=csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE,
        )
    )
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InputError(f"the header of {path} has {repeated[0]!r} twice: fix the file")
    return names


def _check_order(path: str, names: list[str], schema: StructType) -> None:
    if names != schema.names:
        way_out = ", or with columns='by_name'" if set(schema.names) & set(names) else ""
        raise InputError(
            f"the header of {path} is not the schema's names in order: expected "
            f"{', '.join(schema.names)}; found {', '.join(names)}. Fix the file, or declare the "
            f"source with header=False{way_out}"
        )


def _check_names(path: str, names: list[str], schema: StructType) -> None:
    """Columns that are none of the schema's are ignored; one that may not be null must be there."""
    missing = [one.name for one in schema.fields if not one.nullable and one.name not in names]
    if missing or not set(names) & set(schema.names):
        expected = f"NOT NULL column {missing[0]}" if missing else "a column of the schema"
        raise InputError(
            f"the header of {path}: expected {expected}, found {', '.join(names)}. Fix the file, "
            "or the schema"
        )
    ignored = [name for name in names if name not in schema.names]
    if ignored:
        _log.warning("%s: columns not in the schema are ignored: %s", path, ", ".join(ignored))


def check_parquet(paths: list[str], schema: StructType) -> None:
    """Raise InputError unless every file has the schema's columns with its types, and Spark can read
    them."""
    with ThreadPoolExecutor(8) as pool:
        for path, found in zip(paths, pool.map(_parquet_schema, paths), strict=True):
            check_columns(path, found, schema)


def check_columns(where: str, found: StructType, schema: StructType) -> None:
    """Raise InputError unless what was found has the schema's columns with its types."""
    types = {field.name: field.dataType for field in found.fields}
    for field in schema.fields:
        if types.get(field.name) != field.dataType:
            has = types[field.name].simpleString() if field.name in types else "no such column"
            raise InputError(
                f"{where}: expected column {field.name} of type {field.dataType.simpleString()}, found {has}"
            )


def opened(path: str) -> IO[bytes]:
    """A file to read from, decompressed if its name says so."""
    stream: IO[bytes] = fsspec.open(path, "rb", compression="infer").open()
    return stream


def _first_line(path: str) -> str | None:
    """The first line that is not blank, without its end and byte order mark; None if there is none."""
    try:
        with opened(path) as stream:
            for number, line in enumerate(stream):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
                if text.strip():
                    return text.splitlines()[0].decode("utf-8", errors="replace")
        return None
    except (OSError, EOFError) as exc:
        raise InputError(f"source file {path} cannot be read: {exc}") from exc


def _parquet_schema(path: str) -> StructType:
    """The columns as Spark reads them."""
    try:
        with opened(path) as stream, pq.ParquetFile(stream) as file:
            metadata, columns = file.metadata, file.schema
            arrow = file.schema_arrow
    except (OSError, ValueError) as exc:
        raise InputError(f"source file {path} cannot be read as Parquet: {exc}") from exc
    _check_codecs(path, metadata)
    physical = {columns.column(n).path: columns.column(n) for n in range(len(columns.names))}
    fields = []
    for field in arrow:
        old = physical.get(field.name)
        fields.append(_spark_field(path, field, old is not None and old.physical_type == "INT96"))
    return StructType(fields)


def _check_codecs(path: str, metadata: pq.FileMetaData) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.compression in _NO_CODEC:
                raise InputError(
                    f"{path}: column {column.path_in_schema} is compressed with "
                    f"{column.compression}, which Spark has no codec for: write the file with zstd "
                    "or snappy"
                )


def _spark_field(path: str, field: pa.Field, int96: bool) -> StructField:
    """A column as Spark reads it. Raises InputError where it would not, with the way out."""
    if int96:  # a moment in UTC, as Hive and Impala write it
        return StructField(field.name, TimestampType())
    kind = _WIDENED.get(field.type)
    if kind is not None:
        return StructField(field.name, kind)
    if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
        raise InputError(
            f"{path}: column {field.name} holds nanoseconds, which Spark does not read: write it "
            "with microseconds, with pyarrow coerce_timestamps='us'"
        )
    try:
        return StructField(field.name, from_arrow_type(field.type))
    except PySparkException as exc:
        raise InputError(
            f"{path}: column {field.name} is of type {field.type}, which Spark does not read: "
            "write it as another type"
        ) from exc
