"""Folders, local or URLs: whether they can be written to, who may read them, their removal."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ledger.errors import ConfigurationError, UnavailableError
from ledger.settings import Settings

# Of a file system: these stay until a person has changed something; others may pass.
LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def require_storage(settings: Settings) -> str:
    """The storage's folder, made for this user alone if it is a local one that is missing.

    Raises ConfigurationError unless it can be written to, UnavailableError where that may pass.
    """
    root = settings.storage_root()
    with _refusal(root, "ACKLEDGER_STORAGE"):
        if _is_local(root):
            make_private(Path(root))
    require_writable(root, "ACKLEDGER_STORAGE")
    return root


def require_writable(folder: str, setting: str) -> None:
    """Raise ConfigurationError, or UnavailableError where that may pass, naming ``setting``,
    unless a file can be made below ``folder``.
    """
    import fsspec

    with _refusal(folder, setting):
        fs, path = fsspec.core.url_to_fs(folder)
        fs.makedirs(path, exist_ok=True)
        probe = f"{path}/.probe-{uuid.uuid4()}"
        fs.touch(probe)
        fs.rm_file(probe)


def make_private(folder: Path, *, group_may_pass: bool = False) -> None:
    """Make ``folder`` and what is missing above it, for this user alone; the group may pass if
    asked.

    The mode of a folder that is there already is left as it is.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
        if group_may_pass:
            os.chown(place, -1, os.getegid())
            place.chmod(0o710)


@contextmanager
def private_output(folder: str) -> Iterator[None]:
    """What a run writes to its ``folder`` of the storage is for this user alone, if that is a
    local one.

    ``<storage>/<pipeline>/<step>/batch=<id>/run=<id>``: the pipeline's folder is closed before, the
    rest of it after, because Spark makes files and folders as it is used to.
    """
    if not _is_local(folder):
        yield
        return
    make_private(Path(folder).parents[2])
    try:
        yield
    finally:
        _close(Path(folder))


def _close(folder: Path) -> None:
    if not folder.exists():
        return  # a sink may write elsewhere
    with suppress(OSError):  # of executors that run as another user; nobody passes the folder above
        for place in (folder.parents[1], folder.parents[0], folder, *folder.rglob("*")):
            place.chmod(0o700 if place.is_dir() else 0o600)


def _is_local(folder: str) -> bool:
    return "://" not in folder


@contextmanager
def _refusal(folder: str, setting: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError) as exc:
        passes = isinstance(exc, OSError) and not isinstance(exc, LASTING)
        raise (UnavailableError if passes else ConfigurationError)(
            f"{folder} cannot be written to: {exc}. Make it writable, or set {setting} to another"
            " folder"
        ) from exc


def remove_folder(folder: str) -> None:
    """Delete a folder with all that is in it."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(folder)
    fs.rm(path, recursive=True)
