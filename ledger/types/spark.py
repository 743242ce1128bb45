"""Spark's types: their parts, the same types with other scalars, and their Arrow types.

A timestamp is in UTC or has no zone in Arrow, in each version of Spark.
"""

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas import types as conversions

NESTED = (T.ArrayType, T.MapType, T.StructType)

# Before Spark 4.2 the zone is UTC without being asked for.
_ASKED = "timezone" in signature(conversions.to_arrow_type).parameters
_UTC: dict[str, Any] = {"timezone": "UTC"} if _ASKED else {}

Leaf = Callable[[T.DataType], T.DataType]


def walk(kind: T.DataType, name: str = "") -> Iterator[tuple[str, T.DataType]]:
    """Yield a type and its parts at every depth, without the keys of maps. Each comes with the name
    of the field that it belongs to.
    """
    yield name, kind
    if isinstance(kind, T.ArrayType):
        yield from walk(kind.elementType, name)
    elif isinstance(kind, T.MapType):
        yield from walk(kind.valueType, name)
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from walk(field.dataType, field.name)


def rebuilt(kind: T.DataType, leaf: Leaf, key: Leaf = lambda kind: kind) -> T.DataType:
    """Return a type with each scalar replaced by ``leaf``'s result. ``key``: replaces scalars in
    map keys.
    """
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(rebuilt(kind.elementType, leaf, key), kind.containsNull)
    if isinstance(kind, T.MapType):
        item = rebuilt(kind.valueType, leaf, key)
        return T.MapType(rebuilt(kind.keyType, key, key), item, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        parts = [(part.name, rebuilt(part.dataType, leaf, key), part.nullable) for part in kind]
        return T.StructType([T.StructField(*part) for part in parts])
    return leaf(kind)


def nullable(kind: T.DataType) -> T.DataType:
    """Return a type with all its parts nullable, which is how Spark reads the schema of a file."""
    return kind.toNullable() if isinstance(kind, NESTED) else kind


def without_lengths(kind: T.DataType) -> T.DataType:
    """Return a type with CHAR and VARCHAR replaced by STRING, as which values are stored."""
    return rebuilt(kind, _without_length, _without_length)


def _without_length(kind: T.DataType) -> T.DataType:
    return T.StringType() if isinstance(kind, T.CharType | T.VarcharType) else kind


def quoted(name: str) -> str:
    """Return a name of a column or a table quoted for Spark, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def to_arrow_type(kind: T.DataType) -> pa.DataType:
    """Return a type of Spark as Arrow's."""
    return conversions.to_arrow_type(kind, **_UTC)


def to_arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return a schema of Spark as Arrow's."""
    return conversions.to_arrow_schema(schema, **_UTC)


def from_arrow_type(kind: pa.DataType) -> T.DataType:
    """Return a type of Arrow as Spark's. Raises PySparkException if Spark has no such type."""
    return conversions.from_arrow_type(kind, prefer_timestamp_ntz=True)  # not by default before 4.2


def local_rows(spark: SparkSession, columns: Mapping[str, pa.Array]) -> DataFrame:
    """Return a frame of columns in the driver's memory. It has their types even without rows."""
    table = pa.table(dict(columns))
    return spark.createDataFrame(table, conversions.from_arrow_schema(table.schema))
