"""Overwrites of some partitions of what an audited script has written before."""

import pytest

from tests.support.audited_scripts import numbers, reasons

# Overwrites replace the partitions that they have rows of; a table with partitions by day.
DYNAMIC = 'spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")\n'
DAYS = "spark.sql('CREATE TABLE days (id STRING, day STRING) USING parquet PARTITIONED BY (day)')\n"


@pytest.fixture
def by_partition(spark):
    """Lets a script choose what overwrites replace, and makes a table of an earlier run."""
    spark.sql("CREATE TABLE known_days (id STRING, day STRING) USING orc PARTITIONED BY (day)")
    yield
    spark.sql("DROP TABLE known_days")
    spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


_TABLE, _PATH = 'spark.table("days")', 'spark.read.parquet("days")'
_EACH = 'for state in ("paid", "open"):\n    rows = orders.where(F.col("state") == state)\n    '
_VIEW = "rows.select('order_id').createOrReplaceTempView('t'); "
_INSERT = "spark.sql(f\"INSERT OVERWRITE days PARTITION (day = '{state}') SELECT * FROM t\")\n"
_INTO = 'rows.select("order_id", "state").write.insertInto("days", overwrite=True)\n'
_TO_PATH = 'write = rows.write.mode("overwrite").partitionBy("state")\n'
_OF_HIVE = DAYS.replace("USING parquet PARTITIONED BY (day)", "STORED AS PARQUET")
_OF_HIVE = _OF_HIVE.replace(", day STRING)", ") PARTITIONED BY (day STRING)")
# What a script writes and reads again, and how many orders are there.
OVERWRITES = {
    "INSERT": (f"{DAYS}{_EACH}{_VIEW}{_INSERT}", _TABLE, 10),
    "INSERT into a partition of another case": (
        f"{DAYS}{_EACH}{_VIEW}{_INSERT.replace('day', 'DAY', 2).replace('DAY', 'day', 1)}",
        _TABLE,
        10,
    ),
    "INSERT of other types": (
        f"{DAYS.replace('day STRING', 'day INT')}{_EACH}{_VIEW}"
        f"state = '01' if state == 'paid' else 1; {_INSERT}",
        _TABLE,
        2,
    ),
    "INSERT into the partition of NULL": (
        DAYS + _EACH + _VIEW + _INSERT.replace("'{state}'", "NULL"),
        'spark.table("days").where("day IS NULL")',
        2,
    ),
    "INSERT of no rows": (
        f"{DAYS}{_EACH}{_VIEW}{_INSERT}"
        f"state = 'paid'; rows = orders.where('1 = 0'); {_VIEW}{_INSERT}",
        _TABLE,
        2,
    ),
    "INSERT after CREATE TABLE AS": (
        "rows = orders.where(\"state = 'paid'\").selectExpr('order_id id', 'state day')\n"
        "rows.createOrReplaceTempView('t')\n"
        "spark.sql('CREATE TABLE days USING parquet PARTITIONED BY (day) AS SELECT * FROM t')\n"
        f"rows, state = orders.where(\"state = 'open'\"), 'open'; {_VIEW}{_INSERT}",
        _TABLE,
        10,
    ),
    "dynamic INSERT": (
        f"{DYNAMIC}{DAYS}{_EACH}rows.select('order_id', 'state').createOrReplaceTempView('t')\n"
        "    spark.sql('INSERT OVERWRITE days PARTITION (day) SELECT * FROM t')\n",
        _TABLE,
        10,
    ),
    "static INSERT": (
        f"{DAYS}{_EACH}rows.select('order_id', 'state').createOrReplaceTempView('t')\n"
        "    spark.sql('INSERT OVERWRITE days PARTITION (day) SELECT * FROM t')\n",
        _TABLE,
        2,
    ),
    "INSERT into a table of Hive": (
        f"{_OF_HIVE}{_EACH}rows.select('order_id', 'state').createOrReplaceTempView('t')\n"
        "    spark.sql('INSERT OVERWRITE days PARTITION (day) SELECT * FROM t')\n",
        _TABLE,
        10,
    ),
    "insertInto of Hive": (f"{_OF_HIVE}{_EACH}{_INTO}", _TABLE, 10),
    "dynamic insertInto": (f"{DYNAMIC}{DAYS}{_EACH}{_INTO}", _TABLE, 10),
    "a table of the catalog": (
        f"{DYNAMIC}{_EACH}{_INTO.replace('days', 'known_days')}",
        'spark.table("known_days")',
        10,
    ),
    "insertInto after saveAsTable": (
        f"{DYNAMIC}rows = orders.where(\"state = 'paid'\").select('order_id', 'state')\n"
        f"rows.write.partitionBy('state').saveAsTable('days')\n"
        f"rows = orders.where(\"state = 'open'\"); {_INTO}",
        _TABLE,
        10,
    ),
    "insertInto again": (
        f"{DYNAMIC}{DAYS}{_EACH}{_INTO}"
        f"rows = orders.where(\"state = 'paid' AND shop = 's1'\"); {_INTO}",
        _TABLE,
        5,
    ),
    "insertInto of no rows": (
        f"{DYNAMIC}{DAYS}{_EACH}{_INTO}rows = orders.where('1 = 0'); {_INTO}",
        _TABLE,
        10,
    ),
    "a table without partitions": (
        f"{DYNAMIC}{DAYS.replace(' PARTITIONED BY (day)', '')}{_EACH}{_INTO}",
        _TABLE,
        2,
    ),
    "a static insertInto": (f"{DAYS}{_EACH}{_INTO}", _TABLE, 2),
    "a path": (f"{DYNAMIC}{_EACH}{_TO_PATH}    write.parquet('days')\n", _PATH, 10),
    "a path by an option": (
        f"{_EACH}{_TO_PATH}    write.option('partitionOverwriteMode', 'DYNAMIC').parquet('days')\n",
        _PATH,
        10,
    ),
    "a path with an append": (
        f"{DYNAMIC}{_EACH}{_TO_PATH}    write.mode('append').parquet('days')\n"
        f"rows = orders.where(\"state = 'paid' AND shop = 's1'\"); {_TO_PATH}"
        "write.parquet('days')\n",
        _PATH,
        5,
    ),
    "a path without a value": (
        f"{DYNAMIC}rows = orders.where('state IS NULL'); {_TO_PATH}write.parquet('days')\n"
        "rows = orders.where(\"state = 'open'\").withColumn('state', F.lit('')); "
        f"{_TO_PATH}write.parquet('days')\n",
        _PATH,
        2,
    ),
    "a static path": (f"{_EACH}{_TO_PATH}    write.parquet('days')\n", _PATH, 2),
}


