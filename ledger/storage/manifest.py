"""Manifests: which files a run wrote, counted from their footers."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import fsspec

from ledger.core.probes import reached
from ledger.errors import LostFileError
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
    fs, root = fsspec.core.url_to_fs(folder)
    details = fs.find(root, detail=True) if fs.exists(root) else {}
    paths = sorted(
        path
        for path in details
        if _is_data(path[len(root) :]) and (names is None or path.rsplit("/", 1)[-1] in names)
    )
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda path: _footer_rows(fs, path), paths))
    files, position = [], 0
    for name, count in zip(paths, rows, strict=True):
        path = fs.unstrip_protocol(name) if "://" in folder else name
        files.append(DataFile(path, int(details[name]["size"]), count, position))
        position += count
    return Manifest(tuple(files))


def check_files(manifest: Manifest, advice: str = RUN_AGAIN) -> None:
    """Raise LostFileError, with ``advice``, unless every file is there with the size it had."""
    if not manifest.files:
        return
    fs = fsspec.core.url_to_fs(manifest.files[0].path)[0]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: _check_file(fs, file, advice), manifest.files))


def _is_data(relative: str) -> bool:
    parts = relative.strip("/").split("/")
    return relative.endswith(".parquet") and not any(
        part.startswith((".", "_t", "_s")) for part in parts
    )


def _footer_rows(fs: fsspec.AbstractFileSystem, name: str) -> int:
    from ledger.storage.parquet import stored_file  # DAG files import this module, and read no file

    with stored_file(name, fs=fs) as stored:
        return int(stored.metadata.num_rows)


def _check_file(fs: fsspec.AbstractFileSystem, file: DataFile, advice: str) -> None:
    try:
        size = fs.info(file.path)["size"]
    except FileNotFoundError:
        size = None
    if size != file.bytes:
        actual = "it is gone" if size is None else f"found {size} bytes"
        raise LostFileError(
            f"file {file.path}: expected {file.bytes} bytes with {file.rows} rows, {actual}. "
            f"{advice}"
        )
