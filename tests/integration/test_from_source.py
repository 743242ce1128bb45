"""Failed records with what they held: from real files of every format, and read again once these
are fixed."""

import json
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.outcome.report import advise
from ledger.errors import InputError
from ledger.sources.files import layouts
from ledger.spark.origins.choice import FOUND_TWICE, NO_KEY, NOT_FOUND, SHARED_KEY
from tests.support.reasons import bare, named

HEADER = "order_id,amount,city\n"
FIRST = "O1,5,Bern\nO2,x,Bern\n\nO3,7,Atlantis\nO4,y,Bern\nO5,z,Bern\nO6,q,Atlantis\nO7,w,Bern\n"
FIXED = "O1,5,Bern\nO2,6,Bern\n\nO3,7,Atlantis\nO5,1,Bern\nO5,2,Bern\nO6,9,Atlantis\nO7,w,Bern\n"


def orders(**source: object) -> Pipeline:
    """Orders that are lost where their city is unknown."""
    pipeline = Pipeline("orders", max_replays=3)
    schema = "order_id STRING, amount INT, city STRING"
    pipeline.source("orders", FileSource("orders/*.csv", schema=schema), **source)
    pipeline.reference("cities", FileSource("cities.csv", schema="city STRING"))

    @pipeline.stage(reads="orders")
    def with_city(orders: DataFrame, *, cities: DataFrame) -> DataFrame:
        return orders.join(cities, "city", "inner")

    pipeline.sink("out", ParquetSink("out"), reads="with_city")
    return pipeline


def write(tmp_path, text):
    (tmp_path / "orders").mkdir(exist_ok=True)
    (tmp_path / "orders" / "a.csv").write_text(HEADER + text)
    (tmp_path / "cities.csv").write_text("city\nBern\n")


def of(ledger):
    """By key: each failed record's explanation."""
    rows = ledger.rows("SELECT message_id FROM failed_message")
    explanations = [ledger.explain(row.message_id) for row in rows]
    return {explained.key["order_id"]: explained for explained in explanations}


def test_a_fixed_file_is_read_again_by_key(runner, tmp_path, sink_rows):
    """replay --from-source takes each failed record as its file has it now; one gone, twice or
    still broken says so, and the next replay takes what this one read."""
    write(tmp_path, FIRST)
    run = runner(orders(key=("order_id",)))
    no_city = named(run.job.spark, "inner join: no partner for city")
    ledger, batch = run.ledger, run.open()
    run.settled(batch)
    before = of(ledger)
    lines = {key: (explained.last_seen, explained.source_line) for key, explained in before.items()}
    assert lines == {
        "O2": ("orders", 3),
        "O3": ("orders", 5),
        "O4": ("orders", 6),
        "O5": ("orders", 7),
        "O6": ("orders", 8),
        "O7": ("orders", 9),
    }
    assert before["O2"].content == "O2,x,Bern"
    assert json.loads(before["O3"].content) == {"order_id": "O3", "amount": 7, "city": "Atlantis"}
    assert before["O3"].source_file == str(tmp_path / "orders" / "a.csv")
    root = before["O2"].root
    command = (
        f"ackledger replay MODULE:PIPELINE --batch {batch.batch_id} --record {root} --from-source"
    )
    assert before["O2"].next[1] == command
    advice = str(advise(ledger.summary(batch.batch_id)))
    assert f"--batch {batch.batch_id} --step orders --from-source" in advice

    write(tmp_path, FIXED)
    run.settled(run.open_replay(batch.batch_id, from_source=True))
    after = of(ledger)
    last = {key: explained.attempts[-1]["reason"] for key, explained in after.items()}
    why = {
        key: (explained.verdict, last[key] and bare(last[key])) for key, explained in after.items()
    }
    assert why == {
        "O2": ("recovered", None),
        "O3": ("failed", no_city),
        "O4": ("failed", NOT_FOUND),
        "O5": ("failed", FOUND_TWICE),
        "O6": ("failed", no_city),
        "O7": ("failed", NOT_FOUND),
    }
    assert json.loads(after["O6"].content) == {"order_id": "O6", "amount": 9, "city": "Atlantis"}
    assert after["O7"].content == "O7,w,Bern"
    assert sink_rows("out", "order_id", "amount") == [("O1", 5), ("O2", 6)]

    (tmp_path / "cities.csv").write_text("city\nBern\nAtlantis\n")
    run.settled(run.open_replay(batch.batch_id, "next"))
    rows = [("O1", 5), ("O2", 6), ("O3", 7), ("O6", 9)]
    assert sink_rows("out", "order_id", "amount") == rows
    contents = {key: explained.content for key, explained in of(ledger).items()}
    assert contents == {key: explained.content for key, explained in after.items()}


