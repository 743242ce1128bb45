"""``ackledger audit``: scripts as they are, whose writes go to copies and are followed."""

import os

import pytest

from ledger.auditing.attribution import Attribution
from ledger.auditing.scripts.running import audit_script
from ledger.errors import InputError
from tests.support.audited_scripts import numbers, reasons, why

PAID = "condition false: state = 'paid'"
NO_STATE = "condition NULL: state = 'paid'"
UNKNOWN = "no partner for shop"
JOINED = """\
paid = orders.where("state = 'paid'")
shops = spark.createDataFrame([("s1",), ("s2",)], "shop string")
known = paid.join(shops, "shop")
"""
LOST = {PAID: 2, NO_STATE: 2, UNKNOWN: 2}


def test_a_script_as_it_is(audited):
    """Reads, actions and the end of the session stay as they are; losses have their line."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        shops = spark.createDataFrame([("s1",), ("s2",)], "shop string")
        known = paid.join(shops, "shop")
        assert known.count() == 6 and known.columns == ["shop", "order_id", "state", "cents"]
        known.write.parquet("out/known")
        spark.stop()
        """
    )
    assert numbers(report) == (12, 6, 4, 2)
    assert reasons(report) == LOST
    assert {(loss.operation, loss.place) for loss in report.losses} == {
        ("filter", "job.py:6"),
        ("inner join", "job.py:8"),
    }
    (output,) = report.outputs
    assert (output.name, output.place, output.is_final) == ("out/known", "job.py:10", True)


# How a script writes and reads an output of its own.
ROUND_TRIPS = {
    "parquet": ('w.parquet("out")', 'spark.read.parquet("out")'),
    "parquet by format": ('w.format("parquet").save("out")', 'spark.read.load("out")'),
    "orc": ('w.orc("out")', 'spark.read.orc("out")'),
    "json": ('w.json("out")', 'spark.read.json("out")'),
    "json with a schema": (
        'w.json("out")',
        'spark.read.schema("cents string, shop string").json("out")',
    ),
    "csv with a header": (
        'w.option("header", True).csv("out")',
        'spark.read.csv("out", header=True, inferSchema=True)',
    ),
    "csv with another separator": (
        'w.csv("out", sep=";", header=True)',
        'spark.read.options(sep=";", header=True).csv("out")',
    ),
    "csv without a header": (
        'w.csv("out")',
        'spark.read.csv("out").toDF("shop", "order_id", "state", "cents")',
    ),
    "csv with a schema": (
        'w.csv("out")',
        'spark.read.schema("shop string, order_id string, state string, cents string").csv("out")',
    ),
    "partitions": ('w.partitionBy("shop").parquet("out")', 'spark.read.parquet("out")'),
    "partitions of csv": (
        'w.partitionBy("shop").csv("out", header=True)',
        'spark.read.csv("out", header=True)',
    ),
    "parts of a path": (
        'w.partitionBy("state").parquet("out")',
        'spark.read.parquet("out/state=paid")',
    ),
    "a wildcard": ('w.parquet("out/a")', 'spark.read.parquet("out/*")'),
    "a wildcard above a part": (
        'w.partitionBy("state").parquet("out/a")',
        'spark.read.parquet("out/*/state=paid")',
    ),
    "alternatives": (
        'w.parquet("out/a")',
        'spark.read.parquet("{out,no}/{a,b}")',
    ),
    "the folder above": (
        'w.parquet("out/state=x")',
        'spark.read.parquet("out").drop("state")',
    ),
    "a full path": ('w.parquet("out")', 'spark.read.parquet(f"file://{os.getcwd()}/out")'),
    "a table": ('w.saveAsTable("known")', 'spark.table("known")'),
    "a table of a database": (
        'w.saveAsTable("shop.known")',
        'spark.sql("SELECT * FROM shop.known")',
    ),
    "a table by its reader": ('w.saveAsTable("known")', 'spark.read.table("known")'),
    "a partitioned table": (
        'w.partitionBy("shop").saveAsTable("known")',
        'spark.table("known").select("order_id", "state", "cents", "shop")',
    ),
    "insertInto": ('w.insertInto("known")', 'spark.table("known")'),
    "CREATE TABLE AS": (
        'known.createOrReplaceTempView("k"); spark.sql("CREATE TABLE t AS SELECT * FROM k")',
        'spark.table("t")',
    ),
    "INSERT into a partition": (
        'known.createOrReplaceTempView("k");'
        """spark.sql("INSERT OVERWRITE TABLE t PARTITION (day = '3') SELECT * FROM k")""",
        'spark.sql("SELECT shop, cents FROM t WHERE day = 3")',
    ),
    "INSERT with a WITH": (
        'known.createOrReplaceTempView("k");'
        'spark.sql("WITH x AS (SELECT * FROM k) INSERT INTO db.t SELECT * FROM x")',
        'spark.sql("SELECT t.shop, t.cents FROM db.t")',
    ),
}


