"""Bad input: what does not parse is a named root, and what cannot be read fails the batch."""

import base64
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.errors import DeclarationError, InputError
from ledger.spark import emit
from tests.support.ledgers import one, rows

SCHEMA = "n INT, name STRING, price DOUBLE"


def copying(**source):
    """A pipeline that copies one source to one sink."""
    made = Pipeline("copy", max_replays=1)
    made.source("records", FileSource(source.pop("path", "in/*"), **{"schema": SCHEMA, **source}))
    made.sink("out", ParquetSink("out"), reads="records")
    return made


def write(tmp_path, name, data):
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)


def test_every_bad_line_is_named(runner, tmp_path, sink_rows):
    """Wrong type, too few and too many fields and bytes that are not UTF-8 fail with raw text; the rest gets through."""
    good = b'1,plain,2.5\r\n2,NA,NA\n6,"q,""r""",2\n7,,3\n'
    bad = [b"foo,z,1", b"3,y", b"4,y,1.0,9", b"5,\xff\xfe,1.5", b"n,name,price"]
    data = b"\xef\xbb\xbfn,name,price\n" + good + b"\n   \n\t\n" + b"\n".join(bad)
    write(tmp_path, "a.csv", data)
    write(tmp_path, "b.csv", b"n,name,price\n8,second file,1\n")
    run = runner(copying(null_value="NA"))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (10, 5)
    assert sink_rows("out", "n", "name", "price") == [
        (1, "plain", 2.5), (2, None, None), (6, 'q,"r"', 2.0), (7, None, 3.0), (8, "second file", 1.0),
    ]  # fmt: skip
    found = rows(run.job.database, "SELECT stage, reason, detail FROM failed_root")
    assert {row.stage for row in found} == {"records"}
    details = {row.detail: row.reason for row in found}
    assert details.pop("base64:" + base64.b64encode(bad[3]).decode()) == "not UTF-8"
    assert set(details) == {"foo,z,1", "3,y", "4,y,1.0,9", "n,name,price"}
    assert set(details.values()) == {"malformed csv: not 3 fields of the declared types"}


def test_json_lines(runner, tmp_path, sink_rows):
    """Of JSON lines, garbage, trailing garbage, a second object, arrays and wrong types fail by name."""
    bad = ["nope", '{"n": 1} trailing', '{"n": 1}{"n": 2}', "[1]", "null", '{"n": "x"}']
    good = ['{"n": 1, "name": "a"}', '{"n": 2}', "", '  {"n": 3, "more": true}  ']
    write(tmp_path, "a.jsonl", "\n".join([*good, *bad]).encode())
    run = runner(copying(format="json"))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (9, 6)
    assert sink_rows("out", "n", "name") == [(1, "a"), (2, None), (3, None)]
    assert {row.detail for row in rows(run.job.database, "SELECT detail FROM failed_root")} == set(
        bad
    )


def test_null_in_a_required_column(runner, tmp_path):
    """A null where the schema says NOT NULL fails the record, naming the column."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n,b,3\n")
    run = runner(copying(schema="n INT NOT NULL, name STRING, price DOUBLE"))
    assert run.settled(run.open()).failed == 1
    assert (
        one(run.job.database, "SELECT reason FROM failed_root").reason == "malformed csv: n is null"
    )


def test_replay_parses_again_with_todays_schema(runner, tmp_path, sink_rows):
    """A record that did not parse is replayed from its raw text with the schema as it is now."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n3000000000,b,3\n")
    run = runner(copying())
    batch = run.open()
    assert run.settled(batch).failed == 1
    wide = runner(copying(schema="n BIGINT, name STRING, price DOUBLE"))
    (tmp_path / "in" / "a.csv").unlink()  # the snapshot is enough
    replay = wide.open_replay(batch.batch_id)
    assert wide.settled(replay).failed == 0
    assert one(run.job.database, "SELECT status FROM failed_message").status == "recovered"
    assert sink_rows(f"out/batch={replay.batch_id}", "n") == [(3_000_000_000,)]


