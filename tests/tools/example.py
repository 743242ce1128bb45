"""Runs the example of one tool on docs/comparison.md, where that tool is installed:
``python -m tests.tools.example gx``.
"""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, testing
from ledger.spark.session import build_session
from tests.support.pages import DOCS, Block, blocks

PAGE = DOCS / "comparison.md"
HEADINGS = {
    "gx": "GX Core",
    "soda": "Soda Core",
    "spark_expectations": "spark-expectations",
    "dqx": "DQX",
}
ORDERS = [
    {"id": "1", "customer": "ada", "cents": 5},
    {"id": "2", "customer": None, "cents": 7},
    {"id": "3", "customer": "eve", "cents": -1},
]
EXPECTED = {"2": "no customer", "3": "negative amount"}


def main(tool: str) -> None:
    """Run the example over orders of which two are refused; replay one that was corrected."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        spark = build_session("tools", "local[2]")
        if tool == "dqx":
            without_workspace()
        if tool == "spark_expectations":
            spark.sql("CREATE SCHEMA dq")
        result = declared(tool)
        pipeline = result["pipeline"]
        pipeline.sink("out", ParquetSink("out"), reads="checked")
        done = testing.run_batch(pipeline, {"orders": ORDERS}, spark=spark)
        first = min(record.message_id for record in done.failed)
        refused = {
            str(record.message_id - first + 2): record.reason.replace("_", " ")
            for record in done.failed
        }
        assert refused == EXPECTED, refused
        assert done.rows["out"] == ORDERS[:1], done.rows["out"]
        again = testing.replay(done)
        assert again.roots.failed == len(EXPECTED), again
        verified(result, spark, Path(folder))
        spark.stop()


def declared(tool: str, page: Iterable[Block] | None = None) -> dict[str, Any]:
    """What the blocks below the tool's heading define, its files saved beside them."""
    pipeline = Pipeline("orders")
    schema = "id STRING, customer STRING, cents BIGINT"
    pipeline.source("orders", FileSource("orders.csv", schema=schema))
    namespace: dict[str, Any] = {"__name__": "orders", "pipeline": pipeline}
    namespace |= {"DataFrame": DataFrame, "F": F}
    for block in blocks(PAGE) if page is None else page:
        if block.heading != HEADINGS[tool]:
            continue
        if block.language == "yaml":
            Path(block.title).write_text(block.code)
        if block.language == "python":
            exec(compile(block.code, f"{block.place}: {block.name}", "exec"), namespace)
    return namespace


def without_workspace() -> None:
    """DQX documents a mocked client for tests; its engine asks for a workspace otherwise."""
    from unittest.mock import MagicMock

    from databricks import sdk

    client = MagicMock(spec=sdk.WorkspaceClient)
    mocked = {"__new__": lambda cls: client}
    sdk.WorkspaceClient = type("WorkspaceClient", (sdk.WorkspaceClient,), mocked)


def verified(checked: dict[str, Any], spark: SparkSession, folder: Path) -> None:
    """The contract of Soda is kept by the published rows, and broken by all that was read."""
    verify = checked.get("verify")
    if verify is None:
        return
    for name, rows in (("published", ORDERS[:1]), ("read", ORDERS)):
        frame = spark.createDataFrame(rows, "id STRING, customer STRING, cents BIGINT")
        frame.write.parquet(str(folder / name))
    verify(spark, str(folder / "published"))
    message = "the contract was kept"
    try:
        verify(spark, str(folder / "read"))
    except RuntimeError as exc:
        message = str(exc)
    assert message.startswith("2 checks failed"), message


if __name__ == "__main__":
    main(sys.argv[1])
