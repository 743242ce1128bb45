"""Python values into columns of declared types: one that does not fit fails its record alone."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ledger.errors import DeclarationError

Row = Sequence[Any]

_MOST_SHOWN = 200  # characters of a value in a message; the raw record has all of it
_LARGEST_FLOAT = 3.4028235677973366e38
_BASE64, _DECIMAL, _AS_IS = "base64", "decimal", "json"  # what a value is that JSON has no form for
_OTHER_TEXT = (UUID, time, timedelta, Enum)


class Fitting:
    """Fits rows into a schema of plain types. It travels to the executors.

    Raises DeclarationError when a column has a type that no table's column has.
    """

    def __init__(self, schema: StructType):
        self._fields = schema.fields
        self._types = []
        for field in schema.fields:
            if type(field.dataType) not in _CONVERTERS:
                raise DeclarationError(
                    f"column {field.name!r} is of type {field.dataType.simpleString()}: expected a "
                    "plain type in the schema of a table: declare string, and parse it in a stage"
                )
            self._types.append(to_arrow_type(field.dataType, timezone="UTC"))

    def fit(self, rows: Sequence[Row]) -> tuple[list[pa.Array], list[str | None]]:
        """The columns of ``rows``, whose values stand in the schema's order, and for each row why it
        does not fit, or None; one that does not is null in every column."""
        errors: list[str | None] = [None] * len(rows)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._fields)
        made = []
        for number, values in enumerate(columns):
            whole = self._column(number, values)
            made.append(self._each(number, values, errors) if whole is None else whole)
        if any(errors):
            good = pa.array(
                [place if e is None else None for place, e in enumerate(errors)], pa.int32()
            )
            made = [column.take(good) for column in made]
        return made, errors

    def _column(self, number: int, values: Row) -> pa.Array | None:
        """All values at once; None if one of them does not fit."""
        field = self._fields[number]
        try:
            made = pa.array(_converted(field.dataType, values), self._types[number])
        except Exception:  # pyarrow's errors, and Python's own of a conversion
            return None
        return made if field.nullable or not made.null_count else None

    def _each(self, number: int, values: Row, errors: list[str | None]) -> pa.Array:
        """One value after the other; notes the first column of a row that does not fit."""
        made = []
        for place, value in enumerate(values):
            fits = self._column(number, [value])
            made.append(pa.nulls(1, self._types[number]) if fits is None else fits)
            if fits is None and errors[place] is None:
                errors[place] = _misfit(self._fields[number], value)
        return pa.concat_arrays(made)


def raw(names: Sequence[str], row: Row) -> bytes:
    """A row as JSON, from which ``from_raw`` makes it again."""
    values = [{_AS_IS: value} if isinstance(value, dict) else value for value in row]
    return json.dumps(dict(zip(names, values, strict=True)), default=_json).encode()


def from_raw(names: Sequence[str], stored: bytes) -> Row:
    """The values of ``names`` in a row that ``raw`` made; None for those that it has not."""
    record = json.loads(stored)
    return [_unwrapped(record.get(name)) for name in names]


def _misfit(field: StructField, value: object) -> str:
    expected = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
    found = "NULL" if value is None else str(_json(value) if _is_bytes(value) else value)
    shown = found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}..."
    plain = shown.encode("utf-8", "backslashreplace").decode()
    return f"malformed row: {field.name}: expected {expected}, found {plain}"


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _json(value: Any) -> Any:
    if _is_bytes(value):
        return {_BASE64: base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {_DECIMAL: str(value)}
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, kept),) = value.items()
    if kind == _BASE64:
        return base64.b64decode(kept)
    return Decimal(kept) if kind == _DECIMAL else kept


def _converted(kind: DataType, values: Row) -> Row:
    convert, given = _CONVERTERS[type(kind)]
    return [
        value if value is None or value.__class__ is given else convert(value) for value in values
    ]


def _integer(value: Any) -> int:
    if isinstance(value, bool | str) or int(value) != value:
        raise ValueError("not a whole number")
    return int(value)


def _double(value: Any) -> float:
    special = isinstance(value, str) and value.lower() in ("nan", "infinity", "-infinity")
    if not special and (isinstance(value, bool) or not isinstance(value, int | float | Decimal)):
        raise ValueError("not a number")
    return float(value)


def _float(value: Any) -> float:
    number = _double(value)
    if _LARGEST_FLOAT <= abs(number) < float("inf"):
        raise ValueError("too large")
    return number


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, default=_json)
    if not isinstance(value, _OTHER_TEXT):
        raise ValueError("not text")
    return str(value)


def _boolean(value: Any) -> bool:
    if value not in (0, 1) or not isinstance(value, int):
        raise ValueError("not true or false")
    return bool(value)


def _binary(value: Any) -> bytes:
    if not _is_bytes(value):
        raise ValueError("not bytes")
    return bytes(value)


def _date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("not a date")
    return value


def _moment(value: Any) -> datetime:
    """In UTC; one without time zone is taken to be so."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError("not a moment")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _local(value: Any) -> datetime:
    return _moment(value).replace(tzinfo=None)


# What makes a column's value of a driver's, and the class that needs no making.
_CONVERTERS: Mapping[type[DataType], tuple[Callable[[Any], Any], type | None]] = {
    BooleanType: (_boolean, bool),
    ByteType: (_integer, int),
    ShortType: (_integer, int),
    IntegerType: (_integer, int),
    LongType: (_integer, int),
    FloatType: (_float, None),
    DoubleType: (_double, float),
    DecimalType: (_decimal, Decimal),
    StringType: (_string, str),
    BinaryType: (_binary, bytes),
    DateType: (_date, date),
    TimestampType: (_moment, None),
    TimestampNTZType: (_local, None),
}
