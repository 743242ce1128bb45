"""A batch as one driver runs it on several masters: ``python -m tests.support.cores PLACES SLOW``.

For each it prints what must not depend on how many cores there are, and who does which task how
often, as one line of JSON. One task takes so many seconds longer the first time that it is tried.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark import TaskContext
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.column_names import POSITION
from ledger.deltas import spans
from ledger.settings import Settings
from ledger.sources.files import text
from ledger.spark.frames.inputs import stored_rows
from ledger.spark.job import Job
from ledger.spark.session import build_session
from ledger.store.upgrade import connect
from tests.support.reasons import bare
from tests.support.runner import Runner

FILES, RECORDS = 4, 1_000  # and records of each file
SIFTED = "filter: condition false: NOT ((n % 101) = 1)"
_SOURCE = "SELECT first_root, emit_run_id FROM batch_source WHERE batch_id = :batch"
_ROOTS = """
    SELECT root_id, status, step, reason FROM root_status WHERE batch_id = :batch ORDER BY root_id
"""


# A master, a database and a folder of its own, and the most spans of a source there.
Place = tuple[str, str, str, int]


def write(folder: Path) -> None:
    """Files of numbers."""
    for number in range(FILES):
        first = number * RECORDS
        lines = "".join(f"{n}\n" for n in range(first, first + RECORDS))
        (folder / f"in-{number}.csv").write_text(f"n\n{lines}")


def expected() -> dict[str, Any]:
    """What came of the batch, wherever it ran, as it is printed."""
    numbers = range(FILES * RECORDS)
    roots = [(n, *_verdict(n)) for n in numbers]
    shown = [n for n, status, *_ in roots if status == "acked"]
    result = {
        "positions": [(n, n) for n in numbers],
        "roots": roots,
        "failed": len(roots) - len(shown),
        "sink": [(n, copy) for n in shown for copy in (1, 2)],
    }
    return dict(json.loads(json.dumps(result)))


def _verdict(n: int) -> tuple[str, str | None, str | None]:
    if n % 97 == 0:
        return "failed", "twice", "ValueError: a multiple of 97"
    return ("failed", "sifted", SIFTED) if n % 101 == 1 else ("acked", None, None)


def tried_twice(events: Path) -> int:
    """How many tasks were started beside another try of the same one, by Spark's logs of events.
    Nothing that Spark knows, and hands to executors, is an address of the ledger.
    """
    texts = [log.read_text() for log in events.iterdir()]
    assert texts
    assert not any("postgresql" in text for text in texts)
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    starts = [line["Task Info"] for line in lines if line["Event"] == "SparkListenerTaskStart"]
    return sum(start["Speculative"] for start in starts)


def pipeline(slow_seconds: float) -> Pipeline:
    """Numbers, two rows for each; some fail, some are lost, and one task is slow the first time."""
    flow = Pipeline("cores")
    numbers = FileSource("in-*.csv", schema="n INT")
    flow.source("numbers", numbers)

    @flow.record_stage(reads="numbers", schema="n INT, copy INT")
    def twice(row: dict[str, Any]) -> Any:
        context = TaskContext.get()
        if row["n"] == 7 and context is not None and context.attemptNumber() == 0:
            time.sleep(slow_seconds)
        if row["n"] % 97 == 0:
            raise ValueError("a multiple of 97")
        yield {"n": row["n"], "copy": 1}
        yield {"n": row["n"], "copy": 2}

    @flow.stage(reads="twice", filters="lost")
    def sifted(frame: Any) -> Any:
        return frame.where(F.col("n") % 101 != 1).repartition(3, "copy")

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def in_tasks_alone(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work, which fails in a driver."""

    @wraps(work)
    def checked(*arguments: Any) -> Any:
        if TaskContext.get() is None:
            raise AssertionError(f"the driver itself runs {work.__qualname__}")
        return work(*arguments)

    return checked


def main(places: list[Place], slow_seconds: float) -> None:
    """Run the batch at each place, and print what came of it. No executor inherits an address of
    the ledger: this process's environment has none.
    """
    text.HERE = text.CUT_HERE = 0  # tasks cut the files and read them, however small these are
    for owner, name in ((text, "cut"), (text.TextReader, "batches")):
        setattr(owner, name, in_tasks_alone(getattr(owner, name)))
    for master, url, folder, most in places:
        settings = Settings(database_url=url, storage=f"{folder}/storage", data=folder)
        spark = build_session("cores", master)
        database = connect(settings)
        spans.MOST_SPANS = most
        # All is folded by executors, which need what that needs.
        flow = pipeline(slow_seconds)
        job = Job(spark, database, settings, flow, few_rows=-1, driver_bytes=-1)
        sys.stdout.write(json.dumps(result_of(job)) + "\n")
        spark.stop()
        database.dispose()


def result_of(job: Job) -> dict[str, Any]:
    """What came of the batch."""
    run = Runner(job)
    batch = run.open()
    settlement = run.settled(batch)
    (source,) = run.ledger.rows(_SOURCE, batch=batch.batch_id)
    rows = run.ledger.rows(_ROOTS, batch=batch.batch_id)
    first = source.first_root
    return {
        "positions": positions(job, source.emit_run_id),
        "roots": [
            (row.root_id - first, row.status, row.step, row.reason and bare(row.reason))
            for row in rows
        ],
        "failed": settlement.failed,
        "sink": rows_of(Path(job.settings.output_path("out"))),
    }


def positions(job: Job, run_id: int) -> list[tuple[int, int]]:
    """The position of each record among the batch's, by which it has its root, and the record."""
    rows = stored_rows(job, run_id, POSITION).select(POSITION, "n").collect()
    return sorted((row[POSITION], row["n"]) for row in rows)


def rows_of(folder: Path) -> list[tuple[int, int]]:
    """What the sink shows."""
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted((row["n"], row["copy"]) for row in table.to_pylist())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), float(sys.argv[2]))
