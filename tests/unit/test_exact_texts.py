"""Texts that a reader of Spark, Java or Arrow would take for a value that they do not write."""

import json
from datetime import datetime

import pytest
from pyspark.sql import types as T

from ledger.core.column_names import ERROR
from ledger.errors import shown
from ledger.sources.files.format import Format
from ledger.sources.parsing.csv_text import STRAY
from ledger.sources.parsing.exact import Parser
from ledger.sources.parsing.scalars import FORMATS, value_of

TERMINATORS = ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"]
DATES = {
    "dateFormat": "d MMM yyyy",
    "timestampFormat": "d MMM yyyy HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "d MMM yyyy hh:mm a",
}
VALUES = {
    "BOOLEAN": "false", "TINYINT": "5", "SMALLINT": "5", "INT": "5", "BIGINT": "5",
    "FLOAT": "1.5", "DOUBLE": "1.5", "DECIMAL(5,2)": "1.5", "DATE": "2024-09-05",
    "TIMESTAMP": "2024-09-05T10:00:00Z", "TIMESTAMP_NTZ": "2024-09-05 10:00",
    "TIME": "12:00:01", "INTERVAL DAY TO SECOND": "1 02:03:04", "INTERVAL HOUR": "7",
}  # fmt: skip
TYPES = {
    "BOOLEAN": T.BooleanType(),
    "TINYINT": T.ByteType(),
    "SMALLINT": T.ShortType(),
    "INT": T.IntegerType(),
    "BIGINT": T.LongType(),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "DECIMAL(5,2)": T.DecimalType(5, 2),
    "DATE": T.DateType(),
    "TIMESTAMP": T.TimestampType(),
    "TIMESTAMP_NTZ": T.TimestampNTZType(),
    "INTERVAL DAY TO SECOND": T.DayTimeIntervalType(0, 3),
    "INTERVAL HOUR": T.DayTimeIntervalType(1, 1),
    "STRING": T.StringType(),
    "VARCHAR(3)": T.VarcharType(3),
}
if hasattr(T, "TimeType"):
    TYPES["TIME"] = T.TimeType()
else:  # before Spark 4.1
    del VALUES["TIME"]
