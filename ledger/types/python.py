"""Convert Python values of other classes to a column's type, or refuse them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from ledger.types.raw_rows import is_bytes

Row = Sequence[Any]
Convert = Callable[[Any], Any]
Converter = tuple[Convert, type | None]  # and the class of values that it would leave as they are

_LARGEST_FLOAT = 3.4028235677973366e38
_NUMERAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBERS = (int, float, Decimal, np.integer, np.floating)
_OTHER_TEXT = (UUID, time, Enum)
# Python takes any character between date and time, and cuts what is below microseconds.
_TIME = re.compile(
    r"[\dW-]{8,10}([T ][\d:]+([.,]\d{1,6}0*)? ?(Z|[+-][\d:]+)?)?",
    re.ASCII,
)


def converted(converter: Converter | None, values: Row) -> Row:
    """Convert each value with ``converter``. Raises the converter's error for a value that does not
    fit.
    """
    if converter is None:
        return values
    convert, plain = converter
    return [
        value if value is None or value.__class__ is plain else convert(value) for value in values
    ]


def converter_of(kind: T.DataType, *, strict: bool) -> Converter | None:
    """Return the function that converts values to a type; None: Arrow converts them.

    ``strict``: accept only values that ``Scalar.takes`` accepts.
    """
    of = partial(converter_of, strict=strict)
    if isinstance(kind, T.ArrayType):
        return partial(_list, kind, of(kind.elementType)), None
    if isinstance(kind, T.MapType):
        return partial(_pairs, kind, of(kind.keyType), of(kind.valueType)), None
    if isinstance(kind, T.StructType):
        return partial(_fields, kind, [of(field.dataType) for field in kind.fields]), None
    if isinstance(kind, T.CharType | T.VarcharType):
        return partial(_short, kind.length), None
    scalar = SCALARS.get(type(kind))
    if scalar is None:
        return None
    make = partial(_strictly, scalar.takes, scalar.make) if strict else scalar.make
    return make, None if scalar.check else scalar.plain


def _require(fits: bool) -> None:
    """Raise ValueError unless ``fits``. The caller adds the type and the value to the reason."""
    if not fits:
        raise ValueError


def _strictly(takes: Callable[[Any], bool], make: Convert, value: Any) -> Any:
    if not takes(value):
        raise ValueError
    return make(value)


def _list(kind: T.ArrayType, element: Converter | None, value: Any) -> Row:
    _require(isinstance(value, list | tuple | np.ndarray))
    return _parts(element, list(value), kind.containsNull)


def _pairs(kind: T.MapType, key: Converter | None, item: Converter | None, value: Any) -> Row:
    pairs = dict(value)
    keys = _parts(key, list(pairs), False)
    return list(zip(keys, _parts(item, list(pairs.values()), kind.valueContainsNull), strict=True))


def _fields(kind: T.StructType, converters: list[Converter | None], value: Any) -> dict[str, Any]:
    _require(isinstance(value, dict) and set(kind.names).issuperset(value))
    return {
        field.name: _parts(converter, [value.get(field.name)], field.nullable)[0]
        for field, converter in zip(kind.fields, converters, strict=True)
    }


def _parts(converter: Converter | None, values: Row, nullable: bool) -> Row:
    _require(nullable or all(value is not None for value in values))
    return converted(converter, values)


def _integer(value: Any) -> int:
    _require(not isinstance(value, bool | np.bool_ | str) and int(value) == value)
    return int(value)


def _double(value: Any) -> float:
    special = isinstance(value, str) and value.lower() in ("nan", "infinity", "-infinity")
    _require(special or (isinstance(value, _NUMBERS) and not isinstance(value, bool)))
    number = float(value)
    _require(special or abs(number) != float("inf") or value == number)
    return number


def _float(value: Any) -> float:
    number = _double(value)
    _require(not _LARGEST_FLOAT <= abs(number) < float("inf"))
    return number


def _decimal(value: Any) -> Decimal:
    _require(not isinstance(value, bool))
    _require(not isinstance(value, str) or bool(_NUMERAL.fullmatch(value)))
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _string(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, str):
        return value
    _require(isinstance(value, _OTHER_TEXT))
    return str(value)


def _short(length: int, value: Any) -> str:
    _require(_is_text(value) and len(value) <= length)
    return str(value)


def _boolean(value: Any) -> bool:
    _require(value in (0, 1) and isinstance(value, int | np.bool_))
    return bool(value)


def _binary(value: Any) -> bytes:
    _require(is_bytes(value))
    return bytes(value)


def _date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError
    return value


def _time(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        _require(bool(_TIME.fullmatch(value)))
        return datetime.fromisoformat(value)
    _require(isinstance(value, date))
    return datetime(value.year, value.month, value.day)


def _utc_time(value: Any) -> datetime:
    """Return a time in UTC; one without a time zone is taken to be in UTC."""
    instant = _time(value)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _local(value: Any) -> datetime:
    """Return a time without a time zone. An instant is refused, because its local time depends on
    the zone.
    """
    local = _time(value)
    _require(local.tzinfo is None)
    return local


def _is(classes: type | tuple[type, ...], value: Any) -> bool:
    return isinstance(value, classes)


def _is_text(value: Any) -> bool:
    """Return whether a value is a text without a NUL character, which PostgreSQL cannot keep."""
    return isinstance(value, str) and "\0" not in value


def _is_timestamp(value: Any) -> bool:
    """Return whether a value is a time in whole microseconds."""
    return isinstance(value, datetime) and not getattr(value, "nanosecond", False)


def _is_local(value: Any) -> bool:
    return _is_timestamp(value) and value.tzinfo is None


def _without_nul(column: pa.Array) -> bool:
    """Return whether no text of a column has a NUL character. In UTF-8 no other character has a
    byte 0.
    """
    _, _, content = column.buffers()
    return content is None or bool(np.frombuffer(content, np.uint8).all())


def _without_infinity(column: pa.Array) -> bool:
    """Return whether no number of a column is infinite. A number that was too large is infinite
    here.
    """
    return not pc.any(pc.is_inf(column)).as_py()


@dataclass(frozen=True)
class Scalar:
    """Conversion of values to a type without parts.

    ``make``: converts one value, also one that a driver returned.
    ``takes``: whether a user's function may yield a value. Texts are not parsed, and values are not
    converted to texts.
    ``plain``: the class of values that need no conversion if their column passes ``check``.
    """

    make: Convert
    takes: Callable[[Any], bool]
    plain: type | None = None
    check: Callable[[pa.Array], bool] | None = None


_INTEGER = Scalar(_integer, partial(_is, object), int)
SCALARS: Mapping[type[T.DataType], Scalar] = {
    T.BooleanType: Scalar(_boolean, partial(_is, (bool, np.bool_)), bool),
    T.ByteType: _INTEGER,
    T.ShortType: _INTEGER,
    T.IntegerType: _INTEGER,
    T.LongType: _INTEGER,
    T.FloatType: Scalar(_float, partial(_is, _NUMBERS), float, _without_infinity),
    T.DoubleType: Scalar(_double, partial(_is, _NUMBERS), float),
    T.DecimalType: Scalar(_decimal, partial(_is, _NUMBERS), Decimal),
    T.StringType: Scalar(_string, _is_text, str, _without_nul),
    T.BinaryType: Scalar(_binary, partial(_is, object), bytes),
    T.DateType: Scalar(_date, partial(_is, date), date),
    T.TimestampType: Scalar(_utc_time, _is_timestamp),
    T.TimestampNTZType: Scalar(_local, _is_local),
}
