"""PostgreSQL's binary COPY format, built by numpy from columns: no Python per row.

Format: documentation of COPY, "Binary Format".
"""

import io
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

Columns = Mapping[str, npt.NDArray[np.int64] | npt.NDArray[np.int32] | int]


def encode(columns: Columns) -> bytes:
    """Rows of int8 and int4 columns; a plain int is a bigint, the same in every row."""
    length = next(len(value) for value in columns.values() if not isinstance(value, int))
    fields: list[tuple[str, str]] = [("fields", ">i2")]
    for name, value in columns.items():
        width = 4 if getattr(value, "dtype", None) == np.int32 else 8
        fields += [(f"{name}_size", ">i4"), (name, f">i{width}")]
    same = np.zeros((), dtype=fields)  # what is equal in every row is laid out once, and copied
    same["fields"] = len(columns)
    for name, value in columns.items():
        same[f"{name}_size"] = same.dtype[name].itemsize
        if isinstance(value, int):
            same[name] = value
    rows = np.full(length, same)
    for name, value in columns.items():
        if not isinstance(value, int):
            rows[name] = value
    return rows.tobytes()


def decode(data: bytes, columns: int) -> list[npt.NDArray[np.int64]]:
    """The columns of rows that have int8 alone, none of it null, as a COPY hands them out."""
    fields: list[tuple[str, str]] = [("fields", ">i2")]
    for number in range(columns):
        fields += [(f"size{number}", ">i4"), (f"column{number}", ">i8")]
    body = memoryview(data)[len(HEADER) : len(data) - len(TRAILER)]
    rows = np.frombuffer(body, np.dtype(fields))
    return [rows[f"column{number}"].astype(np.int64) for number in range(columns)]


class Stream(io.RawIOBase):
    """A readable file over chunks, for ``copy_expert``: memory holds one chunk at a time."""

    def __init__(self, chunks: Iterable[bytes]):
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; empty at the end."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._rest = memoryview(chunk)
        taken = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(taken) :]
        return bytes(taken)
