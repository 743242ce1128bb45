"""How the text of a file is cut into blocks, and these into records; without Spark."""

import bz2
import gzip
import io
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import FloatType, StringType, StructField, StructType

from ledger.core.column_names import ERROR, RAW
from ledger.errors import InputError, redacted
from ledger.sources.base import FoundFile
from ledger.sources.files import blocks, multiline
from ledger.sources.files.blocks import Cutter, cut
from ledger.sources.files.format import Format
from ledger.sources.files.layouts import layouts
from ledger.sources.files.text import TextReader, blocks_of
from ledger.sources.listing import most_records

# No record has the second column, so each fails, and keeps its bytes.
SCHEMA = StructType([StructField("n", FloatType()), StructField("never", FloatType(), False)])


def form(format="csv", **options):
    return Format(format, SCHEMA, ["n"], None, options)


def texts(batches):
    return [
        (text, reason == multiline.TOO_LONG)
        for batch in batches
        for text, reason in zip(batch[RAW].to_pylist(), batch[ERROR].to_pylist(), strict=True)
    ]


def read(path, form, header=None, parts=None):
    """The records of a file, or of blocks of it."""
    own = cut(str(path), form, header) if parts is None else parts
    batches = list(TextReader(form, own).batches(range(len(own))))
    assert all(map(len, batches))  # Spark takes an empty one for the end
    return texts(batches)


def whole(data, csv, header):
    """The records of a text that one reader goes through, line by line."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8", "surrogateescape", newline="")
    records = list(multiline.Splitter(csv).records(iter(lines)))
    if header is not None and (header, False) in records:
        records.remove((header, False))
    return [(text.encode("utf-8", "surrogateescape"), long) for text, long in records]


PARTS = st.sampled_from(
    [b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"\\", b"a", b"n", b" ", "é".encode(), b"\xff", b"'"]
)


@given(
    st.lists(PARTS, max_size=40).map(b"".join),
    st.sampled_from([{}, {"escape": "\\"}, {"quote": ""}, {"quote": "'"}, {"quote": "é"}]),
    st.sampled_from([b"", b"n\n", b"\n \r\nn\r", b"\xef\xbb\xbfn\n"]),
    st.integers(1, 12),
)
def test_blocks_have_the_records_of_the_file(tmp_path_factory, data, options, first, size):
    """Wherever the blocks of a file end, their records are those that one reader finds in it, in
    order: lines that end in each way, quotes that stay open, escapes, bytes that are no text."""
    path = tmp_path_factory.getbasetemp() / "in.csv"
    path.write_bytes(first + data)
    csv, header = form(**options), "n" if first else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        records = read(path, csv, header)
    assert records == whole(first + data, csv, header)


@given(st.lists(st.sampled_from([b"{", b"}", b"\n", b"\r", b" ", b"\t", b"\f", b"x"]), max_size=30))
def test_lines_of_blanks_are_no_json(tmp_path_factory, parts):
    """A line of JSON lines that holds blanks alone is no record; any other is one, as it stands."""
    data = b"".join(parts)
    path = tmp_path_factory.getbasetemp() / "in.json"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 7)
        records = read(path, form("json"))
    lines = data.replace(b"\r", b"\n").split(b"\n")
    assert [text for text, _ in records] == [line for line in lines if line.strip(b" \t\r\f\v")]


def test_a_mark_is_no_part_of_the_first_record(tmp_path):
    """The byte order mark of a file is left out where it begins; elsewhere it is text."""
    path = tmp_path / "a.csv"
    for data, records in [
        (b"\xef\xbb\xbf1\n\xef\xbb\xbf2\n", [b"1", b"\xef\xbb\xbf2"]),
        (b'\xef\xbb\xbf"1\n2"\n', [b'"1\n2"']),
        (b"\xef\xbb\xbf", []),
    ]:
        path.write_bytes(data)
        assert [text for text, _ in read(path, form())] == records


def test_a_large_file_has_blocks_of_whole_lines(tmp_path):
    """Blocks follow one another without a gap, each ends with a line, and one behind which a quote
    stays open has the rest of the file."""
    path = tmp_path / "a.csv"
    line = b"%07d," + b"x" * 92 + b"\n"
    path.write_bytes(b"".join(line % n for n in range(200_000)))
    parts = cut(str(path), form(), None)
    assert [part.offset for part in parts] == list(np.cumsum([0, *(p.length for p in parts)])[:-1])
    assert sum(part.length for part in parts) == path.stat().st_size
    assert {part.length % 101 for part in parts} == {0}
    assert len(parts) == 3
    with path.open("r+b") as stream:
        stream.seek(parts[1].offset)
        stream.write(b'"')
    opened = cut(str(path), form(), None)
    assert opened[0] == parts[0]
    rest = path.stat().st_size - parts[1].offset
    assert [(part.offset, part.length, part.streamed) for part in opened[1:]] == [
        (parts[1].offset, rest, True)
    ]


def test_a_compressed_file_is_one_block(tmp_path):
    """What is decompressed is cut as it is read, members one after the other."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1\n2\n") + gzip.compress(b'3\n"4\n5"\n'))
    (block,) = cut(str(path), form(), None)
    assert [text for text, _ in read(path, form(), parts=[block])] == [b"1", b"2", b"3", b'"4\n5"']


