"""What a declared schema says of a table's columns, without a Spark session."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMN = re.compile(r"^\s*(?:`([^`]+)`|(\w+))\s*:?\s+(.+?)\s*$", re.DOTALL)
_REST = re.compile(r"(?i)\s+(not\s+null\b|comment\b|default\b).*$", re.DOTALL)
# A quoted text with its escapes, or any other single character.
_PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|.""", re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,\s*(\d+))?\))?")


def columns(schema: "StructType | str") -> dict[str, str] | None:
    """The columns with their types in Spark's words, in lower case; None where the text is not
    plain DDL.
    """
    if not isinstance(schema, str):
        return {field.name: field.dataType.simpleString() for field in schema.fields}
    found = {}
    for part in _parts(schema):
        column = _COLUMN.match(part)
        if column is None:
            return None
        found[column[1] or column[2]] = _REST.sub("", column[3]).strip().lower()
    return found


def arrow_schema(schema: "StructType | str") -> "pa.Schema | None":
    """The columns as Spark hands them over in Arrow; None if one of them has a type with parts."""
    import pyarrow as pa

    found = columns(schema)
    types = {name: _arrow(kind) for name, kind in (found or {}).items()}
    if not types or None in types.values():
        return None
    return pa.schema(list(types.items()))


def _arrow(kind: str) -> "pa.DataType | None":
    import pyarrow as pa

    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
    known = {
        ("string",): pa.string(),
        ("bigint", "long"): pa.int64(),
        ("int", "integer"): pa.int32(),
        ("smallint", "short"): pa.int16(),
        ("tinyint", "byte"): pa.int8(),
        ("double",): pa.float64(),
        ("float", "real"): pa.float32(),
        ("boolean",): pa.bool_(),
        ("binary",): pa.binary(),
        ("date",): pa.date32(),
        ("timestamp", "timestamp_ltz"): pa.timestamp("us", "UTC"),
        ("timestamp_ntz",): pa.timestamp("us"),
    }
    return next((one for names, one in known.items() if kind in names), None)


def _parts(text: str) -> list[str]:
    """The text cut at its commas, but for those within brackets or quotes."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth += (piece in "<(") - (piece in ">)")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