@pytest.mark.parametrize(("write", "read"), ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_outputs_that_are_read_again(audited, write, read):
    """Rows keep their records through files and tables of the script's own, in each format."""
    report = audited(
        f"""
        import os
        {JOINED.replace(chr(10), chr(10) + " " * 8)}
        w = known.write
        {write}
        back = {read}
        assert back.count() == 6, back.count()
        big = back.where("try_cast(cents AS INT) > 2")
        big.write.parquet("big")
        """
    )
    small = "condition false: TRY_CAST(cents AS INT) > 2"
    null = "condition NULL: TRY_CAST(cents AS INT) > 2"
    assert report.failure == ""
    assert numbers(report) == (12, 3, 5, 4)
    assert reasons(report) == LOST | {small: 2, null: 1}
    assert [output.is_final for output in report.outputs] == [False, True]


def test_an_output_that_is_written_twice(audited):
    """The second write replaces the first, or is appended to it, as its mode says."""
    text = """
        paid = orders.where("state = 'paid'")
        paid.where("shop = 's1'").write.parquet("out")
        paid.where("shop = 's2'").write.mode({mode!r}).parquet("out")
        spark.read.parquet("out").write.parquet("end")
        """
    assert numbers(audited(text.format(mode="append"))) == (12, 6, 2, 4)
    report = audited(text.format(mode="overwrite"))
    assert numbers(report) == (12, 3, 5, 4)
    assert reasons(report)["out is replaced"] == 3


def test_records_that_miss_one_of_two_outputs(audited):
    """They are no losses, and listed apart with the output."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.write.parquet("paid")
        paid.join(spark.createDataFrame([("s1",)], "shop string"), "shop").write.parquet("s1")
        """
    )
    assert numbers(report) == (12, 8, 2, 2)
    assert reasons(report) == {PAID: 2, NO_STATE: 2}
    assert reasons(report, has_arrived=True) == {UNKNOWN: 5}
    (loss,) = [loss for loss in report.losses if loss.has_arrived]
    assert loss.outputs == ("s1",)
    report = audited(
        """
        orders.where("state = 'paid'").write.parquet("paid")
        orders.where("state = 'open'").write.parquet("open")
        """,
        final=["open"],
    )
    assert numbers(report) == (12, 2, 2, 8)


def test_a_copy_is_no_arrival(audited):
    """A copy of the source as it is counts only if there is no other output."""
    copy = 'orders.withColumn("day", F.lit(1)).write.parquet("bronze")\n'
    assert numbers(audited(copy)) == (12, 12, 0, 0)
    paid = "orders.where(\"state = 'paid'\").write.parquet('paid')\n"
    assert numbers(audited(copy + paid)) == (12, 8, 2, 2)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("raise ValueError('no day')", "failed at job.py:6: ValueError: no day"),
        ("import sys; sys.exit(3)", "ended with 3"),
        ("import sys; sys.exit('no day')", "ended with 'no day'"),
        ("import sys; sys.exit()", ""),
        ("int('x')", "failed at job.py:6: ValueError: invalid literal for int()"),
        ("assert False", "failed at job.py:6: AssertionError"),
        (
            "spark._jvm.java.util.ArrayList().get(0)",
            "failed at job.py:6: java.lang.IndexOutOfBoundsException: Index 0 out of bounds",
        ),
        (
            "orders.select(F.udf(lambda n: 1 / 0)('cents')).collect()",
            "failed at job.py:6: PythonException: ZeroDivisionError: division by zero",
        ),
        ("orders.select('nothing')", "failed at job.py:6: AnalysisException: "),
    ],
)
def test_a_script_that_ends_early(audited, text, failure):
    """The report has what it wrote until then, with how it ended."""
    report = audited(f"orders.where(\"state = 'paid'\").write.parquet('paid')\n{text}\n1 / 0\n")
    assert report.failure.startswith(failure)
    assert bool(report.failure) == bool(failure)
    assert numbers(report) == (12, 8, 2, 2)


