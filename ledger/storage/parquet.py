"""Parquet files, read in the thread that asks.

Arrow's threads, for columns and for what is to come, would read through Python's file object. One
that lets go of it when the process has begun to end waits for an interpreter that is no more, and
the whole process is aborted (apache/arrow#34314): a command that has printed all, or a task that
has done all, would end as if it had failed.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq


def opened(stream: BinaryIO) -> pq.ParquetFile:
    """The file of a stream, of which nothing is read ahead: it would hold all row groups."""
    return pq.ParquetFile(stream, pre_buffer=False)


def read(stored: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """These columns of all rows."""
    return stored.read(list(columns), use_threads=False)


def read_row_group(
    stored: pq.ParquetFile, group: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of one row group; None: with all columns."""
    return stored.read_row_group(group, columns, use_threads=False)


def iter_batches(
    stored: pq.ParquetFile, rows: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """These columns, so many rows at a time."""
    yield from stored.iter_batches(rows, columns=list(columns), use_threads=False)