def test_without_a_key_a_source_is_not_read_again(runner, tmp_path):
    """Without key columns, or with ones that the schema lacks, one line says what to declare;
    nothing is claimed."""
    write(tmp_path, FIRST)
    run = runner(orders())
    batch = run.open()
    run.settled(batch)
    with pytest.raises(
        InputError, match=r"has no key: declare it with key=\(\.\.\.\).* --reprocess"
    ):
        run.open_replay(batch.batch_id, from_source=True)
    rows = run.ledger.explain(
        run.ledger.rows("SELECT root_id FROM failed_root WHERE step = 'orders'")[0].root_id,
    )
    assert rows.key is None
    assert (
        rows.next[1] == "ackledger run MODULE:PIPELINE --from 2013-01-01 --to 2013-02-01"
        " --reprocess"
    )
    run = runner(orders(key="orderid"))
    with pytest.raises(
        InputError, match=r"no column 'orderid', which is to be its key; did you mean 'order_id'\?"
    ):
        run.step(
            run.open("other", batch.interval_end, batch.interval_end.replace(year=2014)), "orders"
        )


def test_content_of_parquet_and_json(runner, tmp_path):
    """Values of every kind are kept as JSON, with file and place, whether the record was read from
    Parquet or JSON."""
    pipeline = Pipeline("kinds")
    schema = (
        "id INT, price DECIMAL(10, 2), share DOUBLE, seen TIMESTAMP, day DATE, tags ARRAY<STRING>"
    )
    for name in ("parquet", "json"):
        pipeline.source(name, FileSource(f"in/*.{name}", format=name, schema=schema), key="id")

        def none(frame: DataFrame) -> DataFrame:
            return frame.where("id > 1")

        none.__name__ = f"no_{name}"
        pipeline.stage(reads=name, filters="lost")(none)
        pipeline.sink(f"out_{name}", ParquetSink(f"out_{name}"), reads=f"no_{name}")
    (tmp_path / "in").mkdir()
    instant = pa.array([1_356_998_400_500_000] * 2, pa.timestamp("us", "UTC"))
    columns = {
        "id": pa.array([2, 1], pa.int32()),
        "price": pa.array([Decimal("1.50")] * 2, pa.decimal128(10, 2)),
        "share": pa.array([1.0, float("nan")]),
        "seen": instant,
        "day": pa.array([15706] * 2, pa.date32()),
        "tags": pa.array([["a"], ["b", None]]),
    }
    pq.write_table(pa.table(columns), tmp_path / "in" / "a.parquet")
    line = {
        "id": 1,
        "price": 1.5,
        "share": 0.25,
        "seen": "2013-01-01T00:00:00.5Z",
        "day": "2013-01-01",
        "tags": ["b", None],
    }
    (tmp_path / "in" / "a.json").write_text(
        '{"id": 2}\n' + json.dumps(line) + '\n{"id": 9, "price": "x"}\n'
    )
    run = runner(pipeline)
    run.settled(run.open())
    explanations = [
        run.ledger.explain(row.root_id)
        for row in run.ledger.rows("SELECT root_id FROM failed_root ORDER BY 1")
    ]
    by_source = {(explained.source, explained.key["id"]): explained for explained in explanations}
    content = {
        "id": 1,
        "price": "1.50",
        "seen": "2013-01-01 00:00:00.5",
        "day": "2013-01-01",
        "tags": ["b", None],
    }
    assert json.loads(by_source["parquet", 1].content) == {**content, "share": "nan"}
    assert json.loads(by_source["json", 1].content) == {**content, "share": 0.25}
    assert by_source["json", "9"].content == '{"id": 9, "price": "x"}'
    places = {
        explained.source: (explained.source_file, explained.source_row, explained.source_line)
        for explained in explanations
        if explained.key["id"] == 1
    }
    assert places == {
        "parquet": (str(tmp_path / "in" / "a.parquet"), 2, None),
        "json": (str(tmp_path / "in" / "a.json"), 2, 2),
    }


