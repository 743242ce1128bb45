"""Writes files of columns, each whole or not at all."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.storage import stores

GROUP_ROWS = 1 << 20


class TableWriter:
    """Writes one file of columns. The file is created with the first rows, and removed if the block
    raises.

    ``metadata``: the metadata of the file.
    ``options``: options of Arrow's writer.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        metadata: Mapping[str, str] | None = None,
        **options: Any,
    ):
        self._path, self._schema = path, schema
        self._metadata, self._options = metadata, {"compression": "lz4", **options}
        self._file = ExitStack()  # open while there is something in it
        self._writer: Any = None
        self._is_whole = False

    def write(self, columns: Sequence[Any]) -> None:
        """Write rows, given as columns in the order of the schema. Without rows, nothing is
        created.
        """
        if not len(columns[0]):
            return
        if self._writer is None:
            stream = self._file.enter_context(stores.written(self._path))
            self._writer = pq.ParquetWriter(
                stream, self._schema, write_page_checksum=True, **self._options
            )
            if self._metadata is not None:
                self._writer.add_key_value_metadata(dict(self._metadata))
        self._writer.write_table(pa.table(list(columns), schema=self._schema), GROUP_ROWS)

    def finish(self) -> str | None:
        """Finish the file, and return its path. Return None if nothing was written: then there is
        no file.
        """
        if self._writer is None:
            return None
        self._writer.close()
        self._file.close()
        self._is_whole = True
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if exc is None:
            return
        if self._writer is not None:  # else it would be closed once its file is
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
        self._file.__exit__(kind, exc, trace)
        if self._is_whole:
            stores.remove_file(self._path)
