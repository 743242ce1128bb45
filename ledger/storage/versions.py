"""Versions: files of others that hold the records of a claim. They do not change, or a change is
noticed.

A run that reads a version writes one file without rows, which describes the version. Its manifest
is that file and the version's files.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.core.column_names import FILE
from ledger.storage import stores
from ledger.storage.manifest import (
    ABOUT,
    MARKS,
    VERSION_FILE,
    About,
    DataFile,
    Manifest,
    version_file,
)
from ledger.storage.parquet import SPARK_SCHEMA, stored_file

_VALUES = b"ackledger.partitions"


@dataclass(frozen=True)
class Version:
    """Files that hold the records of a claim.

    ``schema``: the records' columns, as Spark writes a StructType to JSON.
    ``columns``: the same columns in Arrow's types.
    ``files``: the files in a fixed order, without files that have no rows.
    ``values``: a row for each file, with the columns that are not in the files; None: there are no
    such columns.
    ``marks``: by path, the mark of each file that may change.
    """

    about: About
    schema: str
    columns: pa.Schema
    files: tuple[DataFile, ...]
    values: pa.Table | None = None
    marks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return sum(file.rows for file in self.files)

    def describe(self, folder: str) -> Manifest:
        """Write the file that describes the version to a run's folder. Return the manifest of the
        run: this file and the version's files.
        """
        path = f"{folder}/{VERSION_FILE}"
        metadata = {SPARK_SCHEMA.encode(): self.schema.encode()}
        metadata[ABOUT] = json.dumps(asdict(self.about)).encode()
        if self.marks:
            metadata[MARKS] = json.dumps(dict(self.marks)).encode()
        if self.values is not None:
            metadata[_VALUES] = base64.b64encode(_as_bytes(self.values))
        sink = pa.BufferOutputStream()
        pq.write_table(self.columns.with_metadata(metadata).empty_table(), sink)
        content = sink.getvalue().to_pybytes()
        stores.write(path, content)
        return Manifest((DataFile(path, len(content), 0, 0), *self.files))

    def completed(self, rows: pa.Table, file: DataFile) -> pa.Table:
        """Return rows of one of the files with all columns of the version, in its types, and
        ``FILE``.
        """
        values: Mapping[str, Any] = {}
        if self.values is not None:
            number = self.files.index(file)
            values = {name: self.values[name][number] for name in self.values.column_names}
        columns = [_column(rows, column, values) for column in self.columns]
        table = pa.table(columns, schema=self.columns.remove_metadata())
        path = pa.repeat(pa.scalar(quote(file.path)), len(rows))
        return table.append_column(FILE, path)


def version_of(manifest: Manifest) -> Version | None:
    """Return the version whose files a manifest lists; None: the manifest's files were written by
    the run itself.
    """
    own = version_file(manifest)
    if own is None:
        return None
    with stored_file(own.path) as stored:
        metadata, columns = stored.metadata.metadata, stored.schema_arrow.remove_metadata()
        schema = metadata[SPARK_SCHEMA.encode()].decode()
    values = None
    if _VALUES in metadata:
        with pa.ipc.open_stream(base64.b64decode(metadata[_VALUES])) as stream:
            values = stream.read_all().combine_chunks()
    files = tuple(file for file in manifest.files if file != own)
    return Version(About(**json.loads(metadata[ABOUT])), schema, columns, files, values)


def _as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _column(rows: pa.Table, column: pa.Field, values: Mapping[str, Any]) -> Any:
    """Return a column of the version for some rows of a file."""
    if column.name in values:
        return pa.repeat(values[column.name], len(rows)).cast(column.type)
    if column.name not in rows.column_names:
        return pa.nulls(len(rows), column.type)
    return rows[column.name].cast(column.type)
