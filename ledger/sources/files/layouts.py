"""Find a source's files and check them before a record is read."""

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from ledger.core.paths import is_local
from ledger.errors import InputError, LedgerError, quote, together
from ledger.sources.files.format import Format
from ledger.sources.listing import UNREADABLE, opened
from ledger.sources.parsing.keys import folded, quoted_lookalike
from ledger.sources.parsing.typed import check_columns
from ledger.storage import parquet, stores
from ledger.types.arrow import is_list, parts, plain, rebuilt
from ledger.types.spark import from_arrow_type

_log = logging.getLogger(__name__)

# What Spark reads as another type. Instants in seconds are none of Parquet's: see parquet_footer.
_READ_AS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.timestamp("s"): pa.timestamp("us", "UTC"),
}
_NO_CODEC = ("BROTLI", "LZO")
_NO_ENCODING = "BYTE_STREAM_SPLIT"

_LONGEST_NAME = 1 << 17  # characters
_MOST_SHOWN = 40  # characters of what should have been a header
_MOST_FILES = 5  # that are wrong, with what is wrong of them

_Result = TypeVar("_Result")
_Case = Callable[[str], str]


@dataclass(frozen=True)
class Layout:
    """CSV files with the same columns.

    ``headers``: the line with their names, by file. Empty for a file that had only blank lines, so
    that no later line is taken for its header.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    headers: Mapping[str, str]


def layouts(paths: list[str], schema: StructType, by_name: bool, form: Format) -> list[Layout]:
    """Group files by the columns of their headers. A file without records may lack a header.

    Raises InputError, with the file and the names expected and found, for a header that does not
    fit.

    ``by_name``: a header may have other names, in any order, instead of the schema's names in
    order.
    """
    lines: dict[str, str] = {}
    groups: dict[tuple[str, ...], list[str]] = {}

    def use(path: str, line: str) -> None:
        names = _names(path, line, form) if line else schema.names
        check = _check_names if by_name else _check_order
        check(path, names, schema)
        lines[path] = line
        groups.setdefault(tuple(names), []).append(path)

    _for_each(paths, _first_line, use)
    return [
        Layout(names, tuple(own), {path: lines[path] for path in own})
        for names, own in groups.items()
    ]


def _for_each(
    paths: Sequence[str], read: Callable[[str], _Result], use: Callable[[str, _Result], None]
) -> None:
    """Read eight files at a time, and use the result of each.

    Raises one InputError for all files that are wrong, with the texts of the first few.
    """
    with ThreadPoolExecutor(8) as pool:
        reading = [(path, pool.submit(read, path)) for path in paths]
    wrong: list[LedgerError] = []
    for path, result in reading:
        try:
            use(path, result.result())
        except InputError as exc:
            wrong.append(exc)
    if wrong:
        raise together(wrong, "files", _MOST_FILES)


def _names(path: str, header: str, form: Format) -> list[str]:
    names = form.dialect.texts(header)
    if names is None or max(map(len, names)) > _LONGEST_NAME:
        hint = ". Fix the file"
        if names is None:
            hint = ", with a quote within a name, or one that is never closed. Double the quote and"
            hint += " enclose the name in quotes, declare options={'quote': ''} if quotes mean"
            hint += " nothing"
        raise InputError(
            f"the header of {path}: expected the names of columns, found {len(header):,} characters"
            f" that begin with {quote(repr(header[:_MOST_SHOWN]))}{hint}, or declare the source"
            " with header=False"
        )
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InputError(f"the header of {path} has {quote(repr(repeated[0]))} twice: fix the file")
    return names


def _check_order(path: str, names: list[str], schema: StructType) -> None:
    if names != schema.names:
        way_out = ", or with header='by_name'" if set(schema.names) & set(names) else ""
        alike = {folded(name): name for name in schema.names if name not in names}
        shown = ", ".join(
            quoted_lookalike(name, alike[folded(name)]) if folded(name) in alike else name
            for name in names
        )
        raise InputError(
            f"the header of {path} is not the schema's names in order: expected "
            f"{', '.join(schema.names)}; {quote(f'found {shown}')}. Fix the file, or declare the "
            f"source with header=False{way_out}"
        )


def _check_names(path: str, names: list[str], schema: StructType) -> None:
    """Raise InputError for a header without a column that may not be null, without any of the
    schema's columns, or with a name that a person takes for that of a missing column. Other columns
    are ignored; their number is logged.
    """
    absent = {folded(name): name for name in schema.names if name not in names}
    for name in names:
        meant = absent.get(folded(name))
        if meant is not None and name not in schema.names:
            shown = quoted_lookalike(name, meant)
            raise InputError(
                f"the header of {path}: expected column {meant!r}, {quote(f'found {shown}')}; did"
                f" you mean {meant!r}? Fix the file, or the schema"
            )
    missing = [
        field.name for field in schema.fields if not field.nullable and field.name not in names
    ]
    if missing or not set(names) & set(schema.names):
        expected = f"NOT NULL column {missing[0]}" if missing else "a column of the schema"
        raise InputError(
            f"the header of {path}: expected {expected}, {quote('found ' + ', '.join(names))}. Fix"
            " the file, or the schema"
        )
    ignored = sum(name not in schema.names for name in names)
    if ignored:  # not their names: who has no header has values there
        _log.warning("%s: %d column(s) not in the schema are ignored", path, ignored)


def check_parquet(
    paths: list[str], schema: StructType, *, case_sensitive: bool = False
) -> dict[str, int]:
    """Return the records of each file by its footer. ``case_sensitive``: the session of Spark
    distinguishes names that differ in case. Raises InputError unless every file has the schema's
    columns with its types, and Spark can read them.
    """
    counts: dict[str, int] = {}

    def use(path: str, footer: ParquetFooter) -> None:
        counts[path] = footer.rows
        check_columns(path, footer.columns, schema)

    read = partial(parquet_footer, names=schema.names, case=str if case_sensitive else str.lower)
    _for_each(paths, read, use)
    return counts


def encoded(line: str) -> bytes:
    """Return the bytes of a line in which bytes that are not UTF-8 were escaped."""
    return line.encode("utf-8", "surrogateescape")


def _first_line(path: str) -> str:
    """Return the first line that is not blank, without its end and byte order mark; empty if there
    is none. Raises InputError if the file cannot be read, or if the line is not UTF-8.
    """
    try:
        with (
            opened(path) as stream,
            io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as lines,
        ):
            line = next((line for line in lines if line.strip()), "")
    except UNREADABLE as exc:
        raise InputError(f"source file {path} cannot be read: {exc}") from exc
    try:
        return encoded(line.rstrip("\r\n")).decode()
    except UnicodeDecodeError as exc:
        raise InputError(
            f"the header of {path} is not UTF-8: convert the file, for example with iconv"
        ) from exc


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a Parquet file.

    ``columns``: the columns that were asked for, as Spark reads them.
    ``names``: the names of all columns.
    ``rows``: the number of records.
    """

    columns: StructType
    names: Sequence[str]
    rows: int
    metadata: pq.FileMetaData


