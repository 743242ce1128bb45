"""Manifests: which files a run wrote, counted from their footers."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ledger.core.probes import reached
from ledger.errors import LostFileError
from ledger.storage import stores
from ledger.storage.folders import RUN_AGAIN


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. ``bytes``: its size. ``first_position``: that of its first row."""

    path: str
    bytes: int
    rows: int
    first_position: int


@dataclass(frozen=True)
class Manifest:
    """The files of one output, by position; positions are dense over all of them."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def paths(self) -> list[str]:
        """Paths of the files, in order."""
        return [file.path for file in self.files]


def take_manifest(folder: str, names: Collection[str] | None = None) -> Manifest:
    """The Parquet files below ``folder``, sorted by path, with rows by their footers. ``names``: of
    those that count; None: all."""
    reached("files written", folder)
    stored = [
        file
        for file in stores.files_below(folder)
        if _is_data(file.path[len(folder) :]) and (names is None or file.name in names)
    ]
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(_footer_rows, [file.path for file in stored]))
    files, position = [], 0
    for file, count in zip(stored, rows, strict=True):
        files.append(DataFile(file.path, file.bytes, count, position))
        position += count
    return Manifest(tuple(files))


def check_files(manifest: Manifest, advice: str = RUN_AGAIN) -> None:
    """Raise LostFileError, with ``advice``, unless every file is there with the size it had."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: _check_file(file, advice), manifest.files))


def _is_data(relative: str) -> bool:
    parts = relative.strip("/").split("/")
    return relative.endswith(".parquet") and not any(
        part.startswith((".", "_t", "_s")) for part in parts
    )


def _footer_rows(path: str) -> int:
    from ledger.storage.parquet import stored_file  # DAG files import this module, and read no file

    with stored_file(path) as stored:
        return int(stored.metadata.num_rows)


def _check_file(file: DataFile, advice: str) -> None:
    entry = stores.info(file.path)
    size = None if entry is None else entry.bytes
    if size != file.bytes:
        actual = "it is gone" if size is None else f"found {size} bytes"
        raise LostFileError(
            f"file {file.path}: expected {file.bytes} bytes with {file.rows} rows, {actual}. "
            f"{advice}"
        )
