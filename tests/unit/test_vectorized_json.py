"""Which JSON is read by columns, and how much of it goes to the exact reader."""

import json
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from ledger.sources.files.format import Format
from ledger.sources.vectorized.json_lines import read, reads
from ledger.sources.vectorized.lines import Lines

TYPES = {
    "s": T.StringType(),
    "n": T.LongType(),
    "d": T.DoubleType(),
    "b": T.BooleanType(),
    "day": T.DateType(),
    "at": T.TimestampType(),
    "local": T.TimestampNTZType(),
}


def form(kinds, required=(), names=None, **options):
    """A form of JSON with these columns."""
    fields = [T.StructField(name, kind, name not in required) for name, kind in kinds.items()]
    schema = T.StructType(fields)
    return Format("json", schema, names or schema.names, None, options)


def cut(texts, end=b"\n", last=None):
    """Records one after the other, each with a line break, the last with another."""
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum([0, *(lengths + len(end))])[:-1].astype(np.int64)
    data = end.join(texts) + (end if last is None else last)
    return Lines(data, starts, starts + lengths)


def objects(count, **more):
    """Ordinary records with all of the types."""
    return [
        json.dumps(
            {
                "s": f'text {number} \u00e4 \\ "',
                "n": number,
                "d": number / 7,
                "b": number % 2 == 0,
                "day": f"2024-02-{1 + number % 29:02}",
                "at": f"2024-02-29T10:11:12.{number:06}Z",
                "local": f"2024-02-29 10:11:{number % 60:02}",
                **more,
            },
            ensure_ascii=number % 2 == 0,
        ).encode()
        for number in range(count)
    ]


def unread(texts, a_form, **how):
    """The numbers of the records that go to the exact reader."""
    return np.flatnonzero(~read(cut(texts, **how), a_form).was_read).tolist()


@pytest.mark.parametrize(
    "more", [{}, {"more": {"a": [1, {"b": None}]}}, {"s": None}, {"note": "Info, NaN"}]
)
@pytest.mark.parametrize("last", [b"\n", b""])
def test_ordinary_records_are_all_read(more, last):
    """With fields that are no columns, with nulls, without a line break at the end."""
    texts = objects(3000, **more)
    assert unread(texts, form(TYPES), last=last) == []
    assert unread(texts, form(TYPES), end=b"\r\n \t\n") == []


def test_values_are_of_the_types_that_spark_expects():
    """Each column has its own type and name, in the schema's order."""
    text = (
        b'{"at":"2024-01-31T10:11:12+02:00","local":"2024-01-31T10:11:12.5","day":"2024-02-29",'
        b'"b":true,"d":1.5,"n":-7,"s":"\\u00e4\\n"}'
    )
    columns = read(cut([text, b'{"n":1}']), form(TYPES)).columns
    assert columns.schema.names == list(TYPES)
    assert columns.schema.types == [
        pa.string(),
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
    ]
    first, second = columns.to_pylist()
    assert first == {
        "s": "\u00e4\n",
        "n": -7,
        "d": 1.5,
        "b": True,
        "day": date(2024, 2, 29),
        "at": datetime(2024, 1, 31, 8, 11, 12, tzinfo=UTC),
        "local": datetime(2024, 1, 31, 10, 11, 12, 500_000),
    }
    assert second == dict.fromkeys(TYPES) | {"n": 1}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}{}",
        b"null",
        b'{"n":1} ',
        b' {"n":1}',
        b'{"n":"1"}',
        b'{"n":1,"n":2}',
        b'{"n":1,}',
        b'{"n":1,"z":NaN}',
        b'{"n":1,"z":[-Infinity ]}',
        b'{"n":1,"z":"\xff"}',
        b'{"n":1,"z":' + b"[" * 1200 + b"]" * 1200 + b"}",
        b'{"d":NaN}',
        b'{"d":' + b"9" * 400 + b"}",
        b'{"day":"2023-02-29"}',
        b'{"at":"2024-01-01T10:11Z"}',
        b'{"local":"2024-01-01T10:11:12Z"}',
        b'{"N":1}',
        b'{" n":1}',
        b'{"\\u004E":1}',
        b'{"n\xc2\xa0":1}',
    ],
)
def test_a_doubtful_record_is_left_alone(bad):
    """What the exact reader refuses, or may read otherwise, is not read; what stands around it
    is."""
    texts = objects(600)
    texts[400:400] = [bad]
    result = read(cut(texts), form(TYPES))
    assert np.flatnonzero(~result.was_read).tolist() == [400]
    assert result.columns.slice(400, 1).to_pylist() == [dict.fromkeys(TYPES)]
    assert unread([bad], form(TYPES)) == [0]


