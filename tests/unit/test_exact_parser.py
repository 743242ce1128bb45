"""The exact parser of JSON and CSV, by other ways to the same values; without Spark."""

import csv
import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from ledger.core.column_names import ERROR, RAW
from ledger.errors import shown
from ledger.sources.files.format import Format
from ledger.sources.parsing.dates import days_of, reader_of
from ledger.sources.parsing.exact import Parser
from ledger.sources.parsing.json_text import MOST_NESTED, Number, parser_of, text_of
from ledger.sources.parsing.scalars import maker_of

OPTIONS = (
    "allowBackslashEscapingAnyCharacter",
    "allowNonNumericNumbers",
    "allowNumericLeadingZeros",
    "allowSingleQuotes",
    "allowUnquotedControlChars",
    "allowUnquotedFieldNames",
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
strictly, leniently = parser_of({}), parser_of(dict.fromkeys(OPTIONS, "true"))


def schema(**kinds):
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


def rows(format, kinds, records, options=None, null=None):
    form = Format(format, kinds, kinds.names, null, options or {})
    return Parser(form).parse([record.encode() for record in records]).to_pylist()


def plain(value):
    """A value with Python's own numbers."""
    if isinstance(value, Number):
        return json.loads(value)
    if isinstance(value, list):
        return [plain(part) for part in value]
    return {key: plain(part) for key, part in value.items()} if isinstance(value, dict) else value


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_json_is_what_was_written(value, ascii_only, indent):
    """Any object is read as it was, strictly and with all options on, however it is spaced."""
    line = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert plain(strictly(line)) == value
    assert plain(leniently(line)) == value
    assert json.loads(text_of(strictly(line))) == value


@given(OBJECTS, st.data())
def test_a_line_is_parsed_if_it_is_json(value, data):
    """A line that was changed somewhere is parsed if Python's parser takes it, and by the lenient
    one at least if it is JSON; nothing else is raised."""
    line = json.dumps(value, ensure_ascii=False)
    at = data.draw(st.integers(0, len(line)))
    piece = data.draw(st.sampled_from([*'{}[],:"\\0e.- \t\x01\x7f', "null", "NaN", "\\u00", "1e5"]))
    line = line[:at] + piece + line[at + data.draw(st.integers(0, 2)) :]

    def refuse(constant):
        raise ValueError(constant)

    def parsed(parse):
        try:
            return parse(line)
        except ValueError:
            return None

    expected = parsed(lambda text: json.loads(text, parse_constant=refuse))
    if not isinstance(expected, dict) or not line.lstrip(" ").startswith("{"):
        expected = None
    assert plain(parsed(strictly)) == expected
    if expected is not None:
        assert plain(parsed(leniently)) == expected


@pytest.mark.parametrize("parse", [strictly, leniently], ids=["strictly", "leniently"])
def test_depth_is_limited(parse):
    """As many objects and lists as the limit says may lie in one another, and no more."""
    inner = MOST_NESTED - 1
    line = '{"a":' + "[" * inner + "]" * inner + "}"
    assert text_of(parse(line)) == line
    for deeper in (line.replace("[]", "[[]]"), '{"a":' + "[" * 100_000 + "}"):
        with pytest.raises(ValueError, match=rf"at most {MOST_NESTED} objects and lists"):
            parse(deeper)
    flat = '{"a":"' + "[" * 1000 + '","b":[' + ",".join(["[]"] * 1000) + "]}"
    assert text_of(parse(flat)) == flat


def test_a_key_that_comes_twice():
    """The last value counts, if all fit; in a MAP it fails, and in a text both are there."""
    kinds = schema(n=T.IntegerType(), s=T.StringType(), m=T.MapType(T.StringType(), T.LongType()))
    good, first, last, twice = rows(
        "json",
        kinds,
        ['{"n":1,"n":2,"s":{"a":1,"a":[1.10]}}', '{"n":"x","n":2}', '{"n":1,"n":"x"}',
         '{"m":{"a":1,"a":1}}'],
    )  # fmt: skip
    assert (good["n"], good["s"], good[ERROR]) == (2, '{"a":1,"a":[1.10]}', None)
    assert {shown(row[ERROR]) for row in (first, last)} == {
        "malformed json: n: expected int, found x"
    }
    assert shown(twice[ERROR]).endswith(' {"a":1,"a":1}')
    inner = schema(o=schema(p=T.LongType()))
    (earlier,) = rows("json", inner, ['{"o":{"P":1},"o":{"p":2}}'])
    assert earlier[ERROR] == "malformed json: expected field o.p, found P"


def test_one_part_that_does_not_fit_fails_its_record_alone():
    """At any depth, and the others keep their values; the record keeps its bytes."""
    inner = schema(p=T.ByteType(), at=T.DateType())
    kinds = schema(l=T.ArrayType(inner), m=T.MapType(T.StringType(), T.ArrayType(T.DoubleType())))
    good = '{"l":[{"p":1,"at":"2024-02-29"},null,{}],"m":{"k":[1.5,null],"j":null}}'
    bad = ['{"l":[{"p":1},{"p":128}]}', '{"l":[{"at":"2023-02-29"}]}', '{"m":{"k":[1,"1"]}}',
           '{"l":{}}', '{"l":[[]]}', '{"m":{"k":[1e999]}}']  # fmt: skip
    result = rows("json", kinds, [good, *bad, good])
    assert result[0] == result[-1]
    day = date(2024, 2, 29)
    nothing = {"p": None, "at": None}
    assert result[0]["l"] == [{"p": 1, "at": day}, None, nothing]
    assert result[0]["m"] == [("k", [1.5, None]), ("j", None)]
    assert [row[RAW] for row in result[1:-1]] == [line.encode() for line in bad]
    assert all(row["l"] is None and row["m"] is None for row in result[1:-1])


FIELDS = st.text(st.characters(exclude_characters="\0\uffff", exclude_categories=["Cs"]))


@given(st.lists(FIELDS.map(lambda text: text.lstrip("\ufeff")), min_size=2, max_size=5))
def test_fields_of_csv_are_those_that_were_written(fields):
    """Python's writer and the parser have the same fields, but for those that are null; and so has
    Python's reader."""
    stream = io.StringIO()
    csv.writer(stream).writerow(fields)
    record = stream.getvalue().removesuffix("\r\n")
    kinds = schema(**{f"c{number}": T.StringType() for number in range(len(fields))})
    form = Format("csv", kinds, kinds.names, None, {}, multiline=True)
    (row,) = Parser(form).parse([record.encode()]).to_pylist()
    assert [row[name] for name in kinds.names] == [field or None for field in fields]
    assert next(csv.reader(io.StringIO(record, newline=""))) == fields


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_is_the_number_or_none(number, precision, scale):
    """Of a text without an exponent a decimal is made if it has digits enough, and is equal."""
    kind = T.DecimalType(precision, min(scale, precision))
    text = f"{number:f}"
    shifted = Fraction(number) * 10**kind.scale
    fits = shifted.denominator == 1 and abs(shifted) < 10**precision and len(text) <= 100
    try:
        value = maker_of(kind, {})(text)
    except ValueError:
        assert not fits
    else:
        assert fits
        assert value == number
        assert value.as_tuple().exponent == -kind.scale


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-60, 60))
def test_a_float_is_the_nearest(number, parts):
    """Of a number between two floats the nearer one is made, though a double may be halfway."""
    above = float(np.nextafter(np.float32(number), np.float32(np.inf)))
    if math.isinf(above):
        return
    exact = (Fraction(number) + Fraction(above)) / 2 + Fraction(parts, 10**60)
    digits = 300
    scaled = exact * 10**digits
    if scaled.denominator != 1:  # more digits than a test needs
        return
    sign, whole = "-" * (scaled < 0), f"{abs(scaled.numerator):0{digits + 1}d}"
    text = f"{sign}{whole[:-digits]}.{whole[-digits:]}"
    value = maker_of(T.FloatType(), {})(text)
    nearest = min(abs(exact - Fraction(number)), abs(exact - Fraction(above)))
    assert abs(exact - Fraction(value)) == nearest


