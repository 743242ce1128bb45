"""Read schemas in Spark's DDL without a Spark session: there is none where they are declared."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ledger.errors import DeclarationError, suggestion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_COLUMN = re.compile(r"^\s*(?:`((?:[^`]|``)*)`\s*:?|(\w+)(?:\s*:|\s))\s*(.+?)\s*$", re.DOTALL)
_REST = re.compile(r"(?i)\s+(not\s+null\b|comment\b|default\b)[^<>]*$")
# What may follow a type, once quoted texts are empty.
_MORE = re.compile(r"""(?ix) (?:(?<=[>)])|\s) \s* not\s+null\s*$""")
_COMMENT = re.compile(r"""(?ix) (?:(?<=[>)])|\s) \s* comment \s* (?:r?''\s*)+$""")
_BARE = re.compile(r"(?ai)(?!(?:\d+(?:e\d+)?(?:f|d|bd)?|\d+[lsy])$)[a-z0-9_]+")  # 1e5 is a number
# A quoted text, or a name in backticks, which stays.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(`[^`]*`)""", re.DOTALL)
# A quoted text with its escapes, the beginning of a comment, or any other single character.
_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\r\n]*|/\*(?!\+)|.""", re.DOTALL
)
_BRACKETS = re.compile(r"/\*|\*/")  # of comments, which lie in each other
MOST_DIGITS = 38  # of a decimal
# Types without parts as Spark's parser takes them, in lower case and without needless blanks, by
# the alias of Arrow's type that Spark hands over. Sinks have none of the last ones.
_SCALARS = {
    "bool": r"boolean",
    "int8": r"tinyint|byte",
    "int16": r"smallint|short",
    "int32": r"int|integer",
    "int64": r"bigint|long",
    "float": r"float|real",
    "double": r"double",
    "decimal": r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(\d+))?\))?",
    "string": r"(?:string|(?:char|character|varchar)\(\d+\))(?: collate \S+)?",
    "binary": r"binary",
    "date32": r"date",
    "timestamp[us, tz=UTC]": r"timestamp(?:_ltz| with local time zone)?",
    "timestamp[us]": r"timestamp(?:_ntz| without time zone)",
    "": r"void|variant|time(?:\([0-6]\))?(?: without time zone)?|geo(?:metry|graphy)\((?:\d+|any)\)"
    r"|interval(?: (?:year|month|day|hour|minute|second|year to month|day to (?:hour|minute|second)"
    r"|hour to (?:minute|second)|minute to second))?",
}
_WITH_PARTS = re.compile(r"(?ais)(array|map|struct)\s*<(.*)>")
_USUAL = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "MAP",
    "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR",
)  # fmt: skip


def columns(schema: "StructType | str") -> dict[str, str] | None:
    """Return the type of each column, in Spark's words in lower case, by name; None if the text is
    not plain DDL.
    """
    if not isinstance(schema, str):
        return {field.name: field.dataType.simpleString() for field in schema.fields}
    try:
        return {name: kind.lower() for name, kind in _columns("schema", schema)}
    except DeclarationError:
        return None


def field_paths(schema: "StructType | str") -> list[tuple[str, ...]] | None:
    """Return the paths of all columns, and of the fields of a STRUCT at any depth; None if the text
    is not plain DDL. A path is a tuple of names.
    """
    try:
        if not isinstance(schema, str):
            return list(_paths(schema, ()))
        named = _columns("schema", schema)
        return [path for name, kind in named for path in ((name,), *_paths(kind, (name,)))]
    except DeclarationError:
        return None


def _paths(kind: "DataType | str", path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    outer, parts = parts_of(kind)
    for name, part in parts:
        own = (*path, name) if outer == "struct" else path
        if outer == "struct":
            yield own
        yield from _paths(part, own)


def parts_of(kind: "DataType | str") -> "tuple[str, Sequence[tuple[str, DataType | str]]]":
    """Return the kind of a type, and its parts with their names: the ``element`` of an ``array``,
    the ``key`` and the ``value`` of a ``map``, the fields of a ``struct``. For a scalar, return its
    name in lower case, and no parts.
    """
    if not isinstance(kind, str):
        from pyspark.sql import types as T

        if isinstance(kind, T.ArrayType):
            return "array", [("element", kind.elementType)]
        if isinstance(kind, T.MapType):
            return "map", [("key", kind.keyType), ("value", kind.valueType)]
        if isinstance(kind, T.StructType):
            return "struct", [(field.name, field.dataType) for field in kind.fields]
        return kind.simpleString().lower(), []
    match = _WITH_PARTS.fullmatch(kind)
    if match is None:
        return " ".join(kind.lower().split()), []
    outer, within = match[1].lower(), match[2]
    if outer == "struct":
        return outer, _fields("schema", "field", within) if within.strip() else []
    names = ("element",) if outer == "array" else ("key", "value")
    return outer, [(name, part.strip()) for name, part in zip(names, _parts(within), strict=False)]


def text_type(kind: str) -> str:
    """Return a name for the group of types whose equal values have equal texts. All integer types
    have one name, and so have all text types.
    """
    alias, (precision, scale) = _scalar(kind) or ("", (0, 0))
    if alias.startswith("int"):
        return "integer"
    return f"decimal({precision},{scale})" if alias == "decimal" else alias or kind


def check_types(what: str, schema: "StructType | str") -> None:
    """Raise DeclarationError if a schema in DDL has a column without a type, or with a type that
    Spark does not know. ``what``: the owner of the schema, for the message.
    """
    if isinstance(schema, str) and not schema.lstrip().startswith("{"):  # JSON is Spark's to read
        _columns(what, schema)


def arrow_schema(schema: "StructType | str") -> "pa.Schema | None":
    """Return the Arrow schema in which Spark hands over the columns. None if a column is nested, or
    has a type that no sink can store, such as a decimal of no digits.
    """
    import pyarrow as pa

    fields = []
    for name, kind in (columns(schema) or {}).items():
        alias, digits = _scalar(kind) or ("", (0, 0))
        if not alias or (alias == "decimal" and not digits[0]):  # Arrow has none of no digits
            return None
        if alias == "decimal":
            fields.append((name, pa.decimal128(*digits)))
        elif alias.endswith("UTC]"):
            fields.append((name, pa.timestamp("us", "UTC")))
        else:
            fields.append((name, pa.type_for_alias(alias)))
    return pa.schema(fields) if fields else None


def _columns(what: str, schema: str) -> list[tuple[str, str]]:
    """Return the name and the type of each column. Raises DeclarationError if Spark would refuse
    them.
    """
    text = _without_comments(schema)
    whole = _WITH_PARTS.fullmatch(text.strip())
    return _fields(what, "column", whole[2] if whole else text)


def _fields(what: str, kind: str, text: str) -> list[tuple[str, str]]:
    """Return the name and the type of each column of a schema, or of each field of a struct. Raises
    DeclarationError if Spark would refuse one.

    ``what``: the owner of the schema, for messages.
    ``kind``: ``column`` or ``field``, for messages.
    """
    fields = []
    for part in _parts(text):
        field = _COLUMN.match(part)
        if field is None:
            raise DeclarationError(
                f"{what}: expected {kind}s with a name and a type each, separated by commas, found"
                f" {part.strip()!r}"
            )
        quoted, name, rest = field.groups()
        if name and not _BARE.fullmatch(name):
            raise DeclarationError(
                f"{what}: {kind} {name}: expected a name of letters A to Z, digits and _, or one in"
                f" backticks: write `{name}`"
            )
        without_texts = _QUOTED.sub(lambda quoted: quoted[1] or "''", rest)
        bare = _COMMENT.sub("", without_texts.strip(), count=1)
        bare = _MORE.sub("", bare, count=1).strip()
        _check_type(f"{what}: {kind} {name or quoted}", bare)
        fields.append((name or quoted.replace("``", "`"), bare))
    return fields


def _check_type(what: str, text: str) -> None:
    """Raise DeclarationError unless the text is a type that Spark knows."""
    parts = _WITH_PARTS.fullmatch(text)
    if parts is None:
        scalar = _scalar(text)
        if scalar is None and _scalar(_REST.sub("", text)):
            raise DeclarationError(
                f"{what}: expected after its type NOT NULL, COMMENT 'text', both in this order, or"
                f" nothing, found {text!r}"
            )
        if scalar is None:
            raise DeclarationError(
                f"{what}: expected a type of Spark, found"
                f" {text!r}{suggestion(text.upper(), _USUAL)}"
            )
        _, (precision, scale) = scalar
        if not scale <= precision <= MOST_DIGITS:
            raise DeclarationError(
                f"{what}: expected a decimal of at most {MOST_DIGITS} digits, and no more of them"
                f" after the point, found {text!r}"
            )
        return
    kind, within = parts[1].lower(), parts[2]
    if kind == "struct":
        if within.strip():
            _fields(what, "field", within)
        return
    elements = _parts(within)
    if len(elements) != (1 if kind == "array" else 2):
        example = "ARRAY<STRING>" if kind == "array" else "MAP<STRING, INT>"
        raise DeclarationError(f"{what}: expected for example {example}, found {text!r}")
    for element in elements:
        _check_type(what, element.strip())


def _scalar(text: str) -> tuple[str, tuple[int, int]] | None:
    """Return the name of a scalar type, with the precision and scale of a decimal; None if the text
    is not a scalar type.
    """
    plain = re.sub(r" ?([(,]) ?| (?=\))", r"\1", " ".join(text.lower().split()))
    for alias, pattern in _SCALARS.items():
        if match := re.fullmatch(pattern, plain):
            precision, scale = match.groups() or (None, None)
            return alias, (int(precision or 10), int(scale or 0))
    return None


def _without_comments(text: str) -> str:
    """Return a schema with each SQL comment replaced by a blank. Hints, and comments that are not
    closed, stay.
    """
    pieces, place = [], 0
    while match := _PIECE.match(text, place):
        piece, place = match[0], match.end()
        depth = 1 if piece == "/*" else 0
        end = place
        while depth and (bracket := _BRACKETS.search(text, end)):
            end = bracket.end()
            depth += 1 if bracket[0] == "/*" else -1
        is_comment = piece.startswith("--") or (piece == "/*" and not depth)
        place = end if is_comment else place
        pieces.append(" " if is_comment else piece)
    return "".join(pieces)


def _parts(text: str) -> list[str]:
    """Split the text at its commas, except those within brackets or quotes."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth += (piece in "<(") - (piece in ">)")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts
