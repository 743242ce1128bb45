"""What a run writes is for its user alone: snapshots, outputs, and what sinks stage."""

import stat
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger.execution import withhold
from ledger.store import embedded
from tests.support.publishing import publish_settled


@pytest.fixture
def target(server_home):
    """An empty database."""
    url = embedded.ensure_database(embedded.start(server_home), "private")
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS plain, ackledger_commit")
    return url


def pipeline(url):
    """n -> (n, 1), (n, 2) -> a folder, a Delta table and a table; an odd one loses its second."""
    flow = Pipeline("private", guarantee="exactly_once", max_replays=1)
    flow.source("numbers", FileSource("in.csv", schema="n INT"))

    @flow.stage(reads="numbers")
    def twice(numbers):
        return numbers.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))

    @flow.stage(reads="twice", filters="lost")
    def even(twice):
        return twice.where("n % 2 = 0 OR copy = 1")

    flow.sink("folder", ParquetSink("folder"), reads="even")
    flow.sink("lake", DeltaSink("lake"), reads="even")
    flow.sink("plain", PostgresSink(url, "plain"), reads="even")
    return flow


def modes(place):
    """The permission bits of all folders and of all files of a run below a place, itself
    included.
    """
    paths = {
        kind: {stat.S_IMODE(path.stat().st_mode) for path in (place, *place.rglob("*")) if of(path)}
        for kind, of in (("folders", lambda p: p.is_dir()), ("files", lambda p: p.is_file()))
    }
    assert all(paths.values()), f"nothing is in {place}"
    return paths


def test_what_a_run_writes_is_for_its_user_alone(runner, tmp_path, target):
    """Of a real run the snapshot, the stage's output and a table's staged files are 0700 and
    0600, and what a folder and a Delta table stage is in a folder of 0700, which is so as well
    where files are written without withheld rows. What is published is as open as the folder that
    it is in.
    """
    (tmp_path / "in.csv").write_text("n\n1\n2\n4\n")
    run = runner(pipeline(target))
    batch = run.open()
    run.steps(batch)
    storage = tmp_path / "storage" / "private"
    written = ("numbers", "even", "plain")
    for step in written:
        assert modes(storage / step) == {"folders": {0o700}, "files": {0o600}}, step
    staging = tmp_path / "folder" / "_staging"
    assert stat.S_IMODE(staging.stat().st_mode) == 0o700

    parts = tmp_path / "lake" / "_ackledger" / f"batch-{batch.batch_id}"
    assert [stat.S_IMODE(part.stat().st_mode) for part in parts.glob("run-*")] == [0o700]

    run.ledger.settle(batch.batch_id)
    assert sorted(withhold(run.job, batch.batch_id)) == ["folder", "lake", "plain"]
    for place in (parts, storage / "plain" / f"batch={batch.batch_id}"):
        assert [stat.S_IMODE(part.stat().st_mode) for part in place.glob("kept-*")] == [0o700]
    assert stat.S_IMODE(staging.stat().st_mode) == 0o700
    assert stat.S_IMODE(storage.stat().st_mode) == 0o700
    publish_settled(run.job, batch.batch_id)
    (published,) = {Path(path).parent for path in DeltaTable(tmp_path / "lake").file_uris()}
    assert stat.S_IMODE(published.stat().st_mode) == stat.S_IMODE(parts.stat().st_mode)
    assert list((tmp_path / "folder" / f"ackledger_batch={batch.batch_id}").rglob("*.parquet"))
