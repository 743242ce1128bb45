"""Bad input: what does not parse is a named root, and what cannot be read fails the batch."""

import base64
import gzip
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.outcome.report import report
from ledger.core.states import BatchStatus
from ledger.errors import DeclarationError, InputError
from ledger.sources import listing
from ledger.sources.files import absent
from ledger.sources.files.writing import Writer
from ledger.sources.parsing.csv_text import NO_TEXT
from ledger.spark import failures
from ledger.spark.session import session_conf

SCHEMA = "n INT, name STRING, price DOUBLE"


def copying(**source):
    """A pipeline that copies one source to one sink."""
    pipeline = Pipeline("copy", max_replays=1)
    pipeline.source(
        "records", FileSource(source.pop("path", "in/*"), **{"schema": SCHEMA, **source})
    )
    pipeline.sink("out", ParquetSink("out"), reads="records")
    return pipeline


def write(tmp_path, name, data):
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)


def test_every_bad_line_is_named(runner, tmp_path, sink_rows):
    """Wrong type, too few and too many fields and bytes that are not UTF-8 fail with raw text;
    the rest gets through.
    """
    good = b'1,plain,2.5\r\n2,NA,NA\n6,"q,""r""",2\n7,,3\n'
    bad = [b"foo,z,1", b"3,y", b"4,y,1.0,9", b"5,\xff\xfe,1.5", b"n,name,price"]
    data = b"\xef\xbb\xbfn,name,price\n" + good + b"\n\r\n" + b"\n".join(bad)
    write(tmp_path, "a.csv", data)
    write(tmp_path, "b.csv", b"n,name,price\n8,second file,1\n")
    run = runner(copying(null_value="NA"))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (10, 5)
    assert sink_rows("out", "n", "name", "price") == [
        (1, "plain", 2.5),
        (2, None, None),
        (6, 'q,"r"', 2.0),
        (7, None, 3.0),
        (8, "second file", 1.0),
    ]
    rows = run.ledger.rows("SELECT step, reason, detail FROM failed_root")
    assert {row.step for row in rows} == {"records"}
    details = {row.detail: row.reason for row in rows}
    assert details.pop("base64:" + base64.b64encode(bad[3]).decode()) == "not UTF-8"
    assert details == {
        "foo,z,1": "malformed csv: n: expected int, found foo",
        "3,y": "malformed csv: expected 3 fields, found 2",
        "4,y,1.0,9": "malformed csv: expected 3 fields, found 4",
        "n,name,price": "malformed csv: n: expected int, found n",
    }


def test_json_lines(runner, tmp_path, sink_rows):
    """Of JSON lines, garbage, trailing garbage, a second object, arrays and wrong types fail by
    name.
    """
    bad = ["nope", '{"n": 1} trailing', '{"n": 1}{"n": 2}', "[1]", "null", '{"n": "x"}']
    good = ['{"n": 1, "name": "a"}', '{"n": 2}', "", '  {"n": 3, "more": true}  ']
    write(tmp_path, "a.jsonl", "\n".join([*good, *bad]).encode())
    run = runner(copying(format="json", optional=["price"]))
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (9, 6)
    assert sink_rows("out", "n", "name") == [(1, "a"), (2, None), (3, None)]
    assert {row.detail for row in run.ledger.rows("SELECT detail FROM failed_root")} == set(bad)


def test_null_in_a_required_column(runner, tmp_path):
    """A null where the schema says NOT NULL fails the record, naming the column."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n,b,3\n")
    run = runner(copying(schema="n INT NOT NULL, name STRING, price DOUBLE"))
    assert run.settled(run.open()).failed == 1
    assert run.ledger.row("SELECT reason FROM failed_root").reason == "malformed csv: n is null"


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
    assert run.ledger.row("SELECT status FROM failed_message").status == "recovered"
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}", "n") == [(3_000_000_000,)]


def test_message_that_never_parses_is_quarantined(runner, tmp_path):
    """A record that does not parse in its replay either ends in quarantine with its raw text."""
    write(tmp_path, "a.csv", b"n,name,price\nx,a,2\n")
    run = runner(copying())
    batch = run.open()
    run.settled(batch)
    run.settled(run.open_replay(batch.batch_id))
    query = "SELECT content, attempts FROM quarantine JOIN failed_payload USING (message_id)"
    assert run.ledger.row(query) == ("x,a,2", 2)


def test_parquet_source(runner, tmp_path, sink_rows):
    """Parquet files are read as they are; one of another schema fails the batch, naming file and
    column.
    """
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
    assert run.ledger.row("SELECT state, failure FROM step_run").state == "failed"


def test_header_may_be_off_and_columns_separated_otherwise(runner, tmp_path, sink_rows):
    """With header=False the first line is a record, and reader options are handed on."""
    write(tmp_path, "a.csv", b"1;a;2\n")
    run = runner(copying(header=False, options={"sep": ";"}))
    assert run.settled(run.open()).failed == 0
    assert sink_rows("out", "n", "name", "price") == [(1, "a", 2.0)]


@pytest.mark.parametrize("multiline", [False, True])
def test_any_character_separates(runner, tmp_path, sink_rows, multiline):
    """Also one that means something to a reader of options, or to a pattern."""
    separators = dict(enumerate("\\|^$.+u \x01¦"))
    pipeline = Pipeline("copy")
    for n, separator in separators.items():
        lines = [["n", "s", "t"], ["1", "a", ""], ["2", f'"a{separator}b"', "c"], ["x", "a", "c"]]
        write(tmp_path, f"{n}.csv", "\n".join(map(separator.join, lines)).encode())
        options = {"schema": "n INT, s STRING, t STRING", "options": {"sep": separator}}
        pipeline.source(f"in{n}", FileSource(f"in/{n}.csv", multiline=multiline, **options))
        pipeline.sink(f"out{n}", ParquetSink(f"out{n}"), reads=f"in{n}")
    run = runner(pipeline)
    run.settled(run.open())
    for n, separator in separators.items():
        arrived = sink_rows(f"out{n}", "n", "s", "t")
        assert arrived == [(1, "a", None), (2, f"a{separator}b", "c")], separator
    failed = run.ledger.rows("SELECT step, reason FROM failed_root ORDER BY step")
    reason = "malformed csv: n: expected int, found x"
    assert [tuple(row) for row in failed] == [(f"in{n}", reason) for n in separators]


def test_no_file_fails_the_batch_unless_allowed(runner, tmp_path):
    """No matching file fails with the rendered path; with allow_missing it is a batch of 0
    roots.
    """
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
    """A damaged file fails the batch with its path; once it is fixed the same batch goes
    through.
    """
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
    find_files = listing.find_files

    def list_and_lose(*arguments, **options):
        paths = find_files(*arguments, **options)
        (tmp_path / "in" / "a.csv").unlink()
        return paths

    monkeypatch.setattr(listing, "find_files", list_and_lose)
    run = runner(copying())
    with pytest.raises(InputError, match=r"a\.csv"):
        run.step(run.open(), "records")


def test_file_that_vanishes_after_it_was_cut(runner, tmp_path, monkeypatch):
    """A file that vanishes between being cut into records and being read fails the batch with its
    path."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    write_all = Writer.write

    def lose_and_write(writer, spark):
        (tmp_path / "in" / "a.csv").unlink()
        return write_all(writer, spark)

    monkeypatch.setattr(Writer, "write", lose_and_write)
    run = runner(copying())
    with pytest.raises(InputError, match=r"a\.csv"):
        run.step(run.open(), "records")


def test_malformed_reference_fails_the_stage(runner, tmp_path):
    """A side input is not tracked, so a record of it that does not parse fails the stage, which
    names the file, the column and the value; the record's text is not for every reader of the
    ledger.
    """
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    (tmp_path / "side.csv").write_bytes(b"n,label\n1,one\nx,two\n")
    pipeline = Pipeline("referring")
    pipeline.source("records", FileSource("in/*", schema=SCHEMA))
    pipeline.reference("side", FileSource("side.csv", schema="n INT, label STRING"))

    @pipeline.stage(reads="records")
    def joined(frame, *, side):
        return frame.join(side, "n", "inner")

    pipeline.sink("out", ParquetSink("out"), reads="joined")
    run = runner(pipeline)
    batch = run.open()
    run.step(batch, "records")
    with pytest.raises(Exception, match="To go on") as raised:
        run.step(batch, "joined")
    message = "reference 'side' (side.csv): malformed csv: n: expected int, found x"
    assert message in failures.one_line(raised.value)
    (row,) = run.ledger.rows("SELECT failure FROM step_progress WHERE step = 'joined'")
    assert message in row.failure
    assert "x,two" not in row.failure


