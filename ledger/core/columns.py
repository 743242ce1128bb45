"""What a declared schema says of a table's columns, without a Spark session."""

import re
from typing import TYPE_CHECKING

from ledger.errors import DeclarationError, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMN = re.compile(r"^\s*(?:`([^`]+)`|(\w+))(?:\s*:\s*|\s+)(.+?)\s*$", re.DOTALL)
_REST = re.compile(r"(?i)\s+(not\s+null\b|comment\b|default\b)[^<>]*$")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
# A quoted text with its escapes, or any other single character.
_PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|.""", re.DOTALL)
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,\s*(\d+))?\))?")
# Types without parts, as Spark's parser takes them; what lies within brackets is left to it.
_PLAIN = re.compile(
    r"""(?ix) boolean | tinyint | byte | smallint | short | int | integer | bigint | long | float
    | real | double | date | timestamp(_ntz|_ltz)? | timestamp\s+with(out|\s+local)\s+time\s+zone
    | binary | void | variant | (string | (char|character|varchar)\s*\(.*\))(\s+collate\s+\S+)?
    | (decimal|dec|numeric|time|geometry|geography)(\s*\(.*\))?
    | interval(\s+\w+(\s+to\s+\w+)?)?"""
)
_WITH_PARTS = re.compile(r"(array|map|struct)\s*<(.*)>", re.DOTALL | re.IGNORECASE)
_USUAL = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "MAP",
    "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR",
)  # fmt: skip


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
        found[column[1] or column[2]] = _type(column[3]).lower()
    return found


def check_types(what: str, schema: "StructType | str") -> None:
    """Raise DeclarationError if a schema in DDL has a column of a type that Spark does not know, or
    of none. ``what``: whose it is."""
    if isinstance(schema, str) and not schema.lstrip().startswith("{"):  # JSON is Spark's to read
        whole = _WITH_PARTS.fullmatch(schema.strip())
        _check_columns(what, "column", whole[2] if whole else schema)


def _check_columns(what: str, kind: str, text: str) -> None:
    for part in _parts(text):
        column = _COLUMN.match(part)
        if column is None:
            raise DeclarationError(
                f"{what}: expected {kind}s with a name and a type each, separated by commas, found"
                f" {part.strip()!r}"
            )
        name = column[1] or column[2]
        _check_type(f"{what}: {kind} {name}", _type(column[3]))


def _type(text: str) -> str:
    """Of what follows a column's name its type alone."""
    return _REST.sub("", _QUOTED.sub("''", text)).strip()


def _check_type(what: str, text: str) -> None:
    parts = _WITH_PARTS.fullmatch(text)
    if parts is None:
        if not _PLAIN.fullmatch(text):
            raise DeclarationError(
                f"{what}: expected a type of Spark, found {text!r}"
                f"{suggestion(text.upper(), _USUAL)}"
            )
        return
    kind, within = parts[1].lower(), parts[2]
    if kind == "struct":
        if within.strip():
            _check_columns(what, "field", within)
        return
    elements = _parts(within)
    if len(elements) != (1 if kind == "array" else 2):
        example = "ARRAY<STRING>" if kind == "array" else "MAP<STRING, INT>"
        raise DeclarationError(f"{what}: expected for example {example}, found {text!r}")
    for element in elements:
        _check_type(what, element.strip())


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
