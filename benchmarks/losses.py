"""Cost of a few lost records in a large batch: ten million records, of which none, one, a hundred
or ten thousand are lost in its last stage.
"""

import shutil
import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from sqlalchemy import text

from benchmarks import scale
from benchmarks.measure import Bench, seconds
from benchmarks.pipelines import measurements
from ledger.batch.records.payloads import keep_payloads
from ledger.store.connection import Database
from ledger.store.queries.batches import Batch

RECORDS = scale.SIZES["10m"]
LOST = (0, 1, 100, 10_000)
# Each table with the column by which rows belong to a batch, or to a run of it.
_TABLES = """
    SELECT DISTINCT ON (c.table_name) c.table_name, c.column_name FROM information_schema.columns c
    JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
      AND c.column_name IN ('batch_id', 'original_batch_id', 'step_run_id')
      AND c.table_name NOT LIKE 'ledger\\_delta\\_%'
    ORDER BY c.table_name, c.column_name = 'batch_id' DESC, c.column_name
"""
_ROWS = """
    SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0) FROM {table} t WHERE {column} {of_batch}
"""
_OF_RUN = "IN (SELECT step_run_id FROM step_run WHERE batch_id = :id)"


def measure(
    session: SparkSession, bench: Bench, rounds: int, data: Path, console: Console
) -> dict[str, Any]:
    """By the number of lost records: medians of the seconds of steps, settlement and publication,
    and the rows and bytes that the ledger has of the batch before and after it is decided.
    """
    folder = data / "losses"
    if not (folder / "_SUCCESS").exists():
        shutil.rmtree(folder, ignore_errors=True)
        scale.write(session, folder, RECORDS)
    order = [lost for _ in range(rounds + 1) for lost in LOST]
    measured: dict[int, list[dict[str, float]]] = {lost: [] for lost in LOST}
    for lost in track(order, "losses", console=console):
        measured[lost].append(_batch(bench, lost))
    return {
        "losses": {
            str(lost): {
                name: statistics.median(each[name] for each in figures) for name in figures[0]
            }
            for lost, (_, *figures) in measured.items()
        }
    }


def _batch(bench: Bench, lost: int) -> dict[str, float]:
    open_: dict[str, int] = {}
    pipeline = measurements("losses", True, lose_every=RECORDS // lost if lost else None)
    batch, times = bench.batch(pipeline, lambda batch: open_.update(_size(bench.database, batch)))
    content = seconds(lambda: keep_payloads(bench.database, batch.batch_id))
    decided = _size(bench.database, batch)
    return {
        "steps_seconds": times.steps,
        "settle_seconds": times.settle,
        "publish_seconds": times.publish + content,
        "rows_open": open_["rows"],
        "rows_decided": decided["rows"],
        "bytes_decided": decided["bytes"],
    }


def _size(database: Database, batch: Batch) -> dict[str, int]:
    """Rows of the ledger that belong to a batch, and their bytes, without those of indexes."""
    with database.owner.begin() as connection:
        sizes = []
        for table, column in connection.execute(text(_TABLES)).all():
            of_batch = _OF_RUN if column == "step_run_id" else "= :id"
            query = _ROWS.format(table=table, column=column, of_batch=of_batch)
            sizes.append(connection.execute(text(query), {"id": batch.batch_id}).one())
    rows, bytes_ = (sum(int(size[place]) for size in sizes) for place in (0, 1))
    return {"rows": rows, "bytes": bytes_}
