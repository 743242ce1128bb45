"""Arrow's types, the model of all others: names of scalars, parts, and how two schemas differ.

A kind of sink has one table that maps the names of scalars to its own types.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.types as t

Leaf = Callable[[pa.DataType, str], pa.DataType]
Word = Callable[[pa.DataType], str | None]


def scalar(kind: pa.DataType) -> str:
    """Return the name of a scalar type, whatever its layout: ``int8`` to ``uint64``, ``halffloat``,
    ``float``, ``double``, ``bool``, ``decimal``, ``string``, ``binary``, ``date``, ``time``,
    ``timestamp`` or ``timestamptz``. Any other type, and one with nanoseconds, returns Arrow's
    name, which no sink's table has.
    """
    kind = plain(kind)
    if t.is_decimal(kind):
        return "decimal"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "binary"
    if t.is_date(kind):
        return "date"
    if t.is_time(kind) and kind.unit != "ns":
        return "time"
    if t.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp" if kind.tz is None else "timestamptz"
    return str(kind)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values, or the type itself."""
    return kind.value_type if t.is_dictionary(kind) else kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists, in any layout."""
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def nested(kind: pa.DataType) -> bool:
    """Return whether a type is a list, a map, or a struct of user-visible fields."""
    return bool(is_list(kind) or t.is_map(kind) or (t.is_struct(kind) and not is_packed(kind)))


def is_packed(kind: pa.DataType) -> bool:
    """Return whether a struct is Spark's encoding of a VARIANT, GEOMETRY or GEOGRAPHY.

    Spark marks one of its fields.
    """
    marks = {mark for part in parts(kind) for mark in part.metadata or {}}
    return bool(t.is_struct(kind) and marks & {b"variant", b"geometry", b"geography"})


def parts(kind: pa.DataType) -> list[pa.Field]:
    """Return the parts of a type: the ``element`` of a list, the ``key`` and the ``value`` of a
    map, the fields of a struct.
    """
    if t.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    if is_list(kind):
        return [kind.value_field.with_name("element")]
    return list(kind) if t.is_struct(kind) else []


def scalars(kind: pa.DataType, where: str) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the scalar types within a type, at every depth, each with its path: ``where``, or a
    path below it.
    """
    if not nested(kind):
        yield where, kind
    for part in parts(kind):
        yield from scalars(part.type, f"{where}.{part.name}")


def rebuilt(kind: pa.DataType, leaf: Leaf, where: str = "") -> pa.DataType:
    """Return a type with each scalar replaced by ``leaf``'s result for the scalar and its path. All
    parts are nullable.
    """
    inner = [(part.name, rebuilt(part.type, leaf, f"{where}.{part.name}")) for part in parts(kind)]
    if t.is_struct(kind):
        return pa.struct(inner)
    if t.is_map(kind):
        return pa.map_(inner[0][1], inner[1][1])
    return pa.list_(inner[0][1]) if inner else leaf(kind, where)


def utc(kind: pa.DataType, where: str = "") -> pa.DataType:
    """Return a scalar type, with the time zone of a timestamp with a zone set to UTC. Other types
    are returned unchanged. It can be used as ``leaf`` of ``rebuilt``.
    """
    return pa.timestamp(kind.unit, "UTC") if t.is_timestamp(kind) and kind.tz else kind


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with all columns and parts nullable, and timestamps with a zone in UTC."""
    return pa.schema([(field.name, rebuilt(field.type, utc)) for field in schema])


def text(kind: pa.DataType, word: Word) -> str:
    """Return a type as text in the words of a kind of sink. ``word``: returns the sink's name of a
    scalar.
    """
    inner = [text(part.type, word) for part in parts(kind)]
    if t.is_struct(kind):
        names = [part.name for part in parts(kind)]
        return f"struct<{','.join(map(':'.join, zip(names, inner, strict=True)))}>"
    if t.is_map(kind):
        return f"map<{','.join(inner)}>"
    return f"array<{inner[0]}>" if inner else word(kind) or str(kind)


def differences(
    expected: Iterable[pa.Field], actual: Iterable[pa.Field], word: Word, where: str = ""
) -> Iterator[str]:
    """Yield the differences between two schemas as sentences, each with the name of the column or
    part. The order of columns is ignored; the order of fields in a struct is not.

    ``word``: returns the name of a scalar, for messages. Scalars with equal names are equal.
    """
    here, there = ({field.name: field for field in fields} for fields in (expected, actual))
    for name in dict.fromkeys([*here, *there]):
        place = f"{where}.{name}" if where else name
        own, other = here.get(name), there.get(name)
        types = [
            "no such column" if field is None else text(field.type, word) for field in (own, other)
        ]
        outlines = [kind.partition("<")[0] for kind in types]  # without the parts
        if own is None or other is None or outlines[0] != outlines[1]:
            yield f"column {place!r}: expected {types[0]}, found {types[1]}"
        else:
            yield from differences(parts(own.type), parts(other.type), word, place)
        if own and other and other.nullable and not own.nullable:
            yield f"column {place!r}: expected never null, found nullable"
    if where and [*here] != [*there] and sorted(here) == sorted(there):
        yield (
            f"parts of column {where!r}: expected them in the order {', '.join(here)}, found"
            f" {', '.join(there)}"
        )