def test_message_that_never_parses_is_quarantined(runner, tmp_path):
    """A record that does not parse in its replay either ends in quarantine with its raw text."""
    write(tmp_path, "a.csv", b"n,name,price\nx,a,2\n")
    run = runner(copying())
    batch = run.open()
    run.settled(batch)
    run.settled(run.open_replay(batch.batch_id))
    assert one(run.job.database, "SELECT detail, attempts FROM quarantine") == ("x,a,2", 2)


def test_parquet_source(runner, tmp_path, sink_rows):
    """Parquet files are read as they are; one of another schema fails the batch, naming file and column."""
    folder = tmp_path / "in"
    folder.mkdir()
    table = pa.table({"n": pa.array([1], pa.int32()), "name": ["a"], "price": [1.5]})
    pq.write_table(table, folder / "a.parquet")
    run = runner(copying(format="parquet"))
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "n", "name", "price") == [(1, "a", 1.5)]
    pq.write_table(table.drop_columns(["price"]), folder / "b.parquet")
    second = runner(copying(format="parquet"))
    with pytest.raises(
        InputError, match=r"b\.parquet: expected column price of type double, found no such column"
    ):
        second.step(second.open("other", *_next_month()), "records")


def _next_month():
    from datetime import UTC, datetime

    return datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 3, 1, tzinfo=UTC)


def test_wrong_header_fails_the_batch(runner, tmp_path):
    """A header that is not the schema's names in order fails the batch, naming file and both."""
    write(tmp_path, "a.csv", b"n,price,name\n1,2,a\n")
    run = runner(copying())
    with pytest.raises(InputError, match=r"a\.csv .*expected n, name, price; found n, price, name"):
        run.step(run.open(), "records")
    assert one(run.job.database, "SELECT state, failure FROM stage_run").state == "failed"


def test_header_may_be_off_and_columns_separated_otherwise(runner, tmp_path, sink_rows):
    """With header=False the first line is a record, and reader options are handed on."""
    write(tmp_path, "a.csv", b"1;a;2\n")
    run = runner(copying(header=False, options={"sep": ";"}))
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "n", "name", "price") == [(1, "a", 2.0)]


def test_no_file_fails_the_batch_unless_allowed(runner, tmp_path):
    """No matching file fails with the rendered path; with allow_missing it is a batch of 0 roots."""
    run = runner(copying(path="in/{{ interval_start | ds }}.csv"))
    with pytest.raises(InputError, match=r"no file matches .*/in/2013-01-01\.csv"):
        run.step(run.open(), "records")
    allowed = runner(copying(path="in/{{ interval_start | ds }}.csv", allow_missing=True))
    settlement = allowed.settled(allowed.open())
    assert (settlement.status, settlement.roots) == ("settled", 0)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"n,name,price\n", b"n,name,price"])
def test_files_without_records(runner, tmp_path, data):
    """Empty files, blank files and files with a header alone are a settled batch of 0 roots."""
    write(tmp_path, "a.csv", data)
    run = runner(copying())
    settlement = run.settled(run.open())
    assert (settlement.status, settlement.roots) == ("settled", 0)


def test_unreadable_file_fails_the_batch(runner, tmp_path):
    """A damaged file fails the batch with its path; once it is mended the same batch goes through."""
    write(tmp_path, "a.csv.gz", b"this is not gzip")
    run = runner(copying())
    batch = run.open()
    with pytest.raises(InputError, match=r"a\.csv\.gz"):
        run.step(batch, "records")
    write(tmp_path, "a.csv.gz", gzip.compress(b"n,name,price\n1,a,2\n"))
    settlement = run.settled(run.open())
    assert (settlement.batch_id, settlement.roots, settlement.failed) == (batch.batch_id, 1, 0)


def test_file_that_vanishes_after_listing(runner, tmp_path, monkeypatch):
    """A file that vanishes between listing and reading fails the batch with its path."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    found = emit.find_files

    def list_and_lose(*arguments):
        paths = found(*arguments)
        (tmp_path / "in" / "a.csv").unlink()
        return paths

    monkeypatch.setattr(emit, "find_files", list_and_lose)
    run = runner(copying())
    with pytest.raises(InputError, match=r"a\.csv"):
        run.step(run.open(), "records")


def test_file_that_vanishes_after_planning(runner, tmp_path, monkeypatch):
    """A file that vanishes after Spark has planned fails the batch with its path."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    records = emit._records

    def plan_and_lose(*arguments):
        frame = records(*arguments)
        (tmp_path / "in" / "a.csv").unlink()
        return frame

    monkeypatch.setattr(emit, "_records", plan_and_lose)
    run = runner(copying())
    with pytest.raises(InputError, match=r"a\.csv"):
        run.step(run.open(), "records")