STOPS = {
    'paid.writeTo("t").create()': "writeTo() writes by DataFrameWriterV2",
    "paid.foreach(print)": "foreach() may write anywhere",
    "paid.foreachPartition(print)": "foreachPartition() may write anywhere",
    "paid.rdd.foreach(print)": "foreach() may write anywhere",
    'paid.rdd.saveAsTextFile("x")': "saveAsTextFile() may write anywhere",
    'spark.readStream.format("rate").load()': "reads or writes a stream",
    "paid.writeStream": "reads or writes a stream",
    'spark.sql("DELETE FROM t WHERE a = 1")': "DELETE FROM t WHERE a = 1 is SQL that writes",
    'spark.sql("MERGE INTO t USING o ON t.a = o.a WHEN MATCHED THEN DELETE")': (
        "MERGE INTO t USING o ON t.a = o.a WHE... is SQL that writes"
    ),
    'spark.sql("update t set a = 1")': "update t set a = 1 is SQL that writes",
    'spark.sql("ALTER TABLE t ADD COLUMNS (b INT)")': "is SQL that writes",
    'spark.sql("ALTER TABLE t ADD PARTITION (a = 1)")': "is SQL that writes",
    "spark.sql(\"ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')\")": "is SQL that writes",
    'spark.sql("DROP FUNCTION f")': "DROP FUNCTION f is SQL that writes",
    'spark.catalog.createTable("t", schema=paid.schema)': "createTable() writes to the catalog",
    "spark.sql(\"INSERT OVERWRITE DIRECTORY 'x' USING csv SELECT 1\")": "is SQL that writes",
    'SparkSession.builder.remote("sc://localhost")': "uses Spark Connect",
    'paid.write.csv("x"); spark.read.text("x")': "x was written as csv and is read as text",
    'paid.write.csv("x"); spark.read.csv(["x", "orders.csv"])': "read together with files",
}


@pytest.mark.parametrize("text", STOPS)
def test_what_cannot_be_audited_ends_the_script(audited, text):
    """Writes that the audit does not see, streams and Connect end the script at their line, even
    within ``except Exception``; what was written before is reported.
    """
    report = audited(
        f"""
        paid = orders.where("state = 'paid'")
        paid.write.parquet("paid")
        try:
            {text}
        except Exception:
            pass
        orders.write.parquet("never")
        """
    )
    assert report.failure.startswith("stopped at job.py:9: ")
    assert STOPS[text] in report.failure
    assert numbers(report) == (12, 8, 2, 2)


def test_a_write_that_fails_and_is_tried_again(audited):
    """The rows of the write that failed are no output, and the next one is not in its way."""
    report = audited(
        """
        try:
            orders.select(F.raise_error(F.lit("no"))).write.csv("paid")
        except Exception:
            orders.where("state = 'paid'").write.csv("paid")
        """
    )
    assert report.failure == ""
    assert numbers(report) == (12, 8, 2, 2)


def test_writes_that_are_left_out(audited):
    """JDBC and unknown formats are copied; pandas writes nothing, and its output is named."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.write.jdbc("jdbc:postgresql://nowhere/shop", "paid", mode="append")
        paid.write.format("delta").save("delta")
        paid.toPandas().to_csv("paid.csv", index=False)
        orders.toPandas()["cents"].to_json("cents.json")
        spark.sql("CREATE DATABASE IF NOT EXISTS shop")
        spark.sql("DROP TABLE IF EXISTS shop.paid")
        spark.createDataFrame([(1,)], "a int").write.parquet("log")
        """
    )
    assert report.failure == ""
    (result,) = report.results
    assert result.unknown == "not known: rows went through toPandas() at job.py:10"
    assert [output.name for output in report.outputs] == [
        *("paid", "delta", "log", "paid.csv", "cents.json")
    ]
    assert why(report) == {
        "log": "its rows come from no file or table in its plan, but from createDataFrame(), "
        "collect(), toPandas() or an RDD",
        "paid.csv": "pandas to_csv() is left out: its rows went through the driver",
        "cents.json": "pandas to_json() is left out: its rows went through the driver",
    }
    assert report.notes == ["DROP TABLE in SQL is left out"]