@pytest.mark.parametrize("files", [(b"n,label\n", b""), (b"n,label\n\n",)])
def test_a_reference_without_rows_fails_its_stage(runner, tmp_path, sink_rows, files):
    """A reference whose files have only headers or no bytes would lose records of a join: its stage
    fails, unless one file has rows or the reference is declared to be empty at times."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    for number, data in enumerate(files):
        (tmp_path / f"side-{number}.csv").write_bytes(data)

    def referring(**options):
        pipeline = Pipeline("referring")
        pipeline.source("records", FileSource("in/*", schema=SCHEMA))
        side = FileSource("side-*.csv", schema="n INT, label STRING")
        pipeline.reference("side", side, **options)

        @pipeline.stage(reads="records")
        def joined(frame, *, side):
            return frame.join(side, "n", "left")

        pipeline.sink("out", ParquetSink("out"), reads="joined")
        return pipeline

    run = runner(referring())
    batch = run.open()
    run.step(batch, "records")
    with pytest.raises(InputError, match=r"'side' \(.*side-.*\) has no rows.*allow_empty=True"):
        run.step(batch, "joined")
    runner(referring(allow_empty=True)).settled(batch)
    assert sink_rows("out", "n", "label") == [(1, None)]
    write(tmp_path, "b.csv", b"n,name,price\n2,b,2\n")
    (tmp_path / "side-0.csv").write_bytes(b"n,label\n2,x\n")
    run = runner(referring())
    run.settled(run.open_day(1))
    assert (2, "x") in sink_rows("out", "n", "label")


def test_reserved_name_in_a_schema(runner, tmp_path):
    """A schema with a column of the ledger's is refused, naming it."""
    write(tmp_path, "a.csv", b"_ackledger_root\n1\n")
    run = runner(copying(schema="_ackledger_root INT"))
    with pytest.raises(DeclarationError, match="'_ackledger_root'"):
        run.step(run.open(), "records")


def test_long_and_odd_text_is_kept(runner, tmp_path):
    """Raw text with a NUL character, or longer than the ledger keeps, fails like any other."""
    lines = ["x\0y", json.dumps("z" * 20_000)]
    write(tmp_path, "a.jsonl", "\n".join(lines).encode())
    run = runner(copying(format="json"))
    assert run.settled(run.open()).failed == 2
    details = sorted(row.detail for row in run.ledger.rows("SELECT detail FROM failed_root"))
    assert [len(detail) for detail in details] == [10_000, 3]


def test_replay_leaves_out_and_refuses_by_todays_schema(runner, tmp_path, sink_rows):
    """A replay casts kept values to today's types: a misfit fails by itself, a column that is
    gone is left out.
    """
    write(tmp_path, "a.csv", b"n,name,price\n1,7,2\n2,b,3\n")
    run = runner(failing_copy(SCHEMA, fail=True))
    batch = run.open()
    assert run.settled(batch).failed == 2
    narrow = runner(failing_copy("n BIGINT, name INT", fail=False))
    replay = narrow.open_replay(batch.batch_id)
    assert narrow.settled(replay).failed == 1
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}") == [(1, 7)]
    query = "SELECT step, reason, content FROM quarantine JOIN failed_payload USING (message_id)"
    row = run.ledger.row(query)
    assert (row.step, row.reason) == ("records", "name: expected int, found b")
    assert json.loads(row.content)["price"] == 3.0


def failing_copy(schema, *, fail, **source):
    """A pipeline that copies, or fails, every record."""
    pipeline = Pipeline("copy", max_replays=1)
    pipeline.source("records", FileSource("in/*", schema=schema, **source))

    @pipeline.stage(reads="records")
    def check(records):
        return records.withColumn("_failed", F.when(F.lit(fail), ""))

    pipeline.sink("out", ParquetSink("out"), reads="check")
    return pipeline


