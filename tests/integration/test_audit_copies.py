"""What an audit copies: files of Parquet as they are, and ids of groups only if they are read."""

import os
import shutil
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from ledger.auditing.attribution import MAX_PARTS, RECORDS_OF_PART, in_few_shuffles
from ledger.auditing.file_copies import copied_files
from ledger.auditing.options import PARTS
from ledger.auditing.outputs import HIDDEN
from ledger.auditing.scripts.written import WrittenOutput
from ledger.auditing.sources import Sources
from ledger.lineage.catalyst import Catalyst
from tests.support.audited_scripts import numbers, reasons, why


def test_files_of_parquet_are_copied_as_they_are(audited, tmp_path):
    """Each record is told from those of other files, whatever their names are: of files without
    rows, with several row groups, and of one that is read twice.
    """
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, rows in {"a b%.parquet": 3, "b.parquet": 0, "c.parquet": 4}.items():
        texts = pa.array([f"{name[0]}{at}" for at in range(rows)], pa.string())
        table = pa.table({"c1": texts, "`n`": pa.array(range(rows), pa.int64())})
        pq.write_table(table, folder / name, row_group_size=2)
    report = audited(
        f"""
        rows = spark.read.parquet({str(folder)!r}, {str(folder / "c.parquet")!r})
        rows = rows.withColumnRenamed("`n`", "n")
        twin = rows.select("c1", F.col("n").alias("m"))
        rows.where("n < 2 OR c1 LIKE 'a%'").join(twin, "c1").where("m < 2").write.parquet("out")
        """
    )
    (source,) = [result.source for result in report.results]
    assert source.files is not None
    for at, name in enumerate(source.files.names):
        original = Path(unquote(urlparse(name).path))
        copy = source.files.folder / f"{at}.parquet"
        assert copy.read_bytes() == original.read_bytes()
    assert numbers(report, source.name)[:2] == (11, 6)
    assert reasons(report) == {
        "condition false: (n < CAST(2 AS BIGINT)) OR c1 LIKE 'a%'": 4,
        "condition false: m < CAST(2 AS BIGINT)": 1,
    }
    lost = report.as_dict(3)["losses"]
    assert [[each["c1"] for each in loss["examples"]] for loss in lost] == [
        ["c2", "c3", "c2"],
        ["a2"],
    ]


def test_other_parquet_is_copied_by_spark(audited, tmp_path):
    """Partitions, a column that Spark's metadata is called like, and options that choose files are
    read by Spark itself.
    """
    for name, column in {"year=1/a": "id", "metadata/a": "_metadata", "options/a": "id"}.items():
        file = tmp_path / "in" / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({column: [1, 2, 3]}), file)
    report = audited(
        f"""
        IN = {str(tmp_path / "in")!r}
        parts = spark.read.option("basePath", IN).parquet(IN + "/year=1")
        parts.where("id > year").write.parquet("parts")
        spark.read.parquet(IN + "/metadata").where("_metadata > 1").write.parquet("metadata")
        some = spark.read.option("pathGlobFilter", "*.parquet").parquet(IN + "/options")
        some.where("id > 1").write.parquet("some")
        """
    )
    assert report.failure == ""
    assert [result.source.files for result in report.results] == [None] * 3
    assert [(result.source.records, result.arrived) for result in report.results] == [(3, 2)] * 3


def test_files_that_change_or_are_none_are_not_copied(spark, tmp_path, monkeypatch):
    """A file that has another size than Spark has listed, that changes while it is copied, or that
    is no Parquet, is left to Spark, and nothing of it stays.
    """
    file, catalyst = tmp_path / "in.parquet", Catalyst(spark)

    def copied(frame: DataFrame, name: str) -> list[int] | None:
        copies = copied_files(catalyst, frame, tmp_path / name, 0)
        assert (copies is not None) == (tmp_path / name).exists()
        return None if copies is None else list(copies.rows)

    pq.write_table(pa.table({"n": [1]}), file)
    frame = spark.read.parquet(str(file))
    assert copied(frame, "a") == [1]
    pq.write_table(pa.table({"n": range(1000)}), file)
    assert copied(frame, "b") is None
    copy = shutil.copyfile

    def changing(source: str, target: str) -> None:
        copy(source, target)
        os.utime(source, (1e9, 1e9))

    frame = spark.read.parquet(str(file))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", changing)
        assert copied(frame, "c") is None
    (tmp_path / "none.parquet").write_text("n\n1\n")
    assert copied(spark.read.schema("n INT").parquet(f"{tmp_path}/none.parquet"), "d") is None


