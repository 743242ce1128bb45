"""Manifests: the files that hold a run's rows, counted from their footers."""

import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ledger.core.probes import reached
from ledger.errors import LostFileError
from ledger.storage import stores
from ledger.storage.folders import RUN_AGAIN

# The file without rows that describes a version, see ``ledger.storage.versions``, and the keys of
# its metadata that have, as JSON, ``About``, and by path the mark of each file that may change.
VERSION_FILE = "ackledger-version.parquet"
ABOUT, MARKS = b"ackledger.version", b"ackledger.marks"


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
    file of a version, the error has the version's own advice, and if the file has a mark, it must
    still have the same.
    """
    own, about, marks = version_file(manifest), None, dict[str, list[str]]()
    if own is not None:
        about, marks = _described(own)

    def check(file: DataFile) -> None:
        entry = stores.info(file.path)
        size = None if entry is None else entry.bytes
        what, do = f"{file.bytes} bytes with {file.rows} rows", advice
        of_version = ""
        if about is not None and file is not own:
            of_version, do = f" of {about.name}", about.if_lost
        if size != file.bytes:
            actual = "it is gone" if size is None else f"found {size} bytes"
        elif entry is not None and file.path in marks:
            now = mark_of(entry)
            if now == marks[file.path]:
                return
            what, actual = f"the file of {marks[file.path][0]}", f"found one of {now[0]}"
        else:
            return
        raise LostFileError(f"file {file.path}{of_version}: expected {what}, {actual}. {do}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, manifest.files))


def mark_of(entry: stores.Entry) -> list[str]:
    """Return a mark of the content of a Parquet file: its time, the store's version of it, and the
    digest of its footer. Raises LostFileError if it is no Parquet any more.
    """
    from ledger.storage.parquet import footer_digest

    return [
        stores.modified_at(entry).isoformat(),
        stores.version(entry),
        footer_digest(entry.path),
    ]


def _described(own: DataFile) -> tuple[About, dict[str, list[str]]]:
    from ledger.storage.parquet import stored_file

    with stored_file(own.path) as stored:
        metadata = stored.metadata.metadata
    return About(**json.loads(metadata[ABOUT])), json.loads(metadata.get(MARKS, b"{}"))