def test_empty_reason_is_a_reason(runner, tmp_path):
    """An empty text in _failed fails the record all the same."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n")
    run = runner(failing_copy(SCHEMA, fail=True))
    assert run.settled(run.open()).failed == 1
    assert run.ledger.row("SELECT reason FROM failed_root").reason == "no reason given"


def test_json_file_that_vanishes_after_listing(runner, tmp_path, monkeypatch):
    """A file without a header to check, gone before Spark plans, fails the batch with its path."""
    write(tmp_path, "a.json", b'{"n": 1}\n')
    find_files = listing.find_files

    def list_and_lose(*arguments, **options):
        paths = find_files(*arguments, **options)
        (tmp_path / "in" / "a.json").unlink()
        return paths

    monkeypatch.setattr(listing, "find_files", list_and_lose)
    run = runner(copying(format="json"))
    with pytest.raises(InputError, match=r"a\.json"):
        run.step(run.open(), "records")


def parsed(run, columns, sink_rows):
    """What arrived, and what failed: raw text by reason."""
    settlement = run.settled(run.open())
    rows = run.ledger.rows("SELECT reason, detail FROM failed_root")
    assert settlement.failed == len(rows)
    return sink_rows("out", *columns), {
        row.detail: row.reason.removeprefix("malformed ") for row in rows
    }


QUOTED = b"""1,"two
lines"
3,"q ""x"", y"
4,a"b
"5",plain
6,"never closed
7,fine
"""


def test_quotes_that_do_not_close(runner, tmp_path, sink_rows):
    """A record whose quotes do not close, or stand within a value, is named, never cut short;
    nor does a line of a record of several lines pass for a record.
    """
    write(tmp_path, "a.csv", b"n,s\n" + QUOTED + b'8,"x\n9,y\nz"\n')
    run = runner(copying(schema="n INT, s STRING"))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert arrived == [(3, 'q "x", y'), (5, "plain"), (7, "fine")]
    parted = (
        "csv: line breaks within quotes: declare the source with multiline=True if its records have"
        " them"
    )
    stray = (
        "csv: a quote within a value: double it and enclose the value in quotes, or declare"
        " options={'quote': ''} if quotes mean nothing"
    )
    assert failed == {
        '1,"two\nlines"': parted,
        '4,a"b': stray,
        '6,"never closed': "csv: a quote is never closed",
        '8,"x\n9,y\nz"': parted,
    }


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize(
    ("schema", "data", "whole"),
    [
        ("s STRING", '"two\nlines"', [("two\nlines",)]),
        ("a STRING, b STRING, c INT", 'a,"x\nz,q",7', [("a", "x\nz,q", 7)]),
    ],
    ids=["only column", "fields behind it"],
)
def test_a_quote_over_two_lines(runner, tmp_path, sink_rows, schema, data, whole, multiline):
    """Whatever stands before and behind it, a record of two lines is whole, or it fails whole."""
    names = [field.split()[0] for field in schema.split(", ")]
    write(tmp_path, "a.csv", f"{','.join(names)}\n{data}\n".encode())
    run = runner(copying(schema=schema, multiline=multiline))
    arrived, failed = parsed(run, names, sink_rows)
    parted = (
        "csv: line breaks within quotes: declare the source with multiline=True if its records have"
        " them"
    )
    assert (arrived, failed) == ((whole, {}) if multiline else ([], {data: parted}))


@pytest.mark.parametrize("quote", ['"', ""])
def test_a_record_of_very_many_fields(runner, tmp_path, sink_rows, quote):
    """It fails by itself, as others of too many fields do; a long text with as many separators
    in quotes is one value.
    """
    long = ("," * 30_000).join("ab")
    field = f'"{long}"' if quote else long.replace(",", ";")
    data = f"n,s\n1,a\n{',' * 30_000}\n2,{field}\n"
    write(tmp_path, "a.csv", data.encode())
    run = runner(copying(schema="n INT, s STRING", options={"quote": quote}))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert arrived == [(1, "a"), (2, field.strip('"'))]
    assert list(failed.values()) == ["csv: expected 2 fields, found 30001"]


def test_line_breaks_within_quotes(runner, tmp_path, sink_rows):
    """With multiline=True a record may have line breaks within quotes; a quote that is never
    closed spoils one line.
    """
    write(tmp_path, "a.csv", b"\xef\xbb\xbfn,s\r\n" + QUOTED.replace(b"\n", b"\r\n"))
    write(tmp_path, "b.csv", b'"n",s\n8,"\n\n""\n"\n\n')
    run = runner(copying(schema="n INT, s STRING", multiline=True))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert arrived == [
        (1, "two\r\nlines"), (3, 'q "x", y'), (5, "plain"), (7, "fine"), (8, '\n\n"\n'),
    ]  # fmt: skip
    assert failed['6,"never closed'] == "csv: a quote is never closed"
    assert set(failed) == {'6,"never closed', '4,a"b'}


def test_quotes_may_mean_nothing(runner, tmp_path, sink_rows):
    """With quote="" a quote is a character, and with sep a record of separators is one of empty
    fields.
    """
    write(tmp_path, "a.csv", b'n\ts\tt\n\t\t\n1\t5" x 7"\t\n\n \t\t\n')
    options = {"sep": "\t", "quote": ""}
    run = runner(copying(schema="n INT, s STRING, t STRING", options=options))
    arrived, failed = parsed(run, ("n", "s", "t"), sink_rows)
    assert arrived == [(1, '5" x 7"', None), (None, None, None)]
    assert failed == {" \t\t": "csv: n: expected int, found  "}


STRICT = "d DECIMAL(10,2), f DOUBLE, r FLOAT, a DATE, t TIMESTAMP, l TIMESTAMP_NTZ, v VARCHAR(3)"
VALUES = [
    ("d", "1,5", "decimal(10,2)"),
    ("d", "1.239", "decimal(10,2)"),
    ("d", "123456789", "decimal(10,2)"),
    ("f", "1d", "double"),
    ("f", "1e999", "double"),
    ("f", "0x1p3", "double"),
    ("r", "1e39", "float"),
    ("a", "2024-01-05 garbage", "date"),
    ("a", "2024-02-30", "date"),
    ("a", "5.1.2024", "date"),
    ("t", "12:30:00", "timestamp"),
    ("t", "2024-01-05 10:00:00.1234567", "timestamp"),
    ("t", "2024-01-05 10:00 CET", "timestamp"),
    ("l", "2024-01-05T10:00:00Z", "timestamp_ntz"),
    ("v", "abcd", "varchar(3)"),
]
FITTING = [
    ("1.50", "1e3", "-.5", "2024-01-05", "2024-01-05T10:00:00Z", "2024-01-05 10:00:00.123456", "é"),
    ("-1.5000", "NaN", "Infinity", "2024-02-29", "2024-01-05", "2024-01-05", "abc"),
]


def _names():
    return [column.split()[0] for column in STRICT.split(", ")]


def test_values_of_csv_have_their_type(runner, tmp_path, sink_rows):
    """A text that is no value of its column's type fails its record, with column, type and text;
    none is rounded, guessed or cut.
    """
    bad = [";".join(v if n == name else "" for n in _names()) for name, v, _ in VALUES]
    write(
        tmp_path, "a.csv", "\n".join([";".join(_names()), *bad, *map(";".join, FITTING)]).encode()
    )
    run = runner(copying(schema=STRICT, options={"sep": ";"}))
    arrived, failed = parsed(run, ("d", "f", "a", "v"), sink_rows)
    assert failed == {
        line: f"csv: {name}: expected {kind}, found {value}"
        for line, (name, value, kind) in zip(bad, VALUES, strict=True)
    }
    assert [str(row[0]) for row in arrived] == ["-1.50", "1.50"]
    assert arrived[1][1:] == (1000.0, date(2024, 1, 5), "é")


def test_values_of_json_have_their_type(runner, tmp_path, sink_rows):
    """So does a value of JSON, at any depth; a number too exact for its decimal, and a comma in
    one, too.
    """
    nested = "s STRUCT<a: DATE, d: DECIMAL(3,1)>, x ARRAY<TIMESTAMP>, y ARRAY<INT>"
    texts = [(n, v) for n, v, _ in VALUES if (n, v) != ("f", "1e999")]
    wrong = [
        *texts, ("f", "1d"), ("n", 1.5), ("n", "7"), ("s", {"a": "x"}), ("s", {"d": 1.25}),
        ("x", ["2024-01-05", "12:30:00"]), ("y", [1, "a"]), ("y", [1.5]),
    ]  # fmt: skip
    numbers = ['{"f": 1e999, "z": 1}', '{"d": 1.239, "z": 1}', '{"v": "1,5"}']
    bad = [json.dumps({name: value, "z": 1}) for name, value in wrong] + numbers
    good = [
        '{"d": 1.5, "n": 2, "s": {"a": "2024-01-05", "d": 1.5}, "v": "1,5", "z": 1}',
        '{"d": "7", "f": 2, "y": [1, null], "z": 1}',
    ]
    write(tmp_path, "a.jsonl", "\n".join([*bad, "", "  ", *good]).encode())
    run = runner(copying(schema=f"{STRICT}, n INT, {nested}, z INT NOT NULL", format="json"))
    arrived, failed = parsed(run, ("d", "n", "v"), sink_rows)
    assert [(str(row[0]), *row[1:]) for row in arrived] == [
        ("1.50", 2, "1,5"),
        ("7.00", None, None),
    ]
    assert set(failed) == set(bad)
    assert failed['{"d": 1.239, "z": 1}'] == "json: d: expected decimal(10,2), found 1.239"
    assert failed['{"n": 1.5, "z": 1}'] == "json: n: expected int, found 1.5"
    assert failed['{"v": "1,5"}'] == "json: z is null"
    dated = json.dumps({"a": "2024-01-05 garbage", "z": 1})
    assert failed[dated] == "json: a: expected date, found 2024-01-05 garbage"


TIMES = [
    ("05.01.2024", "5/1/2024 7:30", "5|1|2024"),
    ("2024-01-05", None, None),
    ("05.01.2024 x", None, None),
    ("31.02.2024", None, None),
    (None, "5/1/2024 7:30 x", None),
    (None, "2024-01-05T07:30:00", None),
    (None, "5/13/2024 7:30", None),
    (None, None, "2024-01-05"),
    (None, None, "5|1|2024x"),
]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_formats_of_dates_are_enforced(runner, tmp_path, sink_rows, format):
    """A date or a time is written as the option says, and as nothing else."""
    if format == "csv":
        lines = [",".join(value or "" for value in values) for values in TIMES]
    else:
        lines = [json.dumps(dict(zip("atl", values, strict=True))) for values in TIMES]
    write(tmp_path, "a", "\n".join((["a,t,l"] if format == "csv" else []) + lines).encode())
    options = {
        "dateFormat": "dd.MM.yyyy",
        "timestampFormat": "d/M/yyyy H:mm",
        "timestampNTZFormat": "d|M|yyyy",
    }
    schema = "a DATE, t TIMESTAMP, l TIMESTAMP_NTZ"
    run = runner(copying(schema=schema, options=options, format=format))
    arrived, failed = parsed(run, ("a", "t", "l"), sink_rows)
    instant = datetime(2024, 1, 5, 7, 30, tzinfo=UTC)
    assert arrived == [(date(2024, 1, 5), instant, datetime(2024, 1, 5))]
    assert set(failed) == set(lines[1:])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"options": {"multiLine": "true"}}, "declare the source with multiline=True"),
        ({"options": {"encoding": "utf-16"}}, "files are read as UTF-8"),
        ({"options": {"lineSep": ";"}}, "records end with a line break"),
        ({"options": {"comment": "#"}}, "drop it in a stage"),
        ({"options": {"maxColumns": "5"}}, "a record of more fields .* fails by name"),
        ({"options": {"maxCharsPerColumn": "5"}}, "values are read whole"),
        ({"options": {"seperator": ";"}}, "'seperator' .* not supported with csv"),
        ({"options": {"sep": "||"}}, "expected one character and no line break, found '\\|\\|'"),
        ({"options": {"sep": "\n"}}, "expected one character and no line break, found '\\\\n'"),
        ({"options": {"quote": "\r"}}, "expected one character and no line break, found '\\\\r'"),
        ({"options": {"sep": "😀"}}, "expected one character"),
        ({"options": {"sep": '"'}}, "'sep' and 'quote' .* expected two characters, found '\"'"),
        ({"options": {"sep": "\\", "escape": "\\"}}, "'sep' and 'escape' .* two characters"),
        ({"options": {"sep": ";"}, "format": "json"}, "option 'sep' .* with json"),
        ({"options": {"mergeSchema": "true"}, "format": "parquet"}, "it has none"),
        ({"multiline": True, "format": "json"}, "expected format csv"),
        ({"header": "by_order"}, "expected one of True, False, 'by_name'"),
    ],
)
def test_options_that_would_do_harm_are_refused(source, message):
    """An option that does nothing, or loses records, is refused by name, with what to do
    instead.
    """
    with pytest.raises(DeclarationError, match=message):
        copying(**source)


def test_a_folder_is_no_pattern():
    """It would match no file, and where none need match, the batch would have no records."""
    with pytest.raises(DeclarationError, match=r"found a folder.*write in/\{\{ params.day \}\}/\*"):
        FileSource("in/{{ params.day }}/", schema="n INT", allow_missing=True)


def test_columns_by_name(runner, tmp_path, sink_rows, caplog):
    """By name, each file has columns in an order of its own; a new one is noted and ignored, one
    that is missing is null.
    """
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\nx,a,2\n")
    write(tmp_path, "b.csv", b"price,extra,n\n3,e,2\n4,e,y\n")
    write(tmp_path, "c.csv", b"name,n\nc,5\n")
    run = runner(copying(header="by_name"))
    arrived, failed = parsed(run, ("n", "name", "price"), sink_rows)
    assert arrived == [(1, "a", 2.0), (2, None, 3.0), (5, "c", None)]
    assert failed == {
        "x,a,2": "csv: n: expected int, found x", "4,e,y": "csv: n: expected int, found y",
    }  # fmt: skip
    assert "b.csv: 1 column(s) not in the schema are ignored" in caplog.text
    later = runner(copying(header="by_name", schema="n STRING, name STRING, price DOUBLE"))
    original = run.ledger.row("SELECT batch_id FROM batch").batch_id
    replay = later.open_replay(original)
    assert later.settled(replay).failed == 0
    replayed = sink_rows(f"out/ackledger_batch={replay.batch_id}", "n", "name", "price")
    assert replayed == [("x", "a", 2.0), ("y", None, 4.0)]
    strict = runner(copying(header="by_name", schema="n INT, name STRING NOT NULL, price DOUBLE"))
    with pytest.raises(InputError, match=r"b\.csv: expected NOT NULL column name, found price"):
        strict.step(strict.open("other", *_next_month()), "records")


def test_nulls_in_parquet(runner, tmp_path, sink_rows):
    """NOT NULL is enforced for Parquet as it is for text: such a row fails, named and with its
    fields, and again in a replay, until the schema lets it be null.
    """
    (tmp_path / "in").mkdir()
    table = pa.table({"n": pa.array([1, None], pa.int32()), "name": ["a", "b"], "price": [1.5, 2]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    run = runner(copying(format="parquet", schema=SCHEMA.replace("n INT", "n INT NOT NULL")))
    arrived, failed = parsed(run, ("n",), sink_rows)
    assert (arrived, failed) == ([(1,)], {'{"name":"b","price":2.0}': "n is null"})
    original = run.ledger.row("SELECT min(batch_id) AS number FROM batch").number
    again = run.settled(run.open_replay(original))
    assert (again.status, again.failed) == (BatchStatus.SETTLED, 1)
    fixed = runner(copying(format="parquet", schema=SCHEMA))
    replay = fixed.open_replay(original, "fixed", quarantined=True)
    assert fixed.settled(replay).failed == 0
    assert sink_rows("out", "name", "price") == [("a", 1.5), ("b", 2.0)]


PARTS = [
    ({"a": 1, "b": [{"c": "x"}]}, None),
    ({"a": None, "b": []}, "s.a is null"),
    ({"a": 2, "b": [{"c": "x"}, {"c": None}]}, "s.b has a null where none may be"),
    (None, None),
]


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_nulls_within_a_value(runner, tmp_path, sink_rows, format):
    """NOT NULL holds within a struct and a list, too, in Parquet as in JSON, and in a replay."""
    schema = "n INT, s STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: STRING NOT NULL>>>"
    records = [{"n": n, "s": value} for n, (value, _) in enumerate(PARTS)]
    if format == "json":
        write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)).encode())
    else:
        (tmp_path / "in").mkdir()
        kind = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
        columns = pa.schema([("n", pa.int32()), ("s", kind)])
        pq.write_table(pa.Table.from_pylist(records, columns), tmp_path / "in" / "a.parquet")
    run = runner(copying(format=format, schema=schema))
    arrived, failed = parsed(run, ("n",), sink_rows)
    assert arrived == [(n,) for n, (_, reason) in enumerate(PARTS) if reason is None]
    data = {json.loads(detail)["n"]: reason for detail, reason in failed.items()}
    assert set(data) == {1, 2}
    if format == "parquet":
        assert data == {n: reason for n, (_, reason) in enumerate(PARTS) if reason}
    original = run.ledger.row("SELECT min(batch_id) AS number FROM batch").number
    again = run.settled(run.open_replay(original))
    assert (again.status, again.failed) == (BatchStatus.SETTLED, 2)
    looser = runner(copying(format=format, schema=schema.replace(" NOT NULL", "")))
    replay = looser.open_replay(original, "looser", quarantined=True)
    assert looser.settled(replay).failed == 0
    assert sink_rows("out", "n") == [(n,) for n in range(len(PARTS))]


def test_uncommon_parquet(runner, tmp_path, sink_rows):
    """INT96 and unsigned integers are read as Spark reads them; nanoseconds and brotli end in
    one clear line.
    """
    (tmp_path / "in").mkdir()
    path, instant = tmp_path / "in" / "a.parquet", datetime(2024, 1, 5, 10, tzinfo=UTC)
    at = pa.array([instant], pa.timestamp("us", "UTC"))
    table = pa.table({"u": pa.array([2**32 - 1], pa.uint32()), "at": at})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    run = runner(copying(format="parquet", schema="u BIGINT, at TIMESTAMP"))
    arrived, _ = parsed(run, ("u", "at"), sink_rows)
    assert [(u, at.astimezone(UTC)) for u, at in arrived] == [(2**32 - 1, instant)]
    again = runner(copying(format="parquet", schema="u BIGINT, at TIMESTAMP"))
    batch = again.open("other", *_next_month())
    pq.write_table(table.set_column(1, "at", at.cast(pa.timestamp("ns", "UTC"))), path)
    with pytest.raises(InputError, match=r"a\.parquet: column at holds nanoseconds.*microseconds"):
        again.step(batch, "records")
    pq.write_table(table, path, compression="brotli")
    with pytest.raises(InputError, match=r"a\.parquet: column u is compressed with BROTLI.*zstd"):
        again.step(batch, "records")


def test_parquet_that_spark_cannot_read(spark, runner, tmp_path):
    """Checksums of an older file beside it, and a timestamp past Spark's, end in what to do; once
    it is done the batch goes through. Durations in microseconds are what was written."""
    (tmp_path / "in").mkdir()
    path, sums = tmp_path / "in" / "a.parquet", tmp_path / "in" / ".a.parquet.crc"
    took, far = timedelta(days=1, microseconds=3), pa.array([2**62], pa.int64())
    table = pa.table({"at": far.cast(pa.timestamp("ms", "UTC")), "took": pa.array([[took]])})
    assert table["took"].type == pa.list_(pa.duration("us"))
    pq.write_table(table, path)
    schema = "at TIMESTAMP, took ARRAY<INTERVAL DAY TO SECOND>"
    run = runner(copying(format="parquet", schema=schema))
    batch = run.open()
    with pytest.raises(InputError, match=r"a\.parquet \(.*It has a timestamp that Spark cannot"):
        run.step(batch, "records")
    near = pa.array([0], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    pq.write_table(table.set_column(0, "at", near), path)
    sums.write_bytes(b"crc\0\0\0\2\0sums")
    with pytest.raises(InputError, match=rf"cannot be read: .*or, if it is whole, delete {sums}"):
        run.step(batch, "records")
    sums.unlink()
    assert run.settled(batch).failed == 0
    assert [row.took for row in spark.read.parquet(f"{tmp_path}/out").collect()] == [[took]]


def test_lines_that_end_with_a_carriage_return(runner, tmp_path, sink_rows):
    """Records end with a carriage return as well; one within quotes is part of a value, or said
    to part a record.
    """
    write(tmp_path, "a.csv", b'n,s\r1,a\r2,"x\ry"\r3,"open\r4,b\r')
    whole = runner(copying(schema="n INT, s STRING", multiline=True))
    arrived, failed = parsed(whole, ("n", "s"), sink_rows)
    assert arrived == [(1, "a"), (2, "x\ry"), (4, "b")]
    assert failed == {'3,"open': "csv: a quote is never closed"}
    run = runner(copying(schema="n INT, s STRING"))
    assert run.settled(run.open("other", *_next_month())).failed == 2
    reasons = run.ledger.rows("SELECT reason FROM failed_root WHERE detail LIKE '2,%'")
    assert "declare the source with multiline=True" in reasons[0].reason


@pytest.mark.parametrize("quote", ['"', ""])
def test_characters_that_are_none_of_a_text(runner, tmp_path, sink_rows, quote):
    """A record fails by name where Spark's reader of CSV would leave out a character, cut the
    record there, or cut the one behind it; U+FEFF within a record is a character like others."""
    bad = ["Ulm\uffffer,1", '"Ulm\0",2', "\0Ulm,3", "\ufeffUlm,4"]
    good = ["Zurich,5", "U\ufefflm,6", "Bern,7"]
    lines = ["s,n", good[1], *bad, good[0], bad[0], good[2], ""]
    write(tmp_path, "a.csv", "\n".join(lines).encode())
    # Of a type that is never read by columns: each record is parsed exactly.
    run = runner(copying(schema="s STRING, n FLOAT", options={"quote": quote}))
    assert run.settled(run.open()).failed == 5
    assert sink_rows("out", "s", "n") == [("Bern", 7.0), ("U\ufefflm", 6.0), ("Zurich", 5.0)]
    (row,) = run.ledger.rows("SELECT DISTINCT reason FROM failed_root")
    assert row.reason == f"malformed csv: {NO_TEXT}"


def test_a_line_within_a_record_that_is_not_utf8(runner, tmp_path, sink_rows):
    """A line within quotes is no record, whatever else is wrong with the record that it is of."""
    broken = b'1,"\xff\n2,inside\nz"'
    write(tmp_path, "a.csv", b"n,s\n" + broken + b"\n3,c\n")
    run = runner(copying(schema="n INT, s STRING"))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert arrived == [(3, "c")]
    assert failed == {"base64:" + base64.b64encode(broken).decode(): "not UTF-8"}


def test_headers_of_files_with_line_breaks(runner, tmp_path, sink_rows):
    """The header is what is left out: not a blank line before it, nor the record of a file
    without one.
    """
    write(tmp_path, "a.csv", b"  \t\nn\ts\n1\ta\n")
    write(tmp_path, "b.csv", b"\t")
    run = runner(copying(schema="n INT, s STRING", multiline=True, options={"sep": "\t"}))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert arrived == [(1, "a"), (None, None)]
    assert failed == {"  \t": "csv: n: expected int, found   "}


def test_damaged_file_of_records_with_line_breaks(runner, tmp_path):
    """A file that breaks off while its records are read fails the batch with its path."""
    lines = "".join(f"{n},{n * 7919 % 104729}\n" for n in range(50_000))
    whole = gzip.compress(b"n,s\n" + lines.encode())
    write(tmp_path, "a.csv.gz", whole[: len(whole) // 2])
    run = runner(copying(schema="n INT, s STRING", multiline=True))
    with pytest.raises(InputError, match=r"source file .*a\.csv\.gz cannot be read: "):
        run.step(run.open(), "records")


def test_a_replay_after_columns_are_taken_by_name(runner, tmp_path, sink_rows):
    """What was read with columns in order is replayed though they go by name now."""
    write(tmp_path, "a.csv", b"n,name,price\n1,a,2\n3000000000,b,3\n")
    run = runner(copying())
    batch = run.open()
    assert run.settled(batch).failed == 1
    later = runner(copying(header="by_name", schema="n BIGINT, name STRING, price DOUBLE"))
    replay = later.open_replay(batch.batch_id)
    assert later.settled(replay).failed == 0
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}", "n", "name") == [
        (3_000_000_000, "b")
    ]


def test_other_columns_have_any_name(runner, tmp_path, sink_rows):
    """By name, a column that the schema does not have may differ from one of it, or of the
    ledger's, by case alone.
    """
    write(tmp_path, "a.csv", b"n,N,_corrupt,_Raw\n1,x,y,z\nv,x,y,z\n")
    run = runner(copying(header="by_name", schema="n INT"))
    arrived, failed = parsed(run, ("n",), sink_rows)
    assert arrived == [(1,)]
    assert failed == {"v,x,y,z": "csv: n: expected int, found v"}


def test_decimals_of_json_are_exact_at_any_depth(runner, tmp_path, sink_rows):
    """A decimal of JSON is the number that is written: neither a text with a comma nor one that
    was rounded.
    """
    schema = (
        "d DECIMAL(10,2), s STRUCT<d: DECIMAL(3,1)>, l ARRAY<DECIMAL(3,1)>, "
        "m MAP<STRING, DECIMAL(3,1)>, w DECIMAL(38,2), i DECIMAL(38,0), f DOUBLE"
    )
    bad = [
        '{"s": {"d": "1,5"}}', '{"l": [1.5, "1,5"]}', '{"m": {"k": "1,5"}}', '{"d": ",5"}',
        '{"d": "5,"}', r'{"d": "1\u002c5"}', '{"w": 1.239}', '{"i": 1.5}', '{"d": 1e-40}',
        '{"s": {"d": 1e-2}}', '{"w": 123456789012345678.125}',
    ]  # fmt: skip
    good = [
        '{"d": 1.5, "f": 1e-7}', '{"d": 15e-1, "s": {"d": "1.5"}}', '{"d": 2.5E0, "f": 0.12345}',
        '{"w": 123456789012345678901234567890123456.78, "f": 0.00012345}', '{"d": 1e2}',
        '{"d": "3", "l": [1.5, 2], "m": {"k": 1e-1}, "f": 1}',
    ]  # fmt: skip
    write(tmp_path, "a.jsonl", "\n".join([*bad, *good]).encode())
    run = runner(copying(schema=schema, format="json"))
    arrived, failed = parsed(run, ("d", "w"), sink_rows)
    assert set(failed) == set(bad)
    assert (
        failed['{"s": {"d": "1,5"}}']
        == 'json: s: expected struct<d:decimal(3,1)>, found {"d":"1,5"}'
    )
    assert failed['{"w": 1.239}'] == "json: w: expected decimal(38,2), found 1.239"
    assert failed['{"d": ",5"}'] == "json: d: expected decimal(10,2), found ,5"
    assert {str(d) for d, _ in arrived} == {"1.50", "2.50", "None", "100.00", "3.00"}
    assert len(arrived) == len(good)
    assert {str(w) for _, w in arrived} == {"None", "123456789012345678901234567890123456.78"}


def test_json_is_what_is_written(runner, tmp_path, sink_rows):
    """Bytes that overflow, numbers that are too large, what follows an object and half a
    character are misfits.
    """
    bad = {
        '{"b": 200}': "b: expected tinyint, found 200",
        '{"b": 128}': "b: expected tinyint, found 128",
        '{"s": {"b": 255}}': 's: expected struct<b:tinyint>, found {"b":255}',
        '{"f": 1e999, "name": "Information"}': "f: expected double, found ",
        '{"n": 1}] {"n": 2}': "expected one object, found something else or more",
        '{"n": 1}, {"n": 2}': "expected one object, found something else or more",
        r'{"name": "a\ud800b"}': r"half of a character: expected two \u escapes, found one of them",
    }
    good = [
        '{"b": -128, "f": Infinity, "name": "}"}',
        r'{"b": 127, "f": "-INF", "name": "\ud83d\ude00"}',
        '{"s": {"b": 1, "v": NaN}, "f": 1e30}',
        r'{"name": "\\ud800", "f": "NaN"}',
    ]
    write(tmp_path, "a.jsonl", "\n".join([*bad, *good]).encode())
    schema = "b TINYINT, n INT, f DOUBLE, name STRING, s STRUCT<b: TINYINT>"
    options = {"allowNonNumericNumbers": "true"}
    run = runner(copying(schema=schema, format="json", options=options))
    arrived, failed = parsed(run, ("b", "name"), sink_rows)
    assert set(failed) == set(bad)
    for line, reason in bad.items():
        assert failed[line].startswith(f"json: {reason}")
    assert set(arrived) == {(-128, "}"), (127, "\U0001f600"), (None, None), (None, "\\ud800")}


def test_options_of_json_hold_for_whole_lines(runner, tmp_path, sink_rows):
    """A line that the options allow is one object, whatever stands in it."""
    good = ["{n: 1, s: {a: 2}}", '{"n": 2, "s": {"v": NaN}}', "{'n': 3, 's': {'a': 1}} "]
    bad = "{n: 4, s: {a: 2}} {n: 5}"
    write(tmp_path, "a.jsonl", "\n".join([*good, bad]).encode())
    allowed = ("allowUnquotedFieldNames", "allowNonNumericNumbers", "allowSingleQuotes")
    options = dict.fromkeys(allowed, "true")
    run = runner(copying(schema="n INT, s STRUCT<a: INT>", format="json", options=options))
    arrived, failed = parsed(run, ("n",), sink_rows)
    assert arrived == [(1,), (2,), (3,)]
    assert failed == {bad: "json: expected one object, found something else or more"}


NUMBERS = [
    "0.1234567890123456789", "1.10", "1e400", "12", "-0", "1.0", "1E5", "0.0001", "12345678.25",
    "123e-10000000", "99999999999999999999999999999999999999999", "-5.50",
]  # fmt: skip


def test_numbers_of_json_as_texts_are_as_written(runner, tmp_path, sink_rows):
    """A number of JSON in a column of texts is the text that is written, at any depth, also beside
    quotes, colons and backslashes."""
    lines = [
        f'{{"s": {number}, "l": ["a:1.10", {number}], "m": {{"k": {number}}}, "c": {number},'
        f'"t": {{"s": {number}, "f": 1.50}}, "o": {{"p": [{number}, "x\\": [1.10"]}}, "f": 2.50}}'
        for number in NUMBERS
    ]
    write(tmp_path, "a.jsonl", "\n".join(lines).encode())
    schema = (
        "s STRING, l ARRAY<STRING>, m MAP<STRING, STRING>, t STRUCT<s: STRING, f: DOUBLE>, "
        "o STRING, f DOUBLE, c VARCHAR(50)"
    )
    run = runner(copying(schema=schema, format="json"))
    arrived, failed = parsed(run, ("s", "l", "m", "t", "o", "f", "c"), sink_rows)
    assert failed == {}
    assert sorted(row[0] for row in arrived) == sorted(NUMBERS)
    for text, several, by_key, inner, whole, double, short in arrived:
        nested = f'{{"p":[{text},"x\\": [1.10"]}}'
        assert (several, dict(by_key)) == (["a:1.10", text], {"k": text})
        assert (inner, whole) == ({"s": text, "f": 1.5}, nested)
        assert (double, short) == (2.5, text)


def test_decimals_of_json_with_an_exponent_are_exact(runner, tmp_path, sink_rows):
    """A decimal with an exponent has at most 15 digits, each of which a double distinguishes: a
    number of 16 that has the double of another fails."""
    bad = ["9765625000000001e-19", "9.765625000000001e-4", "976562500000000.1e-18"]
    good = ["976562500000001e-18", "9.76562500000001e-4", "0.00000976562501e2"]
    write(tmp_path, "a.jsonl", "\n".join(f'{{"d": {text}}}' for text in [*bad, *good]).encode())
    run = runner(copying(schema="d DECIMAL(38,18)", format="json"))
    arrived, failed = parsed(run, ("d",), sink_rows)
    assert failed == {
        f'{{"d": {text}}}': f"json: d: expected decimal(38,18), found {text}" for text in bad
    }
    assert sorted(d for (d,) in arrived) == sorted(map(Decimal, good))


@pytest.mark.parametrize(("format", "line"), [("csv", "{}"), ("json", '{{"t": "{}"}}')])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("TIME", ["12:00", "12:00:01.123456", "12:00:01.5000000"],
         ["12:00:00.1234567", "1:00", "12:00 PM", "24:00", "x"]),
        ("TIME(3)", ["12:00:01.123", "12:00:01.123000"], ["12:00:00.1234"]),
        ("TIME(0)", ["12:00:01", "12:00:01.0"], ["12:00:01.5"]),
        ("INTERVAL DAY TO SECOND", ["1 02:03:04.123456", "1 02:03:04.1000000"],
         ["1 02:03:04.1234567", "1.5", "x"]),
    ],
)  # fmt: skip
def test_times_and_intervals_are_not_cut(spark, runner, tmp_path, format, line, kind, good, bad):
    """A TIME, or an INTERVAL of days to seconds, of more digits than its type has fails its record,
    as does a time that is written otherwise than in ISO 8601."""
    lines = [line.format(text) for text in [*good, *bad]]
    write(tmp_path, "a.txt", "\n".join(lines).encode())
    run = runner(copying(schema=f"t {kind}", format=format, header=False))
    with session_conf(spark, {"spark.sql.timeType.enabled": "true"}):
        settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (len(lines), len(bad))
    failed = run.ledger.rows("SELECT detail FROM failed_root")
    assert {row.detail for row in failed} == set(lines[len(good) :])


def test_decimals_of_json_that_do_not_fit(runner, tmp_path, sink_rows):
    """A number whose exponent is ever so large fails as any that does not fit, at once, with the
    number as it is written."""
    numbers = ["123e-10000000", "1e10000000", "1e-2000000000", "1e999999999999", "1e-7"]
    bad = {f'{{"d": {text}}}': f"json: d: expected decimal(20,6), found {text}" for text in numbers}
    good = ['{"d": 0e5}', '{"d": 12345678901234.123456}', '{"d": 15e-1}']
    write(tmp_path, "a.jsonl", "\n".join([*bad, *good]).encode())
    run = runner(copying(schema="d DECIMAL(20,6)", format="json"))
    arrived, failed = parsed(run, ("d",), sink_rows)
    assert failed == bad
    assert {str(d) for (d,) in arrived} == {"0.000000", "12345678901234.123456", "1.500000"}


MISSPELT = {
    '{"ID": 1}': "column id, found ID",
    '{"n": 1, "Id": null, " id": 2}': "column id, found Id",
    '{"n": 1, " id": 2}': "column id, found  id",
    '{"n": 1, "id": 2, "FIRSTNAME ": "a"}': "column first name, found FIRSTNAME ",
    '{"n": 1, "id": 2, "First  Name": "a"}': "column first name, found First  Name",
    r'{"n": 1, "\u0049D": 2}': "column id, found ID",
    r'{"n": 1, "id\t": 2}': "column id, found id\t",
    r'{"n": 1, "A\"B": 2}': 'column a"b, found A"B',
    r'{"n": 1, "First\/Name": 2}': "column first/name, found First/Name",
    '{"n": 1, "id\u00a0": 2}': "column id, found id\u00a0",
    '{"n": 1, "\u00c9t\u00e9": "a"}': "column \u00e9t\u00e9, found \u00c9t\u00e9",
    '{"n": 1, "\u200bid": 2}': r"column id, found \u200bid",
    '{"n": 1, "\ufeff\ufeffid": 2}': r"column id, found \ufeff\ufeffid",
    '{"n": 1, "i\u00ad\x7fd": 2}': r"column id, found i\u00ad\u007fd",
    '{"n": 1, "i\x7fd": 2}': r"column id, found i\u007fd",
    r'{"n": 1, "\u0000ID": 2}': r"column id, found \u0000ID",
    '{"n": 1, "\uff49\uff44": 2}': r"column id, found \uff49\uff44",
    '{"n": 1, "i\u3164d\U000e0100": 2}': r"column id, found i\u3164d\ue0100",
    '{"n": 1, "e\u0301te\u0301": "a"}': "column \u00e9t\u00e9, found e\\u0301te\\u0301",
    '{"n": 3, "s": {"a": 5, "\u202eid": 1}}': r"field s.id, found \u202eid",
    '{"n": 1, "STRASSE": "a"}': "column stra\u00dfe, found STRASSE",
    '{"n": 1, "Ma\u00dfe": "a"}': "column masse, found Ma\u00dfe",
    '{"id": 1, "N" : 2}': "column n, found N",
    '{"n": 1, "s": {"A": 5, "id": 1}}': "field s.a, found A",
    r'{"n": 2, "s": {"a": 5, "i\u0064 ": 1}}': "field s.id, found id ",
    '{"n": 3, "s": {"a": 5, "t": {"P": 1}}}': "field s.t.p, found P",
    '{"n": 4, "u": [{"p": 1}, null, {"P": 1}]}': "field u.p, found P",
    '{"n": 5, "w": {"P": [{"p": 1}], "k": [{"p": 2}, {" p": 1}]}}': "field w.p, found  p",
}


@pytest.mark.parametrize("quotes", [{}, {"allowUnquotedFieldNames": "true"}])
def test_a_key_of_json_that_nearly_names_a_column(runner, tmp_path, sink_rows, quotes):
    """A key that differs in case or blanks alone from a column that a record lacks, or from a field
    that an object in it lacks, fails the record by name; any other key is ignored, also one within
    a map or a text."""
    good = {
        '{"n": 1, "id": 2, "ID": 3}': (1, 2),
        '{"n": 2, "id": null, "ID": 3}': (2, None),
        '{"n": 3, "Idx": 4}': (3, None),
        '{"n": 4, "s": {"id": 1, "a": 5, "ID": 3, "N": 4}, "m": {"ID": "x"}, "l": [{"ID": 2}]}': (
            4,
            None,
        ),
        r'{"n": 5, "o": "\"ID\": 1", "p": {"ID": 1}}': (5, None),
        '{"n": 6}': (6, None),
        '{"n": 7, "l": ["ID"], "o": ", \'ID\': 2"}': (7, None),
        '{"n": 8, "o": {"ID": 1}, "s": null, "u": null, "w": {"ID": null}}': (8, None),
        '{"n": 9, "o": "a\\\\b: \u00e9", "s": {"a": 1, "t": {}}, "u": [], "w": {"P": []}}': (
            9,
            None,
        ),
    }
    bad = MISSPELT | ({"{n: 1, Id: 2}": "column id, found Id"} if quotes else {})
    write(tmp_path, "a.jsonl", "\n".join([*good, *bad]).encode())
    schema = (
        "n INT NOT NULL, id INT, `first name` STRING, `\u00e9t\u00e9` STRING, "
        "s STRUCT<a: INT, id: INT, t: STRUCT<p: INT>>, m MAP<STRING, STRING>, o STRING, "
        "l ARRAY<STRING>, u ARRAY<STRUCT<p: INT>>, w MAP<STRING, ARRAY<STRUCT<p: INT>>>, "
        '`a"b` INT, `first/name` STRING, `stra\u00dfe` STRING, masse STRING'
    )
    run = runner(copying(schema=schema, format="json", options=quotes))
    arrived, failed = parsed(run, ("n", "id"), sink_rows)
    assert failed == {line: f"json: expected {reason}" for line, reason in bad.items()}
    assert set(arrived) == set(good.values())


RENAMED = r"no record has column '{}', which .* that are no columns: '{}'.*optional=\['{}'\]"


@pytest.mark.parametrize(
    ("schema", "lines", "path", "others"),
    [
        ("n INT, amount INT", ['{"n": 1, "amount_eur": 5, "x": 1}', '{"n": 2}'], "amount",
         "amount_eur', 'x"),
        ("n INT, s STRUCT<a: INT, price: INT>", ['{"n": 1, "s": {"a": 1, "cost": 2}, "price": 1}'],
         "s.price", "s.cost"),
        ("n INT, l ARRAY<STRUCT<a: INT>>", ['{"n": 1, "l": [{"b": 2}]}'], "l.a", "l.b"),
        ("n INT, m MAP<STRING, STRUCT<a: INT>>", ['{"n": 1, "m": {"k": {"b": 2}}}'], "m.a", "m.b"),
        ("n INT, amount INT", ['{"n": 1, "b": "amount: \\"amount\\": 1"}'], "amount", "b"),
        ("n INT, `item.price` INT", ['{"n": 1, "item.cost": 2}'], "item.price", "item.cost"),
        ("n INT, price INT", ['{"n": 1, "item.price": 2}'], "price", "item.price"),
        ("n INT, `item.price` INT, item STRUCT<price: INT>",
         ['{"n": 1, "item.cost": 2, "item": {"price": 3}}'], "item.price", "item.cost"),
        ("n INT, `item.price` INT, item STRUCT<x: INT, `a.b`: INT>",
         ['{"n": 1, "item.price": 2, "item": {"x": 3, "a.c": 4}}'], "item.a.b", "item.a.c"),
    ],
)  # fmt: skip
def test_a_key_of_json_that_was_renamed(runner, tmp_path, sink_rows, schema, lines, path, others):
    """A column, or a field of a STRUCT, that no record has while records have other keys fails the
    step with both names, instead of being null for ever; declared as optional, it is null."""
    write(tmp_path, "a.jsonl", "\n".join(lines).encode())
    declared = {"schema": schema, "format": "json"}
    run = runner(copying(**declared))
    batch = run.open()
    with pytest.raises(InputError, match=RENAMED.format(path, others, path)):
        run.step(batch, "records")
    runner(copying(optional=[path], **declared)).settled(batch)
    assert len(sink_rows("out", "n")) == len(lines)
    assert run.ledger.summary(batch.batch_id).notes == ()


def test_a_column_that_one_record_has_was_not_renamed(runner, tmp_path, sink_rows, monkeypatch):
    """However late it comes, in whatever spelling of JSON, and however many keys are no columns; a
    record that fails for a key that only looks like a column's keeps none of the others out."""
    monkeypatch.setattr(absent, "FIRST", 1)
    lines = ['{"n": 1, "amount_eur": 5}'] * 3 + [r'{"n": 2, "\u0061mount": null, "s": {"x": null}}']
    write(tmp_path, "a.jsonl", "\n".join([*lines, '{"n": 3, "LATE": 1}']).encode())
    run = runner(copying(schema="n INT, amount INT, s STRUCT<x: INT>, late INT", format="json",
                         optional=["late"]))  # fmt: skip
    settlement = run.settled(run.open())
    assert (settlement.roots, settlement.failed) == (5, 1)


