"""Manifests: the files that hold a run's rows, counted from their footers."""

import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ledger.core.probes import reached
from ledger.errors import LostFileError
from ledger.storage import stores
from ledger.storage.folders import RUN_AGAIN

# The file without rows that describes a version, see ``ledger.storage.versions``, and the key of
# its metadata that has ``About`` as JSON.
VERSION_FILE = "ackledger-version.parquet"
ABOUT = b"ackledger.version"


@dataclass(frozen=True)
class DataFile:
    """One Parquet file. ``bytes``: its size. ``first_position``: the position of its first row in
    the output.
    """

    path: str
    bytes: int
    rows: int
    first_position: int


@dataclass(frozen=True)
class Manifest:
    """The files of one output, ordered by position. Positions number the rows of all files without
    a gap.
    """

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    def __add__(self, other: "Manifest") -> "Manifest":
        """Return the files of both outputs. The rows of ``other`` get the positions after these
        rows.
        """
        rows = self.rows
        moved = (replace(file, first_position=rows + file.first_position) for file in other.files)
        return Manifest((*self.files, *moved))

    @property
    def paths(self) -> list[str]:
        """Paths of the files, in order."""
        return [file.path for file in self.files]


@dataclass(frozen=True)
class About:
    """Words about a version, for messages.

    ``name``: its name, for example ``version 12 of Delta table /lake/orders``.
    ``if_lost``: sentences on why a file of it may be lost, and on what to do then.
    """

    name: str
    if_lost: str


def take_manifest(folder: str, names: Collection[str] | None = None) -> Manifest:
    """List the Parquet files below ``folder``, sorted by path, with the number of rows from their
    footers. ``names``: the names of the files that count; None: all.
    """
    from ledger.storage.parquet import stored_file  # DAG files import this module, and read no file

    def footer_rows(path: str) -> int:
        with stored_file(path) as parquet:
            return int(parquet.metadata.num_rows)

    reached("files written", folder)
    stored = []
    for file in stores.files_below(folder):
        parts = file.path[len(folder) :].strip("/").split("/")
        is_hidden = any(part.startswith((".", "_t", "_s")) for part in parts)
        counts = names is None or file.name in names
        if file.name.endswith(".parquet") and counts and not is_hidden:
            stored.append(file)
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(footer_rows, [file.path for file in stored]))
    files, position = [], 0
    for file, count in zip(stored, rows, strict=True):
        files.append(DataFile(file.path, file.bytes, count, position))
        position += count
    return Manifest(tuple(files))


def version_file(manifest: Manifest) -> DataFile | None:
    """Return the file that describes the version whose files a manifest lists; None: it lists files
    that the run itself wrote.
    """
    names = (file for file in manifest.files if file.path.endswith(f"/{VERSION_FILE}"))
    return next((file for file in names if file.rows == 0), None)


def check_files(manifest: Manifest, advice: str = RUN_AGAIN) -> None:
    """Raise LostFileError, with ``advice``, unless every file is there with the size it had. For a
    file of a version, the error has the version's own advice.
    """
    own = version_file(manifest)

    def check(file: DataFile) -> None:
        entry = stores.info(file.path)
        size = None if entry is None else entry.bytes
        if size == file.bytes:
            return
        actual = "it is gone" if size is None else f"found {size} bytes"
        of_version, do = "", advice
        if own is not None and file is not own:
            about = _about(own)
            of_version, do = f" of {about.name}", about.if_lost
        raise LostFileError(
            f"file {file.path}{of_version}: expected {file.bytes} bytes with {file.rows} rows,"
            f" {actual}. {do}"
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, manifest.files))


def _about(described: DataFile) -> About:
    from ledger.storage.parquet import stored_file

    with stored_file(described.path) as stored:
        return About(**json.loads(stored.metadata.metadata[ABOUT]))