def test_a_plan_that_cannot_be_followed(audited):
    """Its output is named with the line, and no number of its source is guessed, nor downstream."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.mapInPandas(lambda frames: frames, paid.schema).write.parquet("mapped")
        spark.read.parquet("mapped").limit(3).write.parquet("end")
        """
    )
    reason = why(report)
    assert reason["mapped"].startswith("job.py:7: rows cannot be followed through mapInPandas")
    assert reason["end"] == "it reads mapped, which is not followed"
    (result,) = report.results
    assert result.unknown == "not known: end is not followed"
    assert "orders.csv  12        ?     ?" in str(report)
    assert report.lost_records == 0
    report = audited(
        """
        orders.mapInPandas(lambda frames: frames, orders.schema).write.parquet("mapped")
        orders.where("state = 'paid'").write.parquet("paid")
        """
    )
    assert (report.lost_records, reasons(report)) == (0, {})
    assert reasons(report, has_arrived=True) == {PAID: 2, NO_STATE: 2}


def test_one_path_that_is_read_twice(audited):
    """Two reads in the same way are one source, in another way two."""
    report = audited(
        """
        again = spark.read.csv(f"{HERE}/orders.csv", header=True)
        orders.where("state = 'paid'").union(again.where("state = 'open'")).write.parquet("out")
        """
    )
    assert numbers(report) == (12, 10, 2, 0)
    report = audited(
        """
        lines = spark.read.text(f"{HERE}/orders.csv")
        orders.where("state = 'paid'").write.parquet("out")
        lines.where("value NOT LIKE 'order%'").write.parquet("lines")
        """
    )
    assert numbers(report, "orders.csv (2)") == (13, 12, 0, 1)


def test_sources_without_records(audited, tmp_path):
    """An empty source is listed with zeros; one that no plan of an output has is named."""
    (tmp_path / "job" / "empty.csv").write_text("order_id,shop\n")
    (tmp_path / "job" / "lookup.csv").write_text("shop\ns1\n")
    report = audited(
        """
        shops = [row.shop for row in spark.read.csv(f"{HERE}/lookup.csv", header=True).collect()]
        empty = spark.read.csv(f"{HERE}/empty.csv", header=True)
        orders.join(empty, "order_id").write.parquet("out")
        """
    )
    assert numbers(report) == (12, 0, 12, 0)
    assert numbers(report, "empty.csv") == (0, 0, 0, 0)
    assert report.notes == [
        "lookup.csv, read at job.py:6, is in the plan of no output: its records are not followed",
        "rows went through collect() at job.py:6: where Python sends them is not known, and they "
        "may have arrived there",
    ]


def test_a_script_without_outputs(audited):
    """It is said that nothing was written, and what was read."""
    report = audited("orders.count()\n")
    assert report.results == []
    assert report.outputs == []
    assert "the script wrote no output" in str(report)
    assert "orders.csv, read at job.py:4, is in the plan of no output" in str(report)


def test_arguments_modules_and_udfs(audited, tmp_path):
    """The script gets its arguments, imports from its own folder, and its UDFs are executed."""
    (tmp_path / "job" / "rules.py").write_text("STATE = 'paid'\n")
    report = audited(
        """
        import argparse
        import rules

        parser = argparse.ArgumentParser()
        parser.add_argument("--out")
        out = parser.parse_args().out

        wanted = rules.STATE

        def is_paid(state):
            return None if state is None else state == wanted

        if __name__ == "__main__":
            chosen = orders.where(F.udf(is_paid, "boolean")("state"))
            chosen.checkpoint().localCheckpoint().write.parquet(out)
        """,
        "--out",
        "here",
    )
    assert report.failure == ""
    assert [output.name for output in report.outputs] == ["here"]
    assert numbers(report) == (12, 8, 2, 2)