@pytest.mark.parametrize(
    ("lines", "passes"),
    [
        (['{"n": 1}'] * 3 + ['{"n": 2, "amount": 5, "s": [{"x": null}, {"x": 1}]}'], 0),
        (['{"n": 1, "amount": "x"}', '{"n": 2, "s": [{"x": 1}]}'], 1),
    ],
)
def test_the_text_is_read_again_only_where_a_column_is_null(
    runner, tmp_path, monkeypatch, lines, passes
):
    """The keys of all records are looked at where the statistics of the snapshot show no value of a
    column; once, whatever is missing."""
    monkeypatch.setattr(absent, "FIRST", 1)
    calls, look = [], absent.most_frequent
    monkeypatch.setattr(absent, "most_frequent", lambda *of: calls.append(of) or look(*of))
    write(tmp_path, "a.jsonl", "\n".join([*lines, ""]).encode())
    schema = "n INT, amount DECIMAL(5,2), s ARRAY<STRUCT<x: INT>>"
    run = runner(copying(schema=schema, format="json"))
    batch = run.open()
    run.settled(batch)
    assert len(calls) == passes
    assert run.ledger.summary(batch.batch_id).notes == ()


def test_a_column_that_no_record_has_is_reported(runner, tmp_path, caplog):
    """Where records have no other keys it is no error, but the log, the ledger and what a run
    prints say that the column is null in all records."""
    write(tmp_path, "a.jsonl", b'{"n": 1}\n{"n": 2, "s": {"x": 1}}\n')
    schema = "n INT, amount INT, s STRUCT<x: INT, y: INT>, t STRUCT<z: INT>"
    run = runner(copying(schema=schema, format="json"))
    batch = run.open()
    run.settled(batch)
    says = "no record has column {}: it is null in all of them"
    names = ["amount", "s.y", "t"]
    notes = tuple(f"source records: {says.format(name)}" for name in names)
    assert run.ledger.summary(batch.batch_id).notes == notes
    assert set(notes) <= set(report(run.ledger.summary(batch.batch_id), []))
    assert says.format("amount") in caplog.text
    rows = run.ledger.rows("SELECT null_columns FROM step_progress WHERE kind = 'source'")
    assert [row.null_columns for row in rows] == [names]


