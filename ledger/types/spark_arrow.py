"""Spark's types as Arrow's, alike in each version of Spark: timestamps are in UTC."""

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas import types as conversions

# Before Spark 4.2 they are without being asked for.
_ASKED = "timezone" in signature(conversions.to_arrow_type).parameters
_UTC: dict[str, Any] = {"timezone": "UTC"} if _ASKED else {}


def to_arrow_type(kind: T.DataType) -> pa.DataType:
    """A type of Spark as Arrow's."""
    return conversions.to_arrow_type(kind, **_UTC)


def to_arrow_schema(schema: T.StructType) -> pa.Schema:
    """A schema of Spark as Arrow's."""
    return conversions.to_arrow_schema(schema, **_UTC)
