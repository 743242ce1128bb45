"""What declarations and Java's own words show before a run."""

import re

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.types import IntegerType, StructField, StructType

from ledger import FileSource, Pipeline
from ledger.core.requirements import require_java
from ledger.errors import ConfigurationError, DeclarationError
from ledger.types import ddl


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ("id STRING, cents BIGINT", {"id": "string", "cents": "bigint"}),
        (
            "`a b` INT NOT NULL COMMENT 'a, b', d DECIMAL(10, 2)",
            {"a b": "int", "d": "decimal(10, 2)"},
        ),
        ("n BIGINT COMMENT 'net, in cents', who STRING", {"n": "bigint", "who": "string"}),
        ("n BIGINT COMMENT 'price (net', who STRING", {"n": "bigint", "who": "string"}),
        (r"n BIGINT COMMENT 'it\'s, net', who STRING", {"n": "bigint", "who": "string"}),
        ("n BIGINT COMMENT 'it''s, net', who STRING", {"n": "bigint", "who": "string"}),
        ('n BIGINT COMMENT "is not null, >", who STRING', {"n": "bigint", "who": "string"}),
        ("`a,(b` INT, who STRING", {"a,(b": "int", "who": "string"}),
        ("no type, 'n' INT", None),
        ("`a b` INT NOT NULL, d DECIMAL(10, 2)", {"a b": "int", "d": "decimal(10, 2)"}),
        ("a: INT, m MAP<STRING, INT>", {"a": "int", "m": "map<string, int>"}),
        (StructType([StructField("n", IntegerType())]), {"n": "int"}),
    ],
)
def test_columns_of_a_schema(schema, fields):
    """Names and types are read from DDL and StructTypes alike; text that cannot be parsed gives
    none.
    """
    assert ddl.columns(schema) == fields


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("id STRING, qty INTT", "column qty: expected a type of Spark, found 'INTT'; did you mean"),
        ("id STRING, a ARRAY<INTT>", "column a: expected a type of Spark, found 'INTT'"),
        ("s STRUCT<a: INT, b: TXT>", "column s: field b: expected a type of Spark, found 'TXT'"),
        ("m MAP<STRING>", "column m: expected for example MAP<STRING, INT>, found 'MAP<STRING>'"),
        ("id INT qty INT", "column id: expected a type of Spark, found 'INT qty INT'"),
        ("\u017f INT", "column \u017f: expected a name of letters A to Z, digits and _"),
        (
            "a \u017ftruct<b: INT>",
            "column a: expected a type of Spark, found '\u017ftruct<b: INT>'",
        ),
        ("id", "expected columns with a name and a type each, separated by commas, found 'id'"),
        ("id INT,", "expected columns with a name and a type each, separated by commas, found ''"),
    ],
)
def test_a_type_that_does_not_exist(schema, says):
    """A schema that Spark cannot parse is refused where it is declared, without Spark, with whose
    it is and the column; of a source, a reference and a record stage."""
    pipeline = Pipeline("typed")
    with pytest.raises(DeclarationError, match=re.escape(f"source 'orders': {says}")):
        pipeline.source("orders", FileSource("in.csv", schema=schema))
    with pytest.raises(DeclarationError, match=re.escape(f"reference 'all' of 'typed': {says}")):
        pipeline.reference("all", FileSource("in.csv", schema=schema))
    with pytest.raises(DeclarationError, match=re.escape(f"record stage 'split': {says}")):

        @pipeline.record_stage(reads="orders", schema=schema)
        def split(record):
            yield record


@pytest.mark.parametrize(
    ("format", "kind", "says"),
    [
        ("csv", "ARRAY<INT>", "a type that csv can hold, found ARRAY: declare STRING"),
        ("csv", "map < string, int >", "a type that csv can hold, found MAP"),
        ("csv", "STRUCT<a: INT>", "a type that csv can hold, found STRUCT"),
        ("csv", "VOID", "a type that csv can hold, found VOID"),
        ("csv", "VARIANT", "no VARIANT in csv"),
        ("json", "ARRAY<VARIANT>", "no VARIANT in json, which would round numbers"),
        ("json", "INTERVAL YEAR TO MONTH", "a type that json can hold, found INTERVAL YEAR TO"),
        ("csv", "INTERVAL MONTH", "a type that csv can hold, found INTERVAL MONTH"),
        ("json", "VOID", "a type that json can hold, found VOID"),
        ("json", "ARRAY<STRUCT<a: INT, b: VOID>>", "a type that json can hold, found VOID"),
        ("json", "GEOMETRY(4326)", "a type that json can hold, found GEOMETRY"),
        ("json", "GEOGRAPHY(ANY)", "a type that json can hold, found GEOGRAPHY"),
        ("json", "MAP<INT, STRING>", "keys of type STRING in a MAP of json, found INT"),
        ("json", "STRUCT<m: MAP<DATE, INT>>", "keys of type STRING in a MAP of json, found DATE"),
        ("json", "MAP<VARCHAR(3), INT>", "keys of type STRING in a MAP of json, found VARCHAR"),
        ("json", "STRING COLLATE UTF8_LCASE", "no collation in json, found STRING COLLATE"),
        ("json", "ARRAY<STRING COLLATE UNICODE>", "no collation in json"),
        ("json", "STRUCT<>", "a STRUCT with fields, found none"),
        ("parquet", "STRUCT<a: STRUCT< >>", "a STRUCT with fields, found none"),
        *((format, kind, f"a type that {format} can hold, found {kind.split(' ')[0]}")
          for format in ("csv", "json", "parquet") for kind in ("INTERVAL", "DECIMAL(0 , 0)")),
    ],
)  # fmt: skip
def test_a_type_that_a_format_cannot_hold_is_refused(format, kind, says):
    """A column of a type that a format cannot hold, or of which no snapshot can be made, is refused
    where it is declared, at any depth, in DDL and as a StructType."""
    schemas = [f"n INT, `c d` {kind}"]
    if kind in TYPES:
        schemas.append(T.StructType([T.StructField("c d", TYPES[kind])]))
    for schema in schemas:
        source = FileSource("in/*", schema=schema, format=format)
        with pytest.raises(
            DeclarationError, match=re.escape(f"column 'c d' of 'in/*': expected {says}")
        ):
            Pipeline("typed").source("orders", source)


