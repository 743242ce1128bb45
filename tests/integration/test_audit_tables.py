"""Tables that audited scripts make and insert into: their columns, types, partitions and files."""

import os

import pytest

from ledger.auditing.attribution import MAX_GROUPS, groups_in_memory
from ledger.auditing.options import GROUPS
from ledger.auditing.scripts.phantoms import Phantoms
from ledger.auditing.scripts.tables import Tables
from ledger.auditing.scripts.written import Written
from tests.support.audited_scripts import numbers

HALVES = 'halves = orders.selectExpr("order_id AS o", "try_cast(cents AS DOUBLE) + 0.5 AS c")\n'


@pytest.fixture
def earlier(spark, tmp_path):
    """Three rows of an earlier run in a folder of the job."""
    folder = tmp_path / "job" / "out"
    spark.range(3).selectExpr("'e' AS order_id", "'s1' AS shop").write.parquet(f"{folder}")
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    return folder


# How a table with a column of integers gets the halves.
INSERTS = {
    "CREATE TABLE and INSERT": (
        'spark.sql("CREATE TABLE IF NOT EXISTS known (id STRING, n INT) USING parquet")\n'
        'assert spark.table("known").count() == 0\n'
        'halves.createOrReplaceTempView("t"); spark.sql("INSERT INTO known SELECT * FROM t")'
    ),
    "insertInto": (
        'spark.sql("CREATE TABLE known (id STRING, n INT) USING parquet")\n'
        'halves.write.insertInto("known")'
    ),
    "a table of the catalog": 'halves.write.insertInto("integers")',
    "saveAsTable": (
        'spark.sql("CREATE TABLE known (n INT, id STRING) USING parquet")\n'
        'halves.toDF("id", "n").write.mode("append").saveAsTable("known")'
    ),
    "dropped before": (
        'spark.sql("DROP TABLE IF EXISTS integers")\n'
        'spark.sql("CREATE TABLE integers (id STRING, n INT, more INT) USING parquet")\n'
        'halves.selectExpr("*", "1").write.insertInto("integers")'
    ),
}


@pytest.mark.parametrize("case", INSERTS)
def test_rows_take_the_types_of_their_table(audited, spark, case):
    """A filter on what was inserted sees the values that the table has."""
    spark.sql("CREATE TABLE IF NOT EXISTS integers (id STRING, n INT) USING parquet")
    try:
        table = "integers" if "integers" in INSERTS[case] else "known"
        report = audited(
            f"{HALVES}{INSERTS[case]}\n"
            f'rows = spark.table("{table}")\n'
            'assert dict(rows.dtypes)["n"] == "int" and dict(rows.dtypes)["id"] == "string"\n'
            'rows.where("n = 3").write.parquet("three")\n'
        )
        assert report.failure == ""
        assert numbers(report)[:2] == (12, 1)  # 3.5
        assert spark.table("integers").count() == 0
    finally:
        spark.sql("DROP TABLE integers")