@given(st.dates())
def test_days_are_those_of_the_calendar(day):
    """Of each year that Python has."""
    assert days_of(day.year, day.month, day.day) == (day - date(1970, 1, 1)).days


PATTERNS = {
    "yyyy-MM-dd HH:mm:ss.SSSSSS": "%Y-%m-%d %H:%M:%S.%f",
    "dd/MMM/yyyy hh:mm:ss a": "%d/%b/%Y %I:%M:%S %p",
    "yyyyMMddHHmmss": "%Y%m%d%H%M%S",
    "yyyy-DDD'T'HH:mm": "%Y-%jT%H:%M",
    "MMMM dd, yyyy HH:mm[:ss]XX": "%B %d, %Y %H:%M:%S%z",
}


@pytest.mark.parametrize("pattern", PATTERNS)
@given(instant=st.datetimes(min_value=datetime(1000, 1, 1)), minutes=st.integers(-1079, 1079))
@settings(max_examples=50)
def test_patterns_read_what_python_writes(pattern, instant, minutes):
    """An instant that Python has written is read, up to what the pattern does not have."""
    text = instant.replace(tzinfo=UTC).strftime(PATTERNS[pattern])
    offset = timedelta(0)
    if pattern.endswith("X"):
        offset = timedelta(minutes=minutes)
        sign, (hours, rest) = "-" * (minutes < 0) or "+", divmod(abs(minutes), 60)
        text = f"{text[:-5]}{sign}{hours:02}{rest:02}"
    lost = instant.replace(microsecond=0) if "S" not in pattern else instant
    lost = lost if "s" in pattern else lost.replace(second=0)
    expected = (lost - offset - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert reader_of(pattern)(text) == expected
    assert reader_of(pattern)(text.lower()) == expected
    with pytest.raises(ValueError):
        reader_of(pattern)(text + " ")