def test_a_column_that_no_header_has(runner, tmp_path, sink_rows):
    """By name a column that was renamed in all files fails the step as well; without another one it
    is reported, and where one file has it, nothing is said. A file without a header has none."""
    write(tmp_path, "a.csv", b"n,cost\n1,2\n")
    write(tmp_path, "empty.csv", b"")
    write(tmp_path, "b.csv", b"n\n2\n")
    schema = "n INT, price INT"
    run = runner(copying(schema=schema, header="by_name"))
    batch = run.open()
    with pytest.raises(InputError, match=RENAMED.format("price", "cost", "price")):
        run.step(batch, "records")
    write(tmp_path, "a.csv", b"n\n1\n")
    run.settled(batch)
    (note,) = run.ledger.summary(batch.batch_id).notes
    assert note == "source records: no record has column price: it is null in all of them"
    write(tmp_path, "b.csv", b"price,cost\n3,4\n")
    again = run.open("again", reprocess=True)
    run.settled(again)
    assert run.ledger.summary(again.batch_id).notes == ()


def test_a_long_text_of_json_is_read(runner, tmp_path, sink_rows):
    """A text of more than 20 million characters, which Spark's reader of JSON refuses, and a number
    of more than 1000 digits are read as they are written."""
    long, digits = "x" * 20_000_001, "7" * 1001
    write(tmp_path, "a.jsonl", f'{{"n": 1, "s": "{long}"}}\n{{"n": 2, "s": {digits}}}\n'.encode())
    run = runner(copying(schema="n INT, s STRING", format="json"))
    assert run.settled(run.open()).failed == 0
    assert [(n, len(s)) for n, s in sink_rows("out", "n", "s")] == [(1, len(long)), (2, 1001)]


