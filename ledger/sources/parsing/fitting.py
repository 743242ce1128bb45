"""Python values into columns of declared types: one that does not fit fails its record alone."""

import base64
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from ledger.errors import DeclarationError
from ledger.sources.parsing.conversion import (
    BASE64,
    DECIMAL,
    FROM_DRIVERS,
    PLAIN_FROM_DRIVERS,
    PLAIN_YIELDED,
    YIELDED,
    Converters,
    PlainClasses,
    Row,
    as_json,
    converted,
    converter_of,
    is_bytes,
)

_MOST_SHOWN = 200  # characters of a value in a message; the raw record has all of it
_AS_IS = "json"  # a dict that stands for itself, and not for a value without a form of JSON


class Fitting:
    """Fits rows into a schema. It travels to the executors; ``of_table`` and ``yielded`` make it.

    ``how``: makes a value of each plain type; None for a type without one: Arrow decides.
    ``plain``: of which class values are that need no making, if their column passes the check.
    ``what``: begins the reason of a row that does not fit.
    """

    def __init__(self, schema: StructType, how: Converters, plain: PlainClasses, what: str):
        self.names = schema.names
        self._fields = schema.fields
        self._what = what
        self._converters = [converter_of(field.dataType, how) for field in schema.fields]
        self._plain = [plain.get(type(field.dataType)) for field in schema.fields]
        self._types = [to_arrow_type(kept(one.dataType), timezone="UTC") for one in schema.fields]

    def fit(self, rows: Sequence[Row]) -> tuple[list[pa.Array], list[str | None]]:
        """The columns of ``rows``, whose values stand in the schema's order, and for each row
        why it does not fit, or None; one that does not is null in every column.
        """
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._fields)
        arrays, misfits = self.fit_columns(columns)
        return arrays, [misfits.get(number) for number in range(len(rows))]

    def fit_columns(self, columns: Sequence[Row]) -> tuple[list[pa.Array], dict[int, str]]:
        """The same of rows that are given by column; why rows do not fit, by their number."""
        misfits = dict[int, str]()
        arrays = [
            pa.concat_arrays(self._parts(number, values, 0, misfits))
            for number, values in enumerate(columns)
        ]
        if misfits:
            good = np.ones(len(arrays[0]), bool)
            good[list(misfits)] = False
            numbers = pa.array(np.arange(len(good)), mask=~good)
            arrays = [column.take(numbers) for column in arrays]
        return arrays, misfits

    def _parts(
        self, number: int, values: Row, start: int, misfits: dict[int, str]
    ) -> list[pa.Array]:
        """All values at once, or, if one of them does not fit, by halves down to the one. Notes the
        first column of a row that does not fit; ``start``: the row of the first value.
        """
        column = self._column(number, values)
        if column is not None:
            return [column]
        if len(values) == 1:
            reason = f"{self._what} {_misfit(self._fields[number], values[0])}"
            misfits.setdefault(start, reason)
            return [pa.nulls(1, self._types[number])]
        half = len(values) // 2
        return [
            *self._parts(number, values[:half], start, misfits),
            *self._parts(number, values[half:], start + half, misfits),
        ]

    def _column(self, number: int, values: Row) -> pa.Array | None:
        """All values at once; None if one of them does not fit."""
        try:
            column = self._unmade(number, values)
            if column is None:
                column = pa.array(converted(self._converters[number], values), self._types[number])
        except Exception:  # pyarrow's errors, and Python's own of a conversion
            return None
        return column if self._fields[number].nullable or not column.null_count else None

    def _unmade(self, number: int, values: Row) -> pa.Array | None:
        """All values at once if none of them needs to be made another; else None."""
        plain = self._plain[number]
        if plain is None or not {plain[0], type(None)}.issuperset(map(type, values)):
            return None
        column = pa.array(values, self._types[number])
        return column if plain[1] is None or plain[1](column) else None


def kept(kind: DataType) -> DataType:
    """The type that a value is kept as: a text of limited length is a text."""
    if isinstance(kind, CharType | VarcharType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(kept(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kept(kind.keyType), kept(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [StructField(f.name, kept(f.dataType), f.nullable) for f in kind.fields]
        return StructType(fields)
    return kind


def of_table(schema: StructType) -> Fitting:
    """Fits what a database's driver gives. Raises DeclarationError when a column has a type that no
    table's column has."""
    for field in schema.fields:
        if type(field.dataType) not in FROM_DRIVERS:
            raise DeclarationError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}: expected a "
                "plain type in the schema of a table: declare string, and parse it in a stage"
            )
    return Fitting(schema, FROM_DRIVERS, PLAIN_FROM_DRIVERS, "malformed row:")


def yielded(schema: StructType) -> Fitting:
    """Fits what a record stage yields: a value is of the column's type, or its row does not fit."""
    return Fitting(schema, YIELDED, PLAIN_YIELDED, "yielded")


def raw(names: Sequence[str], row: Row) -> bytes:
    """A row as JSON, from which ``from_raw`` makes it again."""
    values = [{_AS_IS: value} if isinstance(value, dict) else value for value in row]
    return json.dumps(dict(zip(names, values, strict=True)), default=as_json).encode()


def from_raw(names: Sequence[str], stored: bytes) -> Row:
    """The values of ``names`` in a row that ``raw`` made; None for those that it has not."""
    record = json.loads(stored)
    return [_unwrapped(record.get(name)) for name in names]


def _misfit(field: StructField, value: object) -> str:
    expected = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
    found = "NULL" if value is None else _shown(value)
    shown = found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}..."
    plain = shown.encode("utf-8", "backslashreplace").decode()
    return f"{field.name}: expected {expected}, found {plain}"


def _shown(value: object) -> str:
    try:
        return str(as_json(value) if is_bytes(value) else value)
    except Exception:  # a number of more digits than Python writes, or a user's own __str__
        return f"a value of type {type(value).__name__}"


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, kept),) = value.items()
    if kind == BASE64:
        return base64.b64decode(kept)
    return Decimal(kept) if kind == DECIMAL else kept
