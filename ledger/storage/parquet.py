"""Parquet files, read in the thread that asks.

Arrow's threads, for columns and for what is to come, would read through Python's file object. One
that lets go of it when the process has begun to end waits for an interpreter that is no more, and
the whole process is aborted (apache/arrow#34314): a command that has printed all, or a task that
has done all, would end as if it had failed.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.core.column_names import FILE, NAMES
from ledger.errors import ConfigurationError, LostFileError, UnavailableError
from ledger.storage import stores
from ledger.storage.folders import RUN_AGAIN
from ledger.types.arrow import parts

SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
_REPEATED = (FILE, NAMES)  # texts that are the same in thousands of rows
_LOST = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


@contextmanager
def stored_file(path: str, advice: str = RUN_AGAIN) -> Iterator[pq.ParquetFile]:
    """Open a file that the ledger has written, for the block.

    Opening and reading it raise LostFileError, with ``advice``, if the file is gone or changed;
    ConfigurationError if it may not be read; and UnavailableError if the storage does not answer.
    Other errors of the block are not translated.
    """
    file_errors = _FileErrors(path, advice)
    with file_errors:
        stream = stores.opened(path)
    with stream:
        with file_errors:
            stored = opened(stream)
        stored.file_errors = file_errors
        with stored:
            yield stored


class _FileErrors:
    """Context manager for reading a file that the ledger has written. It translates errors of Arrow
    and of the storage: LostFileError for a file that is gone or no Parquet, with ``advice``;
    ConfigurationError if it may not be read; UnavailableError if the storage does not answer. Other
    errors pass unchanged, MemoryError among them.
    """

    def __init__(self, path: str, advice: str):
        self._path = path
        self._advice = advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, MemoryError | pa.ArrowCancelled):
            return  # Arrow's, too: neither is the file's fault
        if not isinstance(exc, OSError | pa.ArrowException):
            return
        if isinstance(exc, PermissionError):
            raise ConfigurationError(
                f"file {self._path} could not be read: {exc}. Let this user read it, then run this"
                " again"
            ) from exc
        # Of bytes that are no Parquet Arrow raises an OSError without a number.
        if isinstance(exc, OSError) and exc.errno and not isinstance(exc, _LOST):
            raise UnavailableError(
                f"file {self._path} could not be read: {exc}. Check the storage, then run this"
                " again"
            ) from exc
        raise LostFileError(
            f"file {self._path} was changed or lost since it was written: expected a Parquet file,"
            f" found: {' '.join(str(exc).split())}. {self._advice}"
        ) from exc


def _reading(stored: pq.ParquetFile) -> "_FileErrors | nullcontext[None]":
    """Return the context manager that translates errors of reading a file. It does nothing for a
    file that ``stored_file`` did not open.
    """
    file_errors: _FileErrors | None = getattr(stored, "file_errors", None)
    return file_errors or nullcontext()


def opened(stream: BinaryIO) -> pq.ParquetFile:
    """Open a stream as a Parquet file. Checksums are verified. Nothing is read ahead, because that
    would keep all row groups in memory.
    """
    metadata = pq.read_metadata(stream)
    repeated = [name for name in _REPEATED if name in metadata.schema.names]
    return pq.ParquetFile(
        stream,
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=True,
        read_dictionary=repeated,
        coerce_int96_timestamp_unit="us",  # in files of others, and no time overflows
    )


def footer_digest(path: str) -> str:
    """Return the SHA-256 of a file's footer, which has the places and checksums of its pages, and
    the number of its rows. Of a file that is no Parquet it is that of its end.
    """
    with _FileErrors(path, RUN_AGAIN), stores.opened(path) as stream:
        stream.seek(-8, io.SEEK_END)
        length = int.from_bytes(stream.read(8)[:4], "little")
        end = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, end - 8 - length))
        return hashlib.sha256(stream.read()).hexdigest()


def spark_schema(stored: pq.ParquetFile) -> Any:
    """Return the schema with which Spark wrote a file, as parsed JSON."""
    return json.loads(stored.metadata.metadata[SPARK_SCHEMA.encode()])


def spark_metadata(schema: Any) -> dict[str, str]:
    """Return the file metadata from which Spark reads a schema, a StructType. The file may lack
    columns of the schema.
    """
    return {SPARK_SCHEMA: schema.json()}


def null_paths(stored: pq.ParquetFile) -> set[tuple[str, ...]]:
    """Return the paths of columns, and of fields of structs, that may be null in all rows,
    according to the statistics of the file. A path is a tuple of names.
    """
    metadata, nulls = stored.metadata, set[tuple[str, ...]]()
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = (
        all(_may_be_null(group.column(leaf), metadata.schema.column(leaf)) for group in groups)
        for leaf in range(metadata.num_columns)
    )

    def is_null(kind: pa.DataType, path: tuple[str, ...]) -> bool:
        kind = getattr(kind, "storage_type", kind)
        inner = [
            is_null(part.type, (*path, part.name) if pa.types.is_struct(kind) else path)
            for part in parts(kind)
        ]
        nulls.update(
            (*path, part.name)
            for part, own in zip(parts(kind), inner, strict=True)
            if own and pa.types.is_struct(kind)
        )
        return all(inner) if inner else next(leaves)

    is_null(pa.struct(list(stored.schema_arrow)), ())
    return nulls


def _may_be_null(chunk: pq.ColumnChunkMetaData, leaf: pq.ColumnSchema) -> bool:
    """Return whether all values of a column chunk may be null. Writers differ in whether they count
    empty lists as nulls.
    """
    statistics = chunk.statistics
    if statistics is None or leaf.max_repetition_level:
        return statistics is None or not statistics.has_min_max
    return not statistics.has_null_count or statistics.null_count == chunk.num_values


def read(stored: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """Return these columns of all rows."""
    if not stored.metadata.num_row_groups:  # of which pyarrow 18 cannot read columns
        return stored.schema_arrow.empty_table().select(list(columns))
    with _reading(stored):
        return stored.read(list(columns), use_threads=False)


def read_row_group(
    stored: pq.ParquetFile, group: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the rows of one row group; with all columns if ``columns`` is None."""
    with _reading(stored):
        return stored.read_row_group(group, columns, use_threads=False)


def iter_batches(
    stored: pq.ParquetFile, rows: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns, at most ``rows`` rows at a time."""
    if not stored.metadata.num_row_groups:  # as above
        return
    batches = stored.iter_batches(rows, columns=list(columns), use_threads=False)
    while True:
        with _reading(stored):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