@pytest.mark.parametrize(("format", "line"), [("csv", "{}"), ("json", '{{"d": "{}"}}')])
def test_no_decimal_is_made_of_what_takes_long(runner, tmp_path, sink_rows, format, line):
    """A number of more than 100 characters, or with an exponent of three digits, fails whatever
    it is: a decimal is made of none that is so written, for that takes ever longer."""
    good = [f"1.5{'0' * 97}", f"{'0' * 99}2"]
    bad = [f"1.5{'0' * 98}", f"{'0' * 100}2", "0e-100", "1e-100", "0.0E-100"]
    lines = [line.format(item) for item in [*good, *bad]]
    lines += ['{"d": 0e-99}', '{"d": 0e-100}'] if format == "json" else []
    write(tmp_path, "a.txt", "\n".join(lines).encode())
    run = runner(copying(schema="d DECIMAL(20,6)", format=format, header=False))
    arrived, failed = parsed(run, ("d",), sink_rows)
    zeros = [0] if format == "json" else []
    assert sorted(d for (d,) in arrived) == [*zeros, Decimal("1.5"), 2]
    wrong = {line.format(item): item for item in bad}
    if format == "json":
        wrong['{"d": 0e-100}'] = "0e-100"
    prefix = f"{format}: d: expected decimal(20,6), found "
    assert failed == {text: f"{prefix}{item}" for text, item in wrong.items()}


