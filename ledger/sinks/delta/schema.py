"""What a Delta table can hold, and whether rows fit one that exists."""

import json
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ledger.errors import ConfigurationError, StageError
from ledger.sinks.base import Rule

if TYPE_CHECKING:
    from deltalake import DeltaTable

# A field, or a type that has parts, as the table's log writes it.
Json = dict[str, Any]

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
}
_IN_FOLDERS = ("boolean", "byte", "short", "integer", "long", "string", "date", "timestamp_ntz")
_TRACKING = ("_ackledger_root", "_ackledger_roots", "_ackledger_unit")
_CONSTRAINT = "delta.constraints."
_LENGTH = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
# Of these, the ones that a table makes use of show in its properties and columns.
_KNOWN_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "generatedColumns",
    "invariants",
    "timestampNtz",
}


def delta_fields(schema: pa.Schema, partition_by: tuple[str, ...]) -> list[Json]:
    """The columns in Delta's words. Raises StageError for what no Delta table can hold."""
    _require_names(schema.names)
    fields = [_field(field, field.name) for field in schema]
    types = {field["name"]: field["type"] for field in fields}
    for name in partition_by:
        if name not in types:
            raise StageError(
                f"the sink is partitioned by {name!r}, which its input lacks; it has "
                f"{', '.join(schema.names)}: hand the column on, or change partition_by"
            )
        if types[name] not in _IN_FOLDERS:
            raise StageError(
                f"the sink is partitioned by {name!r}, a {_text(types[name])}: expected a type"
                " whose text in a folder's name means one value to every reader: cast it in the"
                " stage, for example to a date or a string"
            )
    if len(set(partition_by)) == len(types):
        raise StageError(
            f"the sink is partitioned by all of its columns, {', '.join(partition_by)}: files need "
            "at least one column more"
        )
    return fields


def nullable(part: Any) -> Any:
    """Fields or a type with everything nullable, as Spark writes it into files."""
    if isinstance(part, list):
        return [nullable(each) for each in part]
    if not isinstance(part, dict):
        return part
    free = {"nullable", "containsNull", "valueContainsNull"}
    return {key: True if key in free else nullable(value) for key, value in part.items()}


def require_plain(table: "DeltaTable") -> None:
    """Raise ConfigurationError if the table asks for more than adding and removing files."""
    protocol, settings = table.protocol(), table.metadata().configuration
    asked = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    unknown = [f"table feature {name}" for name in sorted(asked - _KNOWN_FEATURES)]
    for key, value in sorted(settings.items()):
        if _is_rule(key, value):
            unknown.append(f"table property {key} = {value}")
    unknown += _column_rules(table)
    if unknown:
        raise ConfigurationError(
            f"Delta table {table.table_uri}: files committed in place cannot keep to "
            f"{', '.join(unknown)}: drop that from the table, or write to another path"
        )


def table_rules(table: "DeltaTable") -> tuple[Rule, ...]:
    """What each row of a table has to meet, in the words of Delta's own errors: nothing but a
    writer of rows keeps to it."""
    return tuple(rule for rule, _, _ in _rules(table))


def required(table: "DeltaTable") -> dict[str, str]:
    """Of each column that is NOT NULL its rule's condition."""
    return {
        one["name"]: _is_there(one["name"]) for one in table_fields(table) if not one["nullable"]
    }


def require_checked(table: "DeltaTable", checked: Collection[str]) -> None:
    """Raise ConfigurationError if the table has a rule whose condition nobody compared the rows
    with."""
    for rule, what, drop in _rules(table):
        if rule.condition not in checked:
            raise ConfigurationError(
                f"Delta table {table.table_uri}: {what}: the staged rows were not compared with it,"
                " for it came after them, or they come from a combine or a state. Nothing was"
                f" changed. Drop it (ALTER TABLE ... {drop}), publish again, and add it again once"
                " the table keeps to it"
            )


def _rules(table: "DeltaTable") -> Iterator[tuple[Rule, str, str]]:
    """Each rule, what of the table it is, and the end of the statement that drops it."""
    settings = table.metadata().configuration
    for key, text in sorted(settings.items()):
        if key.startswith(_CONSTRAINT) and text:
            name = key.removeprefix(_CONSTRAINT)
            rule = Rule(text, f"CHECK constraint {name} ({text}) violated")
            yield rule, f"table property {key} = {text}", f"DROP CONSTRAINT {name}"
    for field in table_fields(table):
        name, column = field["name"], _quoted(field["name"])
        alter = f"ALTER COLUMN {column}"
        if not field["nullable"]:
            rule = Rule(_is_there(name), f"NOT NULL constraint violated for column: {name}")
            yield rule, f"column {name!r} is NOT NULL", f"{alter} DROP NOT NULL"
        declared = field["metadata"].get("__CHAR_VARCHAR_TYPE_STRING", "")
        if found := _LENGTH.fullmatch(declared):
            reason = f"Exceeds char/varchar type length limitation: {found[1]}, column: {name}"
            rule = Rule(f"{column} IS NULL OR length({column}) <= {found[1]}", reason)
            yield rule, f"column {name!r} is a {declared}", f"{alter} TYPE string"


def _is_there(name: str) -> str:
    return f"{_quoted(name)} IS NOT NULL"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def require_fit(found: list[Json], expected: list[Json], place: str) -> None:
    """Raise StageError unless rows of columns ``found`` fit the ``expected`` ones, in whatever
    order.
    """
    found = _in_order(expected, found)
    wrong = list(_different_fields("", expected, found))
    if wrong:
        raise StageError(
            f"rows do not fit {place}: {'; '.join(wrong)}. Change the stage and run it again, or"
            " alter the table"
        )


