"""How files become records before Spark sees them, and what of a text is doubted; without Spark."""

import ast
import errno
import gzip
import io
import re
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledger import FileSource
from ledger.core.column_names import RAW
from ledger.errors import InputError, UnavailableError, redacted, shown
from ledger.settings import Settings
from ledger.sources.base import FoundFile
from ledger.sources.files import layouts as files
from ledger.sources.files import multiline
from ledger.sources.files.blocks import cut
from ledger.sources.files.format import Format
from ledger.sources.files.text import TextReader
from ledger.sources.listing import most_records
from ledger.sources.parsing import json_text
from ledger.sources.parsing.keys import folded, quoted_lookalike
from ledger.sources.references import Reference
from ledger.sources.registry import source_of
from ledger.storage import stores
from ledger.storage.parquet import SPARK_SCHEMA
from ledger.types.fitting import yielded
from tests.support.footers import set_rows, set_writer


def schema(**kinds):
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def form(**options):
    return Format("csv", schema(n=FloatType()), ["n", "s"], None, options, multiline=True)


def read(path, data, header=None, **options):
    """The records of a file, as bytes."""
    path.write_bytes(data)
    # With more columns than any record has fields each fails, and keeps its bytes.
    csv = replace(form(**options), names=[*"abcdefghi"])
    own = cut(str(path), csv, header)
    batches = TextReader(csv, own).batches(range(len(own)))
    return [record for batch in batches for record in batch.column(RAW).to_pylist()]


def split(text, **options):
    """The records that a text is cut into, each with whether it has too many lines."""
    lines = io.StringIO(text, newline="")
    return list(multiline.Splitter(form(**options)).records(iter(lines)))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_end_in_each_way(tmp_path, end):
    """A line ends with a line feed, a carriage return or both; within quotes each is part of the
    value.
    """
    data = end.join(["n,s", "1,a", '2,"x', 'y"', "", '3,"never closed', "4,b"])
    expected = ["1,a", f'2,"x{end}y"', '3,"never closed', "4,b"]
    assert read(tmp_path / "a.csv", data.encode(), "n,s") == [line.encode() for line in expected]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_value_of_too_many_lines_is_one_record(end):
    """A quoted value of more than 10,000 lines is one record, marked as too long, of which so many
    lines are kept; one of 10,000 is whole, and what follows either is read."""
    for more, long in [(0, False), (1, True), (25_000, True)]:
        value = end.join(['"a', *["inside"] * (multiline.MOST_LINES - 2 + more), 'z"'])
        beginning = end.join(value.split(end)[: multiline.MOST_LINES])
        assert split(end.join(["1", value, "2", ""])) == [
            ("1", False),
            (beginning, long),
            ("2", False),
        ]


@pytest.mark.parametrize("last", ["z", 'z"z', 'z,"'])
def test_a_quote_that_never_closes_spoils_its_line_alone(last):
    """However many lines follow a quote that is never closed, or that closes within a value, each
    is read as if it was not there."""
    text = ["1", '"a', *["inside"] * (2 * multiline.MOST_LINES), "\udcff", last, "2"]
    whole = [(line, False) for line in text]
    if last == 'z,"':  # which is a quote that closes the first, and no other follows
        whole = [whole[0], ("\n".join(text[1 : multiline.MOST_LINES + 1]), True), whole[-1]]
    assert split("\n".join(text)) == whole


