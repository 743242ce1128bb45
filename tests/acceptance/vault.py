"""A pipeline whose source and sink have a password, and whose stage notes what can be seen of the
Spark that it runs in.
"""

import json
import os
from pathlib import Path
from urllib.request import urlopen

import psutil
from pyspark.sql import DataFrame

from ledger import ParquetSink, Pipeline, PostgresSink, SqlSource

PARTS = ("environment", "jobs", "stages", "executors", "sql?details=true&length=100")


def look(session_frame: DataFrame, folder: Path) -> None:
    """Write down what Spark's UI shows, and the arguments of all processes."""
    context = session_frame.sparkSession.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for part in PARTS:
        with urlopen(f"{base}/{part}", timeout=30) as answer:
            (folder / f"{part.partition('?')[0]}.json").write_bytes(answer.read())
    shown = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    (folder / "processes.json").write_text(json.dumps(shown))


def vault(name: str, source: str, sink: str, raises: bool = False) -> Pipeline:
    """Numbers of a table into another one, whose addresses are declared as they are."""
    flow = Pipeline(name)
    flow.source("numbers", SqlSource(source, "numbers", schema="n BIGINT", cursor="n"))

    @flow.stage(reads="numbers", filters="lost")
    def seen(numbers: DataFrame) -> DataFrame:
        numbers.count()
        if raises:
            raise RuntimeError("the vault is closed")
        look(numbers, Path(os.environ["VAULT_SEEN"]))
        return numbers.where("n % 2 = 0")

    flow.sink("evens", PostgresSink(sink, "evens"), reads="seen")
    flow.sink("folder", ParquetSink("evens"), reads="seen")
    return flow


pipeline = vault("vault", os.environ["VAULT_SOURCE"], os.environ["VAULT_SINK"])
broken = vault("broken", os.environ["VAULT_SOURCE"], os.environ["VAULT_SINK"], raises=True)
nowhere = vault("nowhere", os.environ["VAULT_SOURCE"], os.environ["VAULT_NOWHERE"])
