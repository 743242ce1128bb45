"""Spark's types: their parts, and the same types with others in the place of scalars."""

from collections.abc import Callable, Iterator

from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

NESTED = (ArrayType, MapType, StructType)

Leaf = Callable[[DataType], DataType]


def walk(kind: DataType, name: str = "") -> Iterator[tuple[str, DataType]]:
    """A type and its parts, at every depth, but for the keys of maps: each with the name of the
    field that it is, or that it lies in."""
    yield name, kind
    if isinstance(kind, ArrayType):
        yield from walk(kind.elementType, name)
    elif isinstance(kind, MapType):
        yield from walk(kind.valueType, name)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from walk(field.dataType, field.name)


def rebuilt(kind: DataType, leaf: Leaf, key: Leaf = lambda kind: kind) -> DataType:
    """A type with another in the place of each that has no parts. ``key``: of the keys of maps."""
    if isinstance(kind, ArrayType):
        return ArrayType(rebuilt(kind.elementType, leaf, key), kind.containsNull)
    if isinstance(kind, MapType):
        item = rebuilt(kind.valueType, leaf, key)
        return MapType(rebuilt(kind.keyType, key, key), item, kind.valueContainsNull)
    if isinstance(kind, StructType):
        parts = [(part.name, rebuilt(part.dataType, leaf, key), part.nullable) for part in kind]
        return StructType([StructField(*part) for part in parts])
    return leaf(kind)


def nullable(kind: DataType) -> DataType:
    """A type whose parts may all be null, as Spark reads files and compares with what it has
    read.
    """
    return kind.toNullable() if isinstance(kind, NESTED) else kind


def without_lengths(kind: DataType) -> DataType:
    """The type that values are stored as: a text of limited length is a text."""
    return rebuilt(kind, _without_length, _without_length)


def _without_length(kind: DataType) -> DataType:
    return StringType() if isinstance(kind, CharType | VarcharType) else kind