def parquet_footer(path: str, names: Sequence[str], case: _Case) -> ParquetFooter:
    """Return the footer of a file, with the columns of ``names``. Raises InputError for a file that
    Spark would not read, or not exactly.

    ``case``: maps names that Spark does not distinguish to one name.
    """
    if is_local(path) and ":" in path.rpartition("/")[2]:
        raise InputError(
            f"source file {path}: expected a name without a colon, with which Spark reads no"
            " Parquet file: rename it"
        )
    try:
        # INT96 is a timestamp in UTC, as Hive and Impala write it: it shows by a unit that Parquet
        # has not.
        with (
            stores.opened(path) as stream,
            pq.ParquetFile(stream, coerce_int96_timestamp_unit="s") as file,
        ):
            metadata, arrow = file.metadata, file.schema_arrow
    except UNREADABLE as exc:
        raise InputError(f"source file {path} cannot be read as Parquet: {exc}") from exc
    _check_codecs(path, metadata, names)
    read = set(map(case, names))
    _check_alike(path, [field for field in arrow if case(field.name) in read], case)
    _check_row_groups(path, metadata)
    _check_int96(path, metadata, names)
    read_as = partial(_read_as, path)
    fields = [
        StructField(field.name, from_arrow_type(rebuilt(field.type, read_as, field.name)))
        for field in arrow
        if field.name in names
    ]
    return ParquetFooter(StructType(fields), arrow.names, int(metadata.num_rows), metadata)


def _check_row_groups(path: str, metadata: pq.FileMetaData) -> None:
    """Raise InputError unless the row groups have as many records as the footer states.

    Spark reads each row group at most once. With equal sums it cannot read more of one file than
    its footer states and less of another.
    """
    rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        raise InputError(
            f"source file {path} is damaged: expected {metadata.num_rows} records by its footer,"
            f" found {rows} in the row groups that it lists. Write the file again, then run this"
            " again"
        )