def test_no_room_for_what_follows_a_quote(tmp_path, monkeypatch):
    """A disk without room for the lines that follow an open quote is no fault of the file."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(multiline, "TemporaryFile", full)
    data = b'"a\n' + b"b\n" * 2 * multiline.MOST_LINES
    with pytest.raises(UnavailableError, match="no space is left on the disk of /"):
        read(tmp_path / "a.csv", data)


def test_an_escaped_line_break_is_within_the_value():
    """A line that ends in the escape character goes on, also if it has a quote; without quotes
    each line is a record."""
    assert split('"a\n\\"b\\\nc"\n2', escape="\\") == [('"a\n\\"b\\\nc"', False), ("2", False)]
    assert split('"a\nb"', quote="") == [('"a', False), ('b"', False)]


def test_both_characters_of_a_line_end_are_one(tmp_path):
    """A line end that two reads of a file share is one, and bytes that are not UTF-8 stay as
    they are.
    """
    data = b"".join(b"%06d,\xff\r\n" % n for n in range(20_000))
    assert read(tmp_path / "a.csv", data) == data.split(b"\r\n")[:-1]


@pytest.mark.parametrize(
    ("data", "header", "expected"),
    [
        (b"\xef\xbb\xbfn,s\n1,a\nn,s\n", "n,s", [b"1,a", b"n,s"]),
        (b"  \nn,s\n1,a\n", "n,s", [b"  ", b"1,a"]),
        (b"\t\t", None, [b"\t\t"]),
        (b"\n\n", None, []),
    ],
)
def test_a_header_is_left_out_by_its_text(tmp_path, data, header, expected):
    """Only the line that is the header is none of the records; a file without one loses nothing."""
    assert read(tmp_path / "a.csv", data, header) == expected


def test_a_separator_of_several_bytes(tmp_path):
    """Values are separated by characters, not by the bytes that they share."""
    data = '1¦"a\nb"\n2¦«x\n'.encode()
    assert read(tmp_path / "a.csv", data, sep="¦") == ['1¦"a\nb"'.encode(), "2¦«x".encode()]


def test_a_damaged_file_is_named(tmp_path):
    """What cannot be decompressed to its end fails with the file's path, for its header and its
    records.
    """
    whole = gzip.compress(b"n,s\n" + np.random.default_rng(1).bytes(100_000).hex().encode())
    bad = [whole[:5000], whole[:5000] + b"x" * 100 + whole[5100:], b"no gzip", whole[:4]]
    for data in bad:
        with pytest.raises(InputError, match=r"a\.csv\.gz cannot be read: "):
            read(tmp_path / "a.csv.gz", data)
    for data in bad[2:]:
        (tmp_path / "b.csv.gz").write_bytes(data)
        with pytest.raises(InputError, match=r"b\.csv\.gz cannot be read: "):
            files.layouts([str(tmp_path / "b.csv.gz")], form().schema, True, form())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"n" * 200_000, "expected the names of columns, found 200,000 characters"),
        (b'n,"s', "expected the names of columns, found 4 characters"),
        (b'n,"s"x', "expected the names of columns, found 6 characters"),
        (
            b'n,5" disc',
            r"begin with 'n,5\" disc', with a quote .*declare options=\{'quote': ''\}",
        ),
        (b"n,\xff\n", "is not UTF-8: convert the file"),
        (b"x,y\r1,2\r", "expected a column of the schema, found x, y"),
    ],
)
def test_a_header_that_is_none_is_named(tmp_path, data, says):
    """A first line that is too long, not UTF-8, or has a stray quote, ends in one line; a carriage
    return ends it.
    """
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.csv.*{says}"):
        files.layouts([str(tmp_path / "a.csv")], form().schema, True, form())


@pytest.mark.parametrize(
    "columns",
    [
        "N",
        " n",
        "n ",
        "\u00a0N\t",
        "\u200bn",
        "\ufeff\ufeffn",
        "n\u00ad",
        "\u200eN",
        "\0n",
        "\uff2e",
    ],
)
def test_a_header_that_is_nearly_the_schemas_is_refused(tmp_path, columns):
    """A name that a person takes for a column's, whatever its case, blanks and characters that are
    not seen, is not a column of nulls, and the error shows them; where the column is there as
    well, the other is one that the schema does not ask for.
    """
    (tmp_path / "a.csv").write_text(f"{columns},s\n1,2\n")
    path, schema, name = str(tmp_path / "a.csv"), form().schema, columns.removeprefix("\ufeff")
    says = rf"a\.csv: expected column 'n', found {re.escape(ascii(name))}; did you mean 'n'\?"
    with pytest.raises(InputError, match=says):
        files.layouts([path], schema, True, form())
    with pytest.raises(InputError, match=rf"expected n; found {re.escape(ascii(name))}, s\."):
        files.layouts([path], schema, False, form())
    (tmp_path / "a.csv").write_text(f"{columns},n\n1,2\n")
    (layout,) = files.layouts([path], schema, True, form())
    assert layout.names == (name, "n")


@pytest.mark.parametrize(
    ("name", "other"),
    [("\u00e9", "e\u0301"), ("\u304c", "\u304b\u3099"), ("stra\u00dfe", "S\u200bTRASSE")],
)
def test_names_that_look_alike(name, other):
    """Either form of an accent is the same letter to a person, and so are both cases of one."""
    assert folded(name) == folded(other)
    assert folded("x") != folded("\u0445")  # another script, which a font may show
    assert quoted_lookalike(other, name) == ascii(other)


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("first", ["ann@x.org,7", "ann@x.org,ann@x.org", '""'])
def test_a_header_that_is_a_record_is_a_quote(tmp_path, by_name, first):
    """A file without a header has a record there: its values are named as what is quoted."""
    (tmp_path / "a.csv").write_text(f"{first}\n1,2\n")
    with pytest.raises(InputError, match=r"found|twice") as caught:
        files.layouts([str(tmp_path / "a.csv")], form().schema, by_name, form())
    shown = str(redacted(caught.value))
    assert "ann@" not in shown
    assert "***" in shown
    assert "a.csv" in shown


def test_lines_are_counted_up_to_a_limit(tmp_path):
    """Beyond it the rest of a large file is not read: that there are more is enough."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\n" * 1_000_000)
    file = FoundFile(str(path), 2_000_000, None)
    assert 10 < most_records(file, "csv", limit=10) < 1_000_000
    assert most_records(file, "csv", limit=1_000_000) == 1_000_000


