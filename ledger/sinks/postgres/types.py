"""The types of PostgreSQL that hold each type of Arrow without a loss."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as t
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.types import TypeEngine

from ledger.sinks.postgres.table import TargetColumn
from ledger.types.arrow import is_list, nested, parts, plain, scalar


@dataclass(frozen=True)
class _Type:
    """A type of PostgreSQL for an Arrow type.

    ``new``: the type of a new column.
    ``holders``: the types that can store every value.
    ``digits``: the number of digits of the longest integer, for numeric columns.
    """

    new: TypeEngine[Any]
    holders: str
    digits: int | None = None


# By the names of Arrow's scalars. A decimal is a numeric of its own size.
_TYPES = {
    "bool": _Type(sa.Boolean(), "bool"),
    "int8": _Type(sa.SmallInteger(), "int2 int4 int8 float4 float8", digits=3),
    "uint8": _Type(sa.SmallInteger(), "int2 int4 int8 float4 float8", digits=3),
    "int16": _Type(sa.SmallInteger(), "int2 int4 int8 float4 float8", digits=5),
    "uint16": _Type(sa.Integer(), "int4 int8 float8", digits=5),
    "int32": _Type(sa.Integer(), "int4 int8 float8", digits=10),
    "uint32": _Type(sa.BigInteger(), "int8", digits=10),
    "int64": _Type(sa.BigInteger(), "int8", digits=19),
    "uint64": _Type(sa.Numeric(20, 0), "", digits=20),
    "halffloat": _Type(sa.REAL(), "float4 float8"),
    "float": _Type(sa.REAL(), "float4 float8"),
    "double": _Type(sa.DOUBLE_PRECISION(), "float8"),
    "string": _Type(sa.Text(), ""),  # see _FROM_TEXT
    "binary": _Type(pg.BYTEA(), "bytea"),
    "date": _Type(sa.Date(), "date"),
    "time": _Type(pg.TIME(), "time"),
    "timestamp": _Type(pg.TIMESTAMP(), "timestamp"),
    "timestamptz": _Type(pg.TIMESTAMP(timezone=True), "timestamptz"),
}
# Text, enums, network addresses, uuid, intervals and the like: the server reads each of them from
# text. Of points and other shapes it would keep 15 digits, and of a document for full-text search
# its words in another form.
_FROM_TEXT = "SEIUT"
_NOT_FROM_TEXT = (
    *("bytea", "name", "char"),  # it has another form; they cut what is too long
    *("tsvector", "tsquery"),
)
_JSON = ("json", "jsonb")


def column_type(kind: pa.DataType) -> TypeEngine[Any] | None:
    """Return the type of a new column for values of ``kind``; None if PostgreSQL has no
    counterpart.
    """
    if is_list(kind) and not nested(kind.value_type):
        element = column_type(kind.value_type)
        return None if element is None else pg.ARRAY(element)
    if nested(kind):
        return pg.JSONB() if _json_parts(kind) else None
    kind, own = plain(kind), _TYPES.get(scalar(kind))
    if t.is_decimal(kind):
        has_size = 0 <= kind.scale <= kind.precision
        return sa.Numeric(kind.precision, kind.scale) if has_size else sa.Numeric()
    return own.new if own else None


def fits(kind: pa.DataType, column: TargetColumn) -> bool:
    """Return whether the column can store every value of ``kind`` without a change of meaning."""
    if nested(kind) and column.base in _JSON:
        return _json_parts(kind)
    if is_list(kind) and column.element is not None:
        return not nested(kind.value_type) and _holds(column, column.element, kind.value_type)
    return not nested(kind) and column.element is None and _holds(column, column.base, kind)


def is_json(kind: pa.DataType, column: TargetColumn) -> bool:
    """Return whether ``kind`` is nested, and the table stores it as JSON."""
    return nested(kind) and column.base in _JSON


def _holds(column: TargetColumn, base: str, kind: pa.DataType) -> bool:
    """Return whether a column of type ``base``, or an array of it, can store every scalar of
    ``kind``.
    """
    kind, own = plain(kind), _TYPES.get(scalar(kind))
    if t.is_decimal(kind):
        return base == "numeric" and _room(column.modifier, kind.precision - kind.scale, kind.scale)
    if own is None:
        return False
    if scalar(kind) == "string":
        if base == "interval" and column.modifier >= 0:
            return False  # it rounds, or drops a part
        return base not in _NOT_FROM_TEXT and column.category in _FROM_TEXT
    if base == "numeric" and own.digits is not None:
        return _room(column.modifier, own.digits, 0)
    if base.startswith("time") and 0 <= column.modifier < 6:
        return False  # it rounds
    return base in own.holders.split()


def _room(modifier: int, whole: int, scale: int) -> bool:
    """Return whether a numeric column has at least ``whole`` digits before the point and ``scale``
    digits after it. ``modifier``: its type modifier in pg_attribute.
    """
    if modifier < 0:
        return True
    precision, scale_there = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4) & 0x7FF ^ 1024) - 1024
    return scale_there >= scale and precision - scale_there >= whole


def _json_parts(kind: pa.DataType) -> bool:
    """Return whether JSON can represent every value of ``kind``."""
    if t.is_map(kind) and nested(kind.key_type):
        return False
    if nested(kind):
        return all(_json_parts(part.type) for part in parts(kind))
    return column_type(kind) is not None