def _check_codecs(path: str, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            whole = f"{column.path_in_schema}."
            declared = any(whole.startswith(f"{name}.") for name in names)
            if declared and column.compression in _NO_CODEC:
                raise InputError(
                    f"{path}: column {column.path_in_schema} is compressed with "
                    f"{column.compression}, which Spark has no codec for: write the file with zstd "
                    "or snappy"
                )
            if declared and _NO_ENCODING in column.encodings:
                raise InputError(
                    f"{path}: column {column.path_in_schema} is encoded as {_NO_ENCODING}, which"
                    " Spark does not read: write the file without it, with pyarrow"
                    " use_byte_stream_split=False"
                )


def _check_alike(path: str, fields: Sequence[pa.Field], case: _Case) -> None:
    """Raise InputError if Spark cannot distinguish two columns, or parts of one, by their names."""
    by_name: dict[str, list[str]] = {}
    for field in fields:
        by_name.setdefault(case(field.name), []).append(field.name)
        _check_alike(path, parts(field.type), case)
    for name, alike in by_name.items():
        if len(alike) > 1:
            raise InputError(
                f"{path}: expected one column, or field of a struct, with the name {name!r} in"
                f" upper or lower case, found {', '.join(alike)}, of which Spark reads neither:"
                " rename one in the file"
            )


def _check_int96(path: str, metadata: pq.FileMetaData, names: Sequence[str]) -> None:
    """Raise InputError for INT96 timestamps with nanoseconds, which Spark cuts. The files of Spark,
    of any version, have none.
    """
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    tops = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    columns = [name for name in names if name.split(".")[0] in tops]
    # Other writers copy the note of Spark's schema, but not the name of its writer.
    is_of_spark = parquet.SPARK_SCHEMA.encode() in (metadata.metadata or {})
    if not columns or (is_of_spark and str(metadata.created_by).startswith("parquet-mr")):
        return
    try:
        for exact, cut in _int96_values(path, columns):
            _require_microseconds(path, exact, cut)
    except UNREADABLE as exc:
        raise InputError(f"source file {path} cannot be read as Parquet: {exc}") from exc


def _int96_values(path: str, columns: list[str]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Read the columns of each row group once, and decode them with nanoseconds, which may have
    wrapped around, and with microseconds."""
    with stores.opened(path) as stream:
        ranges: dict[tuple[int, int], bytes] = {}
        exact, cut = (
            pq.ParquetFile(
                _SharedReader(stream, ranges), pre_buffer=False, coerce_int96_timestamp_unit=unit
            )
            for unit in ("ns", "us")
        )
        for group in range(exact.num_row_groups):
            ranges.clear()
            yield (
                parquet.read_row_group(exact, group, columns),
                parquet.read_row_group(cut, group, columns),
            )


class _SharedReader(io.RawIOBase):
    """A reader of a stream that shares what it reads with others of the same ``ranges``.

    Only the first reader that asks for a range of bytes reads it from the stream.
    """

    def __init__(self, stream: IO[bytes], ranges: dict[tuple[int, int], bytes]):
        self._stream, self._ranges, self._place = stream, ranges, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place."""
        if whence == io.SEEK_CUR:
            offset, whence = offset + self._place, io.SEEK_SET
        self._place = self._stream.seek(offset, whence)
        return self._place

    def readable(self) -> bool:
        """Return whether it can be read."""
        return True

    def tell(self) -> int:
        """Return the place of this reader."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``."""
        key = (self._place, size)
        if key not in self._ranges:
            self._stream.seek(self._place)
            self._ranges[key] = self._stream.read(size)
        self._place += len(self._ranges[key])
        return self._ranges[key]


def _require_microseconds(path: str, exact: pa.Table, cut: pa.Table) -> None:
    for name in exact.column_names:
        pairs = zip(_leaves(exact[name]), _leaves(cut[name]), strict=True)
        for nanoseconds, microseconds in pairs:
            if nanoseconds.type == microseconds.type:  # none of INT96
                continue
            numbers = [
                column.cast(pa.int64()).fill_null(0).to_numpy()
                for column in (nanoseconds, microseconds)
            ]
            rest = numbers[0] - numbers[1] * 1000  # both modulo 2 ** 64
            if rest.any():
                first = int(rest.nonzero()[0][0])
                value = f"{microseconds[first].cast(pa.string())}{rest[first]:03}"
                raise InputError(
                    f"{path}: column {name} holds nanoseconds, which Spark does not read: found"
                    f" {quote(value)}; write it with microseconds, with pyarrow"
                    " coerce_timestamps='us'"
                )


def _leaves(column: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """Yield the values of a column without their structure: one array for each leaf of its type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_map(column.type):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif is_list(column.type):
        yield from _leaves(column.flatten())
    elif pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _leaves(part)
    else:
        yield column


def _read_as(path: str, kind: pa.DataType, where: str) -> pa.DataType:
    """Return the type as which Spark reads a scalar. Raises InputError where it would not, with the
    way out."""
    kind = plain(kind)  # as pandas writes categories; the file holds their values
    kind = _READ_AS.get(kind, kind)
    if getattr(kind, "unit", None) == "ns" and not pa.types.is_duration(kind):
        raise InputError(
            f"{path}: column {where} holds nanoseconds, which Spark does not read: write it "
            "with microseconds, with pyarrow coerce_timestamps='us'"
        )
    if pa.types.is_duration(kind) and kind.unit != "us":
        raise InputError(
            f"{path}: column {where} holds durations in {kind.unit}, of which Spark reads the"
            f" numbers as microseconds: write it as {pa.duration('us')}, with pandas"
            " astype('timedelta64[us]')"
        )
    try:
        from_arrow_type(kind)
    except PySparkException as exc:
        raise InputError(
            f"{path}: column {where} is of type {kind}, which Spark does not read: "
            "write it as another type"
        ) from exc
    return kind
