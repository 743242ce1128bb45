"""Snapshots by reference: the records of a batch lie in the files of their source."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, collect_anchors
from ledger.batch.records.trace import trace
from ledger.core.column_names import PLACE, is_own
from ledger.errors import DeclarationError
from ledger.execution import settle_and_follow
from ledger.sources.files import blocks, reader, referenced, text, writing
from ledger.spark.frames.inputs import delivered_rows
from ledger.store.queries import runs
from tests.support.changing import named
from tests.support.retention import command
from tests.support.text_files import FILES, SCHEMA

LOST = frozenset({2, 7})


def numbers(folder, snapshot="reference", schema="n INT, s STRING", fixed=False, **options):
    """numbers -> sifted, which loses ``LOST`` until it is fixed -> out."""
    flow = Pipeline("numbers", max_replays=3)
    source = FileSource(f"{folder}/in/*", schema=schema, snapshot=snapshot, **options)
    flow.source("numbers", source, key="n" if schema.startswith("n ") else ())

    @flow.stage(reads="numbers")
    def sifted(frame):
        return frame if fixed else frame.where(~F.col("n").isin(*LOST))

    flow.sink("out", ParquetSink("out"), reads="sifted")
    return flow


def write(folder, name="a.csv", data=None):
    """A file with ten numbers, of which 4 does not parse."""
    rows = [f"{n if n != 4 else 'four'},name {n}" for n in range(10)]
    path = folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["n,s", *rows, ""]) if data is None else data)
    return path


def statuses(run):
    """What became of the failed records, in order."""
    rows = run.ledger.rows("SELECT status FROM failed_message ORDER BY message_id")
    return [row[0] for row in rows]


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
def test_records_are_those_of_a_copy(runner, tmp_path, monkeypatch, name):
    """Values, positions, roots, raw texts and reasons, however the files are written and cut."""
    ways = [("copy", False), ("reference", False), ("reference", True)]
    seen = emitted_by(ways, runner, tmp_path, monkeypatch, name)
    assert seen[1:] == seen[:1] * 2
    assert seen[0][0] or name == "empty"


@pytest.mark.parametrize("name", FILES)
def test_a_copy_that_tasks_write_is_the_drivers(runner, tmp_path, monkeypatch, name):
    """In the same respects."""
    ways = [("copy", False), ("copy", True)]
    of_driver, of_tasks = emitted_by(ways, runner, tmp_path, monkeypatch, name)
    assert of_driver == of_tasks


def emitted_by(ways, runner, tmp_path, monkeypatch, name):
    """What is emitted of the same files by each kind of snapshot, where the driver, or its tasks,
    write it."""
    files, options = FILES[name]
    (tmp_path / "in").mkdir()
    for path, data in files.items():
        (tmp_path / "in" / path).write_bytes(data if isinstance(data, bytes) else data.encode())
    seen = []
    for day, (snapshot, in_tasks) in enumerate(ways):
        if in_tasks:
            monkeypatch.setattr(text, "HERE", 0)
            monkeypatch.setattr(blocks, "BLOCK", 1_000)
            monkeypatch.setattr(writing, "GROUP_BYTES", 5_000)
        run = runner(numbers(tmp_path, snapshot, schema=SCHEMA, **options))
        batch = run.open_day(day)
        run.step(batch, "numbers")
        monkeypatch.setattr(blocks, "BLOCK", 777)  # readers need not cut as the source's step did
        seen.append(emitted(run, batch))
        monkeypatch.undo()
    return seen


def test_a_snapshot_has_places_and_no_values(runner, tmp_path):
    """But the raw text of what did not parse: it is a fraction of the source."""
    write(tmp_path, data="n,s\nfour,x\n" + "".join(f"{n},{'name ' * 20}{n}\n" for n in range(9999)))
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.step(batch, "numbers")
    (file,) = snapshot_of(run, batch)[1]
    table = pq.read_table(file.path, partitioning=None)
    assert all(map(is_own, table.column_names))
    assert table.num_rows == 10_000
    assert len(table[PLACE].unique()) == 1
    assert table["_ackledger_raw"].drop_null().to_pylist() == [b"four,x"]
    assert file.bytes < 5_000


@pytest.mark.parametrize("fixed", ["n INT, s STRING", "n STRING, s STRING"])
def test_a_replay_reads_the_records_where_they_lie(runner, sink_rows, tmp_path, fixed):
    """Those that were lost, and those that did not parse, by today's schema."""
    write(tmp_path)
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.settled(batch)
    assert sink_rows("out", "n") == [(0,), (1,), (3,), (5,), (6,), (8,), (9,)]
    mended = runner(numbers(tmp_path, schema=fixed, fixed=True))
    mended.settled(mended.open_replay(batch.batch_id))
    states = statuses(mended)
    is_text = fixed.startswith("n STRING")
    assert states == ["recovered", "recovered" if is_text else "failed", "recovered"]