@pytest.mark.parametrize("case", OVERWRITES)
def test_overwrites_of_partitions(audited, by_partition, case):
    """Rows of other partitions remain, and have arrived; those of the same ones are replaced."""
    write, read, orders = OVERWRITES[case]
    report = audited(f"{write}rows = {read}; assert rows.count() == {orders}, rows.count()\n")
    assert report.failure == ""
    assert numbers(report)[:2] == (12, orders)
    replaced = reasons(report) + reasons(report, has_arrived=True)
    assert ("is replaced" in str(replaced)) == (orders in (2, 5))


@pytest.mark.parametrize(
    ("case", "read", "orders"),
    [
        ("INSERT", _TABLE, 10),
        ("dynamic insertInto", f"{_TABLE}.where(\"day = 'open'\")", 2),
        ("a path", _PATH, 10),
        ("a path", 'spark.read.option("basePath", "days").parquet("days/state=open")', 2),
    ],
)
def test_partitions_that_are_read_again(audited, by_partition, case, read, orders):
    """Rows keep their records through partitions that were written one after the other."""
    report = audited(f'{OVERWRITES[case][0]}{read}.write.parquet("copy")\n')
    assert (report.failure, numbers(report)[:2]) == ("", (12, orders))


# Overwrites of partitions that end a script, and why.
REFUSED = {
    "a part of what was written": (
        f"{DYNAMIC}{DAYS}"
        'orders.select("order_id", "state").write.insertInto("days")\n'
        "rows = orders.where(F.col('state') == 'paid').select('order_id', 'state')\n"
        'rows.write.insertInto("days", overwrite=True)',
        "replaces some of the partitions of days that were written at job.py:7: ",
    ),
    "other partitions of a path": (
        f"{DYNAMIC}"
        'orders.write.partitionBy("state").parquet("a")\n'
        'orders.write.mode("overwrite").partitionBy("shop").parquet("a")',
        "replaces some of the partitions of a that were written at job.py:6: ",
    ),
    "values of some columns": (
        f"{DAYS.replace('BY (day', 'BY (day, n').replace('id STRING', 'id STRING, n INT')}"
        'orders.createOrReplaceTempView("t")\n'
        "write = \"INSERT OVERWRITE days PARTITION (day = 'x', n) SELECT order_id, 1 FROM t\"\n"
        "spark.sql(write); spark.sql(write)",
        "replaces partitions of days, which the script has written before",
    ),
    "partitions of a table that is made again": (
        f"{DYNAMIC}"
        'w = orders.write.mode("overwrite").partitionBy("shop")\n'
        'w.saveAsTable("days"); w.saveAsTable("days")',
        "replaces partitions of days, which the script has written before",
    ),
    "rows by a condition": (
        'orders.write.format("delta").save("a")\n'
        """w = orders.write.mode("overwrite").option("replaceWhere", "state = 'paid'")\n"""
        'w.format("delta").save("a")',
        "replaces partitions of a, which the script has written before",
    ),
    "a partition by its path": (
        'orders.write.partitionBy("state").parquet("a")\n'
        'orders.limit(1).write.mode("overwrite").parquet("a/state=paid")',
        "overwrites a/state=paid, which has files of a: ",
    ),
    "a folder above an output": (
        'orders.write.parquet("a/x")\norders.write.mode("overwrite").parquet("a")',
        "overwrites a, which has files of a/x: ",
    ),
    "IF NOT EXISTS": (
        f"{DAYS}orders.createOrReplaceTempView('t')\n"
        """spark.sql("INSERT OVERWRITE days PARTITION (day = 'x') IF NOT EXISTS "\n"""
        '          "SELECT order_id FROM t")',
        "INSERT OVERWRITE of days with IF NOT EXISTS is not audited",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_overwrites_that_end_the_script(audited, by_partition, case):
    """No rows are taken for those that remain, or that are replaced, if the audit cannot tell."""
    text, failure = REFUSED[case]
    report = audited(text + "\n")
    assert report.failure.startswith("stopped at job.py:"), report.failure
    assert failure in report.failure
