"""Stages rows for a Delta table as Spark does, reads the table back, and publishes from
processes.
"""

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ledger.errors import LedgerError
from ledger.sinks.base import Delivery
from ledger.sinks.delta.publisher import DeltaPublisher
from ledger.storage.manifest import take_manifest

SINK = "flights.warehouse"
SINCE = datetime(2012, 12, 31, tzinfo=UTC)  # when the ledger first saw the pipeline
SCHEMA = pa.schema([("id", pa.int64()), ("label", pa.string())])
_ESCAPED = {*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"}
_SPAWN = multiprocessing.get_context("spawn")


def stage(
    publisher: DeltaPublisher,
    batch_id: int,
    version: int,
    rows: pa.Table,
    *,
    partition_by: tuple[str, ...] = (),
    files: int = 1,
    replaces: tuple[int, ...] = (),
    folder: str = "",
    since: datetime = SINCE,
) -> Delivery:
    """Rows in ``files`` files for each partition, with the ledger's own column; what to publish."""
    staging = folder or publisher.staging(batch_id, version)
    for values, part in _partitions(rows, partition_by):
        below = [f"{_escaped(name)}={_folder(values[name])}" for name in partition_by]
        for number in range(files):
            path = Path(staging, *below, f"part-{number:05}-{batch_id}-{version}.c000.parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            start, end = (place * len(part) // files for place in (number, number + 1))
            own = part.slice(start, end - start)
            own = own.append_column("_ackledger_root", pa.array(range(len(own)), pa.int64()))
            pq.write_table(own, path, compression="zstd")
    file = take_manifest(staging).files if Path(staging).exists() else ()
    instant = datetime(2013, 1, 1, tzinfo=UTC)
    own = (SINK, batch_id, version, instant, batch_id, staging, file, replaces)
    return Delivery(*own, pipeline_since=since)


def labelled(label: str, count: int = 4) -> pa.Table:
    """``count`` rows that say whose they are."""
    return pa.table({"id": range(count), "label": [label] * count}, schema=SCHEMA)


def read(path: Any) -> list[dict[str, Any]]:
    """The rows, which deltalake and Polars have to agree on, sorted by their text."""
    arrow = DeltaTable(path).to_pyarrow_table()
    frame = polars.read_delta(str(path))
    assert arrow.column_names == frame.columns
    ours, theirs = sorted(arrow.to_pylist(), key=repr), sorted(frame.to_dicts(), key=repr)
    assert ours == theirs
    return ours


def labels(path: Any) -> Counter[str]:
    """How many rows there are of each label."""
    return Counter(row["label"] for row in read(path))


def race(*contenders: Sequence[tuple[str, Delivery]]) -> list[list[str]]:
    """Each contender publishes its deliveries in a process of its own; a barrier before each
    releases all at once. What came of each: ``done`` or the error's name, by contender.
    """
    barrier, answers = _SPAWN.Barrier(len(contenders)), _SPAWN.SimpleQueue()
    processes = [
        _SPAWN.Process(target=_contend, args=(barrier, answers, number, list(rounds)), daemon=True)
        for number, rounds in enumerate(contenders)
    ]
    for process in processes:
        process.start()
    came = dict(answers.get() for _ in processes)
    for process in processes:
        process.join(60)
    return [came[number] for number in range(len(processes))]


def _contend(
    barrier: Any, answers: Any, number: int, rounds: Iterable[tuple[str, Delivery]]
) -> None:
    came = []
    for path, delivery in rounds:
        publisher = DeltaPublisher(path, ())
        barrier.wait(60)
        try:
            publisher.plan(SCHEMA, delivery)
            publisher.publish(delivery)
            came.append("done")
        except LedgerError as exc:
            came.append(f"{type(exc).__name__}: {exc}")
    answers.put((number, came))


class Watch:
    """Reads a table in a process of its own for as long as a block runs, and keeps every state
    seen.
    """

    def __init__(self, path: Any) -> None:
        self._stop, self._ready, self._answers = (
            _SPAWN.Event(),
            _SPAWN.Event(),
            _SPAWN.SimpleQueue(),
        )
        arguments = (str(path), self._ready, self._stop, self._answers)
        self._process = _SPAWN.Process(target=_watch, args=arguments, daemon=True)
        self.seen: list[dict[str, int]] = []

    def __enter__(self) -> "Watch":
        self._process.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.seen = self._answers.get()
        self._process.join(60)


def _watch(path: str, ready: Any, stop: Any, answers: Any) -> None:
    seen: list[dict[str, int]] = []
    while not stop.is_set():
        for column in (
            DeltaTable(path).to_pyarrow_table().column("label").to_pylist(),
            polars.read_delta(path)["label"].to_list(),
        ):
            seen.append(dict(Counter(column)))
        ready.set()
    answers.put(seen)


def _partitions(
    rows: pa.Table, partition_by: tuple[str, ...]
) -> list[tuple[dict[str, Any], pa.Table]]:
    """Rows by the values of the partition columns, which are not in the files."""
    if not partition_by:
        return [({}, rows)]
    keys = rows.select(partition_by).to_pylist()
    parts = []
    for values in {repr(key): key for key in keys}.values():
        mask = pa.array([key == values for key in keys])
        parts.append((values, rows.filter(mask).drop_columns(list(partition_by))))
    return parts


def _folder(value: Any) -> str:
    if value is None or value == "":
        return "__HIVE_DEFAULT_PARTITION__"
    return _escaped(str(value).lower() if isinstance(value, bool) else str(value))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
