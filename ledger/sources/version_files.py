"""The files of a version: whether they are there, how many rows they have, and whether all rows fit
the version's schema.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from ledger.core.column_names import is_own
from ledger.core.text import quantity
from ledger.errors import InputError
from ledger.sources.files.layouts import ParquetFooter, parquet_footer
from ledger.storage import stores
from ledger.storage.manifest import About, DataFile
from ledger.storage.versions import Version
from ledger.types.spark import nullable, to_arrow_schema, without_lengths

_REBASED = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_WRITER, _REBASING_SINCE = b"org.apache.spark.version", (3, 1)  # earlier writers note no calendar


@dataclass(frozen=True)
class ListedFile:
    """A file as the table lists it. ``path``: absolute or a URL."""

    path: str
    bytes: int


@dataclass(frozen=True)
class TakenVersion:
    """A version whose files were looked at.

    ``misfit``: why a row may not fit the version's schema; None: all rows fit it.
    """

    version: Version
    misfit: str | None


def take_version(
    about: About, schema: StructType, listed: Sequence[ListedFile], values: pa.Table | None = None
) -> TakenVersion:
    """Look at the files of a version. Raises InputError if one of them is lost, or if Spark cannot
    read it exactly.

    ``values``: a row for each file, with the columns that are not in the files.
    """
    within = [] if values is None else values.column_names
    columns = StructType([field for field in schema.fields if field.name not in within])
    with ThreadPoolExecutor(8) as pool:
        footers = list(pool.map(partial(_footer, about, columns), listed))
    files, numbers, position = [], [], 0
    for number, (file, footer) in enumerate(zip(listed, footers, strict=True)):
        if footer.rows:
            files.append(DataFile(file.path, file.bytes, footer.rows, position))
            numbers.append(number)
            position += footer.rows
    plain = nullable(schema)
    assert isinstance(plain, StructType)
    version = Version(
        about,
        schema.json(),
        to_arrow_schema(plain),
        tuple(files),
        None if values is None else values.take(pa.array(numbers, pa.int64())),
    )
    pairs = zip(listed, footers, strict=True)
    misfits = (each for file, footer in pairs for each in _misfits(file, footer, columns))
    return TakenVersion(version, next(_null_values(schema, values), None) or next(misfits, None))


def _footer(about: About, columns: StructType, file: ListedFile) -> ParquetFooter:
    entry = stores.info(file.path)
    if entry is None or entry.bytes != file.bytes:
        actual = "it is gone" if entry is None else f"found {entry.bytes} bytes"
        raise InputError(
            f"file {file.path} of {about.name}: expected {file.bytes} bytes, {actual}."
            f" {about.if_lost}"
        )
    return parquet_footer(file.path, columns.names, str.lower)


def _misfits(file: ListedFile, footer: ParquetFooter, columns: StructType) -> Iterator[str]:
    """Yield reasons why a row of a file may not fit the columns."""
    kinds = {field.name: nullable(field.dataType) for field in footer.columns.fields}
    for name in filter(is_own, footer.names):
        yield f"{file.path} has column {name!r}, which the files of a batch have"
    unread = {name.lower() for name in footer.names if name not in kinds}
    for field in columns.fields:
        if without_lengths(field.dataType) != field.dataType:
            yield f"column {field.name!r} has texts of limited length"
        own = kinds.get(field.name)
        if own is None and field.name.lower() in unread:
            yield f"{file.path} has column {field.name!r} in another case"
        elif own not in (None, nullable(field.dataType)):
            yield (
                f"{file.path} has column {field.name!r} of type {own.simpleString()}, the table of"
                f" {field.dataType.simpleString()}"
            )
        elif not field.nullable and (own is None or _may_have_nulls(footer, field.name)):
            yield f"{file.path} has nulls in column {field.name!r}, which is NOT NULL"
        elif own is not None and _requires_parts(field.dataType):
            yield f"column {field.name!r} has parts that are NOT NULL"
    if _has_old_calendar(footer.metadata.metadata or {}):
        yield f"{file.path} has dates of an old calendar"


def _has_old_calendar(notes: Mapping[bytes, bytes]) -> bool:
    """Return whether dates of a file may be of the Julian calendar, by the notes in its footer."""
    writer = re.match(rb"(\d+)\.(\d+)", notes.get(_WRITER, b""))
    is_old = writer is not None and tuple(map(int, writer.groups())) < _REBASING_SINCE
    return is_old or any(key in notes for key in _REBASED)


def _may_have_nulls(footer: ParquetFooter, name: str) -> bool:
    """Return whether a column may have a null, according to the statistics of its row groups."""
    metadata = footer.metadata
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        own = [group.column(place) for place in range(group.num_columns)]
        chunks = [chunk for chunk in own if f"{chunk.path_in_schema}.".startswith(f"{name}.")]
        if not chunks or not all(map(_has_no_nulls, chunks)):
            return True
    return False


def _has_no_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
    return bool(statistics and statistics.has_null_count and statistics.null_count == 0)


def _requires_parts(kind: Any) -> bool:
    """Return whether a part of a type may not be null."""
    return bool(nullable(kind) != kind)


def _null_values(schema: StructType, values: pa.Table | None) -> Iterator[str]:
    """Yield a reason for each column that is NOT NULL and not in the files, and that is null."""
    if values is None:
        return
    for name in values.column_names:
        if not schema[name].nullable and values[name].null_count:
            files = quantity(values[name].null_count, "file has", "files have")
            yield f"{files} null in column {name!r}, which is NOT NULL"