TYPES = {
    "ARRAY<INT>": T.ArrayType(T.IntegerType()),
    "STRUCT<a: INT>": T.StructType([T.StructField("a b", T.IntegerType())]),
    "VOID": T.NullType(),
    "VARIANT": T.VariantType(),
    "ARRAY<VARIANT>": T.ArrayType(T.VariantType()),
    "INTERVAL YEAR TO MONTH": T.YearMonthIntervalType(0, 1),
    "INTERVAL MONTH": T.YearMonthIntervalType(1, 1),
    "MAP<INT, STRING>": T.MapType(T.IntegerType(), T.StringType()),
    "STRING COLLATE UTF8_LCASE": T.StringType("UTF8_LCASE"),
    "STRUCT<>": T.StructType(),
    "INTERVAL": T.CalendarIntervalType(),
    "DECIMAL(0 , 0)": T.DecimalType(0, 0),
}


@pytest.mark.parametrize(
    ("format", "schema"),
    [
        ("csv", "a INTERVAL DAY TO SECOND, b TIME(3), c STRING COLLATE UTF8_LCASE, d BINARY"),
        ("json", "a MAP<STRING, ARRAY<STRUCT<collate: STRING, void: INT>>>"),
        ("json", "a INTERVAL DAY TO HOUR, b CHAR(3), c DECIMAL(38,38), `interval` INT"),
        ("parquet", "a MAP<INT, STRING>, b VARIANT, c STRING COLLATE UNICODE"),
    ],
)
def test_types_that_a_format_holds_are_accepted(format, schema):
    """Names of types that are refused may be names of fields; other types are as before."""
    Pipeline("typed").source("orders", FileSource("in/*", schema=schema, format=format))


def test_types_in_arrow():
    """Plain types are those that Spark hands over; one with parts leaves the whole unknown."""
    fields = ddl.arrow_schema("n BIGINT, d DECIMAL(10,2), at TIMESTAMP")
    assert fields == pa.schema(
        [("n", pa.int64()), ("d", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC"))]
    )
    texts = ddl.arrow_schema("a CHAR(3), b varchar ( 3 ), c STRING COLLATE UTF8_LCASE")
    assert set(texts.types) == {pa.string()}
    assert ddl.arrow_schema("n BIGINT, l ARRAY<INT>") is None
    assert ddl.arrow_schema("n BIGINT, v VARIANT") is None
    assert ddl.arrow_schema("n BIGINT, d DECIMAL(0)") is None


@pytest.mark.parametrize(
    ("message", "ok"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_9", False)]
)
def test_versions_of_java(message, ok, tmp_path, monkeypatch):
    """Java 17 and 21 are taken, any other is named with its place."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{message}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if ok:
        assert str(java) in require_java()
        return
    with pytest.raises(ConfigurationError, match=rf"found {message.split('.')[0]} \({java}\)"):
        require_java()


def test_a_java_home_without_java_is_named(tmp_path, monkeypatch):
    """Where JAVA_HOME points nowhere the variable is what is wrong, not Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(
        ConfigurationError, match=rf"JAVA_HOME={tmp_path}/gone has none: .*unset it"
    ):
        require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="none was found: install"):
        require_java()


@pytest.mark.parametrize(
    ("schema", "optional", "says"),
    [
        ("`item.price` INT", "item.prise", "; did you mean 'item.price'?"),
        ("item STRUCT<price: INT>", "item.prise", "; did you mean 'item.price'?"),
        ("item STRUCT<Price: INT>", "item.price", "; did you mean 'item.Price'?"),
        ("l ARRAY<STRUCT<a: MAP<STRING, STRUCT<b: INT>>>>", "l.b", "; did you mean 'l.a.b'?"),
        (
            StructType().add("item", StructType().add("price", IntegerType())),
            "item.prise",
            "; did you mean 'item.price'?",
        ),
    ],
)
def test_an_optional_column_is_one_of_the_schema(schema, optional, says):
    """A name that is no column and no field is refused with the nearest one; these are accepted."""

    def declare(name):
        source = FileSource("in/*", schema=schema, format="json", optional=[name])
        Pipeline("typed").source("orders", source)

    with pytest.raises(DeclarationError, match=re.escape(f"expected a column of the schema{says}")):
        declare(optional)
    declare(says.split("'")[1])