def test_digits_that_a_double_may_round_are_not_rounded_unseen(runner, tmp_path, sink_rows):
    """With an exponent a number of JSON has 15 digits at most, with a dot or without: of these a
    double distinguishes a decimal that was rounded."""
    good, bad = "996417322785142e-15", "9964173227851419e-16"
    lines = [f'{{"d": {text}}}' for text in (good, bad)]
    write(tmp_path, "a.txt", "\n".join(lines).encode())
    run = runner(copying(schema="d DECIMAL(20,15)", format="json"))
    arrived, failed = parsed(run, ("d",), sink_rows)
    assert arrived == [(Decimal("0.996417322785142"),)]
    assert failed == {lines[1]: f"json: d: expected decimal(20,15), found {bad}"}


NO_JSON = [
    *(f'{{"s": {text}, "n": 1}}' for text in ("NaN", "Infinity", "-Infinity", "+INF", "[NaN]")),
    *(f'{{"f": {text}, "n": 1}}' for text in ("NaN", "Infinity", "-Infinity", "+INF", "-INF")),
    *(f'{{"l": [{text}], "n": 1}}' for text in ("NaN", "-Infinity", "'a'")),
    '{"f": "NaN", "n": 1}', "{'n': 1}", '{"n": 1, "s": \'a\'}',
    '{"n": 1 /* one */}', '{"n": 1} // one', '{"n": 1, # one', '{n: 1}', '{"n": 01}', '{"n": +1}',
    '{"f": .5}', '{"f": 5.}', '{"f": 0x1F}', '{"f": 1_000}', '{"s": "a\tb"}', '{"s": "a\x01b"}',
    r'{"s": "a\qb"}', r'{"s": "\u12g4"}', '{"n": 1,}', '{,"n": 1}', '{"l": ["a",]}', '{"l": [,]}',
    '{"n": 1} x', '{"n": 1}}', '{"n": 1', '{"n": 1]', '{"n" 1}', '{"n": 1 "s": "a"}', '{"n":}',
    '[{"n": 1}]', '{"s": undefined}', '{"s": True}', '\ufeff{"n": 1}', '{"n": 1}\x00',
    '{"n":\xa01}', '{"s": "x, NaN",}', '{"s": "x: \'a",}', '{"s": "x, NaN',
    r'{"s": "a\", Infinity",}',
    '{"m": {"k": "a", "k": "b"}}', '{"m": {"k": 1.10, "j": 2, "k": 1.10}}',
    '{"s": ' + "[" * 1_100 + "]" * 1_100 + "}",
]  # fmt: skip


