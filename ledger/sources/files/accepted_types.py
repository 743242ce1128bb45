"""The types that the records of each format can hold, checked where a source is declared."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ledger.errors import DeclarationError
from ledger.types.ddl import columns, parts_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_AS_TEXT = "declare STRING, and parse it in a stage"
# Types of which Spark cannot write a snapshot, and those that Arrow does not hand to Spark.
_NOWHERE = r"interval|decimal\(0(,0)?\)"
_NOT_IN_TEXT = rf"{_NOWHERE}|void|geo(metry|graphy)\(.*\)|interval (year|month)( to month)?"
_REFUSED = {"csv": rf"{_NOT_IN_TEXT}|array|map|struct", "json": _NOT_IN_TEXT, "parquet": _NOWHERE}


def check_types(path: str, format: str, schema: "StructType | str") -> None:
    """Raise DeclarationError for a type that the records of a format cannot hold, at any depth, or
    that would change a value."""
    kinds: Iterable[tuple[str, DataType | str]]
    if isinstance(schema, str):
        kinds = (columns(schema) or {}).items()
    else:
        kinds = [(field.name, field.dataType) for field in schema.fields]
    for name, kind in kinds:
        for wrong in _faults(format, kind):
            raise DeclarationError(f"column {name!r} of {path!r}: {wrong}")


def _faults(format: str, kind: "DataType | str") -> Iterator[str]:
    name, parts = parts_of(kind)
    if format != "parquet" and name == "variant":
        yield (
            f"expected no VARIANT in {format}, which would round numbers: declare STRING, which"
            " keeps them as they are written, and call try_parse_json in a stage"
        )
    if re.fullmatch(_REFUSED[format], re.sub(r" ?([(,)]) ?", r"\1", name)):
        yield f"expected a type that {format} can hold, found {name.upper()}: {_AS_TEXT}"
    if format == "json" and " collate " in name:
        yield (
            f"expected no collation in json, found {name.upper()}: declare STRING, and collate it"
            " in a stage"
        )
    if format == "json" and name == "map":
        key, _ = parts_of(parts[0][1])
        if key != "string":
            yield (
                f"expected keys of type STRING in a MAP of json, found {key.upper()}: declare"
                " MAP<STRING, ...>, and cast its keys in a stage"
            )
    if name == "struct" and not parts:
        yield "expected a STRUCT with fields, found none"
    for _, part in parts:
        yield from _faults(format, part)
