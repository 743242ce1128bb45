"""CSV by columns, without Spark: what is read of which records, what goes to the exact reader."""

import string

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from ledger.sources.files.format import Format
from ledger.sources.vectorized import csv, texts
from ledger.sources.vectorized.lines import Lines
from tests.support.csv_records import CLEAN, KINDS, clean, form, records

TWO = form(["text", "int"])


def unread(texts, layout=TWO, **cut):
    """The numbers of the records that go to the exact reader."""
    return np.flatnonzero(~csv.read(records(texts, **cut), layout).was_read).tolist()


def values(texts, layout=TWO):
    """The rows of records that are all read."""
    read = csv.read(records(texts), layout)
    assert read.was_read.all()
    return [tuple(row.values()) for row in read.columns.to_pylist()]


@pytest.mark.parametrize(
    "layout",
    [
        TWO,
        form(["text"], "NA", sep="\t", quote=""),
        form(["text", "int"], escape="\\"),
        form(["text", "int"], dateFormat="dd.MM.yyyy"),
        form(["x", "text"], schema=["text", "date"]),
    ],
)
def test_a_form_that_is_read(layout):
    """Plain characters, and options that no column of the schema asks for."""
    assert csv.reads(layout)


@pytest.mark.parametrize(
    "layout",
    [
        Format("json", TWO.schema, TWO.names, None, {}),
        form(["text"], multiline=True),
        form(["text"], emptyValue="E"),
        form(["text"], locale="de"),
        form(["date"], dateFormat="dd.MM.yyyy"),
        form(["time"], timestampFormat="yyyy"),
        form(["local"], timestampNTZFormat="yyyy"),
        form(["text"], sep="ä"),
        form(["text"], sep=""),
        form(["text"], sep="||"),
        form(["text"], sep="\0"),
        form(["text"], quote="«"),
        form(["text"], escape="ä"),
        form(["text"], sep='"'),
        form(["text"], sep="\\", escape="\\"),
        form(["text"], "\ud800"),
        form(["x"], schema=["text"]),
        form(["text", "x", "x"], schema=["text"]),
    ],
)
def test_a_form_for_the_exact_reader(layout):
    """Options that make other values, characters that Arrow takes none of, no column at all."""
    assert not csv.reads(layout)


@pytest.mark.parametrize(
    "kind",
    [
        T.FloatType(), T.BinaryType(), T.CharType(3), T.VarcharType(3), T.StringType("UTF8_LCASE"),
        T.DayTimeIntervalType(), T.YearMonthIntervalType(), T.ArrayType(T.StringType()),
        T.StructType(), T.MapType(T.StringType(), T.StringType()), T.VariantType(), T.NullType(),
        T.DecimalType(5, -2),
    ],
    ids=lambda kind: kind.simpleString(),
)  # fmt: skip
def test_a_type_for_the_exact_reader(kind):
    """A schema with a column of a type that has further rules."""
    schema = T.StructType([T.StructField("a", T.StringType()), T.StructField("b", kind)])
    assert not csv.reads(Format("csv", schema, schema.names, None, {}))


def test_values_of_each_type():
    """Clean records of every type are all read, and their columns have the types of the schema."""
    layout = form(list(KINDS))
    read = csv.read(records(clean(layout, 300, 1)), layout)
    assert read.was_read.all()
    assert read.columns.schema.field("time").type == pa.timestamp("us", "UTC")
    assert read.columns.schema.field("local").type == pa.timestamp("us")
    assert read.columns.schema.field("amount").type == pa.decimal128(10, 2)
    assert all(field.nullable for field in read.columns.schema)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", " "])
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"text"}))
def test_a_line_break_is_part_of_no_value(name, end):
    """A text with a line terminator at an end of it becomes a value of no type; without, of its
    own."""
    for text in CLEAN[name]:
        column = texts.converted(pa.array([text, text + end, end + text]), KINDS[name])
        assert column.is_valid().to_pylist() == [True, False, False]


def test_one_bad_record_leaves_all_others():
    """A record of which any part is in doubt, wherever it stands, is the only one for the exact
    reader.
    """
    good = [b'"a, b",%d' % number for number in range(50)]
    bad = [
        b"a,x", b"a,+1", b"a", b"a,1,2", b'"a,1', b'a"b,1', b'"a"b,1', b"\0a,1", b"\xff,1",
        b"\xed\xa0\x80,1", b"\xef\xbb\xbfa,1", b"a\xef\xbf\xbf,1", b"", b'"', b"a,99999999999",
    ]  # fmt: skip
    for text in bad:
        for at in (0, 25, 50):
            assert unread([*good[:at], text, *good[at:]]) == [at], text
    assert unread([text for pair in zip(bad, good, strict=False) for text in pair]) == list(
        range(0, 2 * len(bad), 2)
    )
    assert unread(bad) == list(range(len(bad)))