REFUSED = {
    "a text for a number": (
        'orders.select("shop", "order_id").write.insertInto("known")',
        "inserts string into the column n int: the audit does not know",
    ),
    "fewer columns": (
        'orders.select("shop").write.insertInto("known")',
        "inserts 1 columns into known: expected 2, id, n",
    ),
    "rows that are there": (
        "spark.sql(f\"CREATE TABLE t2 (id STRING) USING parquet LOCATION '{HERE}/out'\")\n"
        'spark.table("t2")',
        "reads t2, a table that the script makes over rows that are there",
    ),
    "columns of files": (
        "spark.sql(f\"CREATE TABLE t2 USING parquet LOCATION '{HERE}/out'\")",
        "CREATE TABLE of t2, whose columns Spark takes from its files",
    ),
    "files of a table": (
        'to = orders.write.mode("overwrite").option("path", f"{HERE}/out")\n'
        'to.saveAsTable("t2"); spark.read.parquet(f"{HERE}/out")',
        "where t2 has its files, which the audit has not written",
    ),
    "a path in SQL": (
        'orders.write.mode("overwrite").parquet(f"{HERE}/out")\n'
        'spark.sql(f"SELECT * FROM parquet.`{HERE}/out`")',
        "where it has written ",
    ),
    "a relative path in SQL": (
        'orders.write.mode("overwrite").parquet("out")\nspark.sql("SELECT * FROM parquet.out")',
        "reads out in SQL, where it has written out",
    ),
    "a path as a table": (
        'orders.write.mode("overwrite").parquet("out"); spark.table("parquet.`out`")',
        "reads out in SQL, where it has written out",
    ),
    "a removed file in SQL": (
        'os.remove("orders.csv"); spark.sql(f"SELECT * FROM csv.`{HERE}/orders.csv`")',
        "orders.csv, and remove() of orders.csv at job.py:6 is left out",
    ),
    "a removed file in an expression": (
        'os.remove("orders.csv"); F.expr(f"(SELECT count(*) FROM csv.`{HERE}`)")',
        ", and remove() of orders.csv at job.py:6 is left out",
    ),
    "a path above in a view": (
        'orders.write.mode("overwrite").parquet(f"{HERE}/out")\n'
        "spark.sql(f\"CREATE TEMP VIEW t USING parquet OPTIONS (path '{HERE}')\")",
        "where it has written ",
    ),
    "JDBC by its format": (
        'to = {"url": "jdbc:derby:memory:x", "dbtable": "shop.t"}\n'
        'orders.write.format("jdbc").options(**to).save()\n'
        'spark.read.format("jdbc").options(**{**to, "dbtable": "(SELECT * FROM shop.t) q"}).load()',
        "(SELECT * FROM shop.t) q is read by JDBC after the script has written shop.t",
    ),
    "JDBC by a view": (
        'orders.write.jdbc("jdbc:derby:memory:x", "t")\n'
        "to = \"url 'jdbc:derby:memory:x', dbtable 't'\"\n"
        'spark.sql(f"CREATE TEMPORARY VIEW known USING jdbc OPTIONS ({to})")',
        "t is read by JDBC after the script has written t",
    ),
    "JDBC without a schema": (
        'orders.write.jdbc("jdbc:derby:memory:x;create=true", \'"SHOP"."T"\')\n'
        'spark.read.jdbc("jdbc:derby:memory:x", "t")',
        't is read by JDBC after the script has written "SHOP"."T"',
    ),
    "JDBC with other parameters": (
        'orders.write.jdbc("jdbc:postgresql://me@here/shop?ssl=true", "t")\n'
        'spark.read.jdbc("jdbc:postgresql://here/shop?user=me", "public.t")',
        "public.t is read by JDBC after the script has written t",
    ),
}


def test_reads_and_inserts_that_end_the_script(audited, earlier):
    """No rows of an earlier run are taken for those of this one, and no type is guessed."""
    for text, failure in REFUSED.values():
        declared = 'spark.sql("CREATE TABLE known (id STRING, n INT) USING parquet")\n'
        report = audited(declared + text)
        assert report.failure.startswith("stopped at job.py:"), report.failure
        assert failure in report.failure


def test_columns_of_partitions(audited):
    """They are the last ones of a table, and PARTITION gives a column its value by name."""
    report = audited(
        """
        orders.createOrReplaceTempView("t")
        start = "CREATE TABLE {} USING parquet PARTITIONED BY (shop, state)"
        spark.sql(start.format("folded") + " AS SELECT SHOP, state, order_id FROM t")
        assert len(spark.table("folded").columns) == 3
        spark.sql(start.format("known") + " AS SELECT shop, state, order_id FROM t")
        assert spark.table("known").columns == ["order_id", "shop", "state"]
        spark.sql("CREATE TABLE parts (o STRING, n INT, s STRING) USING csv PARTITIONED BY (n, s)")
        spark.sql("INSERT INTO parts PARTITION (n='7', s) SELECT order_id, state FROM t")
        assert spark.table("parts").dtypes == [("o", "string"), ("n", "int"), ("s", "string")]
        spark.sql("SELECT * FROM parts WHERE n = 7 AND s = 'paid'").write.parquet("paid")
        """
    )
    assert report.failure == ""
    assert numbers(report) == (12, 8, 2, 2)