def test_frames_of_other_threads(audited):
    """Their lines are known, too."""
    report = audited(
        """
        from concurrent.futures import ThreadPoolExecutor

        def write(state):
            orders.where(f"state = '{state}'").write.parquet(state)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, ["paid", "open"]))
        """
    )
    assert numbers(report) == (12, 10, 2, 0)
    assert {loss.place for loss in report.losses} == {"job.py:9"}


def test_requests_that_make_no_sense(audited, tmp_path, monkeypatch):
    """A missing script, an unknown source, and Connect are refused in a sentence."""
    with pytest.raises(InputError, match=r"nothing\.py: expected a Python script, found no file"):
        audit_script(tmp_path / "nothing.py", [], tmp_path)
    assert numbers(audited('orders.write.parquet("out")\n', final=["gold"])) == (12, 12, 0, 0)
    with pytest.raises(InputError, match=r"no source 'x': expected one of orders\.csv"):
        audited('orders.write.parquet("out")\n').of_sources(["x"])
    monkeypatch.setitem(os.environ, "SPARK_REMOTE", "sc://localhost")
    with pytest.raises(InputError, match=r"job\.py uses Spark Connect"):
        audited("")


def test_a_sort_is_not_computed_again(audited):
    """Its key may fail on rows that a later filter drops, and no record depends on it."""
    report = audited(
        """
        valid = orders.where("cents <> 'n/a'")
        shares = valid.withColumn("n", F.expr("100 / (CAST(cents AS INT) - 10)"))
        shares.orderBy("n").where("shop <> 's1'").write.parquet("out")
        """
    )
    assert numbers(report) == (12, 5, 0, 7)
    assert reasons(report) == {
        "condition false: NOT (cents = 'n/a')": 1,
        "condition false: NOT (shop = 's1')": 6,
    }
    assert report.notes == []


def test_a_write_that_fails(audited):
    """Nothing is known of the sources of an output that could not be written."""
    report = audited(
        """
        orders.select(F.expr("CAST(cents AS INT)")).write.parquet("out")
        """
    )
    assert report.failure.startswith("failed at job.py:6: NumberFormatException")
    (result,) = report.results
    assert result.unknown == "not known: it is in the plan of no output"
    assert (report.lost_records, report.losses) == (0, [])


def test_operations_that_fail_without_later_ones(audited):
    """Spark fails on rows that a later filter drops: the numbers stay, the place is a later one."""
    report = audited(
        """
        valid = orders.where("shop <> 's9' AND cents <> 'n/a'")
        shares = valid.withColumn("n", F.expr("CAST(100 / (CAST(cents AS INT) - 10) AS BIGINT)"))
        joined = shares.join(spark.range(-200, 200).toDF("n"), "n")
        joined.where("cents <> '10'").write.parquet("out")
        """
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 8)
    assert reasons(report) == {
        "condition false: NOT (shop = 's9')": 2,
        "condition false: NOT (cents = 'n/a')": 1,
        "reason not known: DIVIDE_BY_ZERO": 1,
    }
    assert report.notes == [
        "inner join at job.py:8 fails on rows that the job does not compute (DIVIDE_BY_ZERO): what "
        "it lost is listed at a later operation"
    ]


def test_operations_of_several_outputs_are_computed_once(audited, monkeypatch):
    """An output that is made of the rows of another one adds its own operations only, and what is
    in an output's rows is known from its copy.
    """
    looked_at = []
    arrived = Attribution.arrived

    def watched(attribution, node, only):
        looked_at.append(str(node.nodeName()))
        return arrived(attribution, node, only)

    monkeypatch.setattr(Attribution, "arrived", watched)
    report = audited(
        f"{JOINED}known.write.parquet('out/known')\n"
        "known.groupBy('shop').count().write.parquet('out/totals')\n"
        "known.where('length(order_id) > 9').write.parquet('out/some')\n"
    )
    assert looked_at == ["Filter", "Filter"]
    assert reasons(report) == LOST
    outputs = {loss.reason: (loss.records, loss.outputs) for loss in report.losses}
    assert outputs[UNKNOWN] == (2, ("out/known", "out/totals", "out/some"))
    assert outputs["condition false: length(order_id) > 9"] == (6, ("out/some",))


