"""Convert Spark's types to Arrow's and back, alike in each version of Spark: a timestamp is in UTC,
or has no zone.
"""

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas import types as conversions

# Before Spark 4.2 they are without being asked for.
_ASKED = "timezone" in signature(conversions.to_arrow_type).parameters
_UTC: dict[str, Any] = {"timezone": "UTC"} if _ASKED else {}


def to_arrow_type(kind: T.DataType) -> pa.DataType:
    """Return a type of Spark as Arrow's."""
    return conversions.to_arrow_type(kind, **_UTC)


def to_arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return a schema of Spark as Arrow's."""
    return conversions.to_arrow_schema(schema, **_UTC)


def from_arrow_type(kind: pa.DataType) -> T.DataType:
    """Return a type of Arrow as Spark's. Raises PySparkException if Spark has no such type."""
    return conversions.from_arrow_type(kind, prefer_timestamp_ntz=True)  # not by default before 4.2