TYPED = "n INT, price DECIMAL(10, 2), day DATE, seen TIMESTAMP, v INT"


def test_keys_are_compared_as_values(runner, tmp_path, sink_rows):
    """A key is found however it is written, in the record that failed and in the one that took
    its place; a text that is no value of its type is no key. Two texts of one value are one key,
    which no record is found by, whether the other was replayed, quarantined or acked.
    """
    pipeline = Pipeline("typed", max_replays=3)
    options = {"dateFormat": "dd/MM/yyyy"}
    source = FileSource("in.csv", schema=TYPED, options=options)
    pipeline.source("typed", source, key=("n", "price", "day", "seen"))

    @pipeline.stage(reads="typed", filters="lost")
    def positive(typed: DataFrame) -> DataFrame:
        return typed.where("v > 0")

    pipeline.sink("out", ParquetSink("out"), reads="positive")
    first = [
        "007,1.5,05/01/2024,2024-01-05T10:00:00Z,x",
        "8,2.50,06/01/2024,2024-01-06 10:00:00.5,0",  # lost at the stage: its key is that of values
        "nine,1.5,05/01/2024,2024-01-05T10:00:00Z,1",
        "10,1,05/01/2024,2024-01-05,x",
        "010,1.0,05/01/2024,2024-01-05T00:00:00,x",
        "11,1,05/01/2024,2024-01-05,x",
        "011,1.0,05/01/2024,2024-01-05,x",
        "12,1,05/01/2024,2024-01-05,x",
        "012,1.0,05/01/2024,2024-01-05T00:00:00,4",  # acked
    ]
    fixed = [
        "7,1.50,05/01/2024,2024-01-05 10:00:00,1",
        "08,2.5,06/01/2024,2024-01-06T11:00:00.5+01:00,2",
        "9,1.5,05/01/2024,2024-01-05T10:00:00Z,1",
        "10,1,05/01/2024,2024-01-05,1",
        "11,1,05/01/2024,2024-01-05,1",
        "12,1,05/01/2024,2024-01-05,4",
    ]
    head = "n,price,day,seen,v\n"
    (tmp_path / "in.csv").write_text(head + "\n".join(first) + "\n")
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == 8
    rows = run.ledger.rows("SELECT message_id FROM failed_message ORDER BY 1")
    run.ledger.quarantine("a copy", record=rows[6].message_id)
    (tmp_path / "in.csv").write_text(head + "\n".join(fixed) + "\n")
    run.settled(run.open_replay(batch.batch_id, from_source=True))
    assert sink_rows("out", "n", "v") == [(12, 4), (7, 1), (8, 2)]
    explanations = [run.ledger.explain(row.message_id) for row in rows]
    assert [explained.attempts[-1]["reason"] for explained in explanations] == [
        None,
        None,
        NO_KEY,
        SHARED_KEY,
        SHARED_KEY,
        SHARED_KEY,
        "malformed csv: v: expected int, found x",
        SHARED_KEY,
    ]


