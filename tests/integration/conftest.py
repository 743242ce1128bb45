"""Fixtures that run whole pipelines on a local Spark session."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledger.database.connection import Database
from ledger.opening import open_batch, open_replay
from ledger.pipeline import Pipeline
from ledger.queries.batches import Batch
from ledger.requests import Interval, RunKey, Selection
from ledger.running import StepResult, run_step, settle_and_follow
from ledger.settings import Settings
from ledger.settlement import Settlement
from ledger.spark import folding
from ledger.spark.job import Job
from ledger.stage_runs import Attempt

# How many rows are few, and how many a task takes at a time, so that little data is folded as much would be.
_IN_EXECUTORS = {"FEW_ROWS": -1, "READ_ROWS": 3}
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
) -> Iterator[None]:
    """Where deltas are folded and posted: few rows in the driver, many in the executors, batch by batch. There files of
    too many rows for a task are folded after an ``exchange``, for the tests that ask for it."""
    for name, rows in FOLDED_BY[request.param].items():
        monkeypatch.setattr(folding, name, rows)
    before = spark.conf.get(_ARROW_ROWS)
    if request.param != "driver":
        spark.conf.set(_ARROW_ROWS, "2")
    yield
    spark.conf.set(_ARROW_ROWS, before)


@pytest.fixture
def runner(spark, database: Database, settings: Settings) -> Callable[[Pipeline], Runner]:
    """A runner for a pipeline."""
    return lambda pipeline: Runner(Job(spark, database, settings, pipeline))


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
