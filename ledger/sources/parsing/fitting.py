"""Python values into columns of declared types: one that does not fit fails its record alone."""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from ledger.errors import DeclarationError

Row = Sequence[Any]

_MOST_SHOWN = 200  # characters of a value in a message; the raw record has all of it
_LARGEST_FLOAT = 3.4028235677973366e38
_BASE64, _DECIMAL, _AS_IS = "base64", "decimal", "json"  # what a value is that JSON has no form for
_NUMERAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBERS = (int, float, Decimal, np.integer, np.floating)
_OTHER_TEXT = (UUID, time, timedelta, Enum)


class Fitting:
    """Fits rows into a schema. It travels to the executors; ``of_table`` and ``yielded`` make it.

    ``how``: makes a value of each plain type; None for a type without one: Arrow decides.
    ``what``: begins the reason of a row that does not fit.
    """

    def __init__(self, schema: StructType, how: "_Converters", what: str):
        self.names = schema.names
        self._fields = schema.fields
        self._what = what
        self._converters = [_converter(field.dataType, how) for field in schema.fields]
        self._types = [to_arrow_type(kept(one.dataType), timezone="UTC") for one in schema.fields]

    def fit(self, rows: Sequence[Row]) -> tuple[list[pa.Array], list[str | None]]:
        """The columns of ``rows``, whose values stand in the schema's order, and for each row
        why it does not fit, or None; one that does not is null in every column.
        """
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
            made = pa.array(_converted(self._converters[number], values), self._types[number])
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
                errors[place] = f"{self._what} {_misfit(self._fields[number], value)}"
        return pa.concat_arrays(made)


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
        if type(field.dataType) not in _FROM_DRIVERS:
            raise DeclarationError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}: expected a "
                "plain type in the schema of a table: declare string, and parse it in a stage"
            )
    return Fitting(schema, _FROM_DRIVERS, "malformed row:")


def yielded(schema: StructType) -> Fitting:
    """Fits what a record stage yields: a value is of the column's type, or its row does not fit."""
    return Fitting(schema, _YIELDED, "yielded")


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
    found = "NULL" if value is None else _shown(value)
    shown = found if len(found) <= _MOST_SHOWN else f"{found[:_MOST_SHOWN]}..."
    plain = shown.encode("utf-8", "backslashreplace").decode()
    return f"{field.name}: expected {expected}, found {plain}"


def _shown(value: object) -> str:
    try:
        return str(_json(value) if _is_bytes(value) else value)
    except Exception:  # a number of more digits than Python writes, or a user's own __str__
        return f"a value of type {type(value).__name__}"


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


def _converted(converter: "_Converter | None", values: Row) -> Row:
    if converter is None:
        return values
    convert, given = converter
    return [
        value if value is None or value.__class__ is given else convert(value) for value in values
    ]


def _converter(kind: DataType, how: "_Converters") -> "_Converter | None":
    """How a value of a type is made, and the class that needs no making."""
    if isinstance(kind, ArrayType):
        return _Sequences(kind, _converter(kind.elementType, how)), None
    if isinstance(kind, MapType):
        parts = _converter(kind.keyType, how), _converter(kind.valueType, how)
        return _Pairs(kind, *parts), None
    if isinstance(kind, StructType):
        return _Fields(kind, [_converter(field.dataType, how) for field in kind.fields]), None
    if isinstance(kind, CharType | VarcharType):
        return partial(_short, kind.length), None
    return how.get(type(kind))


@dataclass(frozen=True)
class _Sequences:
    """Makes a list, of which each element fits."""

    kind: ArrayType
    element: "_Converter | None"

    def __call__(self, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise ValueError("not a list")
        return _elements(self.element, list(value), self.kind.containsNull)


@dataclass(frozen=True)
class _Pairs:
    """Makes the pairs of a map, of which each key and value fits."""

    kind: MapType
    key: "_Converter | None"
    value: "_Converter | None"

    def __call__(self, value: Any) -> list[tuple[Any, Any]]:
        pairs = dict(value)
        keys = _elements(self.key, list(pairs), False)
        values = _elements(self.value, list(pairs.values()), self.kind.valueContainsNull)
        return list(zip(keys, values, strict=True))


@dataclass(frozen=True)
class _Fields:
    """Makes a struct: no unknown field, and each value fits."""

    kind: StructType
    converters: list["_Converter | None"]

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not set(self.kind.names).issuperset(value):
            raise ValueError("not a dict of the struct's fields")
        return {
            field.name: _elements(converter, [value.get(field.name)], field.nullable)[0]
            for field, converter in zip(self.kind.fields, self.converters, strict=True)
        }


def _elements(converter: "_Converter | None", values: Row, nullable: bool) -> list[Any]:
    if not nullable and any(value is None for value in values):
        raise ValueError("null where none may be")
    return list(_converted(converter, values))


def _integer(value: Any) -> int:
    if isinstance(value, bool | np.bool_ | str) or int(value) != value:
        raise ValueError("not a whole number")
    return int(value)


def _double(value: Any) -> float:
    special = isinstance(value, str) and value.lower() in ("nan", "infinity", "-infinity")
    if not special and (isinstance(value, bool) or not isinstance(value, _NUMBERS)):
        raise ValueError("not a number")
    return float(value)


def _float(value: Any) -> float:
    number = _double(value)
    if _LARGEST_FLOAT <= abs(number) < float("inf"):
        raise ValueError("too large")
    return number


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMERAL.fullmatch(value)):
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


def _number(convert: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, _NUMBERS):
        raise ValueError("not a number")
    return convert(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("not text, or with a NUL character, which PostgreSQL cannot keep")
    return value


def _short(length: int, value: Any) -> str:
    if len(_text(value)) > length:
        raise ValueError("too long")
    return str(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError("not true or false")
    return bool(value)


def _day(value: Any) -> date:
    return _date(None if isinstance(value, str) else value)


def _instant(value: Any) -> datetime:
    if not isinstance(value, datetime) or getattr(value, "nanosecond", False):
        raise ValueError("not a moment of whole microseconds")
    return _moment(value)


def _wall_clock(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise ValueError("not a moment without time zone")
    return _local(_instant(value))


_Converter = tuple[Callable[[Any], Any], type | None]
_Converters = Mapping[type[DataType], _Converter]

# What makes a value of a driver's, and the class that needs no making.
_FROM_DRIVERS: _Converters = {
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
# And of what a person's function yields: nothing is read out of a text, or into one.
_YIELDED: _Converters = {
    **_FROM_DRIVERS,
    BooleanType: (_truth, bool),
    FloatType: (partial(_number, _float), None),
    DoubleType: (partial(_number, _double), float),
    DecimalType: (partial(_number, _decimal), Decimal),
    StringType: (_text, None),
    DateType: (_day, None),
    TimestampType: (_instant, None),
    TimestampNTZType: (_wall_clock, None),
}
