"""Check that a table of PostgreSQL takes the rows of a sink, and say how to alter it if not."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy.types import TypeEngine

from ledger.databases.identifiers import quoted
from ledger.errors import StageError
from ledger.sinks.options import LONGEST_NAME
from ledger.sinks.postgres.table import BATCH, TablePlace, TargetTable, type_name
from ledger.sinks.postgres.trial import RECORDS, ROW
from ledger.sinks.postgres.types import column_type, fits

_SYSTEM = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def new_columns(
    place: TablePlace, schema: pa.Schema, key: Sequence[str]
) -> dict[str, TypeEngine[Any]]:
    """Return the columns of a table to be created, by name. Raises StageError with each column that
    PostgreSQL cannot have.
    """
    require_fit(place, None, schema, key)
    columns = {field.name: column_type(field.type) for field in schema}
    return {name: kind for name, kind in columns.items() if kind is not None}


def require_fit(
    place: TablePlace, table: TargetTable | None, schema: pa.Schema, key: Sequence[str]
) -> None:
    """Raise StageError with all problems of the table, or of the columns of a table to be
    created.
    """
    if message := "; ".join(problems(table, schema, key)):
        raise StageError(f"the sink's table {place} does not take the rows: {message}")


def problems(table: TargetTable | None, schema: pa.Schema | None, key: Sequence[str]) -> list[str]:
    """Return a sentence for each reason why the table cannot take rows of ``schema``: what was
    expected and found, and the statement that fixes it.

    ``table``: None: the table does not exist yet.
    ``schema``: None: check only what the sink needs for any rows.
    """
    if table is not None and table.kind not in ("r", "p"):
        kind = _KINDS.get(table.kind, "no table")
        return [f"{table.place}: expected a table, found {kind}: choose another name"]
    if schema is not None:
        unusable = [*_schema_problems(schema, key)]
        return unusable if unusable or table is None else [*_misfits(table, schema, key)]
    if table is None:
        return []
    missing = [name for name in key if name not in table.columns]
    if missing:
        has = ", ".join(table.columns)
        return [f"key column {name!r} is missing: the table has {has}" for name in missing]
    return [*_own_misfits(table, key)]


def _schema_problems(schema: pa.Schema, key: Sequence[str]) -> Iterator[str]:
    """Yield a message for each reason why no table could have these columns: there are none, or a
    name is reserved, repeated, empty or too long, or a type has no counterpart in PostgreSQL. Yield
    one for each key column that is missing.
    """
    if not schema.names:
        yield "expected columns, found none: select some in the stage before the sink"
    for field in schema:
        name = field.name
        if name in (BATCH, ROW, RECORDS) or name in _SYSTEM:
            yield (
                f"column {name!r}: this name is taken by ackledger or PostgreSQL: rename the column"
            )
        elif schema.names.count(name) > 1:
            yield f"column {name!r}: it is there more than once: rename one"
        elif not 0 < len(name.encode()) <= LONGEST_NAME or "\0" in name:
            yield (
                f"column {name!r}: expected a name of 1 to {LONGEST_NAME} bytes: rename the column"
            )
        elif column_type(field.type) is None:
            yield (
                f"column {name!r}: type {field.type} has no counterpart in PostgreSQL: cast it in"
                " the stage before the sink"
            )
    for name in key:
        if name not in schema.names:
            yield f"key column {name!r} is missing: the rows have {', '.join(schema.names)}"


def _misfits(table: TargetTable, schema: pa.Schema, key: Sequence[str]) -> Iterator[str]:
    """Yield a message for each column of the rows or the table that does not fit the other."""
    alter = f"ALTER TABLE {table.place}"
    for field in schema:
        expected = type_name(column_type(field.type) or TypeEngine())
        column, name = table.columns.get(field.name), quoted(field.name)
        if column is None:
            yield f"column {field.name!r} is missing: {alter} ADD COLUMN {name} {expected}"
        elif not fits(field.type, column):
            yield (
                f"column {field.name!r}: expected {expected}, found {column.type}: {alter} ALTER"
                f" COLUMN {name} TYPE {expected}, or cast it in the stage before the sink"
            )
        elif not column.writable:
            yield (
                f"column {field.name!r}: expected one that takes values, found it GENERATED ALWAYS:"
                " leave it out in the stage before the sink"
            )
    for column in table.columns.values():
        if column.required and column.name not in (*schema.names, BATCH):
            own = f"{alter} ALTER COLUMN {quoted(column.name)}"
            yield (
                f"column {column.name!r}: expected in the rows, for it is NOT NULL and has no"
                f" default, found {', '.join(schema.names)}: add it in the stage before the sink,"
                f" or a default with {own} SET DEFAULT ..., or allow null with {own} DROP NOT NULL"
            )
    yield from _own_misfits(table, key)


def _own_misfits(table: TargetTable, key: Sequence[str]) -> Iterator[str]:
    """Yield a message for each problem of the columns and indexes that the sink itself needs."""
    alter = f"ALTER TABLE {table.place}"
    own = table.columns.get(BATCH)
    if own is None:
        yield f"column {BATCH!r} is missing: {alter} ADD COLUMN {BATCH} bigint"
    elif own.base != "int8":
        yield (
            f"column {BATCH!r}: expected bigint, found {own.type}: {alter} ALTER COLUMN {BATCH}"
            " TYPE bigint"
        )
    if key and frozenset(key) not in table.unique:
        names = ", ".join(quoted(name) for name in key)
        indexes = sorted(f"({', '.join(sorted(map(quoted, each)))})" for each in table.unique)
        yield (
            f"key ({names}): expected a unique index on just these columns, found "
            f"{', '.join(indexes) or 'none'}: CREATE UNIQUE INDEX ON {table.place} ({names})"
        )