def test_no_more_records_than_lines(tmp_path):
    """Whatever ends the lines of a file, it is known how many records it has at most."""
    for data, most in [(b"a\nb", 2), (b"a\rb\r", 2), (b"a\r\nb\r\n", 2), (b"", 0)]:
        path = tmp_path / "a.csv"
        path.write_bytes(data)
        assert most_records(FoundFile(str(path), len(data), None), "csv") == most


def checked(tmp_path, table, declared, case_sensitive=False, **options):
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, **options)
    files.check_parquet([str(path)], declared, case_sensitive=case_sensitive)


@pytest.mark.parametrize("rows", [24, 26])
def test_a_footer_that_contradicts_itself(tmp_path, rows):
    """A Parquet file whose footer says another number of records than its row groups is named, with
    both numbers; a whole one has as many as it was written with."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": pa.array(range(25), pa.int64())}), path, row_group_size=10)
    assert files.check_parquet([str(path)], schema(n=LongType())) == {str(path): 25}
    set_rows(path, rows)
    with pytest.raises(InputError, match=rf"a\.parquet is damaged: expected {rows} .* found 25"):
        files.check_parquet([str(path)], schema(n=LongType()))


INSTANT = pa.array([1], pa.timestamp("ns", "UTC"))


def test_parquet_columns_that_are_not_declared(tmp_path):
    """Of a column that the schema does not have, neither type nor codec matters."""
    table = pa.table({"n": pa.array([1], pa.int64()), "at": INSTANT, "b.c": ["x"]})
    codecs = {"n": "zstd", "at": "brotli", "b.c": "brotli"}
    checked(tmp_path, table, schema(n=LongType()), compression=codecs)
    with pytest.raises(InputError, match=r"column b\.c is compressed with BROTLI"):
        checked(tmp_path, table, schema(**{"b.c": StringType()}), compression=codecs)


def test_parts_of_parquet_columns(tmp_path):
    """What Spark cannot read is found within structs, lists and maps, too; INT96 and unsigned
    are read there.
    """
    instants = pa.array([{"at": 1000}], pa.struct([("at", pa.timestamp("ns", "UTC"))]))
    struct, listed = schema(at=TimestampType()), ArrayType(TimestampType())
    for name, column, kind in [
        ("s.at", instants, struct),
        ("s.element", pa.array([[1000]], pa.list_(INSTANT.type)), listed),
        ("s.value", pa.array([[("k", 1000)]], pa.map_(pa.string(), INSTANT.type)),
         MapType(StringType(), TimestampType())),
    ]:  # fmt: skip
        table = pa.table({"first": pa.array([[1, 2]]), "s": column})
        with pytest.raises(InputError, match=rf"column {re.escape(name)} holds nanoseconds"):
            checked(tmp_path, table, schema(s=kind))
        checked(tmp_path, table, schema(s=kind), use_deprecated_int96_timestamps=True)
    unsigned = pa.table({"s": pa.array([{"u": 1}], pa.struct([("u", pa.uint32())]))})
    checked(tmp_path, unsigned, schema(s=schema(u=LongType())))
    checked(tmp_path, pa.table({"s": pa.array(["a"]).dictionary_encode()}), schema(s=StringType()))


@pytest.mark.parametrize("nest", ["{}", "list", "struct", "map"])
@pytest.mark.parametrize(
    ("kind", "declared", "words"),
    [
        *(
            (pa.duration(unit), DayTimeIntervalType(), f"holds durations in {unit}, of which Spark")
            for unit in ("s", "ms", "ns")
        ),
        (pa.time64("ns"), LongType(), "holds nanoseconds"),
        (pa.duration("us"), DayTimeIntervalType(), None),
    ],
    ids=str,
)
def test_units_that_spark_takes_for_microseconds(tmp_path, kind, declared, words, nest):
    """A duration is read only in microseconds, in lists, structs and maps too, and a time in
    nanoseconds is not: Spark would read the same numbers."""
    value = pa.array([86_400_000_000], pa.int64()).cast(kind)
    column, expected = {
        "{}": (value, declared),
        "list": (pa.ListArray.from_arrays([0, 1], value), ArrayType(declared)),
        "struct": (pa.StructArray.from_arrays([value], ["d"]), schema(d=declared)),
        "map": (pa.MapArray.from_arrays([0, 1], ["k"], value), MapType(StringType(), declared)),
    }[nest]
    table = pa.table({"d": column})
    if words is None:
        checked(tmp_path, table, schema(d=expected))
    else:
        with pytest.raises(InputError, match=f"column d.* {words}"):
            checked(tmp_path, table, schema(d=expected))


@pytest.mark.parametrize(
    ("columns", "declared", "alike"),
    [
        ({"n": [1], "N": ["x"]}, schema(n=LongType()), "n, N"),
        ({"N": [1], "x": [1], "n": [2]}, schema(n=LongType()), "N, n"),
        ({"s": [{"a": 1, "A": 2}]}, schema(s=schema(a=LongType(), A=LongType())), "a, A"),
    ],
)
def test_columns_that_spark_does_not_distinguish(tmp_path, columns, declared, alike):
    """Two columns of a file, or fields of a struct, whose names differ in case are refused with
    both names if one is declared."""
    with pytest.raises(InputError, match=rf"a\.parquet: expected one column.*found {alike}, of"):
        checked(tmp_path, pa.table(columns), declared)
    checked(tmp_path, pa.table({**columns, "y": [1]}), schema(y=LongType()))
    checked(tmp_path, pa.table(columns), declared, case_sensitive=True)


def test_a_column_twice_in_a_file(tmp_path):
    """A column that a Parquet file has twice by one name is refused with it."""
    twice = pa.table([[1], [2]], names=["n", "n"])
    for case_sensitive in (True, False):
        with pytest.raises(InputError, match=r"expected one column.*found n, n, of which"):
            checked(tmp_path, twice, schema(n=LongType()), case_sensitive)


def test_an_encoding_that_spark_does_not_read(tmp_path):
    """A column in BYTE_STREAM_SPLIT is refused with what to do; one that is not declared is no
    matter."""
    table = pa.table({"x": [1.5], "n": pa.array([1], pa.int64())})
    options = {"use_dictionary": False, "use_byte_stream_split": ["x"]}
    with pytest.raises(InputError, match=r"column x is encoded as BYTE_STREAM_SPLIT.*=False"):
        checked(tmp_path, table, schema(x=DoubleType()), **options)
    checked(tmp_path, table, schema(n=LongType()), **options)


def test_a_parquet_file_by_its_name(tmp_path):
    """A colon, with which Spark reads no local file, is refused; an ending that elsewhere means a
    compressed file is not."""
    table = pa.table({"n": pa.array([1], pa.int64())})
    for name in ("a.parquet.gz", "a b%41?#.parquet"):
        pq.write_table(table, tmp_path / name)
        assert files.check_parquet([f"{tmp_path}/{name}"], schema(n=LongType()))
    with pytest.raises(InputError, match=r"a:b\.parquet: expected a name without a colon.*rename"):
        files.check_parquet([f"{tmp_path}/a:b.parquet"], schema(n=LongType()))


INT96 = {"use_deprecated_int96_timestamps": True}
FINE, SHOWN = 1_700_000_000_123_456_789, "2023-11-14 22:13:20.123456789"


@pytest.mark.parametrize(
    ("column", "kind", "shown"),
    [
        (pa.array([None, FINE], pa.timestamp("ns")), TimestampType(), SHOWN),
        (pa.array([1000, -1], pa.timestamp("ns")), TimestampType(),
         "1969-12-31 23:59:59.999999999"),
        (pa.array([[], [1000, FINE]], pa.list_(pa.timestamp("ns"))), ArrayType(TimestampType()),
         SHOWN),
        (pa.array([{"at": FINE}], pa.struct([("at", pa.timestamp("ns"))])),
         schema(at=TimestampType()), SHOWN),
        (pa.array([[("k", FINE)]], pa.map_(pa.string(), pa.timestamp("ns"))),
         MapType(StringType(), TimestampType()), SHOWN),
    ],
)  # fmt: skip
def test_nanoseconds_of_int96_are_refused(tmp_path, column, kind, shown):
    """INT96 timestamps with nanoseconds, which Spark would cut, are refused at any depth, with the
    value; those of microseconds are read, whatever their year."""
    table = pa.table({"at": column, "n": pa.array(range(len(column)))})
    with pytest.raises(InputError, match=rf"column at holds nanoseconds.* found {shown}; write"):
        checked(tmp_path, table, schema(at=kind), **INT96)
    checked(tmp_path, table, schema(n=LongType()), **INT96)


def test_nanoseconds_in_a_copy_of_a_file_of_spark_are_refused(tmp_path):
    """Another writer keeps the note of Spark's version, and may write nanoseconds."""
    table = pa.table({"at": pa.array([FINE], pa.timestamp("ns"))})
    copy = table.replace_schema_metadata({"org.apache.spark.version": "4.2.0", SPARK_SCHEMA: "{}"})
    with pytest.raises(InputError, match="column at holds nanoseconds"):
        checked(tmp_path, copy, schema(at=TimestampType()), **INT96)


