"""What a few lost records cost a large batch: ten million records, of which none, one, a hundred or
ten thousand are lost in its last stage.
"""

import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from sqlalchemy import text

from benchmarks import scale
from benchmarks.measure import Bench
from benchmarks.pipelines import measurements
from ledger.batch.records.payloads import keep_payloads
from ledger.store.connection import Database
from ledger.store.queries.batches import Batch

RECORDS = scale.SIZES["10m"]
LOST = (0, 1, 100, 10_000)
ROUNDS = 3  # at most
_TABLES = """
    SELECT c.table_name, c.column_name FROM information_schema.columns c
    JOIN information_schema.tables t USING (table_schema, table_name)
    WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
      AND (c.column_name = 'batch_id' OR c.table_name = 'failed_message'
        AND c.column_name = 'original_batch_id')
      AND c.table_name NOT LIKE 'ledger\\_delta\\_%'
"""


def measure(
    session: SparkSession, bench: Bench, rounds: int, data: Path, console: Console
) -> dict[str, Any]:
    """By the number of lost records: medians of the seconds of steps and settlement, and the rows
    and bytes that the ledger has of the batch before and after it is decided.
    """
    folder = data / "losses"
    if not folder.exists():
        scale.write(session, folder, RECORDS)
    order = [lost for _ in range(min(rounds, ROUNDS) + 1) for lost in LOST]
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
    keep_payloads(bench.database, batch.batch_id)
    decided = _size(bench.database, batch)
    return {
        "steps_seconds": times.steps,
        "settle_seconds": times.settle,
        "rows_open": open_["rows"],
        "rows_decided": decided["rows"],
        "bytes_decided": decided["bytes"],
    }


def _size(database: Database, batch: Batch) -> dict[str, int]:
    """Rows of the ledger that belong to a batch, and their bytes, without those of indexes."""
    query = "SELECT count(*), coalesce(sum(pg_column_size(t.*)), 0) FROM {} t WHERE {} = :id"
    with database.owner.begin() as connection:
        sizes = [
            connection.execute(text(query.format(*table)), {"id": batch.batch_id}).one()
            for table in connection.execute(text(_TABLES)).all()
        ]
    rows, bytes_ = (sum(int(size[place]) for size in sizes) for place in (0, 1))
    return {"rows": rows, "bytes": bytes_}
