"""The files of any store, by path or URL. All access except Spark's goes through this module.

A path comes back as it was written: fsspec itself calls ``s3a://`` ``s3://``, which a Spark may not
know, and forgets the host of ``webhdfs://``. A store that is no local folder may fail for a while:
what fails for a cause that may pass is tried again, and is then an UnavailableError. Nothing is
taken from a listing that was read before: others write beside this process. That a file is not
there is never concluded from an error.
"""

import io
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, BinaryIO, TypeVar, cast

from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import ConfigurationError, LedgerError, UnavailableError
from ledger.storage import webhdfs

Result = TypeVar("Result")

ATTEMPTS = 6
SECOND_ATTEMPT = 2
_VERSIONS = ("ETag", "etag", "generation", "fileId")  # of S3, Azure, Google and HDFS
PAUSE_SECONDS = 0.1  # before the second try, twice as much before each that follows
READ_BYTES = 4 << 20  # that are asked of a store in one request
# Of a file system: these stay until a person has changed something; others may pass.
LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_MISTAKES = (ImportError, MemoryError, NotImplementedError, TypeError, ValueError)
_PASSING_STATUS = (408, 429)  # of HTTP; others from 400 to 499 are refusals


@dataclass(frozen=True)
class Entry:
    """A file or folder. ``bytes``: the size of a file, 0 for a folder. ``info``: everything that
    the store reports.
    """

    path: str
    bytes: int
    is_folder: bool
    info: dict[str, Any] = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def place_of(path: str) -> str:
    """Return the path under which its file system knows a file."""
    return _at(path)[1]


def info(path: str) -> Entry | None:
    """Return the file or folder at a path; None if there is none."""
    fs, place = _at(path)
    try:
        details = _tried(fs, path, lambda: fs.info(place))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _entry(path, details)


def exists(path: str) -> bool:
    """Return whether a path is a file or a folder."""
    return info(path) is not None