def test_int96_is_read_once(tmp_path, monkeypatch):
    """The columns with INT96 are decoded twice, but transferred once, and no other one is."""
    at = pa.array(np.random.default_rng(1).integers(0, 2**50, 50_000), pa.timestamp("us"))
    table = pa.table({"n": np.random.default_rng(2).integers(0, 2**60, 50_000), "at": at})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=20_000, use_dictionary=False, **INT96)
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(3)]
    least = sum(group.column(1).total_compressed_size for group in groups)
    reads = []

    class Counted(io.FileIO):
        def read(self, size=-1):
            data = super().read(size)
            reads.append(len(data))
            return data

    monkeypatch.setattr(stores, "opened", Counted)
    files.check_parquet([str(path)], schema(at=TimestampType()))
    assert least < sum(reads) < least + (3 << 16)  # and two footers


@pytest.mark.parametrize("version", [{}, {"org.apache.spark.version": "3.5.1"}])
def test_int96_of_spark_is_not_read(tmp_path, version):
    """A file that Spark has written, with its version or, as of Spark 2, without, is known by its
    footer to have no nanoseconds."""
    table = pa.table({"at": pa.array([FINE], pa.timestamp("ns"))})
    noted = table.replace_schema_metadata({**version, SPARK_SCHEMA: "{}"})
    path = tmp_path / "a.parquet"
    pq.write_table(noted, path, **INT96)
    set_writer(path, "parquet-mr version 1.10.1")
    files.check_parquet([str(path)], schema(at=TimestampType()))


