"""Names of columns and tables that would damage something silently are refused, each in one
line."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import ArithmeticException, ParseException
from pyspark.sql.types import LongType, StructField, StructType

from ledger import DeltaSink, ParquetSink, PostgresSink, Upsert
from ledger.core.column_names import check_names
from ledger.errors import DeclarationError, StageError
from ledger.sinks.base import planned
from ledger.sinks.parquet.publisher import ParquetPublisher
from ledger.sinks.postgres.fit import new_columns
from ledger.sinks.postgres.table import TablePlace
from ledger.sources.parsing.typed import check_schema, struct

OWN = frozenset({"_anchor", "_failed"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["_Ackledger_root"],
            "stage 's' returned column '_Ackledger_root', a name of the ledger: rename it",
        ),
        (["_anchor", "_Failed"], "'_Failed', a name of the ledger: write '_failed', or rename it"),
        (["_anchor", "_ANCHOR"], "'_ANCHOR', a name of the ledger: write '_anchor'"),
        (["a", "b", "A"], "columns 'a' and 'A', which are one to Spark, for it ignores case"),
        (["a`b"], "column 'a`b': expected a name without a backtick"),
    ],
)
def test_names_that_spark_or_the_ledger_confuses(names, message):
    """A name of the ledger in whatever case, two that differ by case alone, and backticks are
    refused, in the output of a stage as in the schema of a source."""
    with pytest.raises(StageError) as error:
        check_names("stage 's' returned", names, own=OWN)
    assert message in str(error.value)
    with pytest.raises(DeclarationError, match=r"^the schema has column"):
        check_schema(StructType([StructField(name, LongType()) for name in names]))


def test_names_that_are_fine():
    """The ledger's own names where they are meant, dots, blanks and other letters pass."""
    check_names("x", ["_anchor", "_failed", "a.b", "a b", "_tenant", "größe", "batch"], own=OWN)


JAVA = SimpleNamespace(_target_id="o1", getMessage=lambda: "no such precision")
REFUSED = [
    ParseException("no such precision"),
    ArithmeticException("no such precision"),
    Py4JJavaError("An error occurred while calling x", JAVA),
]


@pytest.mark.parametrize("raised", REFUSED, ids=lambda raised: type(raised).__name__)
def test_a_schema_that_spark_refuses(monkeypatch, raised):
    """Whatever Spark raises of a schema, it is refused as a declaration, with Spark's words."""

    def refuse(ddl):
        raise raised

    monkeypatch.setattr(StructType, "fromDDL", refuse)
    with pytest.raises(DeclarationError, match=r"schema 'a TIME\(7\)': .*no such precision$"):
        struct("a TIME(7)")


@pytest.mark.parametrize(
    "path", ["a\\b", "a%41b", "file:///a\nb", "s3://b/a\\b", "s3://b/a#b", "s3://b/a?b"]
)
def test_a_path_that_deltalake_reads_as_another_is_refused(path):
    """It takes a backslash for a slash and decodes per cents: the table would be elsewhere than its
    files. It is refused when it is declared."""
    with pytest.raises(DeclarationError, match=r"expected one without .*%, \\ and control"):
        DeltaSink(path)
    ParquetSink(path.removeprefix("s3://"))


@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
@pytest.mark.parametrize("names", [("_tenant",), ".hidden", "a`b", ("",), ("a", "A"), ("a", "a")])
def test_partition_columns(kind, names):
    """Folders that readers skip, and columns that are one to Spark, are refused where they are
    declared."""
    with pytest.raises(DeclarationError, match="partition_by of 'out': "):
        kind("out", partition_by=names)


def test_the_folder_of_a_batch():
    """A column that the folders ackledger_batch=<id> of a ParquetSink would hide is refused, as
    partition column and as column of the rows; a Delta table may have it."""
    with pytest.raises(
        DeclarationError, match="'Ackledger_Batch' is taken by the folder of each batch"
    ):
        ParquetSink("out", partition_by="Ackledger_Batch")
    with pytest.raises(StageError, match="'ACKLEDGER_BATCH': rename the column in the stage"):
        planned(
            "the sink",
            ParquetPublisher("/out"),
            pa.schema([("id", pa.int64()), ("ACKLEDGER_BATCH", pa.int64())]),
        )
    DeltaSink("out", partition_by="ackledger_batch")
    ParquetSink("out", partition_by="batch")


@pytest.mark.parametrize(
    ("table", "message"),
    [("x" * 64, "has 64 bytes"), ("ä" * 32 + ".t", "has 64 bytes"), ("sales.", "name the table")],
)
def test_tables_of_postgresql(table, message):
    """A name that PostgreSQL would cut off is refused where it is declared."""
    with pytest.raises(DeclarationError, match=message):
        PostgresSink("postgresql://x", table)
    with pytest.raises(DeclarationError, match="key of 't': 'id' and 'ID' are one column"):
        PostgresSink("postgresql://x", "t", mode=Upsert(("id", "ID")))


@pytest.mark.parametrize("name", ["ctid", "xmin", "ackledger_batch", "ackledger_row", "x" * 64])
def test_columns_of_postgresql(name):
    """Columns that a table of PostgreSQL cannot have, or that the ledger has there, are named."""
    with pytest.raises(StageError, match=rf"column '{name}': .*rename the column"):
        new_columns(TablePlace("public", "t", None), pa.schema([(name, pa.int64())]), ())