FORMATTED = {
    "DATE": "5 Sep 2024",
    "TIMESTAMP": "5 Sep 2024 10:00:00.1Z",
    "TIMESTAMP_NTZ": "5 Sep 2024 10:00 am",
}
# Of JSON, whose numbers and truth values are no texts.
LITERAL = {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"}


def columns(**kinds):
    return T.StructType([T.StructField(name, TYPES[kind]) for name, kind in kinds.items()])


def rows_of(format, schema, records, options=None):
    """The rows of records, as the exact reader makes them."""
    form = Format(format, schema, schema.names, None, options or {}, multiline=True)
    return Parser(form).parse([record.encode() for record in records]).to_pylist()


def parsed(format, kinds, texts, options=None):
    """Whether each of ``texts``, (type, text), was parsed, in a column of its type."""
    schema = columns(**{f"c{number}": kind for number, kind in enumerate(kinds)})
    records = []
    for kind, text in texts:
        place = list(kinds).index(kind)
        if format == "json":
            records.append(json.dumps({f"c{place}": text}))
        else:
            fields = ["" for _ in kinds]
            fields[place] = f'"{text}"'
            records.append(",".join(fields))
    rows = rows_of(format, schema, records, options)
    return [row[ERROR] is None and any(row[n] is not None for n in schema.names) for row in rows]


@pytest.mark.parametrize("options", [{}, DATES], ids=["usual", "formatted"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_line_break_is_part_of_no_value(format, options):
    """A text with any of the six line terminators, or a blank, at an end of it is no value of any
    type but of texts; without it, it is one."""
    samples = FORMATTED if options else VALUES
    kinds = [kind for kind in samples if format == "csv" or kind not in LITERAL]
    good = [(kind, samples[kind]) for kind in kinds]
    assert parsed(format, kinds, good, options) == [True] * len(good)
    bad = [
        (kind, text)
        for kind, value in good
        for end in (*TERMINATORS, " ", "\t")
        for text in (value + end, end + value)
    ]
    results = dict(zip(bad, parsed(format, kinds, bad, options), strict=True))
    assert [text for text, is_parsed in results.items() if is_parsed] == []


@pytest.mark.parametrize("format", ["csv", "json"])
def test_texts_keep_their_line_breaks(format):
    """A text with a line terminator at its end is read with it."""
    schema = columns(s="STRING", v="VARCHAR(3)")
    texts = ["a" + end for end in TERMINATORS]
    records = [
        json.dumps({"s": text, "v": text}) if format == "json" else f'"{text}","{text}"'
        for text in texts
    ]
    rows = rows_of(format, schema, records)
    assert [(row[ERROR], row["s"], row["v"]) for row in rows] == [(None, t, t) for t in texts]


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_a_character_behind_a_quote(end):
    """A line terminator of Unicode behind the quote that closes a value fails the record of CSV,
    which would otherwise have its quotes in the value."""
    (row,) = rows_of("csv", columns(a="STRING", b="STRING"), [f'a,"x"{end}'])
    assert row[ERROR] == f"malformed csv: {STRAY}"


@pytest.mark.parametrize("format", ["csv", "json"])
def test_other_scripts_and_cases_are_no_values(format):
    """Digits of other scripts, and letters that are others only when case does not count, make no
    value of any type."""
    bad = [
        ("BOOLEAN", "fal\u017fe"),
        *((kind, digit) for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE")
          for digit in ("\u0665", "\uff15", "-\u0665")),
        ("DECIMAL(5,2)", "\u0661.5"), ("DATE", "202\u0664-09-05"),
        ("TIMESTAMP", "2024-09-05T10:00:0\u0660Z"), ("TIMESTAMP_NTZ", "2024-09-05 1\u0660:00"),
        *(("TIME", "12:00:0\u0661") for _ in range("TIME" in VALUES)),
        ("INTERVAL DAY TO SECOND", "\u0661 02:03:04"),
        ("INTERVAL HOUR", "\u0667"),
    ]  # fmt: skip
    assert parsed(format, list(VALUES), bad) == [False] * len(bad)
    named = [("DATE", "5 \u017fep 2024"), ("DATE", "\u0665 Sep 2024")]
    assert parsed(format, ["DATE"], [*named, ("DATE", "5 SEP 2024")], DATES) == [
        False, False, True,
    ]  # fmt: skip


def test_other_scripts_are_texts():
    """A record of CSV with such digits and letters in a text, or in one of several values, is read
    or fails by the value that is none."""
    schema = columns(n="INT", s="STRING", b="BOOLEAN")
    records = ["5,\u0665\u017f,true", "+5,\u0665,", ",\u0665,", "5,\u0665,fal\u017fe", "\u0665,x,"]
    rows = rows_of("csv", schema, records)
    assert [(row[ERROR] and shown(row[ERROR]), row["n"], row["s"], row["b"]) for row in rows] == [
        (None, 5, "\u0665\u017f", True),
        (None, 5, "\u0665", None),
        (None, None, "\u0665", None),
        ("malformed csv: b: expected boolean, found fal\u017fe", None, None, None),
        ("malformed csv: n: expected int, found \u0665", None, None, None),
    ]


def test_formatted_texts_are_exact():
    """An offset moves an instant to UTC; more digits than six, a time that there is not, and a
    part that contradicts another make no value."""
    day, at = "yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss.SSSSSSXXX"
    half, either = "yyyy-MM-dd hh:mm a", "[yyyy-MM-dd[ HH:mm]][dd.MM.yyyy]"
    cases = [
        (T.TimestampType(), at, "2024-01-05 00:30:00.0+02:00", datetime(2024, 1, 4, 22, 30)),
        (T.TimestampType(), at, "2024-01-05 00:30:00.123456789Z", None),
        (T.TimestampType(), at, "2024-01-05 24:00:00.0Z", None),
        (T.DateType(), day, "2024-02-30", None),
        (T.DateType(), day, "2024-1-5", None),
        (T.DateType(), "yyyy-MM-DD", "2024-03-05", None),
        (T.TimestampNTZType(), half, "2024-01-05 12:20 AM", datetime(2024, 1, 5, 0, 20)),
        (T.TimestampNTZType(), half, "2024-01-05 13:20 PM", None),
        (T.TimestampNTZType(), half.replace("hh", "HH"), "2024-01-05 01:20 PM", None),
        (T.TimestampNTZType(), either, "2024-01-05 13:20", datetime(2024, 1, 5, 13, 20)),
        (T.TimestampNTZType(), either, "05.01.2024", datetime(2024, 1, 5)),
        (T.TimestampNTZType(), either, "", None),
        (T.TimestampNTZType(), "[yyyy\u5e74MM\u6708dd\u65e5][yyyyMMdd]", "", None),
        (T.DateType(), "[yyyyMMdd][yyyy-MM-dd]", "2024-01-05", datetime(2024, 1, 5)),
        (T.TimestampType(), "yyyyMMdd HHmmssSSS", "20240105 1234567",
         datetime(2024, 1, 5, 12, 34, 56, 700_000)),
    ]  # fmt: skip
    for kind, pattern, text, expected in cases:
        value = value_of(kind, dict.fromkeys(FORMATS.values(), pattern))(text)
        if isinstance(kind, T.TimestampType) and value is not None:
            value = value.replace(tzinfo=None)
        if isinstance(kind, T.DateType) and value is not None:
            value = datetime(value.year, value.month, value.day)
        assert value == expected, (pattern, text)
