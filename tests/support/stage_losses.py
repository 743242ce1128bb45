"""A stage of one function over a few orders, and what it does with each of them."""

import re

from ledger import FileSource, ParquetSink, Pipeline, testing

SCHEMA = "id INT, shop STRING, cents INT, items ARRAY<INT>"
ROWS = [
    {"id": 1, "shop": "a", "cents": 5, "items": [1, 2]},
    {"id": 2, "shop": "b", "cents": 0, "items": [3]},
    {"id": 3, "shop": "c", "cents": 7, "items": [1, None]},
    {"id": 4, "shop": None, "cents": 8, "items": []},
    {"id": 5, "shop": "a", "cents": None, "items": None},
]
SHOPS = [{"shop": "a", "city": "Oslo"}, {"shop": "b", "city": None}]


def declared(function, **options):
    """orders -> a stage of this function -> out."""
    pipeline = Pipeline("flow", guarantee="at_least_once", redact=options.pop("redact", ()))
    pipeline.source("orders", FileSource("orders.json", format="json", schema=SCHEMA))
    pipeline.reference("shops", FileSource("shops.csv", schema="shop STRING, city STRING"))
    function.__name__ = "changed"
    pipeline.stage(reads="orders", **options)(function)
    pipeline.sink("out", ParquetSink("out", dedup="none"), reads="changed")
    return pipeline


def verdicts(spark, function, rows=ROWS, **options):
    """The fate of each record that is in no row of the output: by id, whether it was dropped or
    lost, and why, without the line.
    """
    result = testing.run_batch(
        declared(function, **options),
        {"orders": rows},
        references={"shops": SHOPS} if "shops" in function.__code__.co_varnames else {},
        spark=spark,
    )
    lost = {r.content["id"]: bare(r.reason) for r in result.failed}
    drops = ledger_rows(result, "SELECT reason, records, operation, place FROM step_run_drop")
    return lost, {bare(drop.reason): drop.records for drop in drops}, result


def bare(reason):
    """A reason without the line of its operation."""
    return re.sub(r" at test_\w+\.py:\d+", "", reason)


def ledger_rows(result, query):
    return result.lab.database.transact(
        lambda c: (
            c.exec_driver_sql("SET LOCAL search_path = ackledger"),
            c.exec_driver_sql(query).all(),
        )[1]
    )