@pytest.mark.parametrize(
    ("before", "after", "condition", "is_copied"),
    [
        ("LEGACY", "CORRECTED", "day < '1499-12-30' OR day > '2000-01-01'", False),
        ("", "LEGACY", "day > '1499-12-30'", True),
    ],
)
def test_parquet_is_read_with_the_options_of_its_read(
    audited, spark, tmp_path, before, after, condition, is_copied
):
    """An old date that a session takes for one of another calendar stays what it was when the
    script has read it.
    """
    old = tmp_path / "old.parquet"
    pq.write_table(pa.table({"day": pa.array([date(1500, 1, 1), date(2020, 1, 1)])}), old)
    mode = "spark.sql.parquet.datetimeRebaseModeInRead"
    try:
        report = audited(
            f"""
            if {before!r}:
                spark.conf.set({mode!r}, {before!r})
            rows = spark.read.parquet({str(old)!r})
            rows.where({condition!r}).groupBy("day").count().write.parquet("out")
            spark.conf.set({mode!r}, {after!r})
            """
        )
    finally:
        spark.conf.unset(mode)
    (result,) = report.results
    assert (result.source.files is not None) == is_copied
    assert (result.source.records, result.arrived) == (2, 2)


def test_ids_of_groups_are_written_once_they_are_read(audited, tmp_path, monkeypatch):
    """Before that their records are those of the rows in the groups; where these could be others
    when they are computed again, the ids are written at once. The copy without ids is removed.
    """
    writes = []
    write = WrittenOutput.write_rows

    def watched(output, rows, hidden):
        writes.append((output.name, hidden))
        write(output, rows, hidden)

    monkeypatch.setattr(WrittenOutput, "write_rows", watched)
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.groupBy("shop").count().write.parquet("read")
        paid.select("shop").distinct().orderBy("shop").write.csv("unread")
        spark.read.parquet("read").where("count > 2").write.parquet("out")
        now = orders.where("shop = 's1' AND current_timestamp() > '2000-01-01'")
        now.groupBy("shop").count().write.parquet("timely")
        orders.orderBy("cents").limit(2).groupBy("shop").count().write.parquet("limited")
        orders.orderBy("shop").offset(2).groupBy("state").count().write.parquet("rest")
        rows = spark.sparkContext.parallelize(["s1", "s2"]).map(lambda shop: (shop,))
        shops = spark.createDataFrame(rows, "shop STRING")
        orders.join(shops, "shop").groupBy("shop").count().write.parquet("of an RDD")
        """
    )
    assert report.failure == ""
    assert writes == [
        ("read", []),
        ("unread", []),
        ("read", [HIDDEN]),
        ("out", [HIDDEN]),
        ("timely", [HIDDEN]),
        ("limited", [HIDDEN]),
        ("rest", [HIDDEN]),
        ("of an RDD", [HIDDEN]),
    ]
    copies = tmp_path / "copies-0"
    assert not (copies / "output-0").exists()
    assert (copies / "output-0-with-ids").is_dir()
    assert numbers(report)[:2] == (12, 12)
    assert reasons(report, has_arrived=True)["condition false: count > CAST(2 AS BIGINT)"] == 2


CONSULTED = {
    "anti join": 'rows = orders.join(done, "order_id", "left_anti")',
    "subquery": (
        'orders.createOrReplaceTempView("t"); done.createOrReplaceTempView("known")\n'
        'rows = spark.sql("SELECT * FROM t WHERE order_id NOT IN (SELECT order_id FROM known)")'
    ),
    "except": 'rows = orders.select("order_id").subtract(done)',
}


@pytest.mark.parametrize("case", CONSULTED)
def test_groups_are_those_of_the_write(audited, tmp_path, case):
    """An input that only decides which records are grouped may have others at the report: a script
    notes there what it has done.
    """
    (tmp_path / "done.csv").write_text("order_id\no1\n")
    report = audited(
        f"DONE = {str(tmp_path / 'done.csv')!r}\n"
        "done = spark.read.csv(DONE, header=True)\n"
        f"{CONSULTED[case]}\n"
        'rows.groupBy(F.length("order_id")).count().write.parquet("new")\n'
        'with open(DONE, "w") as file:\n'
        '    file.write("order_id\\n" + "\\n".join(f"o{at}" for at in range(1, 13)))\n'
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 11)


@pytest.fixture
def lenient(spark):
    """A session that parses dates as Java once did, and whose script may change that."""
    options = {"spark.sql.ansi.enabled": "false", "spark.sql.legacy.timeParserPolicy": "LEGACY"}
    for name, value in options.items():
        spark.conf.set(name, value)
    yield
    for name in (*options, "spark.executor.memory"):
        spark._jsparkSession.sessionState().conf().unsetConf(name)


DATES = """
parsed = spark.read.csv(f"{HERE}/dates.csv", header=True)
parsed = parsed.withColumn("day", F.to_date("d", "yyyy-MM-dd")).where("day IS NOT NULL")
"""
CORRECTED = """
spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
SparkSession.builder.config("spark.executor.memory", "2g").getOrCreate()
"""


def test_rows_are_computed_again_with_the_options_of_the_write(audited, lenient, tmp_path):
    """Groups that the script reads again, their records, and the losses of a row, although another
    option would not parse some dates.
    """
    (tmp_path / "job" / "dates.csv").write_text(
        "d,state\n2020-1-5,open\n2020-2-7,open\n2020-10-10,paid\n"
    )
    text = DATES + 'parsed.groupBy("day").count().write.parquet("counts")\n' + CORRECTED
    assert numbers(audited(text), "dates.csv") == (3, 3, 0, 0)
    text += (
        'assert spark.read.parquet("counts").count() == 3\n'
        'spark.read.parquet("counts").write.parquet("final")\n'
    )
    spark_option = 'spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")\n'
    report = audited(spark_option + text)
    assert (report.failure, numbers(report, "dates.csv")) == ("", (3, 3, 0, 0))
    text = DATES + "parsed.where(\"state = 'paid'\").write.parquet('paid')\n" + CORRECTED
    report = audited(spark_option + text)
    assert reasons(report) == {"condition false: state = 'paid'": 2}
    report = audited(f"{spark_option}{text}parsed.write.parquet('all')\n")
    assert why(report)["all"].startswith(
        "dates.csv was copied with spark.sql.legacy.timeParserPolicy=LEGACY, which the script has "
    )


CACHED = {
    "a frame": 'rows = source.where("n < 5").cache(); rows.count()',
    "its source": 'source.cache().count(); rows = source.where("n < 5")',
}


@pytest.mark.parametrize("case", CACHED)
def test_cached_rows_of_files_that_have_changed_are_not_followed(audited, spark, tmp_path, case):
    """Spark writes rows of the files as they were, which a copy of the files does not have."""
    file = tmp_path / "in.parquet"
    report = audited(
        f"""
        import pyarrow as pa, pyarrow.parquet as pq
        def write(*values):
            pq.write_table(pa.table({{"n": [*values]}}), {str(file)!r}, use_dictionary=False)
        write(1, 2, 3)
        source = spark.read.parquet({str(file)!r})
        {CACHED[case]}
        rows.write.parquet("before")
        write(7, 8, 9)
        rows.write.parquet("out")
        assert spark.read.parquet("out").count() == 3
        rows.unpersist(); source.unpersist()
        own = spark.read.parquet("before").cache(); own.count()
        own.where("n < 3").write.parquet("of before")
        spark.read.parquet({str(file)!r}).where("n < 9").write.parquet("after")
        """
    )
    assert report.failure == ""
    assert [*why(report)] == ["out"]
    assert why(report)["out"].startswith(f"{file} has changed since it was cached, so it is not ")
    first, second = report.results
    assert first.unknown == "not known: out is not followed"
    assert (second.source.records, second.arrived, second.unknown) == (3, 2, "")
    spark.catalog.clearCache()


def test_a_source_that_changes_between_two_writes(audited, tmp_path):
    """The second output has other rows than the copy of the source that the first one has."""
    file = tmp_path / "in.csv"
    report = audited(
        f"""
        def write(text):
            with open({str(file)!r}, "w") as file:
                file.write(text)
        write("n\\n1\\n2\\n")
        source = spark.read.csv({str(file)!r}, header=True)
        source.write.parquet("first")
        write("n\\n3\\n4\\n")
        source.where("n > 3").write.parquet("second")
        """
    )
    assert report.failure == ""
    assert why(report)["second"].startswith(f"{file} has changed since it was copied, so it is ")
    (result,) = report.results
    assert result.unknown == "not known: second is not followed"


def test_groups_whose_copies_are_gone_are_not_followed(audited, tmp_path):
    """No number is guessed if the records of groups cannot be computed at the report."""
    report = audited(
        f"""
        orders.groupBy("shop").count().write.parquet("counts")
        os.system("rm -r {tmp_path}/copies-*/source-*")
        """
    )
    assert report.failure == ""
    assert why(report)["counts"].startswith("its records cannot be computed: ")
    (result,) = report.results
    assert result.unknown


@pytest.mark.parametrize(("millions", "parts"), [(0, 0), (150, 150), (900, MAX_PARTS)])
def test_shuffles_have_as_many_parts_as_the_records_need(spark, tmp_path, millions, parts):
    """One for each core and each million of records, unless the job says how many; nothing stays
    set.
    """
    before = spark.conf.get(PARTS, None)
    spark.conf.unset(PARTS)
    sources = Sources(Catalyst(spark), tmp_path)
    sources.sources.append(SimpleNamespace(records=millions * RECORDS_OF_PART))
    try:
        with in_few_shuffles(sources):
            wanted = max(parts, spark.sparkContext.defaultParallelism)
            assert spark.conf.get(PARTS) == str(wanted)
        assert spark.conf.get(PARTS, None) is None
        spark.conf.set(PARTS, 5)
        with in_few_shuffles(sources):
            assert spark.conf.get(PARTS) == "5"
        assert spark.conf.get(PARTS) == "5"
    finally:
        spark.conf.unset(PARTS)
        if before is not None:
            spark.conf.set(PARTS, before)
