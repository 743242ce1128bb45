"""Arrow's types as the model: one name for each scalar, and what differs between two schemas."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from ledger.sinks.delta import schema as delta
from ledger.sinks.postgres import types as postgres
from ledger.types.arrow import differences, nullable, scalar
from ledger.types.spark import to_arrow_schema

ONE_NAME = [
    ("string", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    ("binary", [pa.binary(), pa.large_binary(), pa.binary(3)]),
    ("date", [pa.date32(), pa.date64()]),
    ("decimal", [pa.decimal128(9, 2), pa.decimal256(60, 2)]),
    ("time", [pa.time32("ms"), pa.time64("us")]),
    ("timestamp", [pa.timestamp("s"), pa.timestamp("us")]),
    ("timestamptz", [pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")]),
    ("timestamp[ns]", [pa.timestamp("ns")]),
]
NUMBERS = [
    *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
]


@pytest.mark.parametrize(("name", "kinds"), ONE_NAME)
def test_a_scalar_has_one_name(name, kinds):
    """Whatever the layout of its values is; nanoseconds are no scalar that a table has."""
    assert {scalar(kind) for kind in kinds} == {name}


def test_the_table_of_postgresql_names_arrows_scalars():
    """A row that is misspelt would be a type without a counterpart."""
    names = {name for name, _ in ONE_NAME if "[" not in name} - {"decimal"}
    assert set(postgres._TYPES) == names | set(map(scalar, NUMBERS))


def test_types_that_deltalake_takes_with_a_loss():
    """An unsigned 255 would be -1, and nanoseconds ask a feature of each reader."""
    lossy = [kind for kind in NUMBERS if "uint" in scalar(kind)]
    assert {delta.word(kind) for kind in [*lossy, pa.timestamp("ns"), pa.null()]} == {None}
    assert delta.word(pa.timestamp("us", "Europe/Berlin")) == "timestamp"


@pytest.mark.parametrize(
    "kind",
    [
        VariantType(),
        ArrayType(VariantType()),
        MapType(StringType(), VariantType()),
        StructType([StructField("v", VariantType())]),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_a_variant_is_no_struct_of_bytes(kind):
    """Arrow has a VARIANT of Spark as a struct: PostgreSQL and Delta take it at no depth, since
    their tables would have the bytes of its two parts."""
    arrow = to_arrow_schema(StructType([StructField("x", kind)]))
    assert postgres.column_type(arrow.field("x").type) is None
    (problem,) = delta.column_problems(arrow, ())
    assert problem.startswith("column 'x")
    assert "expected one that a Delta table can hold" in problem


def test_what_differs_between_two_schemas():
    """Each column and part is named with what was expected and found, at every depth, the order of
    parts, and null where none may be; the order of columns is no difference."""
    inner = [pa.field("x", pa.int64()), pa.field("y", pa.list_(pa.string()))]
    here = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("gone", pa.string()),
            ("inner", pa.struct(inner)),
            ("turned", pa.map_(pa.string(), pa.struct(inner))),
        ]
    )
    there = pa.schema(
        [
            ("turned", pa.map_(pa.string(), pa.struct(inner[::-1]))),
            ("inner", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.binary()))])),
            ("id", pa.int64()),
            ("more", pa.list_(pa.struct([("z", pa.date32())]))),
        ]
    )
    assert list(differences(here, there, scalar)) == [
        "column 'id': expected never null, found nullable",
        "column 'gone': expected string, found no such column",
        "column 'inner.x': expected int64, found int32",
        "column 'inner.y.element': expected string, found binary",
        "parts of column 'turned.value': expected them in the order x, y, found y, x",
        "column 'more': expected no such column, found array<struct<z:date>>",
    ]
    assert list(differences(here, reversed(list(here)), scalar)) == []


def test_columns_as_files_have_them():
    """Any value and part may be null, and timestamps are in UTC."""
    part = pa.field("at", pa.timestamp("us", "Asia/Tokyo"), nullable=False)
    schema = pa.schema([pa.field("s", pa.struct([part]), nullable=False)])
    expected = pa.schema([("s", pa.struct([("at", pa.timestamp("us", "UTC"))]))])
    assert nullable(schema) == expected
