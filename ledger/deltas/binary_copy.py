"""PostgreSQL's binary COPY format, built by numpy from columns: no Python per row.

Format: documentation of COPY, "Binary Format".
"""

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np

from ledger.deltas.rows import Longs

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_TEXT = 25  # the type's number
TRAILER = struct.pack(">h", -1)


def encode(columns: Sequence[Longs | int], equal: Sequence[bytes] = ()) -> bytes:
    """Return rows of bigints, and then of fields that are the same in every row.

    ``columns``: the values of each bigint; a plain int is the same in every row.
    ``equal``: the other fields, encoded by ``field``.
    """
    length = next(len(value) for value in columns if not isinstance(value, int))
    rest = b"".join(equal)
    # What is equal in every row is laid out once, and copied.
    same = np.zeros((), _row(len(columns), len(rest)))
    same["fields"] = len(columns) + len(equal)
    same["rest"] = np.void(rest)
    for number, value in enumerate(columns):
        same[f"size{number}"] = 8
        if isinstance(value, int):
            same[f"column{number}"] = value
    rows = np.full(length, same)
    for number, value in enumerate(columns):
        if not isinstance(value, int):
            rows[f"column{number}"] = value
    return rows.tobytes()


def field(value: str | bool | int | Sequence[str] | None) -> bytes:
    """Encode a text, boolean, bigint, array of texts or None as one field: its length, then its
    bytes.
    """
    if value is None:
        return struct.pack(">i", -1)
    if isinstance(value, bool):
        return struct.pack(">i?", 1, value)
    if isinstance(value, int):
        return struct.pack(">iq", 8, value)
    if isinstance(value, str):
        data = value.encode()
    else:
        dimensions = struct.pack(">iii", 1, 0, _TEXT) + struct.pack(">ii", len(value), 1)
        data = dimensions + b"".join(map(field, value))
    return struct.pack(">i", len(data)) + data


def decode(data: bytes, columns: int) -> list[Longs]:
    """Decode rows that COPY returned into ``columns`` bigint columns. The rows must not have any
    other column or a null.
    """
    body = memoryview(data)[len(HEADER) : len(data) - len(TRAILER)]
    rows = np.frombuffer(body, _row(columns))
    return [rows[f"column{number}"].astype(np.int64) for number in range(columns)]


@cache
def _row(columns: int, rest: int = 0) -> np.dtype[np.void]:
    """Return the dtype of a row: ``columns`` bigints, each after its length, and then ``rest``
    bytes.
    """
    fields = [("fields", ">i2")]
    for number in range(columns):
        fields += [(f"size{number}", ">i4"), (f"column{number}", ">i8")]
    fields.append(("rest", f"V{rest}"))
    return np.dtype(fields)
