"""The folder of a Delta table: staged files, and the lists about them in ``_ackledger``."""

import json
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ledger.core.paths import is_local
from ledger.errors import IntegrityError
from ledger.storage import stores
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

PRIVATE = (0o700, 0o770)  # what the user, or also the group, may do where files are staged
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class TableFile:
    """A file of the table.

    ``path``: relative to the table's folder, as it is named on the storage.
    ``values``: the values of its partition columns, as text.
    """

    path: str
    bytes: int
    rows: int
    values: dict[str, str | None]


@dataclass(frozen=True)
class TableFolder:
    """The folder of a table. ``path``: absolute or a URL.

    Folders of batches have no ``=`` in their names, because Polars takes every ``name=value`` in a
    path for a partition column.
    """

    path: str
    partition_by: tuple[str, ...]

    def staging(self, batch_id: int, version: int) -> str:
        """Return the path of the folder in which one run stages its files."""
        return f"{self.path}/_ackledger/batch-{batch_id}/run-{version}"

    def let_read(self, files: Iterable[TableFile]) -> None:
        """Let all who may read the table read staged files and their folders. Before that, only
        this user, or the group, may read them.
        """
        if not is_local(self.path):
            return
        root = Path(self.path)
        opened = stat.S_IMODE(root.stat().st_mode)
        parents = {parent for file in files for parent in Path(file.path).parents}
        for folder in (root / parent for parent in parents if parent.parts[:1] == ("_ackledger",)):
            mode = stat.S_IMODE(folder.stat().st_mode)
            if mode & 0o777 in PRIVATE and mode != opened:
                folder.chmod(opened)

    def list_of(self, batch_id: int, version: int) -> str:
        """Return the path of the list of a version's files."""
        return f"{self.staging(batch_id, version)}.json"

    def strangers(self) -> list[str]:
        """Return the names in the folder that are neither hidden nor part of a table; empty if the
        folder does not exist.
        """
        names = [entry.name for entry in stores.entries(self.path)]
        return sorted(name for name in names if not name.startswith(("_", ".")))

    def table_files(self, files: Iterable[DataFile]) -> list[TableFile]:
        """Return staged files as files of the table, without those that have no rows. Raises
        IntegrityError for a file outside the table's folder.
        """
        table_files = []
        for file in files:
            if file.rows:
                if not file.path.startswith(f"{self.path}/"):
                    raise IntegrityError(
                        f"file {file.path}: expected it below the table's folder {self.path}: files"
                        " are committed where they are. Stage them below the folder that the sink"
                        " names"
                    )
                path = file.path[len(self.path) + 1 :]
                table_files.append(self._table_file(path, file.bytes, file.rows))
        return table_files

    def write_list(self, batch_id: int, version: int, files: list[TableFile]) -> None:
        """Write the list of a version's files. Only the table's commit counts: without it, the list
        has no effect.
        """
        listed = [{"path": file.path, "bytes": file.bytes, "rows": file.rows} for file in files]
        self._write(self.list_of(batch_id, version), {"files": listed})

    def read_list(self, batch_id: int, version: int) -> list[TableFile]:
        """Return the files of a version from its list. Raises IntegrityError if the list cannot be
        read.
        """
        target = self.list_of(batch_id, version)
        try:
            listed = json.loads(stores.read(target))["files"]
            return [self._table_file(each["path"], each["bytes"], each["rows"]) for each in listed]
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise IntegrityError(
                f"{target}: expected the list of files that batch {batch_id} added to the table,"
                f" found {exc!r}. Put the file back. If it is lost, delete the batch's rows from"
                ' the table, and write {"files": []} to it'
            ) from exc

    def write_checked(self, batch_id: int, version: int, conditions: list[str]) -> None:
        """Store the conditions with which a version's rows were compared."""
        self._write(self._checked(batch_id, version), {"conditions": conditions})

    def read_checked(self, batch_id: int, version: int) -> list[str]:
        """Return the conditions that a version's rows were compared with; empty without any."""
        try:
            content = stores.read(self._checked(batch_id, version))
        except FileNotFoundError:
            return []
        conditions: list[str] = json.loads(content)["conditions"]
        return conditions

    def write_columns(self, schema: pa.Schema) -> None:
        """Store the columns of a table that does not exist yet. The first publication creates
        it.
        """
        from deltalake import Schema

        self._write(self._columns, json.loads(Schema.from_arrow(schema).to_json()))

    def read_columns(self) -> pa.Schema | None:
        """Return the columns of the latest plan; None without a plan."""
        from deltalake import Schema

        try:
            text = stores.read(self._columns).decode()
        except FileNotFoundError:
            return None
        return pa.schema(Schema.from_json(text).to_arrow())

    def file_schema(self, file: TableFile) -> pa.Schema:
        """Return the schema of a staged file, by its footer."""
        with stored_file(f"{self.path}/{file.path}") as stored:
            return stored.schema_arrow

    def _checked(self, batch_id: int, version: int) -> str:
        return f"{self.staging(batch_id, version)}.constraints.json"

    @property
    def _columns(self) -> str:
        return f"{self.path}/_ackledger/columns.json"

    def _write(self, path: str, content: dict[str, Any]) -> None:
        stores.write(path, json.dumps(content, indent=1).encode())

    def _table_file(self, path: str, size: int, rows: int) -> TableFile:
        """Return a file with the values of its partition columns, which are in the names of the
        folders above it. Raises IntegrityError if these folders are not those of ``partition_by``.
        """
        if not self.partition_by:
            return TableFile(path, size, rows, {})
        folders = [folder.partition("=") for folder in path.split("/")[:-1]]
        last = folders[-len(self.partition_by) :]
        values = {unquote(name): None if text == _NULL else unquote(text) for name, _, text in last}
        others = [name for name, equals, _ in folders[: -len(last)] if equals]
        if tuple(values) != self.partition_by or others:
            expected = "/".join(f"{name}=..." for name in self.partition_by)
            raise IntegrityError(
                f"file {path}: expected it in folders {expected}, and no other with = in its name."
                " Run the sink again: in Airflow clear the task that ran it"
            )
        return TableFile(path, size, rows, values)
