"""Parquet files, read in the thread that asks.

Arrow's threads, for columns and for what is to come, would read through Python's file object. One
that lets go of it when the process has begun to end waits for an interpreter that is no more, and
the whole process is aborted (apache/arrow#34314): a command that has printed all, or a task that
has done all, would end as if it had failed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.errors import LostFileError, UnavailableError
from ledger.storage.folders import RUN_AGAIN


@contextmanager
def stored_file(
    path: str, advice: str = RUN_AGAIN, fs: fsspec.AbstractFileSystem | None = None
) -> Iterator[pq.ParquetFile]:
    """A file that the ledger has written, while it is read.

    Raises LostFileError, with ``advice``, if it is gone or is not as it was written, and
    UnavailableError if its storage does not answer.
    """
    if fs is None:
        fs, path = fsspec.core.url_to_fs(path)
    try:
        with fs.open(path, "rb") as stream, opened(stream) as stored:
            yield stored
    except (OSError, pa.ArrowException) as exc:
        # Arrow says of bytes that are no Parquet that they are an OSError, without a number.
        if isinstance(exc, OSError) and exc.errno and not isinstance(exc, FileNotFoundError):
            raise UnavailableError(
                f"file {path} could not be read: {exc}. Check the storage, then run this again"
            ) from exc
        raise LostFileError(
            f"file {path} was changed or lost since it was written: expected a Parquet file,"
            f" found: {' '.join(str(exc).split())}. {advice}"
        ) from exc


def opened(stream: BinaryIO) -> pq.ParquetFile:
    """The file of a stream, of which nothing is read ahead: it would hold all row groups. Bytes of
    it that were changed since are noticed."""
    return pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)


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
