"""Files of a source: where they are, their age, content and number of records, and claims of
them.
"""

import glob
import hashlib
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from itertools import islice
from typing import IO, cast

from ledger.core.paths import is_local
from ledger.core.streams import DecompressedStream
from ledger.errors import ConfigurationError, InputError, UnavailableError
from ledger.sources.base import Claim, FoundFile, Scope
from ledger.storage import patterns, stores

SMALL = 1 << 20  # bytes up to which a file's content decides whether it is new
# What reading raises for a file that is damaged, gone, or not what its name claims.
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
_CHUNK = 1 << 20
_NO_RECORD = " \t\r\n\f\v" + b"\xef\xbb\xbf".decode("latin-1")  # blanks, and the mark of UTF-8
_PARQUET = re.compile(r"(?:/[^./]*|\.parquet|\.parq|\.pq)\Z")  # some writers give no end
_TABLES = {"_delta_log": "Delta", "metadata": "Iceberg", ".hoodie": "Hudi"}  # by their log's folder
_WRITTEN = "Write the table's rows to plain Parquet files and read these"
_INSTEAD = {"_delta_log": "Read the table with a DeltaSource of its folder"}
# What would be taken for text, though it is none, by the ends of names.
_ARCHIVES = (
    *(".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"),
    *(".xz", ".br", ".deflate", ".snappy", ".lz4", ".lzo"),
)
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def list_files(pattern: str) -> list[FoundFile]:
    """Return the files that a glob matches, by path, without hidden ones.

    Raises InputError for files that cannot be read as they are: archives, names that are not UTF-8,
    files of a table, whose log says which of them count, and hidden files that the glob asks for.
    Raises it as well for a folder that this user may not list, for a hidden folder with such files,
    and for a glob without files that is the name of something else. Raises UnavailableError if the
    files cannot be listed for now.
    """
    shown = []
    for entry in _matching(pattern):
        if not patterns.is_hidden(entry.name):
            _require_readable(entry.path)
            shown.append(FoundFile(entry.path, entry.bytes, stores.modified_at(entry)))
        elif patterns.asks_for(pattern.rpartition("/")[2], entry.name):
            raise InputError(
                f"source file {entry.path}: expected a name that Spark reads, found one that begins"
                " with . or _: rename it, or let the path leave it out"
            )
    _require_no_table([file.path for file in shown if _PARQUET.search(file.path)])
    if not shown:
        _require_no_namesake(pattern)
    return shown


def _matching(pattern: str) -> list[stores.Entry]:
    try:
        return patterns.matching(pattern)
    except PermissionError as exc:
        raise InputError(
            f"source files {pattern}: expected folders that can be listed, found: {exc}. Let this"
            " user read it, or let the path leave it out"
        ) from exc
    except OSError as exc:
        raise UnavailableError(
            f"source files {pattern} could not be listed: {exc}. Check the disk or the server that"
            " has them, then run this again"
        ) from exc
    except ValueError as exc:
        raise InputError(f"source files {pattern!r}: expected a path, found: {exc}") from exc


def _require_no_namesake(pattern: str) -> None:
    """Raise InputError if a glob that matches no file is the name of a file or folder."""
    name = patterns.unescaped(pattern)
    try:
        entry = stores.info(name)
    except OSError:
        return  # it is not known
    if entry is None:
        return
    escaped = glob.escape(name.rstrip("/"))
    if entry.is_folder:
        what = f"a folder has this name: write {escaped}/* for its files"
    else:
        what = f"a file of just this name is there: write {escaped}"
    raise InputError(f"source files {pattern}: no file matches, and {what}")


def _require_readable(path: str) -> None:
    if path.lower().endswith(_ARCHIVES):
        raise InputError(
            f"source file {path} is an archive, or compressed in a way that is not read: unpack it"
            " beside, or compress it as .gz, .bz2 or .zst, and let the path match only that"
        )
    if any("\ud800" <= character <= "\udfff" for character in path):
        raise InputError(
            f"source file {path!r}: expected a name in UTF-8, found other bytes: rename it, or"
            " let the path leave it out"
        )


