"""Columns and rules of Delta tables: which ones a table can have, and whether rows fit an existing
table.
"""

import json
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from ledger.errors import ConfigurationError, StageError
from ledger.sinks.base import Rule
from ledger.sinks.folder import file_problems
from ledger.types import arrow

if TYPE_CHECKING:
    from deltalake import DeltaTable

_IN_FOLDERS = ("boolean", "byte", "short", "integer", "long", "string", "date", "timestamp_ntz")
_CONSTRAINT = "delta.constraints."
_LENGTH = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
# Of these, the ones that a table makes use of show in its properties and columns.
_KNOWN_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "generatedColumns",
    "invariants",
    "timestampNtz",
}


def column_problems(schema: pa.Schema, partition_by: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each reason why no Delta table can have these columns."""
    seen: dict[str, str] = {}
    for name in schema.names:
        if not name or _NOT_IN_NAMES & set(name):
            yield (
                f"column {name!r}: a Delta table takes no name that is empty or has one of "
                f"{' '.join(map(repr, sorted(_NOT_IN_NAMES)))}: rename it in the stage"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name or schema.names.count(name) > 1:
            yield (
                f"columns {other!r} and {name!r} are the same to a Delta table, which ignores case:"
                " rename one in the stage"
            )
    for field in schema:
        for where, kind in arrow.scalars(field.type, field.name):
            if word(kind) is None:
                yield (
                    f"column {where!r} is of type {kind}: expected one that a Delta table can hold:"
                    " cast it in the stage, for example to string"
                )
    yield from file_problems(partition_by, schema.names)
    for name in partition_by:
        kind = arrow.text(schema.field(name).type, word) if name in schema.names else None
        if kind is not None and kind not in _IN_FOLDERS:
            yield (
                f"it is partitioned by {name!r}, a {kind}: expected a type whose text in a folder's"
                " name means one value to every reader: cast it in the stage, for example to a"
                " date or a string"
            )


@cache
def word(kind: pa.DataType) -> str | None:
    """Return Delta's name of a scalar type; None if Delta has no such type."""
    from deltalake import Schema

    # Taken by deltalake all the same: an unsigned 255 as -1, and nanoseconds as a type that asks a
    # feature of every reader.
    unsigned = pa.types.is_unsigned_integer(kind)
    packed = arrow.is_packed(kind)  # whose table would have the bytes
    if unsigned or packed or pa.types.is_null(kind) or getattr(kind, "unit", "us") != "us":
        return None
    try:
        columns = Schema.from_arrow(pa.schema([("c", arrow.utc(kind))])).to_json()
    except Exception:  # deltalake raises nothing narrower
        return None
    return str(json.loads(columns)["fields"][0]["type"])


def require_plain(table: "DeltaTable") -> None:
    """Raise ConfigurationError if the table has a feature for which it is not enough to add and
    remove files.
    """
    protocol, settings = table.protocol(), table.metadata().configuration
    asked = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    unknown = [f"table feature {name}" for name in sorted(asked - _KNOWN_FEATURES)]
    for key, value in sorted(settings.items()):
        if _is_rule(key, value):
            unknown.append(f"table property {key} = {value}")
    unknown += [
        f"{key} of column {field.name}"
        for field in table_columns(table)
        for key in sorted(_metadata(field))
        if key.startswith("delta.")
    ]
    if unknown:
        raise ConfigurationError(
            f"Delta table {table.table_uri}: files committed in place cannot keep to "
            f"{', '.join(unknown)}: drop that from the table, or write to another path"
        )


def table_rules(table: "DeltaTable") -> tuple[Rule, ...]:
    """Return the rules that each row of a table has to meet, in the words of Delta's own errors:
    only a writer of rows enforces them.
    """
    return tuple(rule for rule, _, _ in _rules(table))


def require_checked(table: "DeltaTable", checked: Collection[str]) -> None:
    """Raise ConfigurationError if the table has a rule with which the rows were not compared."""
    for rule, what, drop in _rules(table):
        if rule.condition not in checked:
            raise ConfigurationError(
                f"Delta table {table.table_uri}: {what}: the staged rows were not compared with it,"
                f" for it came after them. Nothing was changed. Drop it (ALTER TABLE ... {drop}),"
                " publish again, and add it again once the table keeps to it"
            )


def _rules(table: "DeltaTable") -> Iterator[tuple[Rule, str, str]]:
    """Yield each rule, the part of the table that has it, and the end of the statement that drops
    it.
    """
    settings = table.metadata().configuration
    for key, text in sorted(settings.items()):
        if key.startswith(_CONSTRAINT) and text:
            name = key.removeprefix(_CONSTRAINT)
            rule = Rule(text, f"CHECK constraint {name} ({text}) violated")
            yield rule, f"table property {key} = {text}", f"DROP CONSTRAINT {name}"
    for field in table_columns(table):
        name = field.name
        column = f"`{name.replace('`', '``')}`"
        alter = f"ALTER COLUMN {column}"
        if not field.nullable:
            condition = f"{column} IS NOT NULL"
            rule = Rule(condition, f"NOT NULL constraint violated for column: {name}")
            yield rule, f"column {name!r} is NOT NULL", f"{alter} DROP NOT NULL"
        declared = _metadata(field).get("__CHAR_VARCHAR_TYPE_STRING", "")
        if length := _LENGTH.fullmatch(declared):
            reason = f"Exceeds char/varchar type length limitation: {length[1]}, column: {name}"
            rule = Rule(f"{column} IS NULL OR length({column}) <= {length[1]}", reason)
            yield rule, f"column {name!r} is a {declared}", f"{alter} TYPE string"


def require_fit(rows: pa.Schema, expected: pa.Schema, place: str) -> None:
    """Raise StageError unless rows of these columns fit the ``expected`` ones. The order of columns
    is ignored, because files are read by name.
    """
    wrong = "; ".join(arrow.differences(expected, rows, word))
    if wrong:
        raise StageError(
            f"rows do not fit {place}: {wrong}. Change the stage and run it again, or alter the"
            " table"
        )


def table_problems(
    table: "DeltaTable", schema: pa.Schema | None, partition_by: tuple[str, ...]
) -> Iterator[str]:
    """Yield a sentence for each reason why the table cannot take rows of ``schema``; None: rows of
    any schema. Nulls in columns are checked row by row, not here; nulls in parts of columns are.
    """
    expected = list(table.metadata().partition_columns)
    if sorted(expected) != sorted(partition_by):
        yield (
            f"partition columns: expected {expected}, found {list(partition_by)}: change"
            " partition_by of the sink, or write to another path"
        )
    if schema is not None:
        columns = [column.with_nullable(True) for column in table_columns(table)]
        for difference in arrow.differences(columns, schema, word):
            yield f"{difference}: change the stage, or alter the table"


def table_columns(table: "DeltaTable") -> pa.Schema:
    """Return the columns of a table."""
    return pa.schema(table.schema().to_arrow())


def _is_rule(key: str, value: str | None) -> bool:
    """Return whether a table property requires more of a writer than adding and removing files, or
    forbids removing them.
    """
    if key == "delta.appendOnly":
        return str(value).lower() == "true"
    if key == "delta.columnMapping.mode":
        return str(value).lower() != "none"
    return key == "delta.setTransactionRetentionDuration"


def _metadata(field: pa.Field) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