def test_rows_lie_where_their_records_do():
    """A record that is not read is a row of nulls, before, between and behind the others."""
    read = csv.read(records([b'"', b"a,1", b"b", b"c,x", b'"d",4', b"\xff"]), TWO)
    assert read.columns.column("text").to_pylist() == [None, "a", None, None, "d", None]
    assert read.columns.column("int").to_pylist() == [None, 1, None, None, 4, None]
    assert read.was_read.tolist() == [False, True, False, False, True, False]
    read = csv.read(records([b"a,1", b"c,x"]), TWO)  # each has its fields
    assert read.columns.to_pylist() == [{"text": "a", "int": 1}, {"text": None, "int": None}]


@pytest.mark.parametrize("null_value", [None, "", "NA"])
def test_what_means_null(null_value):
    """Nothing, in quotes too unless other text means null; that text in quotes or without."""
    layout = form(["text1", "text2", "text3"], null_value)
    declared = null_value == "NA"
    null = None if declared else "NA"
    assert values([b',"",a', b'NA,"NA","NA "'], layout) == [
        (None, "" if declared else None, "a"),
        (null, null, "NA "),
    ]
    numbers = form(["int1", "int2"], null_value)
    assert unread([b"1,", b'1,""', b"1,NA", b'1,"NA"'], numbers) == ([1] if declared else [2, 3])


def test_columns_by_name():
    """Columns that the schema lacks are passed over, whatever they are called, those that the
    record lacks are null."""
    layout = form(["c1", "int", "TEXT", "text"], schema=["text", "date", "int"])
    assert values([b"x,1,X,a"], layout) == [("a", None, 1)]
    assert values([b"x,1"], form(["\udcff", "int"], schema=["int"])) == [(1,)]
    lacking = form(["int"], schema=["int", "text"], required=["text"])
    assert unread([b"1", b"2"], lacking) == [0, 1]


def test_a_null_where_none_may_be():
    """Its record goes to the exact reader."""
    layout = form(["text", "int"], "NA", required=["text"])
    assert unread([b"a,1", b",1", b"NA,1", b'"",1', b"b,"], layout) == [1, 2]


def test_escapes():
    """Where a quote has an escape of its own, records with either go to the exact reader."""
    texts = [b"a,1", b'"a",1', b"a\\,1", b"'b',1"]
    assert unread(texts, form(["text", "int"], escape="\\")) == [1, 2]
    assert unread(texts, form(["text", "int"], escape="")) == [1]
    assert unread(texts, form(["text", "int"], escape="\\", quote="")) == [2]
    assert values(texts[:3], form(["text", "int"], quote=""))[1] == ('"a"', 1)


@pytest.mark.parametrize("separator", sorted(set(string.printable) - set('\r\n"0123456789-')))
def test_each_separator(separator):
    """No character has a meaning beside its own, within quotes neither."""
    layout = form(["text", "int"], sep=separator)
    assert csv.reads(layout)
    text = f'"{separator}""{separator}"{separator}5'.encode()
    assert values([text], layout) == [(f'{separator}"{separator}', 5)]
    assert unread([text, b'"' + text], layout) == [1]


@pytest.mark.parametrize("quote", sorted(set(string.punctuation) - {","}))
def test_each_quote(quote):
    """A quote that means something in a pattern encloses fields as any other."""
    layout = form(["text", "int"], quote=quote)
    text = f"{quote},{quote}{quote},{quote},5".encode()
    assert values([text], layout) == [(f",{quote},", 5)]
    assert unread([text, b"a" + text, f"a,{quote}".encode()], layout) == [1, 2]


@pytest.mark.parametrize("line_break", [b"\n", b"\r", b"\r\n", b"\n\n\r\n"])
def test_line_breaks(line_break):
    """Lines of either end, and empty ones between them; the last may lack its end."""
    texts = [b"a,1", b"b", b"c,3"]
    assert unread(texts, line_break=line_break, before=line_break) == [1]
    cut = records(texts, line_break)
    assert csv.read(Lines(cut.data[: cut.ends[-1]], cut.starts, cut.ends), TWO).was_read[2]


def test_records_that_are_no_lines():
    """A line break within a record, or text between two, and all go to the exact reader: Arrow
    would count other records."""
    assert unread([b"a,1", b'"b\n",2', b"c,3"]) == [0, 1, 2]
    assert unread([b"a,1", b"b\r,2"]) == [0, 1]
    cut = records([b"a,1", b"x,y", b"b,2"])
    between = Lines(cut.data, cut.starts[[0, 2]], cut.ends[[0, 2]])
    assert not csv.read(between, TWO).was_read.any()
    data = b"a,1\nx\nb\n,2"  # with as many line breaks as bytes between the two
    both = Lines(data, np.array([0, 6]), np.array([3, len(data)]))
    assert not csv.read(both, TWO).was_read.any()


def test_no_records():
    """None, or none that gets to Arrow."""
    assert len(csv.read(records([]), TWO).columns) == 0
    assert unread([b'"']) == [0]


def test_more_rows_than_arrow_takes_at_a_time():
    """Numbers of rows hold for the block, and its rows are a column's one after the other."""
    texts = [b"a,%d" % number for number in range(250_000)]
    texts[120_000] = b"a"
    texts[240_000] = b"a,x"
    read = csv.read(records(texts), TWO)
    assert np.flatnonzero(~read.was_read).tolist() == [120_000, 240_000]
    assert read.columns.column("int")[249_999].as_py() == 249_999
