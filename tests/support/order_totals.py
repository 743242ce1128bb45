"""A pipeline of orders whose third stage is whole: totals, distinct rows and the like."""

from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from tests.support.order_days import CUSTOMER, SCHEMA

STAGES = ["checked", "with_country", "totals", "named"]
STEPS = [*STAGES, "out"]


def sums(orders):
    """Group the orders of a customer."""
    own = F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("id").alias("last")
    return orders.groupBy("customer").agg(*own)


def sums_of_sums(orders):
    """Group twice: the rows that are grouped again have several records."""
    twice = sums(orders).groupBy((F.col("customer") % 2).alias("customer"))
    return twice.agg(F.sum("orders").alias("orders"), F.sum("cents").alias("cents"))


def distinct(orders):
    """Keep one of each customer's orders, which are equal."""
    return orders.select("customer", "country").distinct()


def without_duplicates(orders):
    """Keep one order of each customer by its key."""
    return orders.select("customer", "country", "status").dropDuplicates(["customer"])


def running(orders):
    """Compute a running total, which leaves each order its row."""
    window = Window.partitionBy("customer").orderBy("id")
    return orders.select("id", "customer", F.sum("cents").over(window).alias("cents"))


KINDS = {
    each.__name__: each for each in (sums, sums_of_sums, distinct, without_duplicates, running)
}


def pipeline(totals, *, name="planned", named=None, sink=None, beside=False, **options):
    """Two stages that fail, drop and lose orders, a whole stage and one behind it.

    ``totals``: what the whole stage returns for its orders. ``named``: what the stage behind it
    returns for these. ``name``: of the pipeline, and of its sinks' folder. ``sink``: the sink;
    None: a folder. ``beside``: whether another sink reads the whole stage.
    """
    flow = Pipeline(name, **options)
    days = FileSource("{{ interval_start | ds }}/*.jsonl", format="json", schema=SCHEMA)
    flow.source("orders", days)
    flow.reference("customers", FileSource("customers.csv", schema=CUSTOMER))

    @flow.stage(reads="orders")
    def checked(orders):
        wrong = F.when(F.col("cents") < 0, "negative")
        return orders.where("status <> 'open'").withColumn("_failed", wrong)

    @flow.stage(reads="checked")
    def with_country(orders, *, customers):
        return orders.join(F.broadcast(customers), "customer")

    def whole(orders):
        return totals(orders)

    def behind(totals):
        return (
            named(totals) if named else totals.withColumn("name", F.concat(F.lit("c"), "customer"))
        )

    whole.__name__, behind.__name__ = "totals", "named"
    flow.stage(reads="with_country")(whole)
    flow.stage(reads="totals")(behind)
    flow.sink("out", sink or ParquetSink(f"{name}/out"), reads="named")
    if beside:
        flow.sink("more", ParquetSink(f"{name}/more"), reads="totals")
    return flow


def alone(totals, *, name="alone", **options):
    """The same pipeline under another name, whose steps run one by one."""
    return pipeline(totals, name=name, one_plan=False, **options)
