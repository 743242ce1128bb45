"""The files of a snapshot, which the driver, tasks or Spark write."""

from pathlib import Path

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.core.column_names import is_own
from ledger.sources.files import blocks, reader, text, writing
from ledger.spark.frames.inputs import delivered_rows
from ledger.store.queries import runs
from tests.support.text_files import FILES, SCHEMA

LOST = frozenset({2, 7})


def numbers(folder, schema="n INT, s STRING", **options):
    """numbers -> sifted, which loses ``LOST`` -> out."""
    flow = Pipeline("numbers", max_replays=3)
    source = FileSource(f"{folder}/in/*", schema=schema, **options)
    flow.source("numbers", source, key="n" if schema.startswith("n ") else ())

    @flow.stage(reads="numbers", filters="lost")
    def sifted(frame):
        return frame.where(~F.col("n").isin(*LOST))

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def write(folder, name="a.csv", data=None):
    """A file with ten numbers, of which 4 does not parse."""
    rows = [f"{n if n != 4 else 'four'},name {n}" for n in range(10)]
    path = folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["n,s", *rows, ""]) if data is None else data)
    return path


def snapshot_of(run, batch):
    """The files of the batch's snapshot."""
    query = "SELECT emit_run_id FROM batch_source WHERE batch_id = :batch"
    number = run.ledger.row(query, batch=batch.batch_id)[0]
    return number, run.job.database.transact(lambda c: runs.files(c, number))


def emitted(run, batch):
    """What a batch's source passes on, by position, and what it failed."""
    number, files = snapshot_of(run, batch)
    rows = delivered_rows(run.job, run.job.run(number)).collect()
    first = run.ledger.row("SELECT max(first_root) FROM batch_source")[0]
    passed = sorted(
        (
            row["_ackledger_position"],
            row["_ackledger_root"] - first,
            {name: value for name, value in row.asDict().items() if not is_own(name)},
        )
        for row in rows
    )
    stored = run.job.spark.read.parquet(*[file.path for file in files])
    names = ["_ackledger_file", "_ackledger_raw", "_ackledger_error"]
    failed = stored.select(*names).where("_ackledger_error IS NOT NULL").collect()
    return passed, sorted(failed, key=repr)


@pytest.mark.parametrize("name", FILES)
def test_a_copy_that_tasks_write_is_the_drivers(runner, tmp_path, monkeypatch, name):
    """Values, positions, roots, raw texts and reasons, however the files are written and cut."""
    files, options = FILES[name]
    (tmp_path / "in").mkdir()
    for path, data in files.items():
        (tmp_path / "in" / path).write_bytes(data if isinstance(data, bytes) else data.encode())
    seen = []
    for day, in_tasks in enumerate([False, True]):
        if in_tasks:
            monkeypatch.setattr(text, "HERE", 0)
            monkeypatch.setattr(blocks, "BLOCK", 1_000)
            monkeypatch.setattr(writing, "GROUP_BYTES", 5_000)
        run = runner(numbers(tmp_path, schema=SCHEMA, **options))
        batch = run.open_day(day)
        run.step(batch, "numbers")
        seen.append(emitted(run, batch))
        monkeypatch.undo()
    assert seen[0] == seen[1]
    assert seen[0][0] or name == "empty"


TYPES = {
    "tiny TINYINT NOT NULL": ["-128", "127", "0"],
    "small SMALLINT": ["-32768", "32767", ""],
    "whole BIGINT": ["-9223372036854775808", "9223372036854775807", "1"],
    "exact DECIMAL(20, 3)": ["-12345678901234567.125", "0.001", "5"],
    "few DECIMAL(5, 2)": ["-999.99", "", "0.10"],
    "real DOUBLE": ["-0.1", "1e300", "5"],
    "flag BOOLEAN": ["true", "false", ""],
    "day DATE": ["0001-01-01", "1582-10-10", "9999-12-31"],
    "at TIMESTAMP": ["1500-02-28T01:02:03Z", "2024-03-31T02:30:00.123456+02:00", ""],
    "local TIMESTAMP_NTZ": ["0001-01-01T00:00:00", "2024-03-31T02:30:00.5", ""],
    "words STRING": ["ünï ☃", '"a ""b"", c"', ""],
}


