"""Texts that a reader of Spark, Java or Arrow would take for a value that they do not write."""

import json
import re
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ledger import FileSource
from ledger.core.column_names import ERROR, TEXT
from ledger.errors import DeclarationError
from ledger.sources.files import lines
from ledger.sources.files.reader import Reader
from ledger.sources.parsing import patterns, values
from ledger.sources.parsing.typed import aligned, struct
from ledger.spark.session import session_conf

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
    "TIME": "12:00:01", "INTERVAL DAY TO SECOND": "1 02:03:04", "INTERVAL YEAR TO MONTH": "1-2",
    "INTERVAL HOUR": "7",
}  # fmt: skip
FORMATTED = {
    "DATE": "5 Sep 2024",
    "TIMESTAMP": "5 Sep 2024 10:00:00.1Z",
    "TIMESTAMP_NTZ": "5 Sep 2024 10:00 am",
}
# Of JSON, whose numbers and truth values are no texts.
LITERAL = {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"}


@pytest.fixture
def timed(spark):
    """A session with TIME."""
    with session_conf(spark, {"spark.sql.timeType.enabled": "true"}):
        yield spark


def parsed(spark, format, kinds, texts, options=None):
    """Whether each of ``texts``, (type, text), was parsed, in a column of its type."""
    schema = struct(", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds)))
    records = []
    for kind, text in texts:
        place = list(kinds).index(kind)
        if format == "json":
            records.append(json.dumps({f"c{place}": text}))
        else:
            fields = ["" for _ in kinds]
            fields[place] = f'"{text}"'
            records.append(",".join(fields))
    form = lines.Format(format, schema, schema.names, None, options or {}, multiline=True)
    frame = spark.createDataFrame([(r,) for r in records], T.StructType().add(TEXT, "string"))
    some = values.any_of([F.col(name).isNotNull() for name in schema.names])
    rows = lines.parsed(frame, form).select(F.col(ERROR).isNull() & some).collect()
    return [row[0] for row in rows]


@pytest.mark.parametrize("options", [{}, DATES], ids=["usual", "formatted"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_line_break_is_part_of_no_value(timed, format, options):
    """A text with any of the six line terminators, or a blank, at an end of it is no value of any
    type but of texts; without it, it is one."""
    samples = FORMATTED if options else VALUES
    kinds = [kind for kind in samples if format == "csv" or kind not in LITERAL]
    good = [(kind, samples[kind]) for kind in kinds]
    assert parsed(timed, format, kinds, good, options) == [True] * len(good)
    bad = [
        (kind, text)
        for kind, value in good
        for end in (*TERMINATORS, " ", "\t")
        for text in (value + end, end + value)
    ]
    results = dict(zip(bad, parsed(timed, format, kinds, bad, options), strict=True))
    assert [text for text, is_parsed in results.items() if is_parsed] == []


@pytest.mark.parametrize("format", ["csv", "json"])
def test_texts_keep_their_line_breaks(spark, format):
    """A text with a line terminator at its end is read with it."""
    schema = struct("s STRING, v VARCHAR(3)")
    texts = ["a" + end for end in TERMINATORS]
    records = [
        json.dumps({"s": text, "v": text}) if format == "json" else f'"{text}","{text}"'
        for text in texts
    ]
    form = lines.Format(format, schema, schema.names, None, {}, multiline=True)
    frame = spark.createDataFrame([(r,) for r in records], T.StructType().add(TEXT, "string"))
    rows = lines.parsed(frame, form).collect()
    assert [(row[ERROR], row["s"], row["v"]) for row in rows] == [(None, t, t) for t in texts]


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_a_character_behind_a_quote(spark, end):
    """A line terminator of Unicode behind the quote that closes a value fails the record of CSV,
    which would otherwise have its quotes in the value."""
    schema = struct("a STRING, b STRING")
    form = lines.Format("csv", schema, schema.names, None, {})
    frame = spark.createDataFrame([(f'a,"x"{end}',)], T.StructType().add(TEXT, "string"))
    (row,) = lines.parsed(frame, form).collect()
    assert row[ERROR] == f"malformed csv: {lines.STRAY}"


@pytest.mark.parametrize("format", ["csv", "json"])
def test_other_scripts_and_cases_are_no_values(timed, format):
    """Digits of other scripts, and letters that are others only when case does not count, make no
    value of any type."""
    bad = [
        ("BOOLEAN", "fal\u017fe"),
        *((kind, digit) for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE")
          for digit in ("\u0665", "\uff15", "-\u0665")),
        ("DECIMAL(5,2)", "\u0661.5"), ("DATE", "202\u0664-09-05"),
        ("TIMESTAMP", "2024-09-05T10:00:0\u0660Z"), ("TIMESTAMP_NTZ", "2024-09-05 1\u0660:00"),
        ("TIME", "12:00:0\u0661"), ("INTERVAL DAY TO SECOND", "\u0661 02:03:04"),
        ("INTERVAL YEAR TO MONTH", "\u0661-2"), ("INTERVAL HOUR", "\u0667"),
    ]  # fmt: skip
    assert parsed(timed, format, list(VALUES), bad) == [False] * len(bad)
    named = [("DATE", "5 \u017fep 2024"), ("DATE", "\u0665 Sep 2024")]
    assert parsed(timed, format, ["DATE"], [*named, ("DATE", "5 SEP 2024")], DATES) == [
        False, False, True,
    ]  # fmt: skip


def test_other_scripts_are_texts(spark):
    """A record of CSV with such digits and letters in a text, or in one of several values, is read
    or fails by the value that is none."""
    schema = struct("n INT, s STRING, b BOOLEAN")
    form = lines.Format("csv", schema, schema.names, None, {})
    records = ["5,\u0665\u017f,true", "+5,\u0665,", ",\u0665,", "5,\u0665,fal\u017fe", "\u0665,x,"]
    frame = spark.createDataFrame([(r,) for r in records], T.StructType().add(TEXT, "string"))
    rows = [(row[ERROR], *row[:3]) for row in lines.parsed(frame, form).collect()]
    assert rows == [
        (None, 5, "\u0665\u017f", True),
        (None, 5, "\u0665", None),
        (None, None, "\u0665", None),
        ("malformed csv: b: expected boolean, found ", None, None, None),
        ("malformed csv: n: expected int, found ", None, None, None),
    ]


def accepted():
    """Patterns of timestamps that are accepted, with each run of each letter."""
    usual = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    letters = [chr(code) for code in range(ord("A"), ord("z") + 1) if chr(code).isalpha()]
    runs = [letter * count for letter in letters for count in range(1, 10)]
    parts = {"y": "yyyy", "M": "MM", "L": "MM", "d": "dd", "D": "MM-dd", "H": "HH", "k": "HH",
             "m": "mm", "s": "ss"}  # fmt: skip
    for run in runs:
        pattern = f"{run} {usual}"
        if run[0] in parts:
            pattern = usual.replace(parts[run[0]], run)
        elif run[0] in "hK":
            pattern = usual.replace("HH", run) + " a"
        elif run[0] in "aS":
            continue
        yield pattern
    yield from [
        "yyyy-MM-dd", "dd.MM.yyyy", "yyyyMMdd", "yyyy-MM-dd HH", "d MMM yyyy HH:mm",
        "dd/MM/yyyy h:mm a", "yyyyMMddHHmmss", "yyyyMMddHHmmssSSS", "yyyy-MM-dd'T'HH:mm:ss'Z'",
        "yyyy-MM-dd HH:mm:ssSSSSSS", "yyyyMMdd HHmmssSSSSSS", "yyyy-DDDHHmmssSSSSSS",
        "yyyy-MMM-ddHHmmssSSSSSS", "HHmmssSSSSSSddMMyyyy", "ddMMyyyyHHmmss", "yyyy-MM-dd Hmm",
        "yyyy-MM-dd HH:mm a", "yyyy-MM-dd kk:mm a", "yyyyMMdd HHmmss[SSSSSS]", "dMMMyyyy",
        "[yyyy-MM-dd HH:mm][dd.MM.yyyy]",
        "yyyy-MM-dd[ HH:mm[:ss[.SSSSSS]]][XXX]", "yyyy''MM'o''clock'dd", "MMM d, yyyy", "EEE",
    ]  # fmt: skip


PATTERNS = [p for p in accepted() if patterns.fault("timestampFormat", p) is None]
INSTANTS = [
    datetime(2024, 1, 5, 0, 20), datetime(2024, 9, 5, 12, 20, 7, 123456),
    datetime(1999, 12, 31, 23, 59, 59, 999999), datetime(44, 3, 15, 1, 2, 3),
    datetime(9999, 12, 31, 13, 30, 30, 5), datetime(2024, 2, 29, 12), datetime(2024, 10, 27, 1, 30),
]  # fmt: skip

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def cut(instant, pattern):
    """An instant without what its pattern does not write."""
    letters = re.sub("'[^']*'", "", pattern)
    finest = next((letter for letter in "SsmHkhK" if letter in letters), "d")
    lost = {"S": 0, "s": 1, "m": 2, "d": 4}.get(finest, 3)
    return instant.replace(**dict.fromkeys(("microsecond", "second", "minute", "hour")[:lost], 0))


def test_accepted_patterns_are_exact(spark):
    """Each pattern that is accepted is one of Spark's, and reads what it writes: nothing is made
    up, moved or cut but what it does not write."""
    assert {"yyyy-MM-dd", "yyyy-D HH:mm:ss.SSSSSS"} < {*PATTERNS}
    assert len(PATTERNS) > 50
    frame = spark.createDataFrame([(t.replace(tzinfo=UTC),) for t in INSTANTS], "t TIMESTAMP")
    columns = [
        values.converted(
            F.date_format("t", pattern), T.TimestampType(), "csv", {"timestampFormat": pattern}
        ).cast("TIMESTAMP_NTZ").alias(f"c{number}")
        for number, pattern in enumerate(PATTERNS)
    ]  # fmt: skip
    with session_conf(spark, INTERPRETED):  # so many columns take longer to compile than to read
        rows = frame.select("*", *columns).collect()
    wrong = [
        (pattern, instant, row[f"c{number}"])
        for instant, row in zip(INSTANTS, rows, strict=True)
        for number, pattern in enumerate(PATTERNS)
        if row[f"c{number}"] != cut(instant, pattern)
    ]
    assert wrong == []


def test_formatted_texts_are_exact(spark):
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
    columns = [
        values.converted(F.lit(text), kind, "csv", dict.fromkeys(values.FORMATS, pattern))
        .cast("TIMESTAMP_NTZ")
        .alias(f"c{number}")
        for number, (kind, pattern, text, _) in enumerate(cases)
    ]
    assert list(spark.range(1).select(*columns).first()) == [case[-1] for case in cases]


def test_an_instant_is_kept_as_no_other_type(spark):
    """A stored TIMESTAMP does not become a DATE or a TIMESTAMP_NTZ in a replay, because the offset
    that it was written with is not known."""
    stored = spark.sql("SELECT TIMESTAMP '2024-01-05T00:00:00Z' AS t")
    for kind in ("DATE", "TIMESTAMP_NTZ"):
        (row,) = aligned(stored, struct(f"t {kind}")).collect()
        assert row["t"] is None
        assert row[ERROR] == f"t: expected {kind.lower()}, found "


@pytest.mark.parametrize("kind", ["TIME", "ARRAY<TIME(3)>"])
def test_a_time_that_spark_has_off_is_refused(spark, kind):
    """A column of TIME is refused before a file is read, with the setting that allows it."""
    source = FileSource("in/*", schema=f"t {kind}", format="json")
    with pytest.raises(DeclarationError, match=r"'t' .* TIME, .*spark\.sql\.timeType\.enabled"):
        Reader(spark, source)