def test_what_is_not_json_is_refused(runner, tmp_path, sink_rows):
    """What Spark takes for JSON and the standard does not fails by name, and so does a key that a
    map has twice; the reason names the option that allows it, if there is one."""
    good = [r'{"n": 1, "s": "NaN \/ it\u0027s \u00e9", "n": 2}', '{"s": "\x7f", "n": 3, "l": []}\t']
    write(tmp_path, "a.jsonl", "\n".join([good[0], *NO_JSON, good[1]]).encode())
    schema = "n INT, s STRING, f DOUBLE, l ARRAY<STRING>, m MAP<STRING, STRING>"
    run = runner(copying(schema=schema, format="json"))
    arrived, failed = parsed(run, ("n", "s"), sink_rows)
    assert set(arrived) == {(2, "NaN / it's \u00e9"), (3, "\x7f")}
    assert len(failed) == len(NO_JSON)
    for line in (line for line in NO_JSON if line.startswith('{"m"')):
        assert failed[line].startswith("json: m: expected map<string,string>, found {")
    assert failed['{"s": NaN, "n": 1}'] == (
        "json: NaN and Infinity are not in JSON: make them null, or declare "
        "options={'allowNonNumericNumbers': 'true'}"
    )
    for line in (line for line in NO_JSON if line.startswith(('{"s": "x', r'{"s": "a\"'))):
        assert failed[line].startswith("json: expected one object")
    assert failed["{'n': 1}"] == (
        "json: single quotes are not in JSON: use double quotes, or declare "
        "options={'allowSingleQuotes': 'true'}"
    )


def test_numbers_of_json_that_options_allow(runner, tmp_path, sink_rows):
    """With options, NaN is a double and the text NaN, and leading zeros and single quotes leave
    texts as they are written."""
    allowed = ("allowNonNumericNumbers", "allowSingleQuotes", "allowNumericLeadingZeros")
    lines = [
        '{"l": [NaN, -Infinity, +INF], "s": NaN, "f": NaN, "o": {"p": NaN}}',
        "{'l': ['a: 1.10', 1.10], 's': 007, 'f': 1, 'o': 'it is \": [1.10'}",
    ]
    write(tmp_path, "a.jsonl", "\n".join(lines).encode())
    options = dict.fromkeys(allowed, "true")
    schema = "l ARRAY<STRING>, s STRING, f DOUBLE, o STRING"
    run = runner(copying(schema=schema, format="json", options=options))
    arrived, failed = parsed(run, ("s", "l", "o", "f"), sink_rows)
    assert failed == {}
    assert sorted(row[:3] for row in arrived) == [
        ("007", ["a: 1.10", "1.10"], 'it is ": [1.10'),
        ("NaN", ["NaN", "-Infinity", "+INF"], '{"p":NaN}'),
    ]
    assert [row[3] for row in arrived if row[3] == row[3]] == [1.0]


def test_the_column_of_a_misfit_within_it_is_named(runner, tmp_path, sink_rows):
    """Where a part of a column does not fit, the reason names the column and what was found in
    it.
    """
    bad = ['{"n": 1, "s": {"a": "x"}}', '{"n": 1, "l": [1, "y"]}', '{"m": {"k": 1.5}}']
    write(tmp_path, "a.jsonl", "\n".join(bad).encode())
    schema = "n INT, s STRUCT<a: INT>, l ARRAY<INT>, m MAP<STRING, INT>"
    run = runner(copying(schema=schema, format="json"))
    _, failed = parsed(run, ("n",), sink_rows)
    assert [failed[line] for line in bad] == [
        'json: s: expected struct<a:int>, found {"a":"x"}',
        'json: l: expected array<int>, found [1,"y"]',
        'json: m: expected map<string,int>, found {"k":1.5}',
    ]


def test_a_replay_reads_kept_texts_as_its_reader_would(runner, tmp_path, sink_rows):
    """A kept text becomes a value of another type where a field of CSV would, with the formats
    of the source.
    """
    data = (
        b"a,b,c\n007,TRUE,05.01.2024\n"
        b" 7,true,05.01.2024\n7,t,05.01.2024\n7,true,2024-01-05\n7.5,,\n"
    )
    write(tmp_path, "a.csv", data)
    options = {"dateFormat": "dd.MM.yyyy"}
    run = runner(failing_copy("a STRING, b STRING, c STRING", fail=True, options=options))
    batch = run.open()
    assert run.settled(batch).failed == 5
    typed = runner(failing_copy("a BIGINT, b BOOLEAN, c DATE", fail=False, options=options))
    replay = typed.open_replay(batch.batch_id)
    assert typed.settled(replay).failed == 4
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}") == [(7, True, date(2024, 1, 5))]


def test_parquet_columns_that_no_schema_reads(runner, tmp_path, sink_rows):
    """A column that the schema does not have is not read, so it may be one that Spark could not."""
    (tmp_path / "in").mkdir()
    at = pa.array([1], pa.timestamp("ns", "UTC"))
    table = pa.table({"n": pa.array([1], pa.int32()), "at": at, "x": ["x"]})
    codecs = {"n": "snappy", "at": "snappy", "x": "brotli"}
    pq.write_table(table, tmp_path / "in" / "a.parquet", compression=codecs)
    run = runner(copying(format="parquet", schema="n INT"))
    arrived, failed = parsed(run, ("n",), sink_rows)
    assert (arrived, failed) == ([(1,)], {})
