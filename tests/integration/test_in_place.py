"""Parquet files that are read where they are: nothing is copied, and a change is noticed."""

import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.errors import InputError, LostFileError
from ledger.spark.origins.choice import FromBatch


@pytest.fixture
def files(tmp_path):
    """Two files of three numbers."""
    (tmp_path / "in").mkdir()
    for name, first in (("a", 1), ("b", 4)):
        write(tmp_path / "in" / f"{name}.parquet", *range(first, first + 3))
    return tmp_path / "in"


def write(path, *numbers):
    pq.write_table(pa.table({"id": pa.array(numbers, pa.int64())}), path)


def flow(lose=(), schema="id BIGINT", incremental=False, whole=False):
    """numbers -> sifted, which loses the numbers in ``lose`` when it runs -> out."""
    pipeline = Pipeline("numbers", message_timeout="10s", max_replays=3)
    source = FileSource(
        "in/*.parquet", format="parquet", schema=schema, copy=False, incremental=incremental
    )
    pipeline.source("numbers", source)

    @pipeline.stage(reads="numbers", filters="lost")
    def sifted(frame):
        kept_rows = frame.where(f"id NOT IN ({', '.join(map(str, [0, *lose]))})")
        return kept_rows.groupBy("id").count().select("id") if whole else kept_rows

    pipeline.sink("out", ParquetSink("out"), reads="sifted")
    return pipeline


def stored(settings):
    folder = Path(f"{settings.storage_root()}/numbers/numbers")
    return sorted(path.name.partition("-")[0] for path in folder.rglob("*.parquet"))


@pytest.mark.parametrize("incremental", [False, True])
def test_nothing_is_copied_but_failed_records(files, runner, settings, sink_rows, incremental):
    """A replay reads them from their copy, so the files may go once the batch is settled."""
    lose = [2]
    run = runner(flow(lose, incremental=incremental))
    batch = run.open()
    assert run.settled(batch).failed == 1
    assert stored(settings) == ["ackledger", "failed"]
    for path in files.iterdir():
        path.unlink()
    lose.clear()
    assert run.settled(run.open_replay(batch.batch_id)).roots == 1
    assert [row[0] for row in sink_rows("out", "id")] == [1, 2, 3, 4, 5, 6]


def test_a_changed_file_fails_the_step_that_reads_it(files, runner, sink_rows):
    """Even with its size and time; the source's step lists the files again."""
    run = runner(flow())
    batch = run.open()
    run.step(batch, "numbers")
    path = files / "a.parquet"
    times = path.stat()
    write(path, 7, 8, 9)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(LostFileError, match=r"a\.parquet of source files .*copy=False"):
        run.step(batch, "sifted")
    assert run.settled(batch).roots == 6
    assert [row[0] for row in sink_rows("out", "id")] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("reader", ["sifted", "direct"])
def test_a_file_that_changes_while_it_is_read_fails_the_step(files, runner, reader):
    """Spark opens it later than the step looks at it: a stage and a sink look again at the end."""
    path = files / "a.parquet"

    def changing(step, frame):
        if step == reader:
            times = path.stat()
            write(path, 7, 8, 9)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return frame

    pipeline = flow()
    pipeline.sink("direct", ParquetSink("direct"), reads="numbers")
    run = runner(pipeline, on_read=changing)
    batch = run.open()
    run.step(batch, "numbers")
    with pytest.raises(LostFileError, match=r"a\.parquet of source files .*copy=False"):
        run.step(batch, reader)
    query = "SELECT state FROM step_run WHERE step = :step"
    assert "committed" not in [row.state for row in run.ledger.rows(query, step=reader)]


def test_a_file_that_changes_while_a_whole_batch_is_replayed_fails_the_source(
    files, runner, monkeypatch
):
    """The replay copies the records again, from the files that its original has read."""
    lose = [2]
    pipeline = flow(lose, whole=True)
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == 1
    lose.clear()
    replay = run.open_replay(batch.batch_id)
    path, read = files / "a.parquet", FromBatch.read

    def changing(origin):
        frame, times = read(origin), path.stat()
        write(path, 7, 8, 9)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return frame

    monkeypatch.setattr(FromBatch, "read", changing)
    with pytest.raises(LostFileError, match=r"a\.parquet of source files .*copy=False"):
        run.step(replay, "numbers")


def test_a_lost_file_of_an_incremental_source_is_an_error(files, runner):
    """Its batch has claimed it."""
    run = runner(flow(incremental=True))
    batch = run.open()
    run.step(batch, "numbers")
    (files / "b.parquet").unlink()
    with pytest.raises(LostFileError, match=r"b\.parquet of source files .* it is gone"):
        run.step(batch, "sifted")
    with pytest.raises(InputError, match="it is gone"):
        run.step(batch, "numbers")


def test_what_may_not_fit_is_copied(files, runner, settings, ledger, caplog):
    """A copy has the reason why a record does not fit."""
    pq.write_table(pa.table({"id": pa.array([7, None], pa.int64())}), files / "c.parquet")
    run = runner(flow(schema="id BIGINT NOT NULL"))
    with caplog.at_level(logging.WARNING):
        settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (8, 1)
    assert ledger.row("SELECT reason FROM failed_root").reason.endswith("id is null")
    assert "source numbers is copied" in caplog.text
    assert set(stored(settings)) == {"part"}