def _require_no_table(paths: Iterable[str]) -> None:
    """Raise InputError if a folder above one of the files is that of a table: files that were
    replaced or deleted from it are still there."""
    below = {path.rpartition("/")[0]: path for path in paths}
    links = {
        os.path.realpath(place): path for place, path in below.items() if place and is_local(place)
    }
    folders: dict[str, str] = {}  # each with a file that lies there, or further down
    for place, path in (below | links).items():
        folder = place
        while folder.strip("/") and not folder.endswith(":/") and folder not in folders:
            folders[folder] = path
            folder = folder.rpartition("/")[0]
    with ThreadPoolExecutor(32) as pool:
        for folder, log in zip(folders, pool.map(_log_of_table, folders), strict=True):
            if log is not None:
                raise InputError(
                    f"source file {folders[folder]} belongs to the {_TABLES[log]} table {folder}:"
                    f" expected files that all count, found {log}, which says which of them do."
                    f" {_INSTEAD.get(log, _WRITTEN)}, or declare a source of your own"
                    " (docs/extending.md)"
                )


def _log_of_table(folder: str) -> str | None:
    """Return the name of the folder in which a table has its log; None if it is no table."""
    for name in _TABLES:
        with suppress(PermissionError, ConfigurationError):  # who may not look has none to read
            # The name of Iceberg's is one that others have, too.
            mark = ".metadata.json" if name == "metadata" else ""
            if any(mark in entry.name for entry in stores.entries(f"{folder}/{name}")):
                return name
    return None


def find_files(name: str, path: str, *, allow_missing: bool = False) -> list[FoundFile]:
    """Return the files that ``path`` matches. Raises InputError if there are none, unless
    ``allow_missing``.
    """
    files = list_files(path)
    if not files and not allow_missing:
        raise InputError(
            f"source {name!r}: no file matches {path}. Bring the file and run this again, "
            "or declare it with allow_missing=True"
        )
    return files


def look_at(path: str) -> FoundFile | None:
    """Return the file as it is now; None if it is gone."""
    entry = stores.info(path)
    if entry is None:
        return None
    modified_at, version = stores.modified_at(entry), stores.version(entry)
    return FoundFile(path, entry.bytes, modified_at, version=version)


def require_unchanged(source: str, files: Iterable[FoundFile]) -> list[FoundFile]:
    """Return the files as they are now, with their versions.

    Raises InputError if a file has changed since it was listed: the batch may have read half of it,
    or other content than it claimed.
    """
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(partial(_require_unchanged, source), files))


def _require_unchanged(source: str, file: FoundFile) -> FoundFile:
    now = look_at(file.path)
    if now is None:
        state = "it is gone"
    elif (now.bytes, now.modified_at) != (file.bytes, file.modified_at):
        state = f"found {now.bytes} bytes of {now.modified_at}"
    elif "" not in (file.version, now.version) and file.version != now.version:
        state = "found another version of that size and time"
    elif file.digest is not None and file.digest != _with_digest(now).digest:
        state = "found other content of that size and time"
    else:  # from here on the version is as good as the digest
        return replace(now, digest=None if now.version else file.digest)
    raise InputError(
        f"source {source!r}: {file.path} had {file.bytes} bytes of {file.modified_at} when it"
        f" was listed, {state}. Files must appear whole: write them under another name and"
        " rename them. An incremental source gives its claims back once the batch is"
        " abandoned: clear its run then; of any other run the step again"
    )


