"""A pipeline that ``ackledger init --from`` wrote gives the rows that the job gives."""

import importlib
import sys

from ledger import testing
from ledger.cli.porting.writing import port

JOB = '''\
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ORDER = "id INT, shop STRING, cents INT"


def paid(orders, least=3):
    return orders.where(F.col("cents") >= least).dropDuplicates(["id"])


def with_city(orders, shops):
    return orders.join(shops, "shop", "left")


def main(spark, folder):
    orders = spark.read.csv(f"{folder}/orders.csv", schema=ORDER, header=True)
    shops = spark.read.csv(f"{folder}/shops.csv", header=True)
    df = paid(orders)
    df = with_city(df, shops)
    df = df.withColumn("euros", F.col("cents") / 100)
    df.createOrReplaceTempView("placed")
    totals = spark.sql("""
        SELECT city, sum(cents) AS cents,
               count(*) AS orders
        FROM placed GROUP BY city
    """)
    df.write.mode("overwrite").parquet(f"{folder}/placed")
    totals.coalesce(1).write.mode("overwrite").parquet(f"{folder}/totals")


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), "data")
'''
ORDERS = [(1, "a", 5), (1, "a", 5), (2, "b", 2), (3, "b", 7), (4, "c", 9), (5, "a", None)]
SHOPS = [{"shop": "a", "city": "Oslo"}, {"shop": "b", "city": "Rome"}]


def as_set(rows):
    """Rows as a set of their values by name."""
    return sorted(str(sorted(row.items())) for row in rows)


def test_a_ported_job_gives_the_same_rows(spark, tmp_path, monkeypatch):
    """After the one missing schema is filled in, both outputs equal the job's."""
    (tmp_path / "paid_orders.py").write_text(JOB)
    lines = ["id,shop,cents", *(f"{i},{shop},{'' if c is None else c}" for i, shop, c in ORDERS)]
    (tmp_path / "orders.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "shops.csv").write_text("shop,city\na,Oslo\nb,Rome\n")
    ported = port(tmp_path / "paid_orders.py")
    assert [line for line in ported.todo if "schema" in line] == [
        "paid_orders.py:17: shops has no schema: write one in DDL, for example the output of"
        " print(shops.schema.toDDL()) after the read"
    ]
    text = ported.text.replace("TODO STRING", "shop STRING, city STRING")
    (tmp_path / f"{ported.name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    job, module = map(importlib.import_module, ("paid_orders", ported.name))

    job.main(spark, str(tmp_path))
    orders = [dict(zip(("id", "shop", "cents"), row, strict=True)) for row in ORDERS]
    result = testing.run_batch(
        module.pipeline, {"orders": orders}, references={"shops": SHOPS}, spark=spark
    )

    assert {*result.rows} == {"placed", "totals_out"}
    for sink, folder in (("placed", "placed"), ("totals_out", "totals")):
        own = [row.asDict() for row in spark.read.parquet(f"{tmp_path}/{folder}").collect()]
        assert as_set(result.rows[sink]) == as_set(own)
    # Its filter drops order 2 on purpose, and loses order 5, which has no cents.
    assert [record.content["id"] for record in result.failed] == [5]
    for name in ("paid_orders", ported.name):
        sys.modules.pop(name)
