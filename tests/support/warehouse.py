"""A database outside that sinks of a test write to, and deliveries for them."""

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from ledger.sinks.base import Delivery
from ledger.sinks.postgres.publisher import PostgresPublisher
from ledger.storage.manifest import take_manifest

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
SINCE = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)  # when the ledger first saw the pipeline
ORDERS = pa.schema([("id", pa.int64()), ("item", pa.string())])


class Warehouse:
    """The target database, the staged files of a test, and what its tables hold."""

    def __init__(self, url: str, folder: Path):
        self.url = url
        self.folder = folder
        self.engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        self._number = count()

    def do(self, *statements):
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, statement):
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

    def orders(self, table="orders"):
        return self.rows(f"SELECT id, item, ackledger_batch FROM {table} ORDER BY 1, 2, 3")

    def publisher(self, mode="append", table="orders", url=None, **more):
        key = ("id",) if mode == "upsert" else ()
        more = {"key": key, "staging_root": str(self.folder), **more}
        return PostgresPublisher(url or self.url, table, mode=mode, **more)

    def deliver(self, batch_id, *parts, version=None, schema=ORDERS, records=None, **more):
        """A delivery of one file for each of ``parts``, a list of rows or a table. ``records``: of
        each row in all of them its root; default: one each."""
        version = version or batch_id
        folder = self.folder / f"batch={batch_id}" / f"run={version}-{next(self._number)}"
        folder.mkdir(parents=True)
        first = 0
        for number, part in enumerate(parts):
            if not isinstance(part, pa.Table):
                columns = zip(*part, strict=True) if part else [[] for _ in schema]
                part = pa.table([list(column) for column in columns], schema=schema)
            own = pa.array((records or range(10**6))[first : first + len(part)], pa.int64())
            tracked = part.append_column("_ackledger_root", own)
            first += len(part)
            pq.write_table(tracked, folder / f"part-{number}.parquet")
        values = {"sink": "shop.orders", "interval_start": JANUARY, "original_id": batch_id}
        values |= {"pipeline_since": SINCE, **more}
        files = take_manifest(str(folder)).files
        return Delivery(
            batch_id=batch_id, version=version, folder=str(folder), files=files, **values
        )
