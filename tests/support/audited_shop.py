"""The job of docs/how-to/audit.md with its data, whose report the page and its picture show."""

import random

from pyspark.sql import DataFrame, SparkSession

from ledger import audit
from ledger.auditing.report import AuditReport
from tests.support import examples

ORDERS = "order_id string, state string, cents string, shop string"
FILE, LINES_ABOVE = "shop.py", 5  # of the job, which the page does not show
_PAGE = "docs/how-to/audit.md"


def orders(spark: SparkSession) -> DataFrame:
    """5,000 orders with states and shops that are NULL, shops that are closed, and bad numbers."""
    pick = random.Random(1)
    rows = [
        (
            f"o{at}",
            pick.choice(["paid", "paid", "paid", "open", None]),
            pick.choice(["n/a", *map(str, range(1, 40))]),
            pick.choice(["s1", "s2", "s3", "s4", "s31", None]),
        )
        for at in range(5000)
    ]
    return spark.createDataFrame(rows, ORDERS)


def shops(spark: SparkSession) -> DataFrame:
    """The shops that are open."""
    rows = [("s1", "DE"), ("s2", "FR"), ("s3", "IT"), ("s4", "DE")]
    return spark.createDataFrame(rows, "shop string, country string")


def shop_report(spark: SparkSession) -> AuditReport:
    """The report on the page's job, as a file of a user."""
    code = "\n" * LINES_ABOVE + examples.EXAMPLES[_PAGE, "placed"].code
    names = {"__name__": "shop", "DataFrame": DataFrame}
    exec(compile(f"from pyspark.sql import functions as F{code}", FILE, "exec"), names)
    return audit(names["placed"], orders(spark), references={"shops": shops(spark)})
