"""Staged files as a sink loads them: the user's columns, so many rows at a time."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.core.column_names import ROOT, ROOTS
from ledger.errors import IntegrityError
from ledger.sinks.base import WHERE_STAGED_FILES_ARE_LOST
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import iter_batches, stored_file

TRACKING = frozenset({ROOT, ROOTS})  # the ledger's own columns beside the user's
MOST_ROWS = 1 << 16
MOST_BYTES = 64 << 20


def user_schema(schema: pa.Schema) -> pa.Schema:
    """Return the user's columns, in order."""
    return pa.schema([field for field in schema if field.name not in TRACKING])


def staged_schema(files: Sequence[DataFile]) -> pa.Schema | None:
    """Return the user's columns of staged files, which all have those of the first; None: there are
    no files.
    """
    if not files:
        return None
    with _opened(files[0]) as parquet:
        return user_schema(parquet.schema_arrow)


def record_batches(
    files: Sequence[DataFile], schema: pa.Schema, *, tracking: bool = False
) -> Generator[pa.RecordBatch, None, None]:
    """Yield rows of the files, in pieces of at most 65,536 rows and about 64 MiB. ``tracking``:
    with the ledger's own columns after the user's.

    Raises LostFileError when a file is gone or is no Parquet, IntegrityError when it has other
    columns.
    """
    for file in files:
        with _opened(file) as parquet:
            columns = user_schema(parquet.schema_arrow)
            if _types(columns) != _types(schema):
                raise IntegrityError(
                    f"file {file.path}: expected columns {_types(schema)} as in the first file,"
                    f" found {_types(columns)}. {WHERE_STAGED_FILES_ARE_LOST}"
                )
            own = [name for name in parquet.schema_arrow.names if name in TRACKING]
            names = [*schema.names, *(own if tracking else [])]
            # About the bytes of a piece, estimated from those in the file.
            footer = parquet.metadata
            groups = range(footer.num_row_groups)
            stored: int = sum(footer.row_group(number).total_byte_size for number in groups)
            estimate = MOST_BYTES * int(footer.num_rows) // max(1, stored)
            for batch in iter_batches(parquet, max(1, min(MOST_ROWS, estimate)), names):
                rows_of_batch = batch.select(names)
                parts = -(-rows_of_batch.nbytes // MOST_BYTES) or 1
                length = max(1, -(-batch.num_rows // parts))
                for start in range(0, batch.num_rows, length):
                    yield rows_of_batch.slice(start, length)


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _opened(file: DataFile) -> AbstractContextManager[pq.ParquetFile]:
    return stored_file(file.path, WHERE_STAGED_FILES_ARE_LOST)
