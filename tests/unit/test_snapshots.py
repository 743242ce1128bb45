"""Content and keys of failed records, read from a snapshot."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.batch.records.snapshots import payloads
from ledger.core.declared_steps import DeclaredStep
from ledger.core.redaction import NOTHING, Redaction

NAMED, JSON, PARQUET = ({"format": name, "sep": ","} for name in ("csv", "json", "parquet"))
CSV, TABLE = NAMED | {"closed": True}, {}


def read(path, table, layout, redact=NOTHING):
    """What is kept of every row of a snapshot of one file."""
    pq.write_table(table, path)
    rows = list(range(1, len(table) + 1))
    emitted = SimpleNamespace(roots=rows, messages=rows, first_root=1)
    source = DeclaredStep("records", "source", key=("id",), layout=layout)
    file = SimpleNamespace(path=str(path), first_position=0, rows=len(table))
    return list(payloads(7, emitted, [file], source, redact))


def test_values_that_python_has_no_form_for(tmp_path):
    """A date of the year 10000, and a text that is not UTF-8, keep no content from being kept:
    also within lists and structs.
    """
    days = pa.array([2932897, 0], pa.date32())
    instants = pa.array([253402300800_500000, 0], pa.timestamp("us", "UTC"))
    raw = pa.array([b"\xff", b"a"], pa.binary())
    table = pa.table(
        {
            "id": days,
            "seen": instants,
            "days": pa.ListArray.from_arrays([0, 1, 2], days),
            "both": pa.StructArray.from_arrays([days, instants], ["day", "seen"]),
            "text": pa.Array.from_buffers(pa.string(), 2, raw.buffers()),
        }
    )
    first, second = read(tmp_path / "a.parquet", table, PARQUET)
    assert (first.key, second.key) == ('{"id": "10000-01-01"}', '{"id": "1970-01-01"}')
    assert json.loads(first.content) == {
        "id": "10000-01-01",
        "seen": "10000-01-01 00:00:00.500000",
        "days": ["10000-01-01"],
        "both": {"day": "10000-01-01", "seen": "10000-01-01 00:00:00.500000"},
        "text": "base64:/w==",
    }
    assert json.loads(second.content)["text"] == "a"


def unparsed(raw, **values):
    """A row that did not parse, whose columns hold these values."""
    own = {"id": None, "n": None, **values}
    fields = {name: pa.array([own[name]], pa.string()) for name in own}
    return pa.table(
        {
            **fields,
            "_ackledger_raw": pa.array([raw], pa.binary()),
            "_ackledger_error": ["wrong"],
            "_ackledger_file": ["/a"],
        }
    )


@pytest.mark.parametrize(
    ("layout", "raw", "values", "key"),
    [
        (CSV, b"O1,x", {}, "O1"),
        (CSV, b'"O1,x', {}, None),  # its end is not certain
        (CSV, b'O1,"x', {}, None),
        (CSV, b"O\xff,x", {}, None),
        (CSV, b'O1,"a"b,c', {}, "O1"),  # it ends before the quote that is wrong
        (CSV, b'a"b,c', {}, None),
        (CSV, b'"a""b",c', {}, 'a"b'),
        (CSV, b",x", {}, None),
        (CSV | {"quote": ""}, b'"O1",x', {}, '"O1"'),
        (CSV | {"quote": "'"}, b"'O,1',x", {}, "O,1"),
        (CSV | {"escape": "\\"}, rb'"a\"b\\",c', {}, 'a"b\\'),
        (CSV | {"escape": ""}, b'"a\\",c', {}, "a\\"),
        (CSV | {"null_value": "NA"}, b"NA,x", {}, None),
        (CSV | {"null_value": "NA"}, b'"",x', {}, ""),
        (CSV | {"emptyValue": "none"}, b'"",x', {}, "none"),
        (JSON, b'{"id": "O1", "n": []}', {}, "O1"),
        (JSON, b'{"id": 1.50}', {}, "1.50"),
        (JSON, b'{"id": 12345678901234567890123}', {}, "12345678901234567890123"),
        (JSON, b'{"id": true}', {}, "true"),
        (JSON, b'{"id": "\\ud800"}', {}, None),
        (JSON, b'{"id": ["a"]}', {}, None),
        (JSON, b'["O1"]', {}, None),
        (PARQUET, b'{"n":"5"}', {"n": "5"}, None),
        (PARQUET, b'{"id":"O1"}', {"id": "O1"}, "O1"),
        (TABLE, b'{"id":"O1"}', {"id": "O1"}, "O1"),
        (TABLE, b'{"id":"O1","n":"x"}', {}, "O1"),
    ],
)
def test_the_key_of_a_record_that_did_not_parse(tmp_path, layout, raw, values, key):
    """It is that of its columns where they hold it, else that of its text, whatever the source
    is; where it is not certain, it is null.
    """
    (record,) = read(tmp_path / "a.parquet", unparsed(raw, **values), layout)
    assert json.loads(record.key) == {"id": key}
    record.key.encode()  # the database takes it


def test_each_value_of_a_key_that_did_not_parse_is_redacted(tmp_path):
    """In a broken line a redacted value may stand in any column of the key."""
    redact = Redaction.of(["n"], b"secret")
    (row,) = read(tmp_path / "a.parquet", unparsed(b"ann@x.org,x,y"), CSV, redact)
    assert json.loads(row.key) == {"id": redact.pseudonym("id", "ann@x.org")}
    assert row.content == "***"


@pytest.mark.parametrize(
    ("layout", "raw", "names"),
    [
        (NAMED, b"7,ann@x.org,y", "id\x1femail\x1fn"),
        (JSON, b'{"id": "7", "email": "ann@x.org"}', None),
    ],
)
def test_raw_text_is_redacted_whatever_the_schema_has(tmp_path, layout, raw, names):
    """A file that is read by name, or of JSON, may have a redacted column that its schema lacks."""
    redact = Redaction.of(["email"], b"secret")
    table = unparsed(raw).append_column("_ackledger_names", pa.array([names], pa.string()))
    (row,) = read(tmp_path / "a.parquet", table, layout, redact)
    assert json.loads(row.key) == {"id": redact.pseudonym("id", "7")}
    assert row.content == "***"


def test_raw_text_of_a_source_without_the_column_is_readable(tmp_path):
    """Where the text has the schema's columns alone, and none is redacted, it is kept, and so is
    the key."""
    (row,) = read(tmp_path / "a.parquet", unparsed(b"7,x"), CSV, Redaction.of(["email"], b"s"))
    assert (json.loads(row.key), row.content) == ({"id": "7"}, "7,x")