@pytest.mark.parametrize(
    ("options", "first", "fixed", "rows"),
    [
        (
            {"options": {"quote": ""}},
            '"abc",x\n8,2\n',
            '"abc",5\nabc,1\n8,2\n',
            [('"abc"', 5), ("8", 2)],
        ),
        (
            {"options": {"escape": "\\"}, "null_value": "NA", "header": "by_name"},
            '"a\\"b",x\nNA,x\n9,y\n',
            '"a\\"b",5\n"a\\\\""b",1\nNA,7\n" 9",3\n',
            [('a"b', 5)],
        ),
    ],
)
def test_a_key_is_read_in_the_dialect_of_its_source(
    runner, tmp_path, sink_rows, options, first, fixed, rows
):
    """The key of a record that did not parse is cut out of its text as the reader cuts it, so the
    record is replaced by its own correction and by no other record."""
    pipeline = Pipeline("dialects")
    pipeline.source("orders", FileSource("in.csv", schema="id STRING, v INT", **options), key="id")
    pipeline.sink("out", ParquetSink("out"), reads="orders")
    (tmp_path / "in.csv").write_text("id,v\n" + first)
    run = runner(pipeline)
    batch = run.open()
    run.settled(batch)
    (tmp_path / "in.csv").write_text("id,v\n" + fixed)
    run.settled(run.open_replay(batch.batch_id, from_source=True))
    assert sink_rows("out", "id", "v") == rows


def test_keys_of_json_are_compared_as_values(runner, tmp_path, sink_rows):
    """The same of JSON: numbers and booleans are no texts."""
    pipeline = Pipeline("typed", max_replays=3)
    schema = "b BOOLEAN, price DECIMAL(10, 2), v INT"
    source = FileSource("in.json", format="json", schema=schema)
    pipeline.source("typed", source, key=("b", "price"))
    pipeline.sink("out", ParquetSink("out"), reads="typed")
    (tmp_path / "in.json").write_text('{"b": true, "price": 1.50, "v": "x"}\n')
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed == 1
    (tmp_path / "in.json").write_text('{"b": true, "price": 1.5, "v": 3}\n')
    assert run.settled(run.open_replay(batch.batch_id, from_source=True)).failed == 0
    assert sink_rows("out", "b", "v") == [(True, 3)]


def test_files_that_are_taken_once_are_not_read_again(runner, tmp_path):
    """An incremental source takes a file that was fixed as a new one: to read its records again
    as well would deliver them twice, so one line says what to do instead, and no advice names
    --from-source.
    """
    write(tmp_path, FIRST)
    pipeline = Pipeline("orders", max_replays=3)
    schema = "order_id STRING, amount INT, city STRING"
    source = FileSource("orders/*.csv", schema=schema, incremental=True)
    pipeline.source("orders", source, key="order_id")
    pipeline.sink("out", ParquetSink("out"), reads="orders")
    run = runner(pipeline)
    batch = run.open()
    assert run.settled(batch).failed > 0
    advice = str(advise(run.ledger.summary(batch.batch_id)))
    assert "--from-source" not in advice
    assert "deliver the records again, corrected" in advice
    with pytest.raises(
        InputError, match=r"a file that was fixed is a new one.*Deliver the records.*quarantine"
    ):
        run.open_replay(batch.batch_id, from_source=True)


def test_a_parquet_file_that_changes_while_it_is_read_again_is_named(
    runner, tmp_path, monkeypatch, sink_rows
):
    """One of the same size, time and number of records, in its place once its footer was read."""
    path = tmp_path / "a.parquet"

    def write_rows(second):
        pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["a", second]}), path)
        os.utime(path, (1, 1))

    pipeline = Pipeline("parquet", max_replays=3)
    source = FileSource(str(path), schema="n INT, s STRING NOT NULL", format="parquet")
    pipeline.source("numbers", source, key="n")
    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    run, check = runner(pipeline), layouts.check_parquet
    write_rows(None)
    batch = run.open()
    assert run.settled(batch).failed == 1
    write_rows("b")
    replay = run.open_replay(batch.batch_id, from_source=True)

    def changing(*arguments, **options):
        footers = check(*arguments, **options)
        write_rows("c")
        return footers

    with monkeypatch.context() as patch:
        patch.setattr(layouts, "check_parquet", changing)
        with pytest.raises(InputError, match=r"a\.parquet had .* found another version"):
            run.step(replay, "numbers")
    run.settled(replay)
    assert sink_rows("out", "n", "s") == [(1, "a"), (2, "c")]


