"""A record is parsed once, whatever is asked of its columns."""

import re
from contextlib import redirect_stdout
from io import StringIO

import pytest
from pyspark.sql import functions as F

from ledger import FileSource
from ledger.sources.base import Claimed
from ledger.sources.registry import source_of

LINES = {"csv": "n,name\n1,a\nx,b\n3,c\n", "json": '{"n":1,"name":"a"}\n{"n":"x"}\n{"n":3}\n'}


def plan_of(frame):
    """What Spark is going to do, as it explains it."""
    with redirect_stdout(StringIO()) as told:
        frame.explain()
    return told.getvalue()


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_text_is_parsed_once(spark, tmp_path, format):
    """Filters, joins and uses of a column parse nothing again: a line is parsed for its values,
    one of JSON again where a number may change, and its texts are where one does not fit.
    """
    (tmp_path / "in.txt").write_text(LINES[format])
    source = FileSource(str(tmp_path / "in.txt"), schema="n INT, name STRING", format=format)
    records = source_of("in", source).reader(spark).records(Claimed("in", str(tmp_path / "in.txt")))
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
