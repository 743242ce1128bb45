"""SQL statements and pandas calls of audited scripts that an audit would read wrongly."""

import pytest

from tests.support.audited_scripts import numbers, reasons, why

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
        "TRUNCATE TABLE of default.Known, which the script has written",
    ),
    "TRUNCATE TABLE with a catalog": (
        JOINED.format("shop.known") + 'spark.sql("TRUNCATE TABLE spark_catalog.shop.known")',
        "TRUNCATE TABLE of spark_catalog.shop.known, which the script has written",
    ),
    "a name in a variable": (
        JOINED.format("known")
        + "spark.sql(\"SELECT * FROM IDENTIFIER(:name)\", args={'name': 'known'})",
        "reads a table by IDENTIFIER(), whose name the audit cannot read",
    ),
    "an earlier version": (
        JOINED.format("shop.known") + 'spark.sql("SELECT * FROM shop.known VERSION AS OF 1")',
        "reads a table that the script has written in a way that the audit does not know",
    ),
    "SHOW PARTITIONS": (
        JOINED.format("known") + 'spark.sql("SHOW PARTITIONS known")',
        "SHOW PARTITIONS of known, which the script has written, is not audited",
    ),
    "two tables of one name": (
        JOINED.format("a.known")
        + JOINED.format("b.known")
        + 'spark.sql("SELECT a.known.shop FROM a.known JOIN b.known ON a.known.shop = 1")',
        "names a column a.known of a table that the script has written",
    ),
    "INSERT into a view": (
        'orders.createOrReplaceTempView("t"); spark.sql("INSERT INTO t SELECT * FROM t")',
        "inserts into t, a temporary view",
    ),
    "DROP TABLE by a variable": (
        JOINED.format("known")
        + "spark.sql(\"DROP TABLE IDENTIFIER(:name)\", args={'name': 'known'})",
        "DROP TABLE of a table whose name the audit cannot read",
    ),
    "a path by IDENTIFIER": (
        "orders.write.parquet(f'{HERE}/out')\n"
        "name = {'name': f'parquet.`{HERE}/out`'}\n"
        'spark.sql("SELECT * FROM IDENTIFIER(:name)", args=name)',
        "reads a table by IDENTIFIER(), whose name the audit cannot read",
    ),
    "EXECUTE IMMEDIATE": (
        "spark.sql(\"EXECUTE IMMEDIATE 'DROP TABLE known'\")",
        "EXECUTE IMMEDIATE 'DROP TABLE known' is SQL that writes",
    ),
    "CALL": ('spark.sql("CALL shop.clear(1)")', "CALL shop.clear(1) is SQL that writes"),
    "a SQL script": (
        'spark.conf.set("spark.sql.scripting.enabled", "true")\n'
        'try: spark.sql("BEGIN INSERT INTO known SELECT 1; END")\n'
        'finally: spark.conf.unset("spark.sql.scripting.enabled")',
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


def test_names_in_statements(audited):
    """A name is a written table only where the statement reads it: other databases, views, common
    table expressions, aliases and comments with its name keep their meaning.
    """
    report = audited(
        """
        orders.where("state = 'paid'").write.saveAsTable("shop.known")
        orders.where("state = 'open'").write.saveAsTable("known")

        def first(text, *args, **named):
            return spark.sql(text, *args, **named).first()[0]

        assert first("SELECT count(*) FROM shop.known -- it's all of shop.known") == 8
        assert first("/* 'shop.known */ SELECT count(*) FROM `Shop` . known AS shop") == 8
        assert first("SELECT count(*) FROM known, spark_catalog.shop.known AS o") == 16
        assert first("WITH known AS (SELECT 1) SELECT count(*) FROM known") == 1
        one = "known AS (SELECT * FROM known WHERE order_id = 'o8')"
        assert first(f"WITH {one} SELECT count(*) FROM known") == 1
        assert first(f"WITH a AS (SELECT * FROM known), {one} SELECT count(*) FROM a") == 2
        assert first(f"WITH {one} SELECT (SELECT count(*) FROM known)") == 1
        assert first(f"WITH {one} SELECT count(*) FROM default.known") == 2
        text = "SELECT known FROM (SELECT 'shop.known' AS known FROM shop.known)"
        assert first(text) == "shop.known"
        assert first("SELECT count(shop.known.cents) FROM shop.known WHERE known.shop = 's1'") == 3
        assert len(spark.sql("SELECT default.known.* FROM known").columns) == 4
        assert first("SELECT count(*) FROM (TABLE shop.known)") == 8
        assert first("SELECT count(*) FROM shop.known TABLESAMPLE (100 PERCENT)") == 8
        assert first("SELECT count(*) FROM shop.known WHERE cents = :c", {"c": "1"}) == 1
        assert first("SELECT count(*) FROM shop.known WHERE cents = ?", args=["1"]) == 1
        assert first("SELECT count(*) FROM shop.known JOIN {o} USING (order_id)", o=orders) == 8
        assert orders.where("order_id IN (SELECT order_id FROM known)").count() == 2
        assert orders.select(F.expr("(SELECT count(*) FROM shop.known)")).first()[0] == 8
        assert orders.selectExpr("(SELECT max(shop) FROM known) AS s", "cents").first().s == "s1"
        assert spark.table("shop.known").where("known.shop = 's1'").count() == 3
        assert "order_id" in spark.sql("DESCRIBE shop.known").first()[0]
        assert "cannot" not in first("EXPLAIN SELECT * FROM shop.known")
        spark.sql("CACHE TABLE shop.known")
        spark.sql("CACHE TABLE cached AS SELECT * FROM known")
        assert spark.table("cached").count() == 2

        spark.newSession().table("shop.known").write.parquet("other")
        orders.limit(1).createOrReplaceTempView("known")
        assert first("SELECT count(*) FROM known") == spark.table("known").count() == 1
        assert first("SELECT count(*) FROM default.known") == 2
        assert spark.newSession().sql("SELECT * FROM known").count() == 2
        assert spark.catalog.getTable("known").isTemporary
        spark.sql("DROP TABLE known")
        assert first("SELECT count(*) FROM known") == 2
        spark.catalog.dropTempView("cached")
        """
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 10)


def test_views_of_written_tables(audited):
    """A view that SQL has made shows what its table has when it is read."""
    report = audited(
        """
        paid, opened = orders.where("state = 'paid'"), orders.where("state = 'open'")
        paid.write.saveAsTable("shop.known")
        spark.sql("CREATE TEMP VIEW t AS SELECT known.cents, shop FROM shop.known")
        spark.sql("CREATE OR REPLACE TEMP VIEW k AS SELECT shop FROM t")
        assert spark.table("k").count() == 8
        opened.write.mode("append").saveAsTable("shop.known")
        assert spark.table("k").count() == 10
        opened.write.mode("overwrite").saveAsTable("shop.known")
        assert spark.sql("SELECT * FROM k").count() == 2
        spark.table("k").write.parquet("out")
        """
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 2)


@pytest.mark.compiled  # Spark cannot list tables without
def test_the_catalog_knows_the_tables_of_the_script(audited):
    """Its methods and SHOW TABLES have them, and no view of the audit."""
    report = audited(
        """
        catalog = spark.catalog
        orders.write.saveAsTable("known")
        orders.write.saveAsTable("shop.other")
        assert catalog.tableExists("known") and catalog.tableExists("default.Known")
        assert catalog.tableExists("other", "shop") and not catalog.tableExists("other")
        assert catalog.getTable("known")[:3] == ("known", "spark_catalog", ["default"])
        assert [each.name for each in catalog.listColumns("shop.other")] == orders.columns
        catalog.cacheTable("shop.other")
        assert catalog.isCached("shop.other")
        catalog.uncacheTable("shop.other")
        catalog.refreshTable("known")

        def shown(text=""):
            return [tuple(row) for row in spark.sql("SHOW TABLES" + text).collect()]

        def listed(*args):
            return [each.name for each in catalog.listTables(*args)]

        assert ("default", "known", False) in shown()
        assert ("default", "known", False) in shown(" IN default LIKE 'x|k*'")
        assert not shown(" LIKE 'x*'")
        assert "known" in listed() and "known" in listed("default", "K*")
        assert listed("default", "x*") == []
        drop = getattr(catalog, "dropTable", lambda name: spark.sql(f"DROP TABLE {name}"))
        drop("known")
        assert not catalog.tableExists("known") and "known" not in listed()
        assert ("default", "known", False) not in shown()
        """
    )
    assert report.failure == ""
    assert report.notes == []


@pytest.mark.compiled  # Spark cannot list tables without
def test_a_database_that_is_used(audited, spark):
    """A name without a database is a table of the current one."""
    spark.sql("CREATE DATABASE used")
    try:
        report = audited(
            """
            orders.where("state = 'open'").write.saveAsTable("known")
            spark.sql("USE used")
            orders.where("state = 'paid'").write.saveAsTable("known")
            assert spark.table("default.known").count() == 2
            assert spark.table("used.known").count() == spark.table("known").count() == 8
            assert spark.sql("SELECT used.known.shop FROM known").count() == 8
            tables = [each for each in spark.catalog.listTables() if not each.isTemporary]
            assert [each.name for each in tables] == ["known"]
            """
        )
        assert report.failure == ""
    finally:
        spark.sql("USE default")
        spark.sql("DROP DATABASE used")


def test_a_table_that_is_dropped(audited, spark, tmp_path):
    """Spark says that it is not there, what was read before keeps its rows, and the table of the
    catalog stays.
    """
    spark.range(3).write.option("path", f"{tmp_path}/stock").saveAsTable("stock")
    try:
        report = audited(
            """
            from pyspark.errors import AnalysisException

            def is_gone(read):
                try:
                    return read() and False
                except AnalysisException as error:
                    return error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"

            old = spark.table("stock")
            old.write.parquet("old")
            orders.where("state = 'paid'").write.mode("overwrite").saveAsTable("stock")
            known = spark.table("stock").where("shop = 's1'")
            assert spark.sql("SELECT * FROM stock").count() == 8
            spark.sql("DROP TABLE IF EXISTS stock")
            assert is_gone(lambda: spark.table("stock"))
            assert is_gone(lambda: spark.sql("SELECT * FROM stock"))
            assert is_gone(lambda: spark.read.table("default.stock"))
            assert not spark.catalog.tableExists("stock")
            known.write.parquet("known")
            orders.where("state = 'open'").write.mode("ignore").saveAsTable("stock")
            assert spark.table("stock").count() == 2
            orders.where("state IS NULL").write.saveAsTable("gone")
            spark.sql("DROP TABLE gone")
            """
        )
        assert report.failure == ""
        assert numbers(report)[:2] == (12, 5)
        assert reasons(report)["condition false: shop = 's1'"] == 5
        assert reasons(report)["gone is dropped"] == 2
        dropped = [loss for loss in report.losses if loss.operation == "DROP TABLE"]
        assert [loss.place for loss in dropped] == ["job.py:28"]
        assert [output.is_final for output in report.outputs] == [True, False, True, True, False]
        assert spark.table("stock").count() == 3
    finally:
        spark.sql("DROP TABLE stock")


def test_a_table_as_it_was(audited, spark, tmp_path):
    """A view that was made before the table is written shows the catalog's: it is not followed."""
    spark.range(3).write.option("path", f"{tmp_path}/stock").saveAsTable("stock")
    try:
        report = audited(
            """
            spark.sql("CREATE OR REPLACE TEMP VIEW t AS SELECT * FROM stock")
            orders.select("cents").write.mode("overwrite").saveAsTable("stock")
            spark.table("t").write.parquet("out")
            """
        )
        assert why(report)["out"].startswith("spark_catalog.default.stock is read as it was before")
    finally:
        spark.sql("DROP TABLE stock")


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
    assert list(why(report)) == ["a.csv", "a.txt", "b.txt", "a StringIO"]


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
    """The partitions of a table that is not there are not known, so the script ends."""
    report = audited(
        """
        orders.createOrReplaceTempView("k")
        for day in (1, 2):
            spark.sql(f"INSERT OVERWRITE TABLE t PARTITION (day = '{day}') SELECT * FROM k")
        """
    )
    assert "replaces partitions of t, which the script has written before" in report.failure


SHOPS = """
        shops = spark.read.csv(f"{HERE}/shops.csv", header=True)
        orders.createOrReplaceTempView("k"); shops.createOrReplaceTempView("known")
        days = spark.createDataFrame([("s1", 1), ("s2", 1)], "shop string, day int")
        days.createOrReplaceTempView("plain")
"""
JOINS = {
    "ON": "k JOIN known ON k.shop = known.shop AND order_id <> c",
    "commas": "k, known WHERE k.shop = known.shop AND k.order_id <> known.c",
    "names": "k a, known AS b WHERE a.order_id <> b.c AND b.shop = a.shop",
    "CROSS JOIN": "k CROSS JOIN known WHERE k.shop = known.shop AND order_id <> c",
    "three": (
        "k, known, plain WHERE plain.shop = k.shop AND k.order_id <> known.c AND day > 0 "
        "AND k.shop = known.shop"
    ),
}


@pytest.mark.parametrize("join", JOINS)
def test_joins_by_commas(audited, tmp_path, join):
    """They lose and double records as a join with its condition does, at the line of the query."""
    (tmp_path / "job" / "shops.csv").write_text("shop,c\ns1,A\ns1,B\ns2,o3\n")
    text = f"spark.sql(\"SELECT order_id, c FROM {JOINS[join]}\").write.parquet('out')"
    report = audited(f"{SHOPS}        {text}\n")
    assert report.failure == ""
    assert numbers(report) == (12, 9, 3, 0)
    assert {(loss.operation, loss.place, loss.records) for loss in report.losses} in (
        {("inner join", "job.py:10", 3)},
        {("inner join", "job.py:10", 2), ("inner join", "job.py:10", 1)},
    )
    kinds = {(remark.operation, remark.place, remark.text) for remark in report.remarks}
    assert ("inner join", "job.py:10", "1 doubled key of shop") in kinds


def test_a_filter_that_stays_above_a_join(audited, tmp_path):
    """A condition on one side, of a subquery or of a UDF stays a filter."""
    (tmp_path / "job" / "shops.csv").write_text("shop,c\ns1,A\ns2,B\n")
    report = audited(
        f"""{SHOPS}
        spark.udf.register("same", lambda a, b: a == b, "boolean")
        spark.sql("SELECT order_id FROM k, known WHERE k.shop = known.shop AND state = 'paid' "
                  "AND same(c, 'A') AND c IN (SELECT c FROM known)").write.parquet("out")
        """
    )
    assert report.failure == ""
    assert numbers(report)[:2] == (12, 3)
    assert {loss.operation for loss in report.losses} == {"inner join", "filter"}