def test_a_table_that_is_there_is_not_made_again(audited):
    """CREATE TABLE IF NOT EXISTS ... AS writes nothing then, which is said."""
    report = audited(
        """
        orders.createOrReplaceTempView("t")
        spark.sql("CREATE TABLE IF NOT EXISTS known AS SELECT * FROM t WHERE state = 'paid'")
        spark.sql("CREATE TABLE IF NOT EXISTS known AS SELECT * FROM t WHERE state = 'open'")
        """
    )
    assert (report.failure, numbers(report)) == ("", (12, 8, 2, 2))
    assert report.notes == ["known exists, so CREATE TABLE IF NOT EXISTS writes nothing"]


def test_a_database_of_the_script(audited, spark):
    """It is there while the script runs, in the folder of the copies."""
    report = audited(
        """
        spark.sql("CREATE DATABASE IF NOT EXISTS sales"); spark.sql("USE sales")
        orders.where("state = 'paid'").write.saveAsTable("known")
        assert spark.table("sales.known").count() == 8
        spark.sql("CREATE SCHEMA IF NOT EXISTS sales2")
        spark.catalog.setCurrentDatabase("sales2")
        try: spark.sql("CREATE DATABASE sales")
        except Exception as error: assert error.getCondition() == "SCHEMA_ALREADY_EXISTS"
        else: raise AssertionError
        """
    )
    assert (report.failure, report.notes) == ("", [])
    assert numbers(report) == (12, 8, 2, 2)
    assert not spark.catalog.databaseExists("sales")
    assert spark.catalog.currentDatabase() == "default"


