"""Columns that no record of a source has: null in all of them, or renamed where they come from."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import chain, islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ledger.core.column_names import TEXT
from ledger.errors import InputError
from ledger.sources.files.blocks import body
from ledger.sources.files.lines import Format, key_paths
from ledger.sources.files.text import TextReader
from ledger.sources.listing import UNREADABLE
from ledger.sources.parsing.keys import folded

FIRST = 1000  # records that the driver looks at before tasks do
_MOST_KEYS = 100  # the most frequent keys that are no columns, among which a new name is sought
_MOST_SHOWN = 3
_PATH = "_ackledger_path"


@dataclass(frozen=True)
class Keys:
    """The keys of a source's records, by path (``item.price``). ``absent``: nullable columns, and
    fields of a STRUCT, that no record has. ``others``: keys that are no columns, and are not taken
    for one."""

    absent: Sequence[str] = ()
    others: Sequence[str] = ()

    def require_known(self, where: str) -> None:
        """Raise InputError if records have other keys beside those of a column that is absent: one
        of them may be its new name."""
        for path in self.absent:
            beside = [other for other in self.others if _parent(other) == _parent(path)]
            if beside:
                raise _renamed(where, path, beside)


def of_headers(schema: StructType, optional: Collection[str], headers: Iterable[str]) -> Keys:
    """The names in the headers of files. ``optional``: columns that they may lack."""
    names = set(headers)
    nullable = [field.name for field in schema.fields if field.nullable]
    absent = [name for name in nullable if name not in names and name not in optional]
    return Keys(absent, _unlike(schema, sorted(names)))


def of_records(spark: SparkSession, reader: TextReader, optional: Collection[str]) -> Keys:
    """The keys of records of JSON. ``optional``: paths of columns that they may lack.

    The first records are looked at first. Tasks look for what these lack, and read all keys only
    if no record has a column.
    """
    form = reader.form
    seen = set(_first_keys(reader))
    missing = [
        path
        for path, field in _fields(form.schema)
        if field.nullable and path not in optional and path not in seen
    ]
    if not missing or not reader.blocks:
        return Keys()
    as_text = replace(reader, form=replace(form, names=()), values=False)  # nothing by columns
    texts = as_text.frame(spark).select(TEXT)
    seen |= set(_having(texts, form, missing))
    missing = [path for path in missing if path not in seen and _parent(path) in {"", *seen}]
    if not missing:
        return Keys()
    others = _most_frequent(texts, form)
    objects = {_parent(path) for path in (*seen, *others)}
    misspelt = set(map(folded, others))  # a record that has such a key fails, and says so
    return Keys(
        [path for path in missing if _parent(path) in objects and folded(path) not in misspelt],
        _unlike(form.schema, others),
    )


def _fields(kind: DataType, path: str = "") -> Iterator[tuple[str, StructField]]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield path + field.name, field
            yield from _fields(field.dataType, f"{path}{field.name}.")
    elif isinstance(kind, ArrayType):
        yield from _fields(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _fields(kind.valueType, path)


def _unlike(schema: StructType, keys: Iterable[str]) -> list[str]:
    """The keys that no person takes for a column's."""
    columns = {folded(path) for path, _ in _fields(schema)}
    return [key for key in keys if folded(key) not in columns]


def _first_keys(reader: TextReader) -> Iterator[str]:
    text = b""
    with suppress(*UNREADABLE):  # its reader says so
        text = next(chain.from_iterable(map(body, reader.blocks[:1])), b"")
    for line in islice(text.splitlines(), FIRST):
        with suppress(ValueError, RecursionError):  # tasks know what options of the source allow
            yield from _keys(json.loads(line), reader.form.schema)


def _keys(value: Any, kind: DataType, path: str = "") -> Iterator[str]:
    if isinstance(kind, StructType) and isinstance(value, dict):
        for key in value:
            yield path + key
        for field in kind.fields:
            yield from _keys(value.get(field.name), field.dataType, f"{path}{field.name}.")
    elif isinstance(kind, ArrayType) and isinstance(value, list):
        for element in value:
            yield from _keys(element, kind.elementType, path)
    elif isinstance(kind, MapType) and isinstance(value, dict):
        for element in value.values():
            yield from _keys(element, kind.valueType, path)


def _having(texts: DataFrame, form: Format, paths: Sequence[str]) -> list[str]:
    """The paths that some records have. Only a record that has the name as a text is parsed, or
    one with an escape, which may be of a letter."""
    names = {path.rpartition(".")[2] for path in paths}
    marks = ["\\", *(f'"{name}"' for name in names)]
    if any("Quote" in name or "Unquoted" in name for name in form.options):
        marks = [""]
    may_have = F.lit(False)
    for mark in marks:
        may_have |= F.contains(TEXT, F.lit(mark))
    own = F.array_intersect(key_paths(F.col(TEXT), form), F.array(*map(F.lit, paths)))
    rows = texts.where(may_have).select(F.explode(own).alias(_PATH)).distinct().collect()
    return [row[_PATH] for row in rows]


def _most_frequent(texts: DataFrame, form: Format) -> list[str]:
    """The keys that are no columns."""
    columns = [path for path, _ in _fields(form.schema)]
    others = F.array_except(key_paths(F.col(TEXT), form), F.array(*map(F.lit, columns)))
    counts = texts.select(F.explode(others).alias(_PATH)).groupBy(_PATH).count()
    rows = counts.orderBy(F.desc("count"), _PATH).limit(_MOST_KEYS).collect()
    return [row[_PATH] for row in rows]


def _renamed(where: str, path: str, beside: Sequence[str]) -> InputError:
    def likeness(other: str) -> float:
        return SequenceMatcher(None, folded(path), folded(other)).ratio()

    nearest = sorted(beside, key=likeness, reverse=True)[:_MOST_SHOWN]
    shown = ", ".join(map(ascii, nearest))
    return InputError(
        f"{where}: no record has column {path!r}, which would be null in all of them, and records"
        f" have keys that are no columns: {shown}. If the column was renamed there, rename it in"
        f" the schema. If records may lack it, declare the source with optional=[{path!r}]",
        quotes=[shown],
    )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