def test_malformed_reference_fails_the_stage(runner, tmp_path):
    """A side input is not tracked, so a record of it that does not parse fails the stage, quoting it."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    (tmp_path / "side.csv").write_bytes(b"n,label\n1,one\nx,two\n")
    made = Pipeline("referring")
    made.source("records", FileSource("in/*", schema=SCHEMA))
    made.reference("side", FileSource("side.csv", schema="n INT, label STRING"))

    @made.stage(reads="records")
    def joined(frame, *, side):
        return frame.join(side, "n", "inner")

    made.sink("out", ParquetSink("out"), reads="joined")
    run = runner(made)
    batch = run.open()
    run.step(batch, "records")
    with pytest.raises(PySparkException, match=r"reference 'side': malformed csv.*x,two"):
        run.step(batch, "joined")


def test_reserved_name_in_a_schema(runner, tmp_path):
    """A schema with a column of the ledger's is refused, naming it."""
    write(tmp_path, "a.csv", b"_root\n1\n")
    run = runner(copying(schema="_root INT"))
    with pytest.raises(DeclarationError, match="'_root'"):
        run.step(run.open(), "records")


def test_long_and_odd_text_is_kept(runner, tmp_path):
    """Raw text with a NUL character, or longer than the ledger keeps, fails like any other."""
    lines = ["x\0y", json.dumps("z" * 20_000)]
    write(tmp_path, "a.jsonl", "\n".join(lines).encode())
    run = runner(copying(format="json"))
    assert run.settled(run.open()).failed == 2
    details = sorted(row.detail for row in rows(run.job.database, "SELECT detail FROM failed_root"))
    assert [len(detail) for detail in details] == [10_000, 3]


def test_replay_leaves_out_and_refuses_by_todays_schema(runner, tmp_path, sink_rows):
    """A replay casts kept values to today's types: a misfit fails by itself, a column that is gone is left out."""
    write(tmp_path, "a.csv", b"n,name,price\n1,7,2\n2,b,3\n")
    run = runner(failing_copy(SCHEMA, fail=True))
    batch = run.open()
    assert run.settled(batch).failed == 2
    narrow = runner(failing_copy("n BIGINT, name INT", fail=False))
    replay = narrow.open_replay(batch.batch_id)
    assert narrow.settled(replay).failed == 1
    assert sink_rows(f"out/batch={replay.batch_id}") == [(1, 7)]
    found = one(run.job.database, "SELECT stage, reason, detail FROM quarantine")
    assert (found.stage, found.reason) == ("records", "name: expected int, found b")
    assert '"price":3.0' in found.detail


def failing_copy(schema, *, fail):
    """A pipeline that copies, or fails, every record."""
    made = Pipeline("copy", max_replays=1)
    made.source("records", FileSource("in/*", schema=schema))

    @made.stage(reads="records")
    def check(records):
        return records.withColumn("_failed", F.when(F.lit(fail), ""))

    made.sink("out", ParquetSink("out"), reads="check")
    return made


def test_empty_reason_is_a_reason(runner, tmp_path):
    """An empty text in _failed fails the record all the same."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    run = runner(failing_copy(SCHEMA, fail=True))
    assert run.settled(run.open()).failed == 1
    assert one(run.job.database, "SELECT reason FROM failed_root").reason == "no reason given"


def test_json_file_that_vanishes_after_listing(runner, tmp_path, monkeypatch):
    """A file without a header to check, gone before Spark plans, fails the batch with its path."""
    write(tmp_path, "a.json", b'{"n": 1}\n')
    found = emit.find_files

    def list_and_lose(*arguments):
        paths = found(*arguments)
        (tmp_path / "in" / "a.json").unlink()
        return paths

    monkeypatch.setattr(emit, "find_files", list_and_lose)
    run = runner(copying(format="json"))
    with pytest.raises(InputError, match=r"a\.json"):
        run.step(run.open(), "records")
