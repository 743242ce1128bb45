"""Find columns that no record has: they are null everywhere, or were renamed at the source."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ledger.errors import InputError, quote
from ledger.sources.files.blocks import body
from ledger.sources.files.text import TextReader, in_tasks
from ledger.sources.listing import UNREADABLE
from ledger.sources.parsing.json_text import parser_of
from ledger.sources.parsing.keys import KeyPath, folded
from ledger.storage.parquet import null_paths, stored_file

FIRST = 1000  # records that the driver looks at before tasks do
_MOST_BLOCKS = 8  # that have these records
_MOST_KEYS = 100  # the most frequent keys that are no columns, among which a new name is sought
_MOST_SHOWN = 3
_THREADS = 8
_PATH, _TIMES = "_ackledger_path", "_ackledger_times"


@dataclass(frozen=True)
class Keys:
    """The keys of a source's records compared with its columns, by path.

    ``absent``: nullable columns, and fields of a STRUCT, that no record has.
    ``others``: keys of records that are neither columns nor misspelt columns.
    """

    absent: Sequence[KeyPath] = ()
    others: Sequence[KeyPath] = ()

    def require_known(self, where: str) -> None:
        """Raise InputError if a column is absent and the same object has unknown keys: one of them
        may be the column's new name.
        """
        for path in self.absent:
            beside = [other for other in self.others if other[:-1] == path[:-1]]
            if beside:
                name = shown(path)

                def likeness(other: KeyPath, own: str = path[-1]) -> float:
                    return SequenceMatcher(None, folded(own), folded(other[-1])).ratio()

                nearest = sorted(beside, key=likeness, reverse=True)[:_MOST_SHOWN]
                names = ", ".join(ascii(shown(other)) for other in nearest)
                raise InputError(
                    f"{where}: no record has column {name!r}, which would be null in all of them,"
                    f" and records have keys that are no columns: {quote(names)}. If the column was"
                    " renamed there, rename it in the schema. If records may lack it, declare the"
                    f" source with optional=[{name!r}]"
                )


def shown(path: KeyPath) -> str:
    """Return a path as people write it: ``item.price``."""
    return ".".join(path)


def of_headers(schema: StructType, optional: Collection[str], headers: Iterable[str]) -> Keys:
    """Compare the names in the headers of files with the columns. Return the absent columns and the
    other names.

    ``optional``: columns that files may lack.
    """
    names = set(headers)
    nullable = [field.name for field in schema.fields if field.nullable]
    absent = [(name,) for name in nullable if name not in names and name not in optional]
    return Keys(absent, _unlike(schema, [(name,) for name in sorted(names)]))


def keys_of_records(
    spark: SparkSession, reader: TextReader, optional: Collection[str], present: Collection[KeyPath]
) -> Keys:
    """Compare the keys of JSON records with the columns. Return the absent columns and the other
    keys.

    ``optional``: columns that all records may lack.
    ``present``: paths that some records are known to have. If a required column is not among them,
    Spark tasks read the keys of all records.
    """
    form = reader.form
    fields = dict(_fields(form.schema))
    missing = [
        path
        for path, field in fields.items()
        if field.nullable and path not in present and shown(path) not in optional
    ]
    if not missing or not reader.blocks:
        return Keys()
    columns = fields.keys() & set(present)
    others = most_frequent(spark, reader, columns, missing)
    objects = {path[:-1] for path in (*columns, *others)}
    taken = set(map(_folded, others))  # a record that misspells a column fails, and says so
    return Keys(
        [path for path in missing if path[:-1] in objects and _folded(path) not in taken],
        _unlike(form.schema, others),
    )


def stored_paths(schema: StructType, files: Iterable[str]) -> set[KeyPath]:
    """Return the paths of columns, and of fields of a STRUCT, with a value in one of a snapshot's
    files.
    """
    paths = {path for path, _ in _fields(schema)}
    with ThreadPoolExecutor(_THREADS) as pool:
        return paths - paths.intersection(*pool.map(_null_paths, files))


def _null_paths(file: str) -> set[KeyPath]:
    with stored_file(file) as stored:
        return null_paths(stored)


def first_paths(reader: TextReader) -> set[KeyPath]:
    """Return the paths of the keys of the first records of some blocks, which are spread over the
    files.
    """
    blocks = reader.blocks[:: -(-len(reader.blocks) // _MOST_BLOCKS) or 1]
    paths: set[KeyPath] = set()
    for block in blocks:
        with suppress(*UNREADABLE):  # its reader says so
            lines = next(body(block), b"").splitlines()
            for line in islice(lines, -(-FIRST // len(blocks))):
                with suppress(ValueError, RecursionError):  # tasks know what options allow
                    paths.update(_keys(json.loads(line), reader.form.schema))
    return paths


def _fields(kind: DataType, path: KeyPath = ()) -> Iterator[tuple[KeyPath, StructField]]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield (*path, field.name), field
            yield from _fields(field.dataType, (*path, field.name))
    elif isinstance(kind, ArrayType):
        yield from _fields(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _fields(kind.valueType, path)


def _folded(path: KeyPath) -> KeyPath:
    return tuple(map(folded, path))


def _unlike(schema: StructType, keys: Iterable[KeyPath]) -> list[KeyPath]:
    """Return the keys that do not resemble the name of a column."""
    columns = {_folded(path) for path, _ in _fields(schema)}
    return [key for key in keys if _folded(key) not in columns]


def _keys(value: Any, kind: DataType, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(kind, StructType) and isinstance(value, dict):
        for key in value:
            yield (*path, key)
        for field in kind.fields:
            yield from _keys(value.get(field.name), field.dataType, (*path, field.name))
    elif isinstance(kind, ArrayType) and isinstance(value, list):
        for element in value:
            yield from _keys(element, kind.elementType, path)
    elif isinstance(kind, MapType) and isinstance(value, dict):
        for element in value.values():
            yield from _keys(element, kind.valueType, path)


def most_frequent(
    spark: SparkSession,
    reader: TextReader,
    present: Collection[KeyPath],
    missing: Sequence[KeyPath],
) -> list[KeyPath]:
    """Return the ``missing`` paths that some records have, and the most frequent keys that are not
    among the columns ``present``.
    """
    excluded, schema = set(present), reader.form.schema

    def count(numbers: range) -> Iterator[pa.RecordBatch]:
        parse = parser_of(reader.form.options)
        for number in numbers:
            for records in reader.lines(number):
                counts = Counter[KeyPath]()
                for line in records.texts(np.arange(len(records))):
                    with suppress(ValueError):  # the record fails
                        counts.update(_keys(parse(line.decode()), schema))
                others = [path for path in counts if path not in excluded]
                paths = pa.array([list(path) for path in others], pa.list_(pa.string()))
                times = pa.array([counts[path] for path in others], pa.int64())
                yield pa.RecordBatch.from_arrays([paths, times], [_PATH, _TIMES])

    columns = f"{_PATH} array<string>, {_TIMES} bigint"
    counted = in_tasks(spark, count, reader.shares, columns)
    times = counted.groupBy(_PATH).agg(F.sum(_TIMES).alias(_TIMES))
    is_missing = F.array_contains(
        F.array(*(F.array(*map(F.lit, path)) for path in missing)), F.col(_PATH)
    )
    ordered = times.orderBy(is_missing.desc(), F.desc(_TIMES), _PATH)
    rows = ordered.limit(len(missing) + _MOST_KEYS).collect()
    return [tuple(row[_PATH]) for row in rows]
