"""A record is parsed once, whatever is asked of its columns."""

import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
from pyspark.sql import functions as F

from ledger import FileSource
from ledger.sources.base import Claim
from ledger.sources.files import text
from ledger.sources.registry import source_of

LINES = {"csv": "n,name\n1,a\nx,b\n3,c\n", "json": '{"n":1,"name":"a"}\n{"n":"x"}\n{"n":3}\n'}


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    """However small a file is, tasks read it."""
    monkeypatch.setattr(text, "HERE", 0)


def plan_of(frame):
    """What Spark is going to do, as it explains it."""
    with redirect_stdout(StringIO()) as output:
        frame.explain()
    return output.getvalue()


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_text_is_parsed_once(spark, tmp_path, format):
    """Filters, joins and uses of a column parse nothing again: a line is parsed for its values,
    one of JSON again where a number may change, and its texts are where one does not fit.
    """
    (tmp_path / "in.txt").write_text(LINES[format])
    source = FileSource(str(tmp_path / "in.txt"), schema="n INT, name STRING", format=format)
    records = source_of("in", source).reader(spark).records(Claim("in", str(tmp_path / "in.txt")))
    others = spark.range(5).select(F.col("id").cast("int").alias("n"))
    used = (
        records.where("_ackledger_error IS NULL AND n > 0")
        .join(others, "n")
        .where("n < 4")
        .selectExpr("n + 1 AS more", "n * 2 AS twice", "upper(name) AS name")
    )
    of_records = re.findall(rf"\bfrom_{format}\(StructField\((n,\w+),", plan_of(used))
    again = {"json": 1, "csv": 0}[format]
    assert sorted(of_records) == ["n,IntegerType", *["n,StringType"] * (1 + again)]
    assert sorted(row["more"] for row in used.collect()) == [2, 4]


@pytest.mark.compiled
@pytest.mark.parametrize("format", ["csv", "json"])
def test_the_jvm_compiles_how_a_text_is_parsed(spark, tmp_path, format):
    """A method of more than 8,000 bytes stays interpreted, several times as slow."""
    kinds = ["INT", "STRING", "TIMESTAMP", "DOUBLE", "DECIMAL(10,2)"] * 4
    names = [f"c{number}" for number in range(len(kinds))]
    data = {"csv": f"{','.join(names)}\n1\n", "json": '{"c0":1}\n'}[format]
    (tmp_path / "in.txt").write_text(data)
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    source = FileSource(str(tmp_path / "in.txt"), schema=schema, format=format)
    records = source_of("in", source).reader(spark).records(Claim("in", str(tmp_path / "in.txt")))
    sizes = method_sizes(spark, records)
    assert sizes
    assert max(sizes) <= 8000


def method_sizes(spark, frame):
    """Of each part that Spark compiles to run a frame the bytes of its largest method."""
    debug = getattr(spark._jvm.org.apache.spark.sql.execution.debug, "package$")
    plan = frame._jdf.queryExecution().executedPlan()
    parts = getattr(debug, "MODULE$").codegenStringSeq(plan)
    return [parts.apply(number)._3().maxMethodCodeSize() for number in range(parts.size())]