def require_partitions(partition_by: tuple[str, ...], table: "DeltaTable") -> None:
    """Raise StageError unless the table is partitioned by these columns."""
    expected = list(table.metadata().partition_columns)
    if sorted(expected) != sorted(partition_by):
        raise StageError(
            f"rows do not fit Delta table {table.table_uri}: partition columns: expected"
            f" {expected}, found {list(partition_by)}. Change partition_by of the sink, or write to"
            " another path"
        )


def file_fields(schema: pa.Schema) -> list[Json]:
    """The user's columns of a staged file, in Delta's words."""
    return [_field(field, field.name) for field in schema if field.name not in _TRACKING]


def table_fields(table: "DeltaTable") -> list[Json]:
    """The columns of a table."""
    fields: list[Json] = json.loads(table.schema().to_json())["fields"]
    return fields


def _require_names(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name or _NOT_IN_NAMES & set(name):
            raise StageError(
                f"column {name!r}: a Delta table takes no name that is empty or has one of "
                f"{' '.join(map(repr, sorted(_NOT_IN_NAMES)))}: rename it in the stage"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name or names.count(name) > 1:
            raise StageError(
                f"columns {other!r} and {name!r} are the same to a Delta table, which ignores case:"
                " rename one in the stage"
            )


def _field(field: pa.Field, column: str) -> Json:
    kind = _type(field.type, column)
    return {"name": field.name, "type": kind, "nullable": field.nullable, "metadata": {}}


def _type(found: pa.DataType, column: str) -> Any:
    if found in _PLAIN:
        return _PLAIN[found]
    if pa.types.is_timestamp(found) and found.unit == "us":
        return "timestamp"
    if pa.types.is_decimal128(found) and 0 <= found.scale <= found.precision:
        return f"decimal({found.precision},{found.scale})"
    if pa.types.is_struct(found):
        parts = [found.field(place) for place in range(found.num_fields)]
        return {
            "type": "struct",
            "fields": [_field(part, f"{column}.{part.name}") for part in parts],
        }
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return {
            "type": "array",
            "elementType": _type(found.value_type, f"{column}.element"),
            "containsNull": found.value_field.nullable,
        }
    if pa.types.is_map(found):
        return {
            "type": "map",
            "keyType": _type(found.key_type, f"{column}.key"),
            "valueType": _type(found.item_type, f"{column}.value"),
            "valueContainsNull": found.item_field.nullable,
        }
    raise StageError(
        f"column {column!r} is of type {found}: expected one that a Delta table can hold: cast it"
        " in the stage, for example to string"
    )


def _is_rule(key: str, value: str | None) -> bool:
    """Whether a property asks for what only a writer of rows could do, or forbids what publish
    does.
    """
    if key == "delta.appendOnly":
        return str(value).lower() == "true"
    if key == "delta.columnMapping.mode":
        return str(value).lower() != "none"
    return key == "delta.setTransactionRetentionDuration"


def _column_rules(table: "DeltaTable") -> list[str]:
    return [
        f"{key} of column {field['name']}"
        for field in table_fields(table)
        for key in sorted(field["metadata"])
        if key.startswith("delta.")
    ]


def _in_order(expected: list[Json], found: list[Json]) -> list[Json]:
    """The columns of ``found`` in the order of ``expected``; files are read by name."""
    places = {field["name"]: place for place, field in enumerate(expected)}
    return sorted(found, key=lambda field: places.get(field["name"], len(places)))


def _differences(where: str, expected: Any, found: Any) -> Iterator[str]:
    """What differs between two types, each with the name of the column or of its part."""
    kind = expected["type"] if isinstance(expected, dict) else expected
    if kind != (found["type"] if isinstance(found, dict) else found):
        yield f"column {where!r}: expected {_text(expected)}, found {_text(found)}"
    elif kind == "struct":
        yield from _different_fields(where, expected["fields"], found["fields"])
    elif kind == "array":
        yield from _differences(f"{where}.element", expected["elementType"], found["elementType"])
        yield from _null(f"{where}.element", expected["containsNull"], found["containsNull"])
    elif kind == "map":
        yield from _differences(f"{where}.key", expected["keyType"], found["keyType"])
        yield from _differences(f"{where}.value", expected["valueType"], found["valueType"])
        yield from _null(
            f"{where}.value", expected["valueContainsNull"], found["valueContainsNull"]
        )


def _different_fields(where: str, expected: list[Json], found: list[Json]) -> Iterator[str]:
    prefix = f"{where}." if where else ""
    names, others = [[field["name"] for field in fields] for fields in (expected, found)]
    for field in expected:
        if field["name"] not in others:
            yield (
                f"column {prefix + field['name']!r}: expected {_text(field['type'])}, found no such"
                " column"
            )
    for field in found:
        if field["name"] not in names:
            yield (
                f"column {prefix + field['name']!r}: expected no such column, found"
                f" {_text(field['type'])}"
            )
    if names != others and sorted(names) == sorted(others):
        yield (
            f"parts of column {where!r}: expected them in the order {', '.join(names)}, found"
            f" {', '.join(others)}"
        )
    same = {field["name"]: field for field in found}
    for field in expected:
        if field["name"] in same:
            name, other = prefix + field["name"], same[field["name"]]
            yield from _differences(name, field["type"], other["type"])
            yield from _null(name, field["nullable"], other["nullable"])


def _null(where: str, expected: bool, found: bool) -> Iterator[str]:
    if found and not expected:
        yield f"column {where!r}: expected never null, found nullable"


def _text(kind: Any) -> str:
    """A type in Spark's words."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    parts = [f"{part['name']}:{_text(part['type'])}" for part in kind["fields"]]
    return f"struct<{','.join(parts)}>"