def with_digests(files: list[FoundFile]) -> list[FoundFile]:
    """Return the files, with a digest of the content of small ones."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_with_digest, files))


def most_records(file: FoundFile, format: str, limit: int | None = None) -> int:
    """Return an upper bound of the number of records in a file: the rows in a Parquet footer, or
    the lines of a text. Raises InputError if the file cannot be read.

    Counting stops beyond ``limit``.
    """
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            with stores.opened(file.path) as stream:
                return int(pq.ParquetFile(stream).metadata.num_rows)
        lines, last = 0, b"\n"
        for chunk in _chunks(opened(file.path)):
            ends = chunk.count(b"\n") + chunk.count(b"\r") - chunk.count(b"\r\n")
            lines, last = lines + ends, chunk[-1:]
            if limit is not None and lines > limit:
                break
        return lines + (last not in b"\r\n")
    except UNREADABLE as exc:
        raise InputError(f"source file {file.path} cannot be read: {exc}") from exc


def has_records(file: FoundFile, format: str, *, header: bool) -> bool:
    """Return whether a file has a record, or a line of text behind its header. Raises InputError if
    the file cannot be read.
    """
    if format == "parquet":
        return most_records(file, format) > 0
    try:
        with opened(file.path) as stream, TextIOWrapper(stream, "latin-1") as text:
            lines = (line for line in text if line.strip(_NO_RECORD))
            return next(islice(lines, int(header), None), None) is not None
    except UNREADABLE as exc:
        raise InputError(f"source file {file.path} cannot be read: {exc}") from exc


def _with_digest(file: FoundFile) -> FoundFile:
    if file.bytes > SMALL:
        return file
    digest = hashlib.sha256()
    try:
        for chunk in _chunks(stores.opened(file.path)):
            digest.update(chunk)
    except OSError as exc:
        raise InputError(f"source file {file.path} cannot be read: {exc}") from exc
    return replace(file, digest=digest.hexdigest())


def compression(path: str) -> str | None:
    """Return the compression that the extension of a file's name means; None if it means none."""
    return next((how for end, how in _COMPRESSED.items() if path.lower().endswith(end)), None)


def opened(path: str) -> IO[bytes]:
    """Open a file for reading, decompressed as the extension of its name says."""
    return decompressed(stores.opened(path), compression(path))


def decompressed(stream: IO[bytes], how: str | None) -> IO[bytes]:
    """Return the decompressed content of a stream. ``how``: its compression; None: it has none.
    Reading, or opening an empty stream of zstd, raises one of ``UNREADABLE`` if a part of the
    stream is not compressed in this way.
    """
    if how is None:
        return stream
    if how != "zstd":
        return io.BufferedReader(DecompressedStream(stream, how), _CHUNK)
    import pyarrow as pa

    if not cast(io.BufferedReader, stream).peek(1):  # which Arrow takes for a stream without data
        raise EOFError("expected zstd data, found an empty file: transfer the file again")
    return cast(IO[bytes], pa.CompressedInputStream(stream, how))


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    with stream:
        yield from iter(partial(stream.read, _CHUNK), b"")


def new_files(scope: Scope, room: int | None, count: Callable[[FoundFile], int]) -> Claim:
    """Claim files below ``scope.path`` that no batch has claimed as they are now.

    The claim takes as many files as have room for all their records, at least one.

    ``room``: number of records; None: any number.
    ``count``: returns the most records that a file may hold. It is called only if there is a
    ``room``.
    """
    files: list[FoundFile] = []
    records = 0
    unseen = scope.unclaimed(list_files(scope.path))
    for file in scope.unclaimed(with_digests(unseen)):
        if room is not None:
            most = count(file)
            if files and records + most > room:
                break
            records += most
        files.append(file)
    return scope.claim(files=tuple(files), records=None if room is None else records)


def count_records(files: Iterable[FoundFile], count: Callable[[FoundFile], int], room: int) -> int:
    """Return the most records that files may hold together. Counting stops once they exceed
    ``room``.
    """
    records = 0
    for file in files:
        records += count(file)
        if records > room:
            break
    return records
