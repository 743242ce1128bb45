"""``ackledger audit`` of scripts that read the names of their sources' files."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ledger.auditing.report import AuditReport
from ledger.auditing.scripts import file_columns
from tests.support.audited_scripts import numbers, why

START = """\
import os, shutil; from pyspark.sql import SparkSession, Window, functions as F
HERE = os.getcwd(); FOLDER = os.path.dirname(HERE) + "/all orders"
spark = SparkSession.builder.getOrCreate()
files = spark.read.csv(FOLDER, header=True)
"""


@pytest.fixture
def audited_files(audited, tmp_path: Path) -> Callable[[str], AuditReport]:
    """Audit a script that reads 4 files of 2, 3, 4 and 5 orders; it begins in line 6."""
    for year, orders in ((2023, (2, 3)), (2024, (4, 5))):
        folder = tmp_path / "all orders" / f"year={year}"  # a blank is %20 in its name
        folder.mkdir(parents=True)
        for at, number in enumerate(orders):
            rows = [f"{year}-{at}-{row},{row}" for row in range(number)]
            (folder / f"orders-{year}-{at}.csv").write_text("\n".join(["id,cents", *rows]))
    return lambda text: audited("\n" + dedent(text).strip(), start=START)


def source_of(report: AuditReport) -> str:
    """The only source of a report."""
    (result,) = report.results
    return result.source.name


def losses(report: AuditReport) -> Counter:
    """Numbers of lost records, by operation, line and reason."""
    counted = Counter()
    for loss in report.losses:
        counted[f"{loss.operation} {loss.place} {loss.text}"] += loss.records
    return counted


OF_2023 = {"filter job.py:6 condition false: input_file_name() LIKE '%2024%'": 5}
# Scripts, how many of 14 orders arrive, and why the others do not.
FOLLOWED = {
    "name": (
        'files.where(F.input_file_name().like("%2024%")).write.parquet("out")',
        9,
        OF_2023,
    ),
    "name and a column": (
        """
        is_last = F.input_file_name().endswith("2024-1.csv") & (F.col("id") > "2024-1-1")
        files.where(is_last).write.parquet("out")
        """,
        3,
        {
            "filter job.py:7 condition false: endswith(input_file_name(), '2024-1.csv')": 9,
            "filter job.py:7 condition false: id > '2024-1-1'": 2,
        },
    ),
    "metadata": (
        """files.where("_metadata.file_name = 'orders-2023-1.csv'").write.parquet("out")""",
        3,
        {"filter job.py:6 condition false: _metadata.file_name = 'orders-2023-1.csv'": 11},
    ),
    "group": (
        'files.groupBy(F.input_file_name()).count().where("count > 2").write.parquet("out")',
        12,
        {"filter job.py:6 condition false: count > CAST(2 AS BIGINT)": 2},
    ),
    "window": (
        """
        window = Window.partitionBy(F.input_file_name()).orderBy("id")
        ranked = files.withColumn("n", F.row_number().over(window))
        ranked.where("n = 1").write.parquet("out")
        """,
        4,
        {"filter job.py:8 not kept by row_number()": 10},
    ),
    "SQL": (
        """
        files.createOrReplaceTempView("t")
        rows = spark.sql("SELECT *, input_file_name() AS file FROM t WHERE year = 2024")
        rows.where("file LIKE '%2024-0%'").write.parquet("out")
        """,
        4,
        {
            "filter job.py:7 condition false: year = 2024": 5,
            "filter job.py:8 condition false: file LIKE '%2024-0%'": 5,
        },
    ),
    "union": (
        """
        both = files.where("id < '2024'").unionByName(files.where("id >= '2024'"))
        both.where(F.input_file_name().like("%-0.csv")).write.parquet("out")
        """,
        6,
        {
            "filter job.py:6 condition false: id < '2024'": 5,
            "filter job.py:6 condition false: id >= '2024'": 3,
            "filter job.py:7 condition false: input_file_name() LIKE '%-0.csv'": 8,
        },
    ),
    "explode": (
        """
        rows = files.select("id", F.explode(F.array("cents", "id")).alias("each"))
        rows.where(F.input_file_name().like("%-0.csv")).write.parquet("out")
        """,
        6,
        {"filter job.py:7 condition false: input_file_name() LIKE '%-0.csv'": 8},
    ),
    "self-join": (
        """
        named = files.withColumn("file", F.input_file_name())
        named.join(files.where("cents = 0").select("id"), "id").write.parquet("out")
        """,
        4,
        {"inner join job.py:7 no partner for id": 10},
    ),
    "semi join": (
        """
        wanted = files.where(F.input_file_name().like("%2024%")).select("id")
        files.join(wanted, "id", "left_semi").write.parquet("out")
        """,
        9,
        {"semi join job.py:7 no partner for id (may differ when computed again)": 5},
    ),
    "output that is read again": (
        """
        files.withColumn("file", F.input_file_name()).where("cents > 0").write.csv("a", header=True)
        again = spark.read.csv("a", header=True)
        again.where("file LIKE '%2024%'").write.parquet("out")
        """,
        7,
        {
            "filter job.py:6 condition false: CAST(cents AS BIGINT) > CAST(0 AS BIGINT)": 4,
            "filter job.py:8 condition false: file LIKE '%2024%'": 3,
        },
    ),
    "files that are removed": (
        """
        files.where(F.input_file_name().like("%2024%")).write.parquet("out")
        shutil.rmtree(FOLDER)
        """,
        9,
        OF_2023,
    ),
}


@pytest.mark.parametrize(("text", "arrived", "lost"), FOLLOWED.values(), ids=FOLLOWED)
def test_records_are_followed_by_the_names_of_their_files(audited_files, text, arrived, lost):
    """Each record has the name of its own file, and the reason for its loss says so."""
    report = audited_files(text)
    assert (report.failure, why(report)) == ("", {})
    assert numbers(report, source_of(report))[:2] == (14, arrived)
    assert losses(report) == lost


def test_outputs_have_thefile_values_of_a_bare_run(audited_files, audited, tmp_path):
    """Names, blocks and metadata in an output are those that Spark reads, also of other blocks."""
    report = audited_files(
        """
        spark.conf.set("spark.sql.files.maxPartitionBytes", "30")
        try:
            columns = [F.input_file_name(), F.input_file_block_start(), F.input_file_block_length()]
            rows = spark.read.csv(FOLDER, header=True).select("id", *columns, "_metadata")
            rows = rows.toDF("id", "name", "start", "length", "metadata")
            rows.write.parquet("a")
            bare = sorted(rows.collect())
        finally:
            spark.conf.unset("spark.sql.files.maxPartitionBytes")
        assert sorted(spark.read.parquet("a").collect()) == bare
        assert len({row.name for row in bare}) == 4 and max(row.start for row in bare) > 0
        """
    )
    assert (report.failure, why(report)) == ("", {})
    pq.write_table(pa.table({"id": [f"p{at}" for at in range(9)]}), tmp_path / "p.parquet")
    report = audited(
        """
        rows = spark.read.parquet(os.path.dirname(HERE) + "/p.parquet")
        rows.select("id").write.parquet("all")
        rows.select("id", "_metadata.row_index").where("row_index >= 7").write.parquet("out")
        assert {row.id for row in spark.read.parquet("out").collect()} == {"p7", "p8"}
        """,
        final=["out"],
    )
    assert (report.failure, why(report)) == ("", {})
    assert numbers(report, source_of(report))[:2] == (9, 2)


# Scripts whose outputs are not followed, and the reason.
REFUSED = {
    "a group": (
        'files.dropDuplicates(["id"]).withColumn("file", F.input_file_name())',
        r"job\.py:6: input_file_name\(\) is taken after Deduplicate, where Spark may know no file",
    ),
    "a limit": (
        "files.limit(3).where(F.input_file_block_start() == 0)",
        r"job\.py:6: input_file_block_start\(\) is taken after limit",
    ),
    "a UDF": (
        'files.withColumn("u", F.udf(str)("id")).withColumn("file", F.input_file_name())',
        r"job\.py:6: input_file_name\(\) is taken beside or after a Python UDF",
    ),
    "a cache": (
        'files.select("cents").cache().withColumn("file", F.input_file_name())',
        r"job\.py:6: input_file_name\(\) is taken of a cached frame",
    ),
    "no file": (
        'files.select(F.lit(1)).union(spark.range(1)).where(F.input_file_name() != "")',
        r"job\.py:6: input_file_name\(\) is taken of rows that are in no file",
    ),
    "an output": (
        'spark.read.parquet("a").withColumn("file", F.input_file_name())',
        r"job\.py:6: input_file_name\(\) is taken of a, which the script has written",
    ),
    "metadata of an output": (
        'spark.read.parquet("a").select("_metadata.file_path")',
        r"job\.py:6: _metadata is taken of a, which the script has written",
    ),
    "an output in a semi join": (
        'files.join(spark.read.parquet("a").where("input_file_name() > \'\'"), "id", "left_semi")',
        r"job\.py:6: input_file_name\(\) is taken of a, which the script has written",
    ),
}


def test_other_names_of_files_are_refused(audited_files):
    """Where a name depends on how Spark computes a plan, the output is not followed, with the line
    and the reason; the others are.
    """
    writes = [
        f'({frame}).write.parquet("out{at}")' for at, (frame, _) in enumerate(REFUSED.values())
    ]
    writes = ['files.write.parquet("a")', *writes, "spark.catalog.clearCache()"]
    report = audited_files("; ".join(writes))
    assert report.failure == ""
    reasons = why(report)
    assert sorted(reasons) == [f"out{at}" for at in range(len(REFUSED))]
    for at, (_, reason) in enumerate(REFUSED.values()):
        assert re.match(reason, reasons[f"out{at}"])


def test_a_source_is_copied_again_with_the_same_ids(audited_files):
    """If an earlier output reads a source without names, a second copy has to have the same ids.
    It has others if Spark cuts the files elsewhere.
    """
    text = """
        files.write.parquet("all")
        option, name = "spark.sql.files.maxPartitionBytes", FOLDER + "/year=2023/orders-2023-1.csv"
        try:
            {}
            files.where(F.input_file_name().like("%2023-1%")).write.parquet("out")
        finally:
            spark.conf.unset(option)
        """
    report = audited_files(text.format("assert os.path.exists(name)"))
    assert (report.failure, why(report)) == ("", {})
    assert {loss.records for loss in report.losses} == {11}
    report = audited_files(text.format("spark.conf.set(option, 60)"))
    assert "a second copy is not proven to have the same records" in why(report)["out"]
    report = audited_files(text.format('open(name, "a").close()'))
    assert why(report) == {}


def test_copied_files_are_copied_again_with_the_same_ids(audited, tmp_path):
    """Files of Parquet that were copied as they are get their names once an output reads these, and
    an id stays that of its record.
    """
    folder = tmp_path / "all orders"
    folder.mkdir()
    for name, rows in {"a%b.parquet": 3, "b c.parquet": 4}.items():
        table = pa.table({"id": [f"{name[0]}{at}" for at in range(rows)]})
        pq.write_table(table, folder / name, row_group_size=2)
    report = audited(
        f"""
        files = spark.read.parquet({str(folder)!r})
        files.where("id != 'a1'").write.parquet("first")
        files.where(F.input_file_name().like("%c.parquet")).write.parquet("second")
        """
    )
    assert (report.failure, why(report)) == ("", {})
    (result,) = report.results
    assert result.source.files is not None
    assert (result.source.records, result.arrived) == (7, 6)
    lost = {loss.operation: loss.records for loss in report.losses if not loss.has_arrived}
    assert lost == {"filter": 1}
    assert "a1" in str(report.as_dict(3)["losses"])


def test_a_source_of_maps_is_not_copied_again(audited, tmp_path):
    """Maps have no hash, so nothing proves that a second copy has the same ids."""
    kind = pa.map_(pa.string(), pa.int64())
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], kind)}), tmp_path / "m.parquet")
    report = audited(
        """
        maps = spark.read.parquet(os.path.dirname(HERE) + "/m.parquet")
        maps.select("m").write.parquet("all")
        maps.select("_metadata.file_name").write.parquet("out")
        """
    )
    assert "a second copy is not proven to have the same records" in why(report)["out"]


def test_names_that_cannot_be_proven_are_refused(audited_files, monkeypatch):
    """The copying scan compares its names with the metadata, and one that differs is refused."""
    values = file_columns.file_values

    def others(metadata):
        name = F.when(
            metadata["file_name"] != "orders-2024-1.csv", values(metadata)["InputFileName"]
        )
        return values(metadata) | {"InputFileName": name}

    monkeypatch.setattr(file_columns, "file_values", others)
    report = audited_files('files.where(F.input_file_name().like("%2024%")).write.parquet("out")')
    assert "input_file_name() differs from the metadata of the files of" in why(report)["out"]