WRITTEN = {
    "a.csv": lambda data: data,
    "open.csv": lambda data: b'"0\n' + data,
    "a.csv.gz": lambda data: gzip.compress(data, mtime=0),
    "a.csv.bz2": bz2.compress,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_that_changes_after_it_was_cut_is_named(tmp_path, name):
    """Other bytes of the same number and time, fewer, or none, and more where the rest of a file is
    read: an error with the file's name, however it is read, and never an end without one."""
    path, write = tmp_path / name, WRITTEN[name]
    more = [] if name == "a.csv" else [b"1\n2\n3\n"]
    for change in (b"1\n9\n", b"1\n", b"", *more):
        path.write_bytes(write(b"1\n2\n"))
        parts = cut(str(path), form(), None)
        time = path.stat().st_mtime_ns
        path.write_bytes(write(change))
        os.utime(path, ns=(time, time))
        with pytest.raises(
            InputError, match=f"{name} was changed since it was cut into records: expected the"
        ):
            read(path, form(), parts=parts)
    path.unlink()
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        read(path, form(), parts=parts)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("rest", [b"1,2\n", b'1,"2\n'])
def test_a_header_that_changes_before_its_file_is_cut_is_named(tmp_path, name, rest):
    """The header is read first: the records of a file that was put in its place since, of the same
    size and time, would pass for those of other columns."""
    schema = StructType([StructField(column, FloatType()) for column in "mn"])
    path, csv = tmp_path / name, Format("csv", schema, schema.names, None, {})
    path.write_bytes(WRITTEN[name](b" \nm,n\n" + rest))
    (layout,) = layouts([str(path)], schema, False, csv)
    path.write_bytes(WRITTEN[name](b" \nn,m\n" + rest))

    def read_all():
        own = blocks_of(None, [FoundFile(str(path), 8, None)], csv, layout.headers)
        return list(TextReader(csv, own).batches(range(len(own))))

    with pytest.raises(InputError, match=rf"{name} was changed while .* expected the header"):
        read_all()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_file_that_was_blank_when_its_header_was_read_stays_so(tmp_path, name):
    """Blank lines are records of it; those of another that is put in its place are not read: its
    header would be one of them."""
    schema = StructType([StructField("n", StringType())])
    path, csv = tmp_path / name, Format("csv", schema, schema.names, None, {})
    path.write_bytes(WRITTEN[name](b"  \n\n"))
    (layout,) = layouts([str(path)], schema, False, csv)

    def count():
        own = blocks_of(None, [FoundFile(str(path), 4, None)], csv, layout.headers)
        return sum(len(batch) for batch in TextReader(csv, own).batches(range(len(own))))

    assert count() == 1
    path.write_bytes(WRITTEN[name](b"n\n1\n"))
    with pytest.raises(InputError, match=rf"{name} was changed while .* expected the header"):
        count()


def test_what_is_added_to_a_file_is_none_of_its_blocks(tmp_path):
    """What was not cut is not read; that the file has grown is noticed once all is read."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"1\n2\n")
    parts = cut(str(path), form(), None)
    path.write_bytes(b"1\n2\n3\n")
    assert [text for text, _ in read(path, form(), parts=parts)] == [b"1", b"2"]


def test_long_records_come_in_small_batches(tmp_path):
    """However many bytes records have, a batch on its way to Spark has not many more than 8 MB."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"".join(b'"%d\n%s"\n' % (n, b"x" * 1_000_000) for n in range(30)))
    own = cut(str(path), form(), None)
    sizes = [batch.num_rows for batch in TextReader(form(), own).batches(range(len(own)))]
    assert sum(sizes) == 30
    assert max(sizes) < 10


def test_what_an_error_quotes_is_marked(tmp_path, monkeypatch):
    """What a reader says of a value may quote it."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"1\n")

    def quoting(*_):
        raise ValueError("found ann@x.org")

    monkeypatch.setattr(blocks, "windows", quoting)
    with pytest.raises(InputError, match=r"a\.csv cannot be read: found ann@") as caught:
        blocks_of(None, [FoundFile(str(path), 2, None)], form(), {})
    assert "ann@" not in str(redacted(caught.value))


def test_a_quote_that_closes_in_its_line_breaks_off_nothing():
    """However many quotes a line has, and wherever they stand."""
    for data, breaks in [
        (b'"a""b",c\n', False),
        (b'a"b\n', False),
        (b'"a"b\n', False),
        (b'"a\n', True),
        (b'a,"b""\n', True),
        (b'1\n2,"\n3\n', True),
    ]:
        cutter = Cutter(form())
        assert cutter.breaks_off(cutter.lines(data)) is breaks, data


@pytest.mark.parametrize("end", ["gz", "bz2", "zst", "GZ"])
def test_each_way_of_compression(tmp_path, end):
    """A compressed file has the records of what was compressed, for its cut, its header and the
    count of its lines; whatever is installed beside Arrow."""
    data = b"n\n" + b"".join(b"%d\n" % number for number in range(300_000))
    packed = {
        "gz": gzip.compress, "GZ": gzip.compress, "bz2": bz2.compress,
        "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    }[end](data)  # fmt: skip
    path = tmp_path / f"a.csv.{end}"
    path.write_bytes(packed)
    (layout,) = layouts([str(path)], StructType(SCHEMA.fields[:1]), False, form())
    assert layout.headers == {str(path): "n"}
    assert [text for text, _ in read(path, form(), "n")] == data.split(b"\n")[1:-1]
    assert most_records(FoundFile(str(path), len(packed), None), "csv") == 300_001


PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
RUBBISH = {
    "plain text": lambda second: b"5\n",
    "zeros": lambda second: bytes(len(second)),
    "a line break before the second stream": lambda second: b"\n" + second,
    "zeros before the second stream": lambda second: bytes(512) + second,
    "a damaged second stream": lambda second: second[:3] + b"\xff\xff\xff" + second[6:],
    "a part of the second stream": lambda second: second[:-1],
    "the beginning of the second stream": lambda second: second[:2],
}


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("end", PACK)
def test_nothing_behind_a_compressed_stream_is_left_out(tmp_path, end, rubbish):
    """Two streams have the records of both; where the second is none, the file is refused, however
    it is read: its records would be missing without an error."""
    path, pack = tmp_path / f"a.{end}", PACK[end]
    forms = [form(), form(quote="'"), Format("csv", SCHEMA, ["n"], None, {}, True), form("json")]
    first, second = pack(b"1\n2\n"), pack(b"3\n4\n")
    path.write_bytes(first + second)
    for own in forms:
        assert [text for text, _ in read(path, own)] == [b"1", b"2", b"3", b"4"]
    path.write_bytes(first + RUBBISH[rubbish](second))
    for own in forms:
        with pytest.raises(InputError, match=rf"a\.{end} cannot be read"):
            read(path, own)
    with pytest.raises(InputError, match=rf"a\.{end} cannot be read"):
        most_records(FoundFile(str(path), 0, None), "csv")


@pytest.mark.parametrize("end", PACK)
def test_an_empty_file_is_no_compressed_one(tmp_path, end):
    """A file without a byte was cut off: it is not taken for one without records."""
    path = tmp_path / f"a.{end}"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=rf"a\.{end} cannot be read: .*transfer the file again"):
        read(path, form())


def test_what_follows_a_compressed_stream_is_named_by_its_byte(tmp_path):
    """The error says where the other bytes begin, and what to do."""
    path, packed = tmp_path / "a.bz2", bz2.compress(b"1\n")
    path.write_bytes(packed + b"b,y,2\n")
    with pytest.raises(InputError) as caught:
        read(path, form())
    assert str(caught.value) == (
        f"source file {path} cannot be read: expected bz2 data from byte {len(packed)} on, found"
        " other or damaged bytes (Invalid data stream). Transfer the file again, or compress its"
        " content again"
    )