def entries(folder: str) -> list[Entry]:
    """List the files and folders directly in a folder; empty if the folder does not exist."""
    fs, place = _at(folder)
    try:
        listed = _tried(fs, folder, lambda: fs.ls(place, detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return []
    below = [(str(each["name"]).rstrip("/"), each) for each in listed]
    return [
        _entry(f"{folder.rstrip('/')}/{name.rpartition('/')[2]}", each)
        for name, each in below
        if name.strip("/") != place.strip("/")  # of a file, or of the mark of an empty folder
    ]


def files_below(folder: str) -> list[Entry]:
    """Return all files below a folder, sorted by path; empty if the folder does not exist."""
    fs, place = _at(folder)
    if not _finds(fs):
        return sorted(walked(folder), key=lambda entry: entry.path)
    try:
        details = _tried(fs, folder, lambda: fs.find(place, detail=True))
    except FileNotFoundError:
        return []
    place = place.rstrip("/")
    return [
        _entry(f"{folder.rstrip('/')}{name[len(place) :]}", each)
        for name, each in sorted(details.items())
        if each["type"] == "file"
    ]


def walked(folder: str) -> Iterator[Entry]:
    """Yield the files below a folder."""
    for entry in entries(folder):
        if entry.is_folder:
            yield from walked(entry.path)
        else:
            yield entry


def modified_at(entry: Entry) -> datetime:
    """Return the time at which a file was last written; the epoch if the store does not report
    it.
    """
    names = ("mtime", "LastModified", "last_modified")
    instant: Any = next(filter(None, map(entry.info.get, names)), None)
    if "modificationTime" in entry.info:  # of WebHDFS, which fsspec has in local time
        instant = entry.info["modificationTime"] / 1000
    if instant is None:
        fs, place = _at(entry.path)
        try:
            instant = _tried(fs, entry.path, lambda: fs.modified(place))
        except NotImplementedError:
            instant = 0.0
    if isinstance(instant, int | float):
        instant = datetime.fromtimestamp(instant, UTC)
    at: datetime = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return at


def version(entry: Entry) -> str:
    """Return a text that changes when a file is replaced by another with the same size and time;
    empty if the store has none. For a local file it is the change time (ctime), which no program
    can set.
    """
    names = ("created",) if is_local(entry.path) else _VERSIONS
    return next((str(entry.info[name]) for name in names if name in entry.info), "")


def read(path: str) -> bytes:
    """Return the content of a file. Raises FileNotFoundError if it is gone."""
    with opened(path) as stream:
        return stream.read()


def opened(path: str) -> BinaryIO:
    """Open a file to read from. Raises FileNotFoundError if it is gone."""
    fs, place = _at(path)
    if is_local(path):
        return cast(BinaryIO, fs.open(place, "rb"))
    size = int(_tried(fs, path, lambda: fs.info(place))["size"])
    return io.BufferedReader(_Ranges(path, fs, place, size), READ_BYTES)


def write(path: str, content: bytes) -> None:
    """Write a whole file, replacing an earlier one. Some stores keep part of an interrupted upload;
    such a file is in no manifest.
    """
    fs, place = _at(path)
    if not is_local(path):
        _tried(fs, path, lambda: fs.pipe_file(place, content))
        return
    fresh = f"{place}.{uuid.uuid4()}"
    with written(fresh) as stream:
        stream.write(content)
    os.replace(fresh, place)


@contextmanager
def written(path: str) -> Iterator[IO[bytes]]:
    """Open a file for writing. If the block raises, no file is created. A file of a remote store is
    uploaded after the block, with ``write``.
    """
    fs, place = _at(path)
    if not is_local(path):
        with tempfile.NamedTemporaryFile(prefix="ackledger-") as spool:
            yield spool
            spool.flush()
            _tried(fs, path, lambda: fs.put_file(spool.name, place))
        return
    fs.makedirs(place.rpartition("/")[0], exist_ok=True)
    stream = fs.open(place, "wb")
    try:
        with stream:
            yield stream
    except BaseException:
        fs.rm_file(place)
        raise


def move(before: str, after: str) -> None:
    """Rename a file or folder to a name that does not exist yet. Raises OSError if the store did
    not do so, because some stores refuse without an error. A local folder is never copied instead,
    so it cannot move to another disk.
    """
    fs, source = _at(before)
    target = _at(after)[1]
    if is_local(before):
        fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        os.rename(source, target)
        return
    if exists(after):  # some would put it inside
        if not exists(before):  # who does the same was faster
            return
        raise FileExistsError(
            f"{before} was not renamed to {after}: expected nothing there, found something. If"
            " another process is at work there, run this again once it is done"
        )

    def rename() -> None:
        if exists(before):  # else the try before was not answered
            fs.mv(source, target, recursive=True)

    _tried(fs, after, lambda: fs.makedirs(target.rpartition("/")[0], exist_ok=True))
    _tried(fs, before, rename)
    if exists(before) or not exists(after):
        raise OSError(f"{before} was not renamed to {after}: the store refused it")


def remove_file(path: str) -> None:
    """Delete a file; a no-op if it does not exist."""
    fs, place = _at(path)
    with suppress(FileNotFoundError):  # a try that was not answered has done it, or somebody else
        _tried(fs, path, lambda: fs.rm_file(place))


def remove_folder(folder: str) -> None:
    """Delete a folder with its content; a no-op if it does not exist."""
    require_literal(folder)
    fs, place = _at(folder)
    with suppress(FileNotFoundError):  # two are at it
        _tried(fs, folder, lambda: fs.rm(place, recursive=True))


def remove_empty(folder: str) -> None:
    """Delete a folder if it is empty. Object stores have no folders."""
    if entries(folder):
        return
    fs, place = _at(folder)
    # Of a store ``rmdir`` may do nothing, or remove what has come into it meanwhile.
    remove = fs.rmdir if is_local(folder) else fs.rm
    with suppress(OSError, ValueError, NotImplementedError, UnavailableError):
        _tried(fs, folder, lambda: remove(place))


def require_no_password(path: str) -> None:
    """Raise ConfigurationError for a URL with a password, because messages and the ledger would
    show it.
    """
    host = path.partition("://")[2].partition("/")[0]
    if ":" in host.rpartition("@")[0]:
        raise ConfigurationError(
            f"{_redacted(path)}: expected no password, found one in this URL, which messages and"
            " the ledger would show: put it where the store's clients look for it"
            " (docs/versions.md)"
        )


def require_literal(path: str) -> None:
    """Raise ConfigurationError for a URL with wildcards of object store clients, which would delete
    other folders as well.
    """
    if not is_local(path) and (sign := re.search(r"[*?[]", path)):
        raise ConfigurationError(
            f"{path}: expected a URL without any of * ? [, which the store's client takes for a"
            f" pattern, found {sign[0]!r}. Choose another folder"
        )


def _at(path: str) -> tuple[Any, str]:
    """Return the file system of a path, and the file system's name for it. Raises
    ConfigurationError for a URL with a password, and for a store that needs another kind of URL.
    """
    import fsspec
    from fsspec.implementations.local import make_path_posix

    if is_local(path):
        place = make_path_posix(without_file_scheme(path))
        return fsspec.filesystem("file"), place.rstrip("/") or "/"
    require_no_password(path)
    scheme, _, rest = path.partition("://")
    if scheme in ("hdfs", "viewfs"):
        raise ConfigurationError(
            f"{path}: expected webhdfs://, found {scheme}://, whose client outside of Spark takes"
            " any error for a file that is not there: write webhdfs://<namenode>:9870/..."
        )
    if scheme == "file":
        raise ConfigurationError(
            f"{path}: expected file:///<absolute path>, or the path alone, found a host behind"
            " file://"
        )
    # Not by ``url_to_fs``, which takes a ``::`` in a name for the end of another URL.
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ValueError as exc:
        raise ConfigurationError(
            f"{path}: expected a path, or a URL of a store that fsspec knows, found {scheme}://"
        ) from exc
    options = {**kind._get_kwargs_from_urls(path), "use_listings_cache": False}
    fs, place = fsspec.filesystem(scheme, **options), kind._strip_protocol(path)
    if scheme == "webhdfs":
        webhdfs.watch(fs.session)
        place = f"/{rest.partition('/')[2]}"  # fsspec would end it at a ?
    return fs, str(place)


def _redacted(text: str) -> str:
    """Return the text without possible secrets: queries and logins of URLs."""
    return re.sub(r"\?[^\s'\")>]*", "", re.sub(r"://[^/\s]*@", "://", text))


def _entry(path: str, details: dict[str, Any]) -> Entry:
    is_folder = details["type"] == "directory"
    return Entry(path, 0 if is_folder else int(details["size"] or 0), is_folder, details)


def _finds(fs: Any) -> bool:
    """Return whether a file system has its own way to list all files below a folder. fsspec's
    default walks from folder to folder, and takes a folder that it cannot list for an empty one.
    """
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    if isinstance(fs, AsyncFileSystem):
        return type(fs)._find is not AsyncFileSystem._find
    return type(fs).find is not AbstractFileSystem.find


def _tried(fs: Any, path: str, call: Callable[[], Result]) -> Result:
    """Return the result of ``call``, which accesses the store of ``path``. For a remote store,
    retry errors that may be temporary.

    Raises UnavailableError if the store still does not answer, and ConfigurationError if it refuses
    the request. Other errors, and all errors of local folders, are raised unchanged.
    """
    if is_local(path):
        return call()
    # Not above: executors that work in a shared folder need neither.
    from fsspec.asyn import AsyncFileSystem
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    # The clients of object stores try by themselves, for several seconds each time.
    attempts = SECOND_ATTEMPT if isinstance(fs, AsyncFileSystem) else ATTEMPTS
    retrying = Retrying(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(multiplier=PAUSE_SECONDS),
        reraise=True,
    )
    try:
        return retrying(call)
    except Exception as exc:
        if _is_plain(exc):
            raise
        words = _redacted(repr(exc))
        if _may_pass(exc):
            raise UnavailableError(
                f"{path}: the store did not answer in {attempts} attempts: {words}. Nothing is"
                " lost: check the store, then run this again"
            ) from None  # its text may have a token
        raise ConfigurationError(
            f"{path}: the store refused the request: {words}. Check the login, its rights and the"
            " settings of the store on this machine, then run this again"
        ) from None


def _is_plain(exc: BaseException) -> bool:
    """Return whether the class of an error already says what is wrong, so that it is not
    translated.
    """
    if isinstance(exc, OSError) and not isinstance(exc, LASTING):
        return False  # of a body that was cut off, JSON raises what is a ValueError, too
    return isinstance(exc, (LedgerError, *LASTING, *_MISTAKES)) or not isinstance(exc, Exception)


def _may_pass(exc: BaseException) -> bool:
    if _is_plain(exc) or "Credentials" in type(exc).__name__:
        return False
    status = getattr(getattr(exc, "response", None), "status_code", None)
    status = status or getattr(exc, "code", None) or getattr(exc, "status", None)
    is_refusal = isinstance(status, int) and 400 <= status < 500
    return not is_refusal or status in _PASSING_STATUS


class _Ranges(io.RawIOBase):
    """A file of a store that is read by one request per range. A request that fails, or is cut off,
    is repeated.
    """

    def __init__(self, path: str, fs: Any, place: str, size: int):
        self._path, self._fs, self._place, self._size = path, fs, place, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        content = _tried(self._fs, self._path, lambda: self._range(self._position, end))
        buffer[: len(content)] = content
        self._position = end
        return len(content)

    def _range(self, start: int, end: int) -> bytes:
        content: bytes = self._fs.cat_file(self._place, start=start, end=end)
        if len(content) != end - start:
            raise OSError(f"{self._path}: {end - start} bytes were asked for, {len(content)} came")
        return content
