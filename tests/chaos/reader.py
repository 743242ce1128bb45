"""Readers of the three sinks and of the state, as any user would read them, in a loop or once at
the end.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ledger.sinks.folder import BATCH_FOLDER
from tests.chaos.data import CENTS_BASE, LINE_BASE, MODULUS, Row, checksum_sql
from tests.chaos.pipeline import DELTA, HISTORY, PARQUET, POSTGRES, TABLE
from tests.chaos.verdict import Look, Total, Update

PAUSE_SECONDS = 1.0
COLUMNS = ["day", "id", "line", "cents"]


class Sinks:
    """What the sinks publish at this instant. A sink that does not exist yet shows nothing."""

    def __init__(self, data: Path, target_url: str):
        self._folder = data / "warehouse" / PARQUET
        self._table = data / "warehouse" / DELTA
        self._past = data / "warehouse" / HISTORY
        self._target_url = target_url

    def days(self) -> dict[str, Callable[[], dict[str, Total]]]:
        """For each sink, what returns its totals by day."""
        return {PARQUET: self._parquet_days, DELTA: self._delta_days, POSTGRES: self._target_days}

    def rows(self) -> dict[str, list[Row]]:
        """Every row of each sink."""
        frames = {PARQUET: self._parquet(), DELTA: self._delta()}
        by_sink = {name: _tuples(frame) for name, frame in frames.items()}
        by_sink[POSTGRES] = self._asked(f"SELECT id, line, cents FROM {TABLE}")
        return by_sink

    def batches(self) -> dict[str, dict[int, tuple[str, Total]]]:
        """Of the sinks that keep rows by batch: day and total of each batch."""
        folder = {
            (int(batch), day): total
            for (batch, day), total in _grouped(self._parquet(), [BATCH_FOLDER, "day"]).items()
        }
        query = (
            f"SELECT ackledger_batch, day, count(*), sum({checksum_sql()}) FROM {TABLE} GROUP BY"
            " 1, 2"
        )
        target = {(row[0], row[1]): Total(row[2], int(row[3])) for row in self._asked(query)}
        return {
            name: {batch: (day, total) for (batch, day), total in sorted(batches.items())}
            for name, batches in ((PARQUET, folder), (POSTGRES, target))
        }

    def history(self) -> list[Update]:
        """The updates of the state in their order."""
        if not DeltaTable.is_deltatable(str(self._past)):
            return []
        rows = DeltaTable(self._past).to_pyarrow_table().sort_by("place").to_pylist()
        return [
            Update(row["place"], Total(row["added"], row["checksum"]), row["earlier"])
            for row in rows
        ]

    def _parquet_days(self) -> dict[str, Total]:
        return {day: total for (day,), total in _grouped(self._parquet(), ["day"]).items()}

    def _delta_days(self) -> dict[str, Total]:
        return {day: total for (day,), total in _grouped(self._delta(), ["day"]).items()}

    def _target_days(self) -> dict[str, Total]:
        query = f"SELECT day, count(*), sum({checksum_sql()}) FROM {TABLE} GROUP BY day"
        return {row[0]: Total(row[1], int(row[2])) for row in self._asked(query)}

    def _parquet(self) -> pa.Table:
        shown = (
            ds.dataset(self._folder, format="parquet", partitioning="hive")
            if self._folder.exists()
            else None
        )
        if shown is None or not shown.files:
            return _nothing().append_column(BATCH_FOLDER, pa.array([], pa.int64()))
        return shown.to_table(columns=[*COLUMNS, BATCH_FOLDER])

    def _delta(self) -> pa.Table:
        if not DeltaTable.is_deltatable(str(self._table)):
            return _nothing()
        return DeltaTable(self._table).to_pyarrow_table(columns=COLUMNS)

    def _asked(self, query: str) -> list[Any]:
        with closing(psycopg2.connect(self._target_url)) as connection, connection.cursor() as c:
            c.execute("SELECT to_regclass(%s) IS NOT NULL", (TABLE,))
            if not c.fetchone()[0]:
                return []
            c.execute(query)
            return list(c.fetchall())


class Reader:
    """Looks at every sink, again and again, and keeps what differs from the look before."""

    def __init__(self, sinks: Sinks):
        self._sinks = sinks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="reader")
        self.looks: list[Look] = []
        self.histories: list[list[Update]] = []
        self.count = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End, and raise what ended it before, if anything did."""
        self._ended.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _loop(self) -> None:
        try:
            while not self._ended.is_set():
                self._look()
                time.sleep(PAUSE_SECONDS)
        except BaseException as exc:  # raised by stop: a reader that fails has found something
            self.error = exc

    def _look(self) -> None:
        last: Mapping[str, Look] = {look.sink: look for look in self.looks}
        for name, days in self._sinks.days().items():
            try:
                look = Look(name, days())
            except FileNotFoundError as gone:
                if "_staging" not in str(gone):  # pyarrow lists what it then leaves out
                    raise
                continue
            self.count += 1
            if last.get(name, Look(name, {})) != look:
                self.looks.append(look)
        history = self._sinks.history()
        if history != (self.histories[-1] if self.histories else []):
            self.histories.append(history)


def _nothing() -> pa.Table:
    types = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    return pa.table({name: pa.array([], kind) for name, kind in zip(COLUMNS, types, strict=True)})


def _grouped(frame: pa.Table, by: list[str]) -> dict[tuple[Any, ...], Total]:
    """Totals of groups of rows; the checksum is that of ``tests.chaos.data.checksum``."""
    key = pc.add(pc.multiply(frame["id"], LINE_BASE), frame["line"])
    key = _modulo(pc.add(pc.multiply(key, CENTS_BASE), frame["cents"]))
    sums = frame.select(by).append_column("sum", _modulo(pc.multiply(key, key)))
    totals = sums.group_by(by).aggregate([("sum", "sum"), ("sum", "count")]).to_pylist()
    return {
        tuple(row[name] for name in by): Total(row["sum_count"], row["sum_sum"]) for row in totals
    }


def _modulo(values: Any) -> Any:
    return pc.subtract(values, pc.multiply(pc.divide(values, MODULUS), MODULUS))


def _tuples(frame: pa.Table) -> list[Row]:
    return list(zip(*(frame[name].to_pylist() for name in COLUMNS[1:]), strict=True))
