"""Fixtures that run whole pipelines on a local Spark session."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.settlement import Settlement
from ledger.batch.step_runs import Attempt
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.execution import StepResult, run_step, settle_and_follow
from ledger.settings import Settings
from ledger.spark import post as folding
from ledger.spark.job import FEW_ROWS, Job
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.queries.batches import Batch
from tests.support.warehouse import Warehouse

# How many rows are few, and how many a task takes at a time, so that little data is folded as much
# would be.
_IN_EXECUTORS = {"READ_ROWS": 3}
FOLDED_BY = {
    "driver": {},
    "executors": _IN_EXECUTORS,
    "exchange": {**_IN_EXECUTORS, "MOST_ROWS": 3},
}
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)


class Runner:
    """Opens, runs and settles batches of one pipeline."""

    def __init__(self, job: Job):
        self.job = job

    def open(self, run_id: str = "run", start: datetime = START, end: datetime = END) -> Batch:
        """The batch of ``run_id`` over the interval."""
        job = self.job
        return open_batch(
            job.database, job.settings, job.pipeline, RunKey("", run_id), Interval(start, end)
        )

    def open_replay(self, original: int, run_id: str = "replay", **selection: object) -> Batch:
        """A replay of the original's failed messages."""
        job, chosen = self.job, Selection(**selection)  # type: ignore[arg-type]
        return open_replay(
            job.database, job.settings, job.pipeline, RunKey("", run_id), original, chosen
        )

    def step(self, batch: Batch, name: str) -> StepResult:
        """Run one step as a new attempt."""
        return run_step(self.job, batch.batch_id, name, Attempt())

    def steps(self, batch: Batch) -> None:
        """Run all steps in order."""
        for step in self.job.pipeline.steps():
            self.step(batch, step.name)

    def settled(self, batch: Batch) -> Settlement:
        """Run all steps, settle and publish."""
        self.steps(batch)
        return settle_and_follow(self.job, batch.batch_id)


@pytest.fixture(params=["driver", "executors"])
def folded_by(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, spark
) -> Iterator[int]:
    """Where the runner's deltas are folded and posted, as its ``few_rows``: few in the driver,
    many in the executors, batch by batch. There files of too many rows for a task are folded
    after an ``exchange``, for the tests that ask for it.
    """
    for name, rows in FOLDED_BY[request.param].items():
        monkeypatch.setattr(folding, name, rows)
    before = spark.conf.get(_ARROW_ROWS)
    if request.param != "driver":
        spark.conf.set(_ARROW_ROWS, "2")
    yield FEW_ROWS if request.param == "driver" else -1
    spark.conf.set(_ARROW_ROWS, before)


@pytest.fixture
def runner(
    request: pytest.FixtureRequest, spark, database: Database, settings: Settings
) -> Callable[..., Runner]:
    """A runner for a pipeline, with further fields of its job; it folds where ``folded_by``
    says, if a test asks.
    """
    asked = "folded_by" in request.fixturenames
    given = {"few_rows": request.getfixturevalue("folded_by")} if asked else {}
    return lambda pipeline, **fields: Runner(
        Job(spark, database, settings, pipeline, **{**given, **fields})
    )


@pytest.fixture(scope="module")
def warehouse_url(server_home: Path) -> str:
    """The URL of a database that sinks write to."""
    return embedded.ensure_database(embedded.start(server_home), "warehouse")


@pytest.fixture
def warehouse(warehouse_url: str, tmp_path: Path) -> Warehouse:
    """An empty target database."""
    made = Warehouse(warehouse_url, tmp_path)
    made.do("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return made


@pytest.fixture
def environment(
    database: Database, server_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings of the test's ledger and folders, as variables."""
    monkeypatch.setenv("ACKLEDGER_HOME", str(server_home))
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", database.url.render_as_string(hide_password=False))
    monkeypatch.setenv("ACKLEDGER_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path))


@pytest.fixture
def sink_rows(tmp_path: Path) -> Callable[..., list[tuple[object, ...]]]:
    """Sorted rows of a sink's folder, as pyarrow's reader sees them."""
    import pyarrow.dataset as ds

    def read(folder: str = "out", *columns: str) -> list[tuple[object, ...]]:
        table = ds.dataset(tmp_path / folder, partitioning="hive", format="parquet").to_table()
        names = columns or [name for name in table.column_names if name != "batch"]
        return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)

    return read