def test_a_source_without_failures_is_not_read_again(runner, tmp_path, sink_rows):
    """Of a source of which a replay takes nothing not even the file is looked for: it may be
    archived.
    """
    write(tmp_path, FIRST)
    pipeline = orders(key="order_id")
    pipeline.source("other", FileSource("other.csv", schema="n INT"), key="n")
    pipeline.sink("others", ParquetSink("others"), reads="other")
    (tmp_path / "other.csv").write_text("n\n1\n")
    run = runner(pipeline)
    batch = run.open()
    run.settled(batch)
    write(tmp_path, FIXED)
    (tmp_path / "other.csv").unlink()
    run.settled(run.open_replay(batch.batch_id, from_source=True))
    assert sink_rows("out", "order_id", "amount") == [("O1", 5), ("O2", 6)]
    assert sink_rows("others", "n") == [(1,)]


def accounts(redact: object) -> Pipeline:
    """Three sources: with an address as the key, beside the key, and without one."""
    pipeline = Pipeline("accounts", redact=redact, max_replays=3)
    email, number = "email STRING, n INT", "id STRING, n INT"
    pipeline.source("keyed", FileSource("keyed.csv", schema=email), key="email")
    pipeline.source("beside", FileSource("beside.csv", schema=f"{number}, email STRING"), key="id")
    pipeline.source("without", FileSource("without.csv", schema=number), key="id")
    for name in ("keyed", "beside", "without"):
        pipeline.sink(f"{name}_out", ParquetSink(name), reads=name)
    return pipeline


@pytest.mark.parametrize(("before", "after"), [(["email"], ()), ((), ["email"])])
def test_what_is_redacted_may_change_before_a_replay(runner, tmp_path, sink_rows, before, after):
    """Records are found again by their key, whatever was redacted when they failed or is by now;
    only a source that has the column has pseudonyms."""

    def write(n):
        (tmp_path / "keyed.csv").write_text(f"email,n\na@b.org,{n}\n")
        (tmp_path / "beside.csv").write_text(f"id,n,email\nB1,{n},a@b.org\n")
        (tmp_path / "without.csv").write_text(f"id,n\nW1,{n}\n")

    write("x")
    run = runner(accounts(before))
    batch = run.open()
    run.settled(batch)
    rows = run.ledger.rows(
        "SELECT m.source, f.key::text AS key, f.content, r.reason FROM failed_payload f"
        " JOIN failed_message m USING (message_id) JOIN failed_root r ON r.root_id = m.root_id",
    )
    contents = {row.source: (row.key, row.content, row.reason) for row in rows}
    open_reason = "malformed csv: n: expected int, found x"
    assert contents["without"] == ('{"id": "W1"}', "W1,x", open_reason)
    assert ("***" in contents["keyed"][0]) == ("***" in contents["beside"][0]) == bool(before)
    masked = open_reason.replace("found x", "found ***") if before else open_reason
    assert contents["keyed"][2] == contents["beside"][2] == masked
    write(7)
    again = runner(accounts(after))
    again.settled(again.open_replay(batch.batch_id, from_source=True))
    statuses = run.ledger.rows("SELECT DISTINCT status::text FROM failed_message")
    assert statuses == [("recovered",)]
    assert sink_rows("keyed", "email", "n") == [("a@b.org", 7)]
    assert sink_rows("without", "id", "n") == [("W1", 7)]
