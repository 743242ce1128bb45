"""Which columns of PostgreSQL hold which columns of Arrow, without a loss."""

from typing import Any

import pyarrow as pa
import pyarrow.types as t
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.types import TypeEngine

from ledger.sinks.postgres.table import TargetColumn, TargetTable

_JSON = ("json", "jsonb")
_DIGITS = {"int16": 5, "int32": 10, "int64": 19, "uint64": 20}
_INTEGERS = ["int2", "int4", "int8"]
# Named by the type that a new table would have.
_HOLDERS = {
    "bool": ["bool"],
    "int16": [*_INTEGERS, "float4", "float8"],
    "int32": [*_INTEGERS[1:], "float8"],
    "int64": _INTEGERS[2:],
    "uint64": [],
    "float32": ["float4", "float8"],
    "float64": ["float8"],
    "binary": ["bytea"],
    "date": ["date"],
    "time": ["time"],
    "timestamp": ["timestamp"],
    "timestamptz": ["timestamptz"],
}
_NEW: dict[str, TypeEngine[Any]] = {
    "bool": sa.Boolean(),
    "int16": sa.SmallInteger(),
    "int32": sa.Integer(),
    "int64": sa.BigInteger(),
    "uint64": sa.Numeric(20, 0),
    "float32": sa.REAL(),
    "float64": sa.DOUBLE_PRECISION(),
    "string": sa.Text(),
    "binary": pg.BYTEA(),
    "date": sa.Date(),
    "time": pg.TIME(),
    "timestamp": pg.TIMESTAMP(),
    "timestamptz": pg.TIMESTAMP(timezone=True),
}
# Text, enums, network addresses, uuid and the like: the server reads each of them from text.
_FROM_TEXT = "SEIUTG"


def column_type(kind: pa.DataType) -> TypeEngine[Any] | None:
    """The type of a new column for values of ``kind``; None if PostgreSQL has no counterpart."""
    kind = plain(kind)
    if is_list(kind) and not nested(kind.value_type):
        element = column_type(kind.value_type)
        return None if element is None else pg.ARRAY(element)
    if nested(kind):
        return pg.JSONB() if _json_parts(kind) else None
    if t.is_decimal(kind):
        known = 0 <= kind.scale <= kind.precision
        return sa.Numeric(kind.precision, kind.scale) if known else sa.Numeric()
    return _NEW.get(_family(kind) or "")


def fits(kind: pa.DataType, column: TargetColumn) -> bool:
    """Whether every value of ``kind`` has one in the column that means the same."""
    kind = plain(kind)
    if nested(kind) and column.base in _JSON:
        return _json_parts(kind)
    if is_list(kind) and column.element is not None:
        return not nested(kind.value_type) and _fits_base(kind.value_type, column, column.element)
    return not nested(kind) and column.element is None and _fits_base(kind, column, column.base)


def json_columns(schema: pa.Schema, table: TargetTable) -> frozenset[str]:
    """Those with parts that the table has as JSON."""
    return frozenset(
        field.name
        for field in schema
        if nested(plain(field.type)) and table.columns[field.name].base in _JSON
    )


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values, or the type itself."""
    return kind.value_type if t.is_dictionary(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of whatever layout."""
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def nested(kind: pa.DataType) -> bool:
    """Whether values have parts."""
    return bool(is_list(kind) or t.is_struct(kind) or t.is_map(kind))


def _fits_base(kind: pa.DataType, column: TargetColumn, base: str) -> bool:
    kind = plain(kind)
    family = _family(kind)
    if family == "string":
        return base != "bytea" and column.category in _FROM_TEXT
    if base == "numeric" and t.is_decimal(kind):
        return _room(column.modifier, kind.precision - kind.scale, kind.scale)
    if base == "numeric" and family in _DIGITS:
        return _room(column.modifier, _DIGITS[family], 0)
    if base.startswith("time") and 0 <= column.modifier < 6:
        return False  # it rounds
    return base in _HOLDERS.get(family or "", ())


def _room(modifier: int, whole: int, scale: int) -> bool:
    """Whether a numeric of this modifier has so many digits before and after the point."""
    if modifier < 0:
        return True
    precision, scale_there = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4) & 0x7FF ^ 1024) - 1024
    return scale_there >= scale and precision - scale_there >= whole


def _family(kind: pa.DataType) -> str | None:
    """The values' family, as in ``_NEW``; None if PostgreSQL has no such scalar."""
    if t.is_integer(kind):
        signed = kind.bit_width if t.is_signed_integer(kind) else kind.bit_width * 2
        return "uint64" if signed > 64 else f"int{max(16, signed)}"
    if t.is_floating(kind):
        return f"float{max(32, kind.bit_width)}"
    if t.is_timestamp(kind):  # it keeps microseconds
        return None if kind.unit == "ns" else "timestamp" if kind.tz is None else "timestamptz"
    if t.is_time(kind):
        return None if kind.unit == "ns" else "time"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "binary"
    return "date" if t.is_date(kind) else "bool" if t.is_boolean(kind) else None


def _json_parts(kind: pa.DataType) -> bool:
    """Whether JSON can hold the values."""
    kind = plain(kind)
    if is_list(kind):
        return _json_parts(kind.value_type)
    if t.is_map(kind):
        return (
            not nested(kind.key_type) and _json_parts(kind.key_type) and _json_parts(kind.item_type)
        )
    if t.is_struct(kind):
        return all(_json_parts(field.type) for field in kind)
    return _family(kind) is not None or t.is_decimal(kind)
