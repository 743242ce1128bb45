"""The binary COPY format, against PostgreSQL's documentation of it, byte by byte."""

import struct

import numpy as np

from ledger.deltas.binary_copy import HEADER, TRAILER, Stream, decode, encode


def test_rows_as_documented():
    """A tuple is a 16-bit count of fields, then each field's length and big-endian value."""
    result = encode([7, np.array([-1, 2], np.int64)])
    expected = b"".join(struct.pack(">hiqiq", 2, 8, 7, 8, delta) for delta in (-1, 2))
    assert result == expected


def test_frame_of_a_stream():
    """A stream begins with the signature, flags and an empty extension, and ends with -1."""
    assert b"PGCOPY\n\xff\r\n\x00" + bytes(8) == HEADER
    assert TRAILER == b"\xff\xff"


def test_stream_reads_any_size():
    """Chunks of any size, empty ones too, come out whole whatever is asked for."""
    chunks = [b"abc", b"", b"defgh", b"i"]
    stream = Stream(chunks)
    read = iter(lambda: stream.read(2), b"")
    assert b"".join(read) == b"abcdefghi"
    assert Stream(chunks).read(-1) == b"abc"


def test_columns_come_back():
    """What was encoded is decoded; no rows are empty columns."""
    values = np.array([-1, 2, 1 << 62], np.int64)
    data = HEADER + encode([7, values]) + TRAILER
    run, root = decode(data, 2)
    assert (run.tolist(), root.tolist()) == ([7, 7, 7], values.tolist())
    assert [len(column) for column in decode(HEADER + TRAILER, 2)] == [0, 0]