@pytest.mark.parametrize("year", [1, 1677, 1969, 2024, 2263, 9999])
def test_int96_of_microseconds_is_read(tmp_path, year):
    """An INT96 timestamp of microseconds is read, whether or not nanoseconds reach its year."""
    at = pa.array([datetime(year, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us"))
    checked(tmp_path, pa.table({"at": at}), schema(at=TimestampType()), **INT96)


def test_texts_are_matched_to_their_end():
    """No pattern of a reader ends with a dollar sign, which Java and Python also match before a
    line break that ends a text."""
    folder = Path(files.__file__).parents[1]
    places = [
        f"{path.relative_to(folder)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"\$(?:[)|]|\Z)", node.value)
    ]
    assert places == []


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (r'"a"', True), (r'"\ud83d\ude00 \u00e9"', True), (r'"\\ud800"', True), (r'"\n\\"', True),
        (r'"a\ud800b"', False), (r'"\udc00"', False), (r'"\ud800\ud800"', False),
        (r'"\uD83D\\uDE00"', False), (r'"\\\uD800"', False),
    ],
)  # fmt: skip
def test_half_a_character(line, whole):
    """An escape of half a character without the other half is found; an escaped backslash is
    none.
    """
    assert bool(re.fullmatch(json_text._PAIRED, line)) is whole


