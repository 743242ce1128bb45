"""A source's snapshot written by hand, for batches that no Spark ran."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import text

from ledger.store.connection import Database
from ledger.store.queries.batches import Batch


def write_snapshot(
    database: Database,
    batch: Batch,
    folder: Path,
    rows: list[dict[str, Any]],
    files: int = 2,
    group_rows: int = 2,
) -> list[Path]:
    """Write the rows of a batch's source, in order, to files of row groups that are small by
    default, and list them in the ledger."""
    schema = pa.Table.from_pylist(rows).schema
    share, made = -(-len(rows) // files), []
    for number in range(files):
        part = rows[number * share : (number + 1) * share]
        path = folder / f"part-{number}.parquet"
        pq.write_table(pa.Table.from_pylist(part, schema), path, row_group_size=group_rows)
        made.append((path, number * share, len(part)))
    with database.writer.begin() as connection:
        for path, first, count in made:
            connection.execute(
                text("""
                    INSERT INTO step_run_file (step_run_id, first_position, path, bytes, rows)
                    SELECT emit_run_id, :first, :path, :bytes, :rows FROM batch_source
                    WHERE batch_id = :batch
                """),
                {
                    "first": first,
                    "path": str(path),
                    "bytes": path.stat().st_size,
                    "rows": count,
                    "batch": batch.batch_id,
                },
            )
    return [path for path, *_ in made]