def test_a_column_that_came_later_is_null_in_a_replay(runner, tmp_path):
    """As in a copy: what was lost has the columns it had."""
    write(tmp_path)
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.settled(batch)
    later = runner(numbers(tmp_path, schema="n INT, s STRING, more STRING", fixed=True))
    replay = later.open_replay(batch.batch_id)
    later.settled(replay)
    states = statuses(later)
    assert states == ["recovered", "failed", "recovered"]


def test_what_did_not_parse_needs_no_file(runner, sink_rows, tmp_path):
    """Its text lies in the snapshot, as in a copy."""
    path = write(tmp_path)
    run = runner(numbers(tmp_path, fixed=True))
    batch = run.open()
    run.settled(batch)
    path.unlink()
    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    assert trace(run.job.database, first + 4).tree.content == "four,name 4"
    mended = runner(numbers(tmp_path, schema="n STRING, s STRING", fixed=True))
    mended.settled(mended.open_replay(batch.batch_id))
    assert statuses(mended) == ["recovered"]


def test_records_are_read_again_from_a_file_that_was_fixed(runner, sink_rows, tmp_path):
    """By their keys, though the file is not what it was."""
    path = write(tmp_path)
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.settled(batch)
    path.write_text(path.read_text().replace("7,name 7", "7,seven"))
    mended = runner(numbers(tmp_path, fixed=True))
    mended.settled(mended.open_replay(batch.batch_id, from_source=True))
    assert (7, "seven") in sink_rows("out", "n", "s")
    assert statuses(mended) == ["recovered", "failed", "recovered"]


def test_a_value_is_read_as_it_was_read(runner, sink_rows, tmp_path):
    """Whatever is declared by the time of a replay."""
    write(tmp_path, data="n,s\n2,NA\n3,x\n")
    run = runner(numbers(tmp_path, null_value="NA"))
    batch = run.open()
    run.settled(batch)
    mended = runner(numbers(tmp_path, fixed=True))
    mended.settled(mended.open_replay(batch.batch_id))
    assert sink_rows("out", "n", "s") == [(2, None), (3, "x")]


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
        run = runner(numbers(tmp_path, "copy", schema=", ".join(TYPES)))
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
    run = runner(numbers(tmp_path, "copy"))
    batch = run.open()
    run.step(batch, "numbers")
    (file,) = snapshot_of(run, batch)[1]
    assert len(list(Path(file.path).parent.glob("*.parquet"))) == 2
    assert [row[2]["n"] for row in emitted(run, batch)[0]] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_content_and_trace_are_those_of_a_copy(runner, tmp_path):
    """A lost record is shown with its values, its key and line."""
    path = write(tmp_path)
    run = runner(numbers(tmp_path))
    batch = run.open()
    run.settled(batch)
    rows = run.ledger.rows(
        "SELECT key, content, source_file, source_row FROM failed_payload ORDER BY root_id"
    )
    assert [tuple(row) for row in rows] == [
        ({"n": 2}, '{"n": 2, "s": "name 2"}', str(path), 3),
        ({"n": "four"}, "four,name 4", str(path), 5),
        ({"n": 7}, '{"n": 7, "s": "name 7"}', str(path), 8),
    ]
    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    assert trace(run.job.database, first + 2).tree.content == '{"n": 2, "s": "name 2"}'


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


@pytest.mark.usefixtures("environment")
def test_a_record_is_forgotten(runner, tmp_path):
    """Nothing of the user's is written: the answer says so, and once the record is deleted there,
    the others that failed are read again from the source."""
    path = write(tmp_path)
    flow = numbers(tmp_path)
    flow.max_replays = 0
    run = runner(flow)
    batch = run.open()
    run.settled(batch)
    whole = path.read_bytes()
    forgotten = command("forget", "n = 2", "--files", "--yes")
    printed = " ".join(forgotten.stdout.split())
    assert "1 record forgotten" in printed, forgotten.exception
    assert "its source, if that is kept, which is yours, too" in printed
    assert path.read_bytes() == whole
    path.write_text("".join(line for line in path.open() if line != "2,name 2\n"))
    mended = runner(numbers(tmp_path, fixed=True))
    mended.settled(mended.open_replay(batch.batch_id, from_source=True, quarantined=True))
    contents = run.ledger.rows("SELECT content FROM failed_payload ORDER BY root_id")
    assert contents[0].content == ""
    assert statuses(mended)[1:] == ["failed", "recovered"]