class Silent:
    """What cannot be published."""

    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        pytest.param(IntegerType(), 10**5000, "int, found a value of type int", id="digits"),
        pytest.param(IntegerType(), [10**5000], "int, found a value of type list", id="list"),
        (StringType(), Silent(), "string, found a value of type Silent"),
        (IntegerType(), np.True_, "int, found True"),
        (DecimalType(10, 2), "1_5", "decimal(10,2), found 1_5"),
        (DecimalType(10, 2), " 1.5 ", "decimal(10,2), found  1.5 "),
        (DecimalType(10, 2), "1.5", "decimal(10,2), found 1.5"),
        (DoubleType(), "nan", "double, found nan"),
        (FloatType(), "Infinity", "float, found Infinity"),
    ],
)
def test_what_a_stage_yields_is_not_read_out_of_a_text(kind, value, says):
    """A number is a number, and one that cannot be published fails its record alone."""
    columns, errors = yielded(schema(c=kind)).fit([(value,), (None,)])
    assert (columns[0].to_pylist(), errors[1]) == ([None, None], None)
    assert shown(errors[0]) == f"yielded c: expected {says}"
    assert (
        shown(errors[0], masks=True)
        == f"yielded c: expected {says.partition(' found ')[0]} found ***"
    )


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        (DecimalType(10, 2), 1.5, Decimal("1.50")), (DecimalType(10, 2), np.int64(2), Decimal(2)),
        (DoubleType(), Decimal("1.5"), 1.5), (FloatType(), np.float32(2), 2.0),
        (IntegerType(), 3.0, 3),
    ],
)  # fmt: skip
def test_numbers_of_other_classes_are_taken(kind, value, becomes):
    """A number that is one of the column's type is taken whatever its class."""
    columns, errors = yielded(schema(c=kind)).fit([(value,)])
    assert (columns[0].to_pylist(), errors) == ([becomes], [None])


@pytest.mark.parametrize(
    ("name", "data", "options", "has_rows"),
    [
        ("a.csv", b"", {}, False),
        ("a.csv", b"\xef\xbb\xbf", {"header": False}, False),
        ("a.csv", b"n\r\n\r\n", {}, False),
        ("a.csv", b"n\r1\r", {}, True),
        ("a.csv", b"n\n1", {}, True),
        ("a.csv", b"1", {"header": False}, True),
        ("a.csv.gz", gzip.compress(b"n\n", mtime=0), {}, False),
        ("a.json", b" \n", {"format": "json"}, False),
        ("a.json", b'{"n": 1}', {"format": "json"}, True),
    ],
)
def test_a_check_finds_a_reference_without_rows(tmp_path, name, data, options, has_rows):
    """Without Spark: files of no bytes, of blank lines or of a header have no rows, which is an
    error unless the reference may be empty."""
    (tmp_path / name).write_bytes(data)
    where = Settings(home=tmp_path, storage=str(tmp_path), data=str(tmp_path))
    source = source_of("reference", FileSource("a.*", schema="n INT", **options))
    assert Reference(source, allow_empty=True).check(where, "side", None).startswith("1 file")
    if has_rows:
        assert Reference(source).check(where, "side", None).startswith("1 file")
        return
    with pytest.raises(InputError, match=r"'side' \(a\.\*\) has no rows.*allow_empty=True"):
        Reference(source).check(where, "side", None)


def test_a_reference_may_have_a_file_without_bytes(tmp_path, caplog):
    """Some writers leave empty files beside full ones: such a file is logged, and only a reference
    of nothing else is refused."""
    where = Settings(home=tmp_path, storage=str(tmp_path), data=str(tmp_path))
    source = source_of("reference", FileSource("*.csv", schema="n INT"))
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"'side' \(\*\.csv\) has no rows"):
        Reference(source).check(where, "side", None)
    (tmp_path / "b.csv").write_bytes(b"n\n1\n")
    assert not caplog.records
    assert Reference(source).check(where, "side", None).startswith("2 files")
    (logged,) = caplog.messages
    assert logged.startswith(f"{tmp_path}/a.csv: a file of 0 bytes")


def test_a_check_finds_parquet_without_rows(tmp_path):
    """One file of several that has rows is enough; where the path needs an interval that is not
    known yet, nothing is said."""
    where = Settings(home=tmp_path, storage=str(tmp_path), data=str(tmp_path))
    none = pa.table({"n": pa.array([], pa.int32())})
    pq.write_table(none, tmp_path / "a.parquet")
    declared = FileSource("*.parquet", schema="n INT", format="parquet")
    reference = Reference(source_of("reference", declared))
    with pytest.raises(InputError, match="has no rows"):
        reference.check(where, "side", None)
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), tmp_path / "b.parquet")
    assert reference.check(where, "side", None).startswith("2 files")
    later = FileSource("{{ interval_start | ds }}.csv", schema="n INT")
    assert "depends on the run" in Reference(source_of("x", later)).check(where, "side", None)
