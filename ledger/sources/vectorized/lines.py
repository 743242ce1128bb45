"""The records of a part of a text, and which of them were read by columns."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Lines:
    """Records in ``data``, a part of an uncompressed text, in order.

    ``starts``, ``ends``: for each record, the offsets of its first byte and of the byte after its
    last, without the line break, int64. The bytes between records are line breaks and lines that
    are no records, such as empty ones.
    """

    data: bytes
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, number: int) -> str:
        """Return one record as text. Bytes that are not UTF-8 are escaped as lone surrogates."""
        part = self.data[int(self.starts[number]) : int(self.ends[number])]
        return part.decode("utf-8", "surrogateescape")

    def trimmed(self) -> "Lines":
        """Return the same records, with ``data`` cut to the range from the first to the last."""
        if not len(self):
            return Lines(b"", self.starts, self.ends)
        begin = int(self.starts[0])
        data = self.data[begin : int(self.ends[-1])]
        return Lines(data, self.starts - begin, self.ends - begin)

    def are_utf8(self) -> np.ndarray:
        """Return for each record whether it is UTF-8."""
        if is_utf8(self.data):
            return np.ones(len(self), bool)
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return np.array([is_utf8(self.data[start:end]) for start, end in spans], bool)

    def texts(self, numbers: np.ndarray) -> list[bytes]:
        """Return the bytes of the records with these numbers."""
        starts, ends = self.starts[numbers].tolist(), self.ends[numbers].tolist()
        return [self.data[start:end] for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Read:
    """Records that were read by columns.

    ``columns``: the schema's columns, in its order, one row for each record.
    ``was_read``: for each record, whether its row has what the exact reader would have read. Any
    other record's row is null, and the exact reader reads it.
    """

    columns: pa.RecordBatch
    was_read: np.ndarray

    @classmethod
    def placed(
        cls,
        count: int,
        places: np.ndarray,
        good: np.ndarray,
        columns: list[pa.Array],
        names: list[str],
    ) -> "Read":
        """Return ``count`` records, of which those with a ``good`` row were read.

        ``places``: for each row of ``columns``, the place of its record.
        ``good``: for each row, whether it holds what the exact reader would have read.
        """
        was_read = np.zeros(count, bool)
        was_read[places[good]] = True
        if not was_read.all():
            row = np.zeros(count, np.int64)
            row[places] = np.arange(len(places))
            rows = pa.array(row, mask=~was_read)
            columns = [column.take(rows) for column in columns]
        return cls(pa.RecordBatch.from_arrays(columns, names), was_read)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def mask(flags: pa.BooleanArray) -> np.ndarray:
    """Return flags, none of which is null, as a numpy array."""
    return np.asarray(flags)