@pytest.fixture
def other_catalog(spark):
    """A catalog in a database of Java, with a schema ``sales``."""
    catalog = "spark.sql.catalog.elsewhere"
    options = {
        "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        ".url": "jdbc:derby:memory:elsewhere;create=true",
        ".driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }
    for name, value in options.items():
        spark.conf.set(f"{catalog}{name}", value)
    spark.sql("CREATE DATABASE IF NOT EXISTS elsewhere.sales")
    yield "elsewhere"
    spark.catalog.setCurrentCatalog("spark_catalog")
    for name in options:
        spark.conf.unset(f"{catalog}{name}")


def test_databases_of_other_catalogs(audited, spark, other_catalog):
    """They stay where they are, also those that are called like a database of the script, and none
    is created.
    """
    report = audited(
        """
        spark.sql("CREATE DATABASE sales")
        orders.where("state = 'paid'").write.saveAsTable("sales.known")
        spark.sql("SET CATALOG elsewhere")
        spark.sql("CREATE DATABASE IF NOT EXISTS sales")
        spark.sql("CREATE DATABASE more")
        """
    )
    assert report.failure.startswith(
        "stopped at job.py:10: creates the database `more` in the catalog elsewhere: expected "
    )
    assert numbers(report) == (12, 8, 2, 2)
    failure = audited('spark.sql("CREATE DATABASE elsewhere.more")').failure
    assert "creates the database `more` in the catalog elsewhere" in failure
    databases = {row.namespace for row in spark.sql("SHOW DATABASES IN elsewhere").collect()}
    assert "sales" in databases
    assert "more" not in databases
    assert not spark.catalog.databaseExists("spark_catalog.sales")


@pytest.mark.parametrize("location", ["", "LOCATION '{HERE}/db'"])
def test_files_of_a_database_are_read_by_its_tables(audited, location):
    """The audit has not written them, wherever the script wants the database to be."""
    report = audited(
        f"""
        spark.sql(f"CREATE DATABASE sales {location}")
        orders.where("state = 'paid'").write.saveAsTable("sales.known")
        warehouse = spark.conf.get("spark.sql.warehouse.dir") + "/sales.db"
        spark.read.parquet(f"{{HERE}}/db/known" if {bool(location)} else f"{{warehouse}}/known")
        """
    )
    assert report.failure.startswith("stopped at job.py:9: reads ")
    assert report.failure.endswith("expected a read of the table")


def test_a_table_of_jdbc_is_read_by_a_catalog(audited, spark, other_catalog):
    """The audit has not written it, so the script would find rows of an earlier run."""
    to = {"url": "jdbc:derby:memory:elsewhere;create=true", "table": "T"}
    spark.range(1).write.mode("overwrite").jdbc(**to)
    for read in ('spark.table("elsewhere.APP.T")', 'spark.sql("SELECT * FROM elsewhere.APP.T")'):
        report = audited(f"spark.range(5).write.mode('overwrite').jdbc(**{to})\n{read}\n")
        assert report.failure.startswith("stopped at job.py:6: "), report.failure
        assert "is read by JDBC after the script has written T" in report.failure


def test_a_database_with_others_tables_stays(spark, tmp_path):
    """Nothing that the audit has not made is dropped with its database, and nothing fails."""
    tables = Tables(Written(tmp_path), Phantoms(Written(tmp_path)))
    assert tables.create_database(spark, ["spark_catalog", "sales"], None, tmp_path)
    spark.sql("CREATE TABLE sales.other (n INT) USING parquet")
    try:
        tables.close()
        assert spark.catalog.tableExists("sales.other")
    finally:
        spark.sql("DROP DATABASE sales CASCADE")


def test_appended_partitions(audited, tmp_path):
    """A loop that appends partitions is read as one folder, also from one of its partitions. No
    part of the folder is written a second time by itself.
    """
    report = audited(
        """
        for state in ("paid", "open"):
            rows = orders.where(F.col("state") == state)
            rows.write.mode("append").partitionBy("shop").parquet("days")
        assert spark.read.parquet("days").count() == 10
        assert spark.read.option("basePath", "days").parquet("days/shop=s1").count() == 5
        spark.read.parquet("days").where("shop = 's1'").write.parquet("s1")
        """
    )
    assert (report.failure, numbers(report)) == ("", (12, 5, 2, 5))
    copies = tmp_path / "copies-0"
    assert list(copies.glob("files-*")) == []
    assert len(list(copies.glob("merged-*"))) == 1


def test_a_link_to_an_output(audited, earlier):
    """A folder that is written by one name and read by another one is the same."""
    report = audited(
        """
        os.symlink("out", "link")
        orders.where("state = 'paid'").write.mode("overwrite").parquet(f"{HERE}/link")
        os.unlink("link")
        rows = spark.read.parquet(f"{HERE}/out")
        assert rows.count() == 8
        rows.write.parquet("final")
        """
    )
    assert (report.failure, numbers(report)) == ("", (12, 8, 2, 2))


def test_a_source_that_cannot_be_copied(audited, tmp_path):
    """FAILFAST fails only for columns that a job reads: its output is written, and not followed."""
    (tmp_path / "job" / "raw.csv").write_text("1,1\n2,x\n3,3\n")
    report = audited(
        """
        raw = spark.read.csv(f"{HERE}/raw.csv", "a INT, b INT", mode="FAILFAST")
        raw.select("a").where("a > 1").write.parquet("out")
        assert spark.read.parquet("out").count() == 2
        """
    )
    assert report.failure == ""
    (output,) = report.outputs
    assert output.why.startswith("its records cannot be copied: ")


def test_groups_have_memory(spark):
    """More groups collect ids without a sort, unless the job says how many; nothing stays set."""
    assert spark.conf.get(GROUPS, None) is None
    with groups_in_memory(spark):
        assert spark.conf.get(GROUPS) == str(MAX_GROUPS)
    assert spark.conf.get(GROUPS, None) is None
    spark.conf.set(GROUPS, 5)
    try:
        with groups_in_memory(spark):
            assert spark.conf.get(GROUPS) == "5"
        assert spark.conf.get(GROUPS) == "5"
    finally:
        spark.conf.unset(GROUPS)