def test_operations_below_two_outputs(audited):
    """Outputs that share operations, and are not made of each other, have each loss once."""
    report = audited(
        f"{JOINED}known.groupBy('shop').count().write.parquet('totals')\n"
        "known.where('length(order_id) > 9').write.parquet('some')\n"
        "known.select('cents').write.parquet('cents')\n"
    )
    assert reasons(report) == LOST
    outputs = {loss.reason: loss.outputs for loss in report.losses}
    assert outputs[UNKNOWN] == ("totals", "some", "cents")
    assert outputs["condition false: length(order_id) > 9"] == ("some",)


def test_staging_is_published(audited):
    """A copy of one of the script's own outputs is its end, and no copy of a source."""
    report = audited(
        """
        orders.where("state = 'paid'").write.parquet("tmp")
        spark.read.parquet("tmp").coalesce(1).write.parquet("final")
        orders.where("state IS NULL").write.parquet("quarantine")
        """
    )
    assert numbers(report) == (12, 10, 0, 2)


def test_a_replaced_output_is_no_arrival(audited):
    """Records that only an overwritten output had are lost by the overwrite."""
    report = audited(
        """
        orders.where("state = 'paid'").write.parquet("out")
        orders.where("order_id = 'o8'").write.mode("overwrite").parquet("out")
        """
    )
    assert numbers(report)[:2] == (12, 1)
    assert reasons(report)["out is replaced"] == 8
    assert {loss.place for loss in report.losses if loss.operation == "overwrite"} == {"job.py:7"}


