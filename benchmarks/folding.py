"""Speed of the fold's kernel by itself: rows a second, read and folded by two tasks, and
deltas a second, posted by the driver.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import track

from benchmarks.measure import seconds
from ledger.core.column_names import POSITION
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.edges import Edges
from ledger.deltas.kernel import Deltas, fold_emitted
from ledger.deltas.portions import Output
from ledger.storage.manifest import DataFile
from ledger.store.connection import Database

ROWS, FILES, FAN_OUT = 16_000_000, 4, 8
POSTED, TASKS = 2_000_000, 2
_ROWS = "rows bigint"


def kernel_rows_per_second(
    session: SparkSession, folder: Path, rounds: int, console: Console
) -> dict[str, float]:
    """Rows of a stage that makes eight of each input, through the kernel alone: nothing is
    posted. In order: a task folds its files, as they were written. Shuffled: the children of
    each input lie in all files, so the rows are exchanged first. That is the kernel and a bare
    exchange by the library's key, in a plan of the benchmark's own: what a run has beside it,
    positions by file and the witness of what was read, is not in the figure.
    """
    orders = {"in_order": np.arange(ROWS), "shuffled": np.random.default_rng(7).permutation(ROWS)}
    frames = {}
    for name, order in orders.items():
        output = _output(_written(folder / f"fold-{name}", order))
        frames[name] = (
            _by_file(session, output) if name == "in_order" else _exchanged(session, output)
        )
    taken: dict[str, list[float]] = {name: [] for name in frames}
    for number in track(range(rounds + 1), "fold, the kernel: rounds", console=console):
        for name, frame in frames.items():
            time = seconds(partial(_require_all, frame))
            if number > 0:
                taken[name].append(ROWS / time)
    return {
        f"fold_kernel_rows_per_second.{name}": statistics.median(v) for name, v in taken.items()
    }


def _written(folder: Path, order: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[DataFile]:
    """Files as the library writes them, with a word beside what identifies a row."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(np.array_split(order, FILES)):
        path = folder / f"{number}.parquet"
        if not path.exists():
            root = part // FAN_OUT
            columns = {"_ackledger_root": root, "_ackledger_parent": root, "word": part % 10_000}
            pq.write_table(
                pa.table(columns), path, compression="zstd", version="2.6", data_page_version="2.0",
                use_dictionary=False,
                column_encoding=dict.fromkeys(columns, "DELTA_BINARY_PACKED"),
            )  # fmt: skip
        first = number * (ROWS // FILES)
        paths.append(DataFile(str(path), path.stat().st_size, len(part), first))
    return paths


def _output(files: list[DataFile]) -> Output:
    edges = Edges(2, "split", ("words",), {"sentences": 1})
    return Output(files, fold_emitted, edges, ROWS)


def _by_file(session: SparkSession, output: Output) -> DataFrame:
    return session.range(0, FILES, 1, TASKS).mapInArrow(partial(_fold_files, output), _ROWS)


def _exchanged(session: SparkSession, output: Output) -> DataFrame:
    paths = [file.path for file in output.files]
    rows = session.read.parquet(*paths).select("_ackledger_root", "_ackledger_parent")
    placed = rows.selectExpr("*", f"monotonically_increasing_id() AS {POSITION}")
    parted = placed.repartition(FILES, "_ackledger_root", "_ackledger_parent")
    return parted.mapInArrow(partial(_fold_rows, output), _ROWS)


def _fold_files(output: Output, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            parts = output.fold_file(output.files[number])
            yield pa.RecordBatch.from_pylist([{"rows": sum(part.wrote.rows for part in parts)}])


def _fold_rows(output: Output, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches(list(batches))
    folded = output.fold_table(table)
    yield pa.RecordBatch.from_pylist([{"rows": int(folded.deltas.emitted_edges.sum())}])


def _require_all(frame: DataFrame) -> None:
    """Run it. Raises ValueError unless all rows were folded."""
    count = sum(row["rows"] for row in frame.collect())
    if count != ROWS:
        raise ValueError(f"{count} of {ROWS} rows were folded")


def deltas_per_second(database: Database, rounds: int, console: Console) -> float:
    """Deltas posted a second, by the driver, without the work that made them."""
    taken = []
    root = np.arange(POSTED)
    once, never = np.ones(len(root), np.int64), np.zeros(len(root), np.int64)
    deltas = Deltas(root, root * 0x9E3779B97F4A7C1, never, once, never)
    with database.plain.begin() as connection:
        batch, run = connection.exec_driver_sql(
            "SELECT max(batch_id), max(step_run_id) FROM step_run"
        ).one()

    def post() -> None:
        with database.writer.begin() as connection, raw_cursor(connection) as cursor:
            posting.post(cursor, batch, run, deltas, masks=False)

    for number in track(range(rounds + 1), "ledger: rounds", console=console):
        with database.plain.begin() as connection:
            connection.exec_driver_sql("TRUNCATE ledger_delta")
        time = seconds(post)
        if number > 0:
            taken.append(POSTED / time)
    return statistics.median(taken)
