"""Find a source's files and check them before a record is read."""

import codecs
import csv
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import fsspec
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ledger.errors import InputError

_PATTERN = re.compile(r"([\[\]{}*?\\])")


def literal(paths: Sequence[str]) -> list[str]:
    """Paths as Spark takes them for just these files: it would read a name with ``[`` as a pattern."""
    return [_PATTERN.sub(r"\\\1", path) for path in paths]


def check_headers(
    paths: list[str], schema: StructType, options: Mapping[str, str]
) -> dict[str, str]:
    """The header line of each file that has one; a file without records may lack it.

    Raises InputError naming file, expected and found names unless they are the schema's, in order.
    """
    with ThreadPoolExecutor(8) as pool:
        lines = dict(zip(paths, pool.map(_first_line, paths), strict=True))
    reader = {"delimiter": options.get("sep", ","), "quotechar": options.get("quote", '"')}
    for path, line in lines.items():
        if line is None:
            continue
        found = next(csv.reader([line], **reader))  # type: ignore[arg-type]
        if found != schema.names:
            raise InputError(
                f"the header of {path} is not the schema's names in order: expected {', '.join(schema.names)}; "
                f"found {', '.join(found)}. Mend the file, or declare the source with header=False"
            )
    return {path: line for path, line in lines.items() if line is not None}


def check_parquet(paths: list[str], schema: StructType) -> None:
    """Raise InputError unless every file has the schema's columns with its types."""
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


def _open(path: str) -> IO[bytes]:
    opened: IO[bytes] = fsspec.open(path, "rb", compression="infer").open()
    return opened


def _first_line(path: str) -> str | None:
    """The first line that is not blank, without its end and byte order mark; None if there is none."""
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
                if text.strip():
                    return text.splitlines()[0].decode("utf-8", errors="replace")
        return None
    except (OSError, EOFError) as exc:
        raise InputError(f"source file {path} cannot be read: {exc}") from exc


def _parquet_schema(path: str) -> StructType:
    try:
        with _open(path) as stream:
            return from_arrow_schema(pq.read_schema(stream))
    except (OSError, ValueError) as exc:
        raise InputError(f"source file {path} cannot be read as Parquet: {exc}") from exc