def test_a_file_that_the_script_rewrites(audited, tmp_path):
    """Each state of it is a source of its own."""
    report = audited(
        """
        import time
        for number in (3, 5):
            with open(f"{HERE}/../day.csv", "w") as file:
                file.write("id\\n" + "\\n".join(map(str, range(number))) + "\\n")
            spark.read.csv(f"{HERE}/../day.csv", header=True).write.parquet(f"days/{number}")
            time.sleep(0.01)
        """
    )
    assert [result.source.records for result in report.results] == [3, 5]


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (
            'spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")\n'
            'w = orders.write.mode("overwrite").partitionBy("state"); w.parquet("out")\n'
            """w = orders.where("state = 'paid'").write.mode("overwrite").partitionBy("state")\n"""
            'w.parquet("out")',
            "replaces some of the partitions of out",
        ),
        ('try: orders.writeTo("t").create()\nexcept: pass', "writeTo() writes by"),
        (
            "import threading\nt = threading.Thread(target=lambda: orders.foreach(print))\n"
            "t.start(); t.join()",
            "foreach() may write anywhere",
        ),
    ],
    ids=["dynamic overwrite", "bare except", "thread"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_the_audit_cannot_tell_apart(audited, spark, text, failure):
    """It ends the script, or is a failure of the report, whatever the script catches."""
    try:
        assert failure in audited(text + "\n").failure
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


# What a script reads, and the file that its folder has beside what the script has written.
BESIDE = {
    "the folder above": ("days", "days/day=1/part.csv"),
    "a wildcard": ("days/*", "days/day=1/part.csv"),
    "a wildcard above a part": ("*/*/state=paid", "old/day=1/state=paid/part.csv"),
    "alternatives": ("days/{day=2,day=1}", "days/day=1/part.csv"),
    "alternatives with a slash": ("{days/day=2,days/day=1}", "days/day=1/part.csv"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_files_beside_an_output(audited, tmp_path, case):
    """A read of an output and of files that the script has not written ends it."""
    path, beside = BESIDE[case]
    (tmp_path / "job" / beside).parent.mkdir(parents=True)
    (tmp_path / "job" / beside).write_text("order_id\no1\n")
    report = audited(
        f"""
        orders.write.partitionBy("state").csv("days/day=2", header=True)
        spark.read.csv("{path}", header=True).write.parquet("out")
        """
    )
    assert report.failure.startswith("stopped at job.py:7: "), report.failure
    assert "which it has not written" in report.failure or "has not written:" in report.failure


def test_parts_of_several_outputs(audited, tmp_path):
    """A wildcard reads the parts of each, those of an earlier run of the same outputs excepted."""
    (tmp_path / "job" / "days" / "a" / "state=paid").mkdir(parents=True)
    (tmp_path / "job" / "days" / "a" / "state=paid" / "part.csv").write_text("order_id\no1\n")
    report = audited(
        """
        for name, shop in (("a", "s1"), ("b", "s2"), ("c", "s9")):
            chosen = orders.where(f"shop = '{shop}'")
            chosen.write.mode("overwrite").partitionBy("state").parquet(f"days/{name}")
        orders.where("order_id = 'o8'").write.mode("append").partitionBy("state").parquet("days/a")
        assert spark.read.parquet("days/*/state=open").count() == 3
        assert spark.read.parquet("days/[a-b]/state=p*").count() == 6
        spark.read.parquet("days/{a,c}/state=paid").write.parquet("out")
        """,
        final=["out"],
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 5)


def test_appends_by_name(audited):
    """``saveAsTable`` appends columns by their names."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.select("shop", "cents").write.saveAsTable("t")
        paid.select("cents", "shop").write.mode("append").saveAsTable("t")
        spark.table("t").where("shop = 's1'").write.parquet("out")
        assert spark.table("t").where("shop = 's1'").count() == 6
        """
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 3)


def test_rows_that_went_through_the_driver(audited):
    """Nothing is claimed of their source once an output may have them."""
    report = audited(
        """
        paid = orders.where("state = 'paid'")
        paid.rdd.toDF(paid.schema).write.parquet("rows")
        orders.where("state = 'open'").write.parquet("open")
        """
    )
    (result,) = report.results
    assert result.unknown == "not known: rows went through rdd at job.py:7"


def test_a_refused_plan_knows_its_sources(audited):
    """A refusal before the rows are followed makes the numbers unknown, too."""
    report = audited(
        """
        orders.createOrReplaceTempView("k")
        text = "WITH x AS (SELECT *, rand() AS r FROM k) SELECT * FROM x WHERE state = 'paid'"
        spark.sql(text).write.parquet("random")
        orders.where("state = 'open'").write.parquet("open")
        """
    )
    (result,) = report.results
    assert result.unknown == "not known: random is not followed"


READERS = {
    "DROPMALFORMED": 'spark.read.schema("n INT, shop STRING").csv(FILE, mode="DropMalformed")',
    "of JSON": 'spark.read.schema("n INT").option("MODE", "dropmalformed").json(FILE)',
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_that_drops_records(audited, tmp_path, reader):
    """Its source is not followed, because Spark drops other records for other columns."""
    file = tmp_path / "job" / "raw.csv"
    file.write_text("1,s1\nx,s2\n3,s3\n")
    report = audited(
        f"""
        FILE = {str(file)!r}
        raw = {READERS[reader]}
        raw.select("n").write.parquet("out")
        """
    )
    assert why(report)["out"].startswith("it reads raw.csv with mode=")
    assert "expected PERMISSIVE" in why(report)["out"]
    assert report.results == []
    assert not [note for note in report.notes if "raw.csv" in note]


def test_other_readers_of_malformed_records(audited, tmp_path):
    """PERMISSIVE keeps each record, FAILFAST fails, and files that are skipped are noted."""
    file = tmp_path / "job" / "raw.csv"
    file.write_text("1,s1\nx,s2\n3,s3\n")
    report = audited(
        f"""
        FILE = {str(file)!r}
        schema = "n INT, shop STRING, broken STRING"
        raw = spark.read.schema(schema).csv(FILE, columnNameOfCorruptRecord="broken")
        raw.where("broken IS NULL").write.parquet("out")
        skipping = spark.read.option("ignoreCorruptFiles", True).option("badRecordsPath", "bad")
        skipping.csv(FILE).where("_c0 = '1'").write.parquet("one")
        spark.read.schema("n INT, shop STRING").csv(FILE, mode="FAILFAST").write.csv("fast")
        """
    )
    assert numbers(report, "raw.csv") == (3, 2, 0, 1)
    assert numbers(report, "raw.csv (2)") == (3, 1, 0, 2)
    skipped = (
        "raw.csv is read with ignoreCorruptFiles: records of files that it skips are not counted"
    )
    assert report.notes.count(skipped) == 1
    assert report.failure.startswith("failed at job.py:12: ")
    assert "FAILED_READ_FILE" in report.failure
