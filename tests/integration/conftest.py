"""Fixtures that run whole pipelines on a local Spark session."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger.deltas import stored
from ledger.settings import Settings
from ledger.spark.folding import runners
from ledger.spark.job import Job
from ledger.store import embedded
from ledger.store.connection import Database
from tests.support.audited_scripts import audited  # noqa: F401 - a fixture
from tests.support.retention import archive, forgettable  # noqa: F401 - fixtures
from tests.support.runner import Runner
from tests.support.warehouse import Warehouse

# Fields of the runner's job, by where deltas are folded and posted: few by the driver with the
# commit, many by its threads before it, and what is larger in the executors.
FOLDED_BY = {
    "driver": {},
    "threads": {"few_rows": -1},
    "executors": {"few_rows": -1, "driver_bytes": -1},
    "exchange": {"few_rows": -1, "driver_bytes": -1},
}
# Rows that are read, and that a task takes, at a time: so that little data is folded as much is.
_FEW = {"threads": 3, "executors": 3, "exchange": 3}
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(params=["driver", "threads", "executors"])
def folded_by(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, spark
) -> Iterator[dict[str, int]]:
    """Fields of the runner's job that say where deltas are folded and posted. Files of an output
    are too large for a task of the executors, and folded after an ``exchange``, for the tests that
    ask for it.
    """
    rows = _FEW.get(request.param)
    if rows is not None:
        monkeypatch.setattr(stored, "WINDOW_ROWS", rows)
        monkeypatch.setattr(runners, "READ_ROWS", rows)
    if request.param == "exchange":
        monkeypatch.setattr(runners, "TASK_DELTAS", rows)
        monkeypatch.setattr(runners, "TASK_BYTES", 0)
    before = spark.conf.get(_ARROW_ROWS)
    if request.param in ("executors", "exchange"):
        spark.conf.set(_ARROW_ROWS, "2")
    yield FOLDED_BY[request.param]
    spark.conf.set(_ARROW_ROWS, before)


@pytest.fixture
def runner(
    request: pytest.FixtureRequest, spark, database: Database, settings: Settings
) -> Callable[..., Runner]:
    """A runner for a pipeline, with further fields of its job; it folds where ``folded_by``
    says, if a test asks.
    """
    asked = "folded_by" in request.fixturenames
    folding = request.getfixturevalue("folded_by") if asked else {}
    return lambda pipeline, **fields: Runner(
        Job(spark, database, settings, pipeline, **{**folding, **fields})
    )


@pytest.fixture(scope="module")
def warehouse_url(server_home: Path) -> str:
    """The URL of a database that sinks write to."""
    return embedded.ensure_database(embedded.start(server_home), "warehouse")


@pytest.fixture
def warehouse(warehouse_url: str, tmp_path: Path) -> Warehouse:
    """An empty target database."""
    target = Warehouse(warehouse_url, tmp_path)
    target.do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return target


@pytest.fixture
def sink_rows(tmp_path: Path) -> Callable[..., list[tuple[object, ...]]]:
    """Sorted rows of a sink's folder, as pyarrow's reader sees them."""
    import pyarrow.dataset as ds

    def read(folder: str = "out", *columns: str) -> list[tuple[object, ...]]:
        table = ds.dataset(tmp_path / folder, partitioning="hive", format="parquet").to_table()
        names = columns or [name for name in table.column_names if name != "ackledger_batch"]
        return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)

    return read
