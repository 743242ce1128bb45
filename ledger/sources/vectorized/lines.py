"""The records of a part of a text, and what became of them when they were read by columns."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Lines:
    """Records that lie one after the other in ``data``, a part of a text that is not compressed.

    ``starts``, ``ends``: of each record its first byte and the one behind its last, int64: its line
    break is none of it. Between two records there are line breaks and what is no record, such as
    empty lines.
    """

    data: bytes
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, number: int) -> str:
        """One record; bytes that are not UTF-8 are escaped, as halves of characters."""
        part = self.data[int(self.starts[number]) : int(self.ends[number])]
        return part.decode("utf-8", "surrogateescape")

    def between(self, first: int, last: int) -> "Lines":
        """The records from one to before another."""
        if first == last:
            nothing = np.empty(0, np.int64)
            return Lines(b"", nothing, nothing)
        begin = int(self.starts[first])
        data = self.data[begin : int(self.ends[last - 1])]
        return Lines(data, self.starts[first:last] - begin, self.ends[first:last] - begin)

    def texts(self, wanted: np.ndarray) -> pa.BinaryArray:
        """The bytes of the records that are ``wanted``, a mask; null of the others."""
        texts: list[bytes | None] = [None] * len(self)
        for number in np.flatnonzero(wanted).tolist():
            texts[number] = self.data[int(self.starts[number]) : int(self.ends[number])]
        return pa.array(texts, pa.binary())


@dataclass(frozen=True)
class Read:
    """Records by columns. ``columns``: those of the schema, in its order, one row a record.
    ``was_read``: of each record whether its row holds what the exact reader would have read; a row
    of any other is null in all columns, and the record is left to that reader.
    """

    columns: pa.RecordBatch
    was_read: np.ndarray