@pytest.mark.parametrize("bad", [b'{"n":1.5}', b'{"n":9223372036854775808}', b'{"n":1} {"n":2}'])
def test_of_a_fault_without_a_place_few_records_go_to_the_exact_reader(bad):
    """Where Arrow does not say in which record a fault is, those near it go to the exact reader,
    too.
    """
    texts = objects(5000)
    texts[400:400] = [bad]
    numbers = unread(texts, form(TYPES))
    assert 400 in numbers
    assert len(numbers) <= 64


def test_bad_records_cost_no_more_than_they_save():
    """Of records of which one in a hundred is bad the others are read, and next to none where all
    are bad in turn."""
    texts = objects(5000)
    texts[::100] = [b'{"n":}'] * 50
    assert unread(texts, form(TYPES)) == list(range(0, 5000, 100))
    texts[::2] = [b'{"n":}'] * 2500
    assert len(unread(texts, form(TYPES))) > 4900


def test_a_bad_beginning_spoils_no_later_part():
    """Where it does not pay to try records, those of the next megabyte are tried all the same."""
    texts = [b'{"n":' + b" " * 40_000 + b"}"] * 30 + objects(500)
    assert unread(texts, form(TYPES)) == list(range(30))


def test_null_in_a_required_column_goes_to_the_exact_reader():
    """It fails such a record."""
    texts = [b'{"s":"x","n":1}', b'{"n":1}', b'{"s":null,"n":1}', b'{"s":""}']
    assert unread(texts, form(TYPES, required=["s"])) == [1, 2]


def test_a_key_that_is_nearly_a_column_goes_to_the_exact_reader():
    """If the column lacks; not if it is there, nor if the same stands in a value."""
    kinds = {"name": T.StringType(), "a b": T.StringType()}
    texts = [
        b'{"name":"x","NAME":"y","a b":"z"}',
        b'{"Name":"x","a b":"y"}',
        b'{"na me":"x"}',
        b'{"ab":"y","name":"x"}',
        b'{"more":"\xc3\xa4","a b":"x"}',
        b'{"more":"name"}',
        b'{"\xc3\xa4":1}',
    ]
    assert unread(texts, form(kinds)) == [1, 2, 3, 6]


@pytest.mark.parametrize("name", ['q"', "\u00e4", ":", "a,b", "", " ", "a\\"])
def test_names_of_which_nearly_the_same_is_not_looked_for(name):
    """A record that lacks one, and has a key that is no column, goes to the exact reader."""
    key = json.dumps(name).encode()
    kinds = {name: T.StringType(), "n": T.LongType()}
    texts = [
        b"{" + key + b':"x","n":1}',
        b'{"n":1}',
        b'{"n":1,"z":1}',
        b"{" + key + b':"x","n":1,"z":1}',
    ]
    assert unread(texts[:2], form(kinds)) == []
    assert unread(texts, form(kinds)) == [1, 2]


def test_nothing_is_read_of_nothing():
    """No records are no rows, of the schema's types."""
    result = read(cut([]), form(TYPES))
    assert (result.columns.num_rows, len(result.was_read)) == (0, 0)
    assert result.columns.schema.names == list(TYPES)


def test_which_forms_are_read():
    """Those of plain types, without options that change what is JSON or how times are written."""
    assert reads(form(TYPES))
    assert reads(form({"s": T.StringType()}, dateFormat="dd.MM.yyyy"))
    assert not reads(form(TYPES, dateFormat="dd.MM.yyyy"))
    assert not reads(form({"s": T.StringType()}, allowSingleQuotes="true"))
    assert not reads(form(TYPES, names=["s"]))
    assert not reads(form({}))
    for kind in (T.FloatType(), T.BinaryType(), T.VarcharType(3), T.StringType("UNICODE_CI")):
        assert not reads(form({"s": kind}))
    csv = Format("csv", T.StructType([T.StructField("s", T.StringType())]), ["s"], None, {})
    assert not reads(csv)
