"""What a declared schema says of a table's columns, without a Spark session."""

import re
from typing import TYPE_CHECKING

from ledger.errors import DeclarationError, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_COLUMN = re.compile(r"^\s*(?:`((?:[^`]|``)*)`\s*:?|(\w+)(?:\s*:|\s))\s*(.+?)\s*$", re.DOTALL)
_REST = re.compile(r"(?i)\s+(not\s+null\b|comment\b|default\b)[^<>]*$")
# What may follow a type, once quoted texts are empty.
_MORE = re.compile(r"""(?ix) (?:(?<=[>)])|\s) \s* not\s+null\s*$""")
_COMMENT = re.compile(r"""(?ix) (?:(?<=[>)])|\s) \s* comment \s* (?:r?''\s*)+$""")
_BARE = re.compile(r"(?i)(?!(?:\d+(?:e\d+)?(?:f|d|bd)?|\d+[lsy])$)[a-z0-9_]+")  # 1e5 is a number
# A quoted text, or a name in backticks, which stays.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(`[^`]*`)""", re.DOTALL)
# A quoted text with its escapes, the beginning of a comment, or any other single character.
_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\r\n]*|/\*(?!\+)|.""", re.DOTALL
)
_BRACKETS = re.compile(r"/\*|\*/")  # of comments, which lie in each other
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,\s*(\d+))?\))?")
MOST_DIGITS = 38  # of a decimal
# Types without parts, as Spark's parser takes them.
_PLAIN = re.compile(
    r"""(?ix) boolean | tinyint | byte | smallint | short | int | integer | bigint | long | float
    | real | double | date | timestamp(_ntz|_ltz)? | timestamp\s+with(out|\s+local)\s+time\s+zone
    | binary | void | variant
    | (string | (char|character|varchar)\s*\(\s*\d+\s*\))(\s+collate\s+\S+)?
    | time(\s*\(\s*[0-6]\s*\))?(\s+without\s+time\s+zone)?
    | (geometry|geography)\s*\(\s*(\d+|any)\s*\)
    | (decimal|dec|numeric)(\s*\(\s*(?P<precision>\d+)\s*(,\s*(?P<scale>\d+)\s*)?\))?
    | interval(\s+(year|month|day|hour|minute|second|year\s+to\s+month
        | day\s+to\s+(hour|minute|second) | hour\s+to\s+(minute|second) | minute\s+to\s+second))?"""
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
    for part in _parts(_without_comments(schema)):
        column = _COLUMN.match(part)
        if column is None:
            return None
        name = column[2] or column[1].replace("``", "`")
        found[name] = _type(column[3]).lower()
    return found


def check_types(what: str, schema: "StructType | str") -> None:
    """Raise DeclarationError if a schema in DDL has a column of a type that Spark does not know, or
    of none. ``what``: whose it is."""
    if isinstance(schema, str) and not schema.lstrip().startswith("{"):  # JSON is Spark's to read
        text = _without_comments(schema)
        whole = _WITH_PARTS.fullmatch(text.strip())
        _check_columns(what, "column", whole[2] if whole else text)


def _check_columns(what: str, kind: str, text: str) -> None:
    for part in _parts(text):
        column = _COLUMN.match(part)
        if column is None:
            raise DeclarationError(
                f"{what}: expected {kind}s with a name and a type each, separated by commas, found"
                f" {part.strip()!r}"
            )
        name = column[1] if column[2] is None else column[2]
        if column[2] and not _BARE.fullmatch(name):
            raise DeclarationError(
                f"{what}: {kind} {name}: expected a name of letters A to Z, digits and _, or one in"
                f" backticks: write `{name}`"
            )
        _check_type(f"{what}: {kind} {name}", _bare_type(column[3]))


def _bare_type(text: str) -> str:
    """Of what follows a column's name its type, and what may not follow that."""
    bare = _COMMENT.sub("", _without_texts(text).strip(), count=1)
    return _MORE.sub("", bare, count=1).strip()


def _type(text: str) -> str:
    """Of what follows a column's name its type alone."""
    return _REST.sub("", _bare_type(text)).strip()


def _without_texts(text: str) -> str:
    """A text with each quoted text in it empty."""
    return _QUOTED.sub(lambda found: found[1] or "''", text)


def _check_type(what: str, text: str) -> None:
    parts = _WITH_PARTS.fullmatch(text)
    if parts is None:
        _check_plain(what, text)
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


def _check_plain(what: str, text: str) -> None:
    plain = _PLAIN.fullmatch(text)
    if plain is None and _PLAIN.fullmatch(_REST.sub("", text)):
        raise DeclarationError(
            f"{what}: expected after its type NOT NULL, COMMENT 'text', both in this order, or"
            f" nothing, found {text!r}"
        )
    if plain is None:
        raise DeclarationError(
            f"{what}: expected a type of Spark, found {text!r}{suggestion(text.upper(), _USUAL)}"
        )
    precision, scale = int(plain["precision"] or 10), int(plain["scale"] or 0)
    if not scale <= precision <= MOST_DIGITS:
        raise DeclarationError(
            f"{what}: expected a decimal of at most {MOST_DIGITS} digits, and no more of them"
            f" after the point, found {text!r}"
        )


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


def _without_comments(text: str) -> str:
    """A schema with a blank for each comment of SQL; one that does not end, or is a hint, stays."""
    pieces, place = [], 0
    while match := _PIECE.match(text, place):
        piece, place = match[0], match.end()
        end = _end_of_comment(text, place) if piece == "/*" else None
        place = end or place
        pieces.append(" " if end or piece.startswith("--") else piece)
    return "".join(pieces)


def _end_of_comment(text: str, place: int) -> int | None:
    """Where a comment ends that has begun before ``place``, with those within it."""
    depth = 1
    while depth:
        bracket = _BRACKETS.search(text, place)
        if bracket is None:
            return None
        place = bracket.end()
        depth += 1 if bracket[0] == "/*" else -1
    return place


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
