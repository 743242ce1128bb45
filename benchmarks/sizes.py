"""Size of a batch on disk: its snapshot and outputs, its deltas while it is open, and its failed
records afterwards.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import text

from benchmarks.measure import Bench, data_bytes
from benchmarks.pipelines import flights
from ledger.batch.records.payloads import keep_payloads
from ledger.store.connection import Database
from ledger.store.queries.batches import Batch

# Where a failed record is kept: what became of it, why, and its content.
FAILURES = ("failed_message", "failed_root", "failed_payload")
STAGES = ("parse", "with_plane", "with_weather")


def sizes(session: SparkSession, bench: Bench, rounds: int, home: Path) -> dict[str, Any]:
    """Rows and bytes of one batch of the flights, whatever ``rounds``: sizes do not vary as times
    do.
    """
    deltas: dict[str, int] = {}

    def look(batch: Batch) -> None:
        deltas.update(_deltas(bench.database, batch.batch_id))

    snapshots = home / "storage" / "flights" / "departures"
    before = _failures(bench.database), data_bytes(snapshots)
    batch, _ = bench.batch(flights(True), look)
    keep_payloads(bench.database, batch.batch_id)
    stage_bytes = sum(bench.written[stage] for stage in STAGES)
    after = _failures(bench.database)
    source_bytes = (home / "data" / "flights" / "2013-01-01.csv").stat().st_size
    return {
        "sizes.batch": {
            "deltas": deltas["rows"],
            "delta_bytes": deltas["bytes"],
            "failed": after["rows"] - before[0]["rows"],
            "failed_bytes": after["bytes"] - before[0]["bytes"],
            "source_bytes": source_bytes,
            "snapshot_bytes": data_bytes(snapshots) - before[1],
            "stage_bytes": stage_bytes,
        }
    }


def _deltas(database: Database, batch_id: int) -> dict[str, int]:
    """Rows, and their bytes without those of the index."""
    query = "SELECT count(*), sum(pg_column_size(d.*)) FROM ledger_delta d WHERE batch_id = :id"
    with database.owner.begin() as connection:
        rows, bytes_ = connection.execute(text(query), {"id": batch_id}).one()
    return {"rows": int(rows), "bytes": int(bytes_)}


def _failures(database: Database) -> dict[str, int]:
    return {
        "rows": _rows(database, FAILURES[0]),
        "bytes": sum(_bytes(database, table) for table in FAILURES),
    }


def _rows(database: Database, table: str) -> int:
    with database.owner.begin() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def _bytes(database: Database, table: str) -> int:
    """Return the size of a table with its indexes."""
    statement = text("SELECT pg_total_relation_size(CAST(:table AS regclass))")
    with database.owner.begin() as connection:
        return int(connection.execute(statement, {"table": table}).scalar_one())