@pytest.mark.parametrize("in_tasks", [False, True])
def test_each_type_is_stored_as_spark_stores_it(runner, tmp_path, monkeypatch, in_tasks):
    """By whom ever it is written: values, and what cannot be one."""
    rows = [",".join(row) for row in zip(*TYPES.values(), strict=True)]
    broken = rows[0].replace("-128", "200"), rows[1].replace("127", "")
    names = ",".join(kind.partition(" ")[0] for kind in TYPES)
    write(tmp_path, data="\n".join([names, *rows, *broken, *rows, ""]))
    by_tasks = reader.Reader.write
    seen = []
    for day, write_own in enumerate([by_tasks, lambda *_, **__: None]):
        monkeypatch.setattr(reader.Reader, "write", write_own)
        if in_tasks:
            monkeypatch.setattr(text, "HERE", 0)
        run = runner(numbers(tmp_path, schema=", ".join(TYPES)))
        batch = run.open_day(day)
        run.step(batch, "numbers")
        seen.append(emitted(run, batch))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 6
    assert len(seen[0][1]) == 2


@pytest.mark.parametrize("in_tasks", [False, True])
def test_a_file_that_no_task_has_reported_does_not_count(runner, tmp_path, monkeypatch, in_tasks):
    """As a try of a task leaves it that was killed, or was the slower of two."""
    write(tmp_path)
    whole = writing.Writer.write

    def leaving(writer, spark):
        done = whole(writer, spark)
        (name,) = done.names
        own = Path(writer.folder, name)
        own.with_name(name.replace("part-000000", "part-0000000")).write_bytes(own.read_bytes())
        return done

    monkeypatch.setattr(writing.Writer, "write", leaving)
    if in_tasks:
        monkeypatch.setattr(text, "HERE", 0)
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.step(batch, "numbers")
    (file,) = snapshot_of(run, batch)[1]
    assert len(list(Path(file.path).parent.glob("*.parquet"))) == 2
    assert [row[2]["n"] for row in emitted(run, batch)[0]] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("by_spark", [False, True])
def test_content_goes_by_the_names_of_a_file(runner, tmp_path, monkeypatch, by_spark):
    """Whatever the order of its columns, and whether Spark or Arrow wrote the snapshot."""
    if by_spark:
        monkeypatch.setattr(reader.Reader, "write", lambda *_, **__: None)
    write(tmp_path, data="s,n\n5,2\n6,3\n")
    run = runner(numbers(tmp_path, header="by_name"))
    run.settled(run.open())
    contents = [row[0] for row in run.ledger.rows("SELECT content FROM failed_payload")]
    assert contents == ['{"n": 2, "s": "5"}']


def test_a_task_that_is_tried_again(runner, tmp_path, monkeypatch):
    """Records are those of a task that was not, in order, each once."""
    text_ = "n,s\n" + "".join(f"{n if n % 7 else 'x'},name {n}\n" for n in range(500))
    write(tmp_path, data=text_)
    monkeypatch.setattr(blocks, "BLOCK", 1_000)
    monkeypatch.setattr(text, "HERE", 0)
    seen = []
    whole = text.TextReader

    class Stumbling(whole):
        """Each task fails once, behind its last record."""

        def batches(self, numbers):
            from pyspark import TaskContext

            yield from super().batches(numbers)
            if TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("a node is lost")

    for day, kind in enumerate([whole, Stumbling]):
        monkeypatch.setattr(reader, "TextReader", kind)
        run = runner(numbers(tmp_path))
        batch = run.open_day(day)
        run.step(batch, "numbers")
        seen.append(emitted(run, batch))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) + len(seen[0][1]) == 500
