"""The binary COPY format, against PostgreSQL's documentation of it, byte by byte."""

import struct

import numpy as np

from ledger.core.streams import ChunkStream
from ledger.deltas.binary_copy import HEADER, TRAILER, decode, encode, field


def test_rows_as_documented():
    """A tuple is a 16-bit count of fields, then each field's length and big-endian value."""
    result = encode([7, np.array([-1, 2], np.int64)])
    expected = b"".join(struct.pack(">hiqiq", 2, 8, 7, 8, delta) for delta in (-1, 2))
    assert result == expected


def test_fields_that_are_equal_in_every_row():
    """They lie behind the numbers: texts, flags, nulls, and arrays of texts with their dimension,
    the number of their type and where they begin.
    """
    rest = [field("lost"), field(None), field(True), field(["a", "bc"])]
    array = struct.pack(">iiiii", 1, 0, 25, 2, 1) + b"\0\0\0\1a" + b"\0\0\0\2bc"
    tail = b"\0\0\0\4lost" + b"\xff\xff\xff\xff" + b"\0\0\0\1\1"
    tail += struct.pack(">i", len(array)) + array
    expected = b"".join(struct.pack(">hiq", 5, 8, root) + tail for root in (3, 4))
    assert encode([np.array([3, 4], np.int64)], rest) == expected


def test_frame_of_a_stream():
    """A stream begins with the signature, flags and an empty extension, and ends with -1."""
    assert b"PGCOPY\n\xff\r\n\x00" + bytes(8) == HEADER
    assert TRAILER == b"\xff\xff"


def test_stream_reads_any_size():
    """Chunks of any size, empty ones too, come out whole whatever is asked for."""
    chunks = [b"abc", b"", b"defgh", b"i"]
    stream = ChunkStream(chunks)
    read = iter(lambda: stream.read(2), b"")
    assert b"".join(read) == b"abcdefghi"
    assert ChunkStream(chunks).read(-1) == b"abcdefghi"


def test_columns_come_back():
    """What was encoded is decoded; no rows are empty columns."""
    values = np.array([-1, 2, 1 << 62], np.int64)
    data = HEADER + encode([7, values]) + TRAILER
    run, root = decode(data, 2)
    assert (run.tolist(), root.tolist()) == ([7, 7, 7], values.tolist())
    assert [len(column) for column in decode(HEADER + TRAILER, 2)] == [0, 0]
