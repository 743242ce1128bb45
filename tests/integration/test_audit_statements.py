"""SQL statements and pandas calls of audited scripts that an audit would read wrongly."""

import pytest

from tests.support.audited_scripts import numbers, why

JOINED = 'orders.select("shop", "cents").write.saveAsTable("{}")\n'

# What a script does, and how its failure starts.
REFUSED = {
    "a list of columns": (
        JOINED.format("known")
        + 'orders.createOrReplaceTempView("t")\n'
        + 'spark.sql("INSERT INTO known (cents, shop) SELECT cents, shop FROM t")',
        "INSERT with a list of columns or BY NAME is not audited",
    ),
    "by name": (
        JOINED.format("known")
        + 'orders.createOrReplaceTempView("t")\n'
        + 'spark.sql("INSERT INTO known BY NAME SELECT cents, shop FROM t")',
        "INSERT with a list of columns or BY NAME is not audited",
    ),
    "TRUNCATE TABLE": (
        JOINED.format("known") + 'spark.sql("TRUNCATE TABLE default.Known")',
        "TRUNCATE TABLE of known, which the script has written",
    ),
    "DROP TABLE": (
        JOINED.format("shop.known") + 'spark.sql("DROP TABLE IF EXISTS `shop`.known")',
        "DROP TABLE of shop.known, which the script has written",
    ),
    "DROP TABLE by a variable": (
        JOINED.format("known")
        + "spark.sql(\"DROP TABLE IDENTIFIER(:name)\", args={'name': 'known'})",
        "DROP TABLE of a table whose name the audit cannot read",
    ),
    "EXECUTE IMMEDIATE": (
        "spark.sql(\"EXECUTE IMMEDIATE 'DROP TABLE known'\")",
        "EXECUTE IMMEDIATE 'DROP TABLE known' is SQL that writes",
    ),
    "CALL": ('spark.sql("CALL shop.clear(1)")', "CALL shop.clear(1) is SQL that writes"),
    "a SQL script": (
        'spark.sql("BEGIN INSERT INTO known SELECT 1; END")',
        "BEGIN INSERT INTO known SELECT 1; END is SQL that writes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sql_that_is_refused(audited, case):
    """The script ends at the statement, whose line is named."""
    text, failure = REFUSED[case]
    report = audited(text)
    assert report.failure.partition(": ")[2].startswith(failure), report.failure


def test_tables_that_are_not_of_the_script(audited):
    """Statements that empty them are left out, before and after another table is written."""
    report = audited(
        """
        spark.sql("DROP TABLE IF EXISTS known")
        orders.write.saveAsTable("known")
        spark.sql("DROP TABLE IF EXISTS other")
        spark.sql("TRUNCATE TABLE shop.known")
        assert spark.table("known").count() == 12
        """
    )
    assert report.failure == ""
    assert report.notes == ["DROP TABLE in SQL is left out", "TRUNCATE TABLE in SQL is left out"]


def test_a_view_is_dropped_only_if_it_is_temporary(audited, spark):
    """One of the catalog stays; one that does not exist is dropped where Spark accepts it."""
    spark.sql("CREATE VIEW persisted AS SELECT 1 AS a")
    try:
        report = audited(
            """
            orders.createOrReplaceTempView("t")
            spark.sql("DROP VIEW t")
            assert not spark.catalog.tableExists("t")
            orders.createOrReplaceGlobalTempView("t")
            spark.sql("DROP VIEW global_temp.t")
            spark.sql("DROP VIEW IF EXISTS `no such`")
            spark.sql("DROP VIEW default.persisted")
            """
        )
        assert "DROP VIEW of default.persisted, which is not a temporary view" in report.failure
        assert "at job.py:12: " in report.failure, report.failure
        assert spark.catalog.tableExists("persisted")
    finally:
        spark.sql("DROP VIEW persisted")


def test_texts_of_pandas(audited):
    """pandas returns a text where no file is named, and writes to what the script has opened."""
    report = audited(
        """
        import io
        pdf = orders.toPandas()
        assert pdf.to_json(orient="records").startswith('[{"order_id":"o1"')
        assert pdf.to_csv(index=False).startswith("order_id,shop")
        assert pdf["shop"].to_string(index=False).split()[0] == "s1"
        assert pdf.to_csv(None, index=False) == pdf.to_csv(path_or_buf=None, index=False)
        opened = io.StringIO()
        pdf.to_csv(index=False, path_or_buf=opened)
        assert opened.getvalue() == pdf.to_csv(index=False)
        pdf.to_csv(index=False, path_or_buf="a.csv")
        pdf.to_string("a.txt")
        pdf["shop"].to_string(index=False, buf="b.txt")
        orders.write.parquet("out")
        """
    )
    assert report.failure == ""
    assert list(why(report)) == ["a.csv", "a.txt", "b.txt"]


def test_a_table_of_a_database_is_written_twice(audited):
    """INSERT has the table's own name, and its query reads the view of it."""
    report = audited(
        """
        orders.createOrReplaceTempView("k")
        for state in ("paid", "open"):
            spark.sql(f"INSERT INTO shop.known SELECT * FROM k WHERE state = '{state}'")
        spark.sql("SELECT * FROM shop.known").write.parquet("out")
        spark.sql("SELECT * FROM shop.known").write.saveAsTable("default.plain")
        spark.sql("SELECT * FROM default.plain WHERE cents = '1'").write.parquet("one")
        """
    )
    assert report.failure == ""
    assert [output.name for output in report.outputs][:2] == ["shop.known", "shop.known"]
    assert numbers(report)[:2] == (12, 10)


def test_a_partition_is_replaced(audited):
    """The audit cannot tell which rows remain, so the script ends."""
    report = audited(
        """
        orders.createOrReplaceTempView("k")
        for day in (1, 2):
            spark.sql(f"INSERT OVERWRITE TABLE t PARTITION (day = '{day}') SELECT * FROM k")
        """
    )
    assert "replaces a partition of t, which the script has written before" in report.failure
