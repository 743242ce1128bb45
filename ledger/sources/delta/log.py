"""The log of a Delta table: its versions, their files, and what was appended between two."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from ledger.core.delta_paths import require_openable
from ledger.core.paths import without_file_scheme
from ledger.errors import DeclarationError, InputError, UnavailableError, quote
from ledger.sources.delta.source import DeltaSource
from ledger.storage import stores
from ledger.storage.manifest import About

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Features of which a reader needs to know nothing else, and deletion vectors.
_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint"}
_MAPPING, _WITHOUT_MAPPING = "delta.columnMapping.mode", (None, "none")
_DROP = {
    "columnMapping": "Set delta.columnMapping.mode to 'none', which rewrites the table's files",
    "typeWidening": "Run ALTER TABLE ... DROP FEATURE typeWidening, which rewrites the files",
}
_NO_TYPE = ("void", "variant")
_RETENTION = "delta.deletedFileRetentionDuration"
_WHOLE = (
    "Declare the source without incremental=True, which reads whole versions, or under a new name,"
    " whose first batch reads the whole table"
)


@dataclass(frozen=True)
class TableCommit:
    """A version of a table as its log has it. ``added``: the add actions of new rows."""

    version: int
    added: Sequence[dict[str, Any]]

    @property
    def rows(self) -> int | None:
        """Number of rows that it has added; None: a file has no statistics."""
        counts = [json.loads(each.get("stats") or "{}").get("numRecords") for each in self.added]
        return None if None in counts else sum(counts)


@dataclass(frozen=True)
class AddedFiles:
    """Files of a table, ordered by path: their paths, as absolute paths or URLs, and sizes.

    ``values``: a row for each file, with the partition columns; None: there are none.
    """

    paths: Sequence[str]
    sizes: Sequence[int]
    values: pa.Table | None


class TableLog:
    """One version of the Delta table at a path.

    Raises InputError if no table is there, if it lacks the version, or if its rows cannot be read
    exactly; UnavailableError if the storage does not answer.

    ``version``: its number; None: the newest.
    """

    def __init__(self, path: str, version: int | None = None):
        try:
            require_openable(path)
        except DeclarationError as exc:
            raise InputError(str(exc)) from exc
        self.path = path.rstrip("/")
        self._table = self._opened(version)
        self.version = int(self._table.version())
        self._require_readable()

    @property
    def table_id(self) -> str:
        """The id of the table, which another table at the path does not have."""
        return str(self._table.metadata().id)

    @property
    def offset(self) -> dict[str, Any]:
        """The version as a claim has it."""
        return {"version": self.version, "table": self.table_id}

    @property
    def partition_by(self) -> list[str]:
        """The partition columns."""
        return list(self._table.metadata().partition_columns)

    @property
    def name(self) -> str:
        """The version and the table, for messages."""
        return f"version {self.version} of Delta table {self.path}"

    def about(self, source: DeltaSource) -> About:
        """Return words about the version, as a version of a source."""
        period = self._table.metadata().configuration.get(_RETENTION, "7 days by default")
        again = "let this one be abandoned and clear its run, or reprocess the interval"
        if source.incremental:
            way_out = "declare the source under a new name, whose first batch reads the whole table"
        elif source.version is not None:
            way_out = f"declare another version, and give the interval to a new batch: {again}"
        else:
            way_out = f"give the interval to a new batch, which claims the newest version: {again}"
        return About(
            self.name,
            f"VACUUM removes files that the newest version does not have, after {_RETENTION}"
            f" ({period}): set this property to more than a batch and its replays take. Restore the"
            f" file, or {way_out}",
        )

    @cached_property
    def schema_json(self) -> str:
        """The columns as Spark writes a StructType to JSON, without comments and other metadata.
        Raises InputError for a type that Spark cannot read everywhere.
        """
        schema = json.loads(self._table.schema().to_json())
        for column in schema["fields"]:
            for kind in _types(column["type"]):
                if kind in _NO_TYPE:
                    raise InputError(
                        f"{self.name}: column {column['name']!r} has the type"
                        f" {kind.upper()}, which is not read. Write the other columns to another"
                        " table, and read that one"
                    )
        return json.dumps(_bare(schema))

    def files(self) -> AddedFiles:
        """Return all files of the version."""
        actions = self._actions()
        return self._added(actions, actions["path"].to_pylist())

    def rows(self) -> int | None:
        """Return the number of rows by the statistics of the log; None if a file has none. Rows
        that deletion vectors delete are counted.
        """
        counts = self._actions()["num_records"].to_pylist()
        return None if None in counts else sum(counts)

    def deleted(self) -> dict[str, list[int]]:
        """Return the indexes of the rows that deletion vectors delete, by the path of their file
        without the scheme, which deltalake may name differently.
        """
        with self._asking():
            vectors = pa.table(self._table.deletion_vectors())
        deleted = {}
        real = bare(unquote(self._table.table_uri)).rstrip("/")  # links are resolved in it
        for batch in vectors.to_batches():
            for path, mask in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                rows = [row for row, stays in enumerate(mask) if not stays]
                place = bare(unquote(path) if "://" in path else path)
                if place.startswith(f"{real}/"):
                    place = f"{bare(self.path)}{place.removeprefix(real)}"
                deleted[place] = rows
        return deleted

    def appended(self, after: int) -> AddedFiles:
        """Return the files that were appended after a version. Raises InputError as ``commits``
        does.
        """
        parts = []
        for commit in self.commits(after):
            if commit.added:
                names = [each["path"] for each in commit.added]
                at = TableLog(self.path, commit.version) if self.partition_by else None
                if at is not None:  # the log of a commit has values as text of several forms
                    parts.append(at._added(at._actions(), names))
                else:
                    sizes = [int(each["size"]) for each in commit.added]
                    parts.append(AddedFiles(list(map(self._absolute, names)), sizes, None))
        paths = [path for part in parts for path in part.paths]
        values = [part.values for part in parts if part.values is not None]
        return AddedFiles(
            paths,
            [size for part in parts for size in part.sizes],
            pa.concat_tables(values) if values else None,
        )

    def commits(self, after: int) -> Iterator[TableCommit]:
        """Yield the versions after another one up to this one, in order.

        Raises InputError for a version that deletes or changes rows, and for one that the log does
        not have any more.
        """
        for version in range(after + 1, self.version + 1):
            actions = self._commit(version)
            removed = [each["remove"] for each in actions if "remove" in each]
            if any(each.get("dataChange", True) for each in removed):
                infos = (each["commitInfo"] for each in actions if "commitInfo" in each)
                what = next((info.get("operation") for info in infos), None) or "a commit"
                raise InputError(
                    f"version {version} of Delta table {self.path} deletes or changes rows"
                    f" ({what}): expected only appended rows after version {after}, up to which"
                    " batches have read. What is deleted cannot be taken back from the sinks."
                    f" {_WHOLE}"
                )
            adds = [each["add"] for each in actions if "add" in each]
            added = [each for each in adds if each.get("dataChange", True)]
            for each in added:
                if each.get("deletionVector"):
                    raise InputError(
                        f"version {version} of Delta table {self.path} appends file"
                        f" {each['path']!r} with a deletion vector: expected files of which all"
                        f" rows were appended. {_WHOLE}"
                    )
            yield TableCommit(version, added)

    def _commit(self, version: int) -> list[dict[str, Any]]:
        path = f"{self.path}/_delta_log/{version:020}.json"
        try:
            lines = stores.read(path).decode().split("\n")
        except FileNotFoundError as exc:
            raise InputError(
                f"Delta table {self.path}: expected {path}, which lists what version {version}"
                " appended, it is gone: the log is kept for delta.logRetentionDuration (30 days by"
                " default). Set it to more than the time between two batches. To go on, declare the"
                " source under a new name, whose first batch reads the whole table"
            ) from exc
        except OSError as exc:
            raise UnavailableError(
                f"{path} could not be read: {exc}. Check the storage, then run this again"
            ) from exc
        return [json.loads(line) for line in lines if line.strip()]

    def _opened(self, version: int | None) -> "DeltaTable":
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.path)
        except TableNotFoundError as exc:
            raise InputError(
                f"no Delta table at {self.path}: expected a folder with _delta_log. Check the path"
            ) from exc
        except DeltaError as exc:
            raise self._unreadable(quote(exc)) from exc
        except OSError as exc:
            raise self._away(exc) from exc
        newest = int(table.version())
        if version is None or version == newest:
            return table
        if version > newest:
            raise InputError(
                f"Delta table {self.path}: expected version {version}, the newest is {newest}. Wait"
                " for it, or declare another version"
            )
        try:
            return DeltaTable(self.path, version=version)
        except (DeltaError, FileNotFoundError) as exc:
            raise InputError(
                f"Delta table {self.path}: version {version} cannot be read any more, the newest is"
                f" {newest}: the log is kept for delta.logRetentionDuration (30 days by default)."
                f" Read a newer version. deltalake: {quote(exc)}"
            ) from exc
        except OSError as exc:
            raise self._away(exc) from exc

    def _require_readable(self) -> None:
        """Raise InputError if the table has a feature with which its rows are not read exactly."""
        protocol = self._table.protocol()
        mode = self._table.metadata().configuration.get(_MAPPING)
        features = {*(protocol.reader_features or ())} - _FEATURES
        if mode not in _WITHOUT_MAPPING:
            features.add("columnMapping")
        for name in sorted(features - ({"columnMapping"} if mode in _WITHOUT_MAPPING else set())):
            raise self._unreadable(
                f"it has the table feature {name}, with which its rows are not read exactly."
                f" {_DROP.get(name, 'Drop the feature from the table')}, or write its"
                " rows to another table, and read that one"
            )
        schema = json.loads(self._table.schema().to_json())
        kinds = {column["name"]: column["type"] for column in schema["fields"]}
        for name in self.partition_by:
            if kinds[name] == "binary":
                raise self._unreadable(
                    f"partition column {name!r} has the type BINARY, whose values are not read"
                    " exactly. Write its rows to a table with another partition column, and read"
                    " that one"
                )

    def _unreadable(self, why: str) -> InputError:
        return InputError(f"Delta table {self.path} cannot be read: {why}")

    def _away(self, exc: OSError) -> UnavailableError:
        return UnavailableError(
            f"Delta table {self.path} could not be read: {quote(exc)}. Check the storage, then run"
            " this again"
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Translate errors of deltalake in this block to InputError or UnavailableError."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, FileNotFoundError) as exc:
            raise self._unreadable(quote(exc)) from exc
        except OSError as exc:
            raise self._away(exc) from exc

    def _actions(self) -> pa.Table:
        with self._asking():
            return pa.table(self._table.get_add_actions())

    def _added(self, actions: pa.Table, names: Sequence[str]) -> AddedFiles:
        """Return those add actions whose paths, as the log writes them, are in ``names``."""
        own = {name: number for number, name in enumerate(actions["path"].to_pylist())}
        numbers = pa.array([own[name] for name in sorted(names)], pa.int64())
        some = actions.take(numbers)
        values = None
        if self.partition_by:
            partition = some["partition"].combine_chunks()
            parts = {name: partition.field(name) for name in self.partition_by}
            values = pa.table(parts)
        paths = list(map(self._absolute, some["path"].to_pylist()))
        return AddedFiles(paths, some["size_bytes"].to_pylist(), values)

    def _absolute(self, path: str) -> str:
        """Return the path or URL of a file that the log names."""
        place = unquote(path)
        if "://" in path or path.startswith(("/", "file:")):
            return without_file_scheme(place)
        return f"{self.path}/{place}"


def require_offset(source: str, offset: Any) -> None:
    """Raise InputError unless an offset of a claim on a source is a version of a table."""
    if not isinstance(offset, dict) or not {"version", "table"} <= offset.keys():
        raise InputError(
            f"source {source!r} was read by other offsets before: found {quote(repr(offset))},"
            " expected a version of a table. Declare it under a new name"
        )


def bare(path: str) -> str:
    """Return a path or URL without its scheme."""
    return path.split("://", 1)[-1]


def _types(kind: Any) -> Iterator[str]:
    """Yield the names of the scalar types within a type of Delta's JSON."""
    if isinstance(kind, str):
        yield kind
        return
    parts = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    for part in [*parts, *(field["type"] for field in kind.get("fields", ()))]:
        yield from _types(part)


def _bare(value: Any) -> Any:
    """Return a part of Delta's JSON of a schema without the metadata of columns."""
    if isinstance(value, dict):
        return {name: {} if name == "metadata" else _bare(part) for name, part in value.items()}
    return [_bare(part) for part in value] if isinstance(value, list) else value
