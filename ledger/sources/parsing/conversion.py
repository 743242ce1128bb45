"""Python values of other classes, made values of a column's type, or refused."""

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
import pyarrow.compute as pc
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
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

Row = Sequence[Any]

BASE64, DECIMAL = "base64", "decimal"  # what a value is that JSON has no form for

_LARGEST_FLOAT = 3.4028235677973366e38
_NUMERAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBERS = (int, float, Decimal, np.integer, np.floating)
_OTHER_TEXT = (UUID, time, timedelta, Enum)


def converted(converter: "Converter | None", values: Row) -> Row:
    """The values as the converter makes them. Raises whatever a conversion raises: one that cannot
    be made is refused."""
    if converter is None:
        return values
    convert, given = converter
    return [
        value if value is None or value.__class__ is given else convert(value) for value in values
    ]


def converter_of(kind: DataType, how: "Converters") -> "Converter | None":
    """How a value of a type is made, and the class that needs no making."""
    if isinstance(kind, ArrayType):
        return _Sequences(kind, converter_of(kind.elementType, how)), None
    if isinstance(kind, MapType):
        parts = converter_of(kind.keyType, how), converter_of(kind.valueType, how)
        return _Pairs(kind, *parts), None
    if isinstance(kind, StructType):
        return _Fields(kind, [converter_of(field.dataType, how) for field in kind.fields]), None
    if isinstance(kind, CharType | VarcharType):
        return partial(_short, kind.length), None
    return how.get(type(kind))


@dataclass(frozen=True)
class _Sequences:
    """Makes a list, of which each element fits."""

    kind: ArrayType
    element: "Converter | None"

    def __call__(self, value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise ValueError("not a list")
        return _elements(self.element, list(value), self.kind.containsNull)


@dataclass(frozen=True)
class _Pairs:
    """Makes the pairs of a map, of which each key and value fits."""

    kind: MapType
    key: "Converter | None"
    value: "Converter | None"

    def __call__(self, value: Any) -> list[tuple[Any, Any]]:
        pairs = dict(value)
        keys = _elements(self.key, list(pairs), False)
        values = _elements(self.value, list(pairs.values()), self.kind.valueContainsNull)
        return list(zip(keys, values, strict=True))


@dataclass(frozen=True)
class _Fields:
    """Makes a struct: no unknown field, and each value fits."""

    kind: StructType
    converters: list["Converter | None"]

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not set(self.kind.names).issuperset(value):
            raise ValueError("not a dict of the struct's fields")
        return {
            field.name: _elements(converter, [value.get(field.name)], field.nullable)[0]
            for field, converter in zip(self.kind.fields, self.converters, strict=True)
        }


def _elements(converter: "Converter | None", values: Row, nullable: bool) -> list[Any]:
    if not nullable and any(value is None for value in values):
        raise ValueError("null where none may be")
    return list(converted(converter, values))


def is_bytes(value: object) -> bool:
    """Whether a value is of bytes."""
    return isinstance(value, bytes | bytearray | memoryview)


def as_json(value: Any) -> Any:
    """A form of JSON for a value that has none of its own."""
    if is_bytes(value):
        return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {DECIMAL: str(value)}
    return value.isoformat() if isinstance(value, date | time) else str(value)


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
        return json.dumps(value, default=as_json)
    if not isinstance(value, _OTHER_TEXT):
        raise ValueError("not text")
    return str(value)


def _boolean(value: Any) -> bool:
    if value not in (0, 1) or not isinstance(value, int):
        raise ValueError("not true or false")
    return bool(value)


def _binary(value: Any) -> bytes:
    if not is_bytes(value):
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


def _classes(how: "Converters") -> "PlainClasses":
    return {kind: (given, None) for kind, (_, given) in how.items() if given is not None}


def _without_nul(column: pa.Array) -> bool:
    """Whether no text has a NUL character, the one that has a byte of 0 in UTF-8."""
    _, _, content = column.buffers()
    return content is None or bool(np.frombuffer(content, np.uint8).all())


def _without_infinity(column: pa.Array) -> bool:
    """Whether no number is infinite, as one becomes that is too large."""
    return not pc.any(pc.is_inf(column)).as_py()


Converter = tuple[Callable[[Any], Any], type | None]
Converters = Mapping[type[DataType], Converter]
PlainClasses = Mapping[type[DataType], tuple[type, Callable[[pa.Array], bool] | None]]

# What makes a value of a driver's, and the class that needs no making.
FROM_DRIVERS: Converters = {
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
YIELDED: Converters = {
    **FROM_DRIVERS,
    BooleanType: (_truth, bool),
    FloatType: (partial(_number, _float), None),
    DoubleType: (partial(_number, _double), float),
    DecimalType: (partial(_number, _decimal), Decimal),
    StringType: (_text, None),
    DateType: (_day, None),
    TimestampType: (_instant, None),
    TimestampNTZType: (_wall_clock, None),
}
# The classes of values that need no making, each with a check that their column must pass.
PLAIN_FROM_DRIVERS: PlainClasses = _classes(FROM_DRIVERS)
PLAIN_YIELDED: PlainClasses = {
    **_classes(YIELDED),
    FloatType: (float, _without_infinity),
    StringType: (str, _without_nul),
    DateType: (date, None),
}