@pytest.mark.parametrize("snapshot", ["copy", "reference"])
def test_a_task_that_is_tried_again(runner, tmp_path, monkeypatch, snapshot):
    """Records are those of a task that was not, in order, each once; so they are to a step that
    reads them where they lie."""
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
        monkeypatch.setattr(referenced, "TextReader", kind)
        run = runner(numbers(tmp_path, snapshot))
        batch = run.open_day(day)
        run.step(batch, "numbers")
        seen.append(emitted(run, batch))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) + len(seen[0][1]) == 500


def test_redacted_values_are_masked(runner, tmp_path):
    """As in a copy, and the whole text of what did not parse."""
    write(tmp_path)
    flow = numbers(tmp_path)
    flow.redact = ("s",)
    run = runner(flow)
    batch = run.open()
    run.settled(batch)
    contents = [row[0] for row in run.ledger.rows("SELECT content FROM failed_payload")]
    assert len(contents) == 3
    assert not any("name" in content for content in contents)
    assert sum('"n": ' in content for content in contents) == 2


def test_units_replay_by_reference(runner, sink_rows, tmp_path):
    """The records of a unit are read where they lie, and its rows are replaced; a file that was
    cut off is named."""
    lines = "".join(json.dumps({"day": n % 3, "n": n}) + "\n" for n in range(12))
    path = write(tmp_path, "a.json", lines)

    def flow(fixed):
        own = Pipeline("units", max_replays=3, unit="day")
        source = FileSource(
            f"{tmp_path}/in/*", schema="day INT, n INT", format="json", snapshot="reference"
        )
        own.source("numbers", source)

        @own.stage(reads="numbers")
        def sifted(frame):
            return frame if fixed else frame.where("n != 4")

        @own.stage(reads="sifted", whole=True)
        def days(frame):
            return frame.groupBy("day").agg(F.sum("n").alias("n"), collect_anchors())

        own.sink("out", ParquetSink("out"), reads="days")
        return own

    run = runner(flow(False))
    batch = run.open()
    run.settled(batch)
    mended = runner(flow(True))
    replay = mended.open_replay(batch.batch_id)
    path.write_text(lines[:-1])
    with named(path):
        mended.step(replay, "numbers")
    path.write_text(lines)
    mended.settled(replay)
    assert sink_rows("out", "day", "n") == [(0, 18), (1, 22), (2, 26)]


def test_notices_have_the_values(runner, tmp_path):
    """A source hears of its messages with the columns that they have in its files; of a file that
    changed it hears nothing until that is as it was."""
    path = write(tmp_path)
    whole = path.read_text()
    heard = {}
    flow = Pipeline("numbers")
    source = FileSource(f"{tmp_path}/in/*", schema="n INT, s STRING", snapshot="reference")
    flow.source(
        "numbers",
        source,
        on_ack=lambda _, frame: heard.update(acked=[r.record.s for r in frame.collect()]),
        on_fail=lambda _, frame: heard.update(failed=[r.raw for r in frame.collect()]),
    )
    flow.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(flow)
    batch = run.open()
    run.steps(batch)
    path.write_text(whole.replace("name 2", "nane 2"))
    with named(path):
        settle_and_follow(run.job, batch.batch_id)
    assert heard == {}
    path.write_text(whole)
    settle_and_follow(run.job, batch.batch_id)
    assert sorted(heard["acked"]) == [f"name {n}" for n in range(10) if n != 4]
    assert heard["failed"] == ["four,name 4"]


def test_what_is_not_possible_is_said_at_once(tmp_path):
    """Untracked records, and Parquet."""
    source = FileSource("in/*", schema="n INT", snapshot="reference")
    with pytest.raises(DeclarationError, match="expected no track with snapshot='reference'"):
        Pipeline("numbers").source("numbers", source, track="n > 0")
    with pytest.raises(DeclarationError, match="expected format csv or json, found parquet"):
        FileSource("in/*", schema="n INT", format="parquet", snapshot="reference")
    with pytest.raises(DeclarationError, match="expected one of copy, reference"):
        FileSource("in/*", schema="n INT", snapshot="bytes")
