"""Folders, local or URLs: whether they can be written to, who may read them, their removal."""

import errno
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.core.paths import is_local, without_file_scheme
from ledger.errors import ConfigurationError, UnavailableError
from ledger.storage import stores
from ledger.storage.stores import LASTING

if TYPE_CHECKING:
    from ledger.settings import Settings

RUN_AGAIN = (
    "Run the step that wrote it again: in Airflow clear the task that ran it, and those downstream"
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the errors of a lack of space
_GROUPS = stat.S_ISGID | stat.S_IRWXG  # of a folder that several users share
_GROUPS_FOLDER = stat.S_ISGID | 0o770


def require_storage(settings: "Settings") -> str:
    """Return the folder of the storage. A missing local folder is created, and only this user may
    read it.

    Raises ConfigurationError if the folder cannot be written to, and UnavailableError if that may
    be temporary.
    """
    root = settings.storage_root()
    with _refusal(root, "ACKLEDGER_STORAGE"):
        if is_local(root):
            make_private(Path(root))
    require_writable(root, "ACKLEDGER_STORAGE")
    return root


def require_writable(folder: str, setting: str) -> None:
    """Raise ConfigurationError unless a file can be created below ``folder``, or UnavailableError
    if that may be temporary. ``setting``: the setting to name in the message.
    """
    stores.require_literal(folder)
    with _refusal(folder, setting):
        probe = f"{folder}/.probe-{uuid.uuid4()}"
        stores.write(probe, b"ackledger")
        stores.remove_file(probe)


def scratch_of(listed: str | None) -> list[str]:
    """Return the folders in a comma-separated list of Spark's scratch folders. Without a list,
    return the folder for temporary files.
    """
    names = [name.strip() for name in (listed or "").split(",")]
    return [name for name in names if name] or [tempfile.gettempdir()]


def no_space(folder: str | None, scratch: Sequence[str] = ()) -> UnavailableError:
    """Return the error for files that could not be written because a disk is full.

    ``folder``: the folder of the files. None: it is unknown, as for Spark's own data.
    ``scratch``: the folders of Spark's own data. Empty: those of the environment.
    """
    folders = scratch or scratch_of(os.environ.get("SPARK_LOCAL_DIRS"))
    rooms = ", ".join(f"{name}{_room(name)}" for name in folders)
    which = "folder" if len(folders) == 1 else "folders"
    where = f" of {without_file_scheme(folder)}{_room(folder)}" if folder else ""
    return UnavailableError(
        f"no space is left on the disk{where}: free some of ACKLEDGER_STORAGE, of the sinks'"
        f" folders or of Spark's scratch {which} {rooms}, then run this again"
    )


def not_made(folder: str) -> UnavailableError:
    """Return the error for a folder that could not be made for an unknown reason."""
    shown = f"{without_file_scheme(folder)} could not be made{_room(folder)}"
    return UnavailableError(
        f"folder {shown}: make the folders above it"
        " writable, or free some space, then run this again"
    )


def _room(folder: str) -> str:
    """Return the free space on the disk of a local folder, in brackets; empty if this process
    cannot see it.
    """
    if not is_local(folder):
        return ""
    place = Path(without_file_scheme(folder)).absolute()
    there = next(parent for parent in (place, *place.parents) if os.path.exists(parent))
    if there == Path(place.anchor):
        return ""
    disk = os.statvfs(there)
    files = ", no more files" if disk.f_files and not disk.f_favail else ""
    return f" ({disk.f_bavail * disk.f_frsize / 1e6:,.1f} MB free{files})"


def make_private(folder: Path, *, group_may_pass: bool = False) -> None:
    """Create ``folder`` and its missing parents for this user only. Below a ``shared`` folder, its
    group has access as well.

    ``group_may_pass``: let the group enter the folder, but not list it.

    The mode of a folder that already exists is not changed.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
        if group_may_pass:
            os.chown(place, -1, os.getegid())
            place.chmod(0o710)
        elif shared(place.parent):
            place.chmod(_GROUPS_FOLDER)


def shared(folder: Path) -> bool:
    """Return whether an administrator set up a folder for a group: the group may write to it, and
    new files in it get its group (setgid).
    """
    mode = folder.stat().st_mode
    return mode & _GROUPS == _GROUPS


@contextmanager
def private_output(folder: str) -> Iterator[None]:
    """Make a run's output private: close its ``folder`` in a local storage to all but this user, or
    this user's group if the storage is ``shared``.

    In ``<storage>/<pipeline>/<step>/batch=<id>/run=<id>``, the pipeline's folder is closed before
    the block. The folders below are closed after it, because Spark creates them with its own modes.
    """
    if not is_local(folder):
        yield
        return
    path = Path(without_file_scheme(folder))
    make_private(path.parents[2])
    try:
        yield
    finally:
        if path.exists():  # a sink may write elsewhere
            modes = (_GROUPS_FOLDER, 0o660) if shared(path.parents[2]) else (0o700, 0o600)
            for place in (path.parents[1], path.parents[0], path, *path.rglob("*")):
                with suppress(OSError):  # an executor's user's; the folder above is closed
                    place.chmod(modes[0] if place.is_dir() else modes[1])


@contextmanager
def _refusal(folder: str, setting: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError) as exc:
        if isinstance(exc, OSError) and exc.errno in FULL:
            raise no_space(folder) from exc
        passes = isinstance(exc, OSError) and not isinstance(exc, LASTING)
        raise (UnavailableError if passes else ConfigurationError)(
            f"{folder} cannot be written to: {exc}. Make it writable, or set {setting} to another"
            " folder"
        ) from exc


@dataclass(frozen=True)
class Size:
    """Number of files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.files + other.files, self.bytes + other.bytes)


def size_of(folder: str) -> Size:
    """Return the number and the bytes of the files below a folder; 0 if it does not exist."""
    files = stores.files_below(folder)
    return Size(len(files), sum(file.bytes for file in files))


def require_own_folder(folder: str, run_id: int) -> None:
    """Raise ConfigurationError unless a folder's name ends in the run's id, which shows that only
    this run writes to it.
    """
    if re.search(rf"(^|\D){run_id}\Z", folder) is None:
        raise ConfigurationError(
            f"{folder}: expected a folder whose name ends in {run_id}, the run that wrote there;"
            " nothing of it is removed. Let the sink's staging() end in the version"
        )


def _place(folder: str) -> str:
    return folder.rsplit("/", 3)[0]


def reachable(folder: str) -> bool:
    """Return whether this machine sees the storage of a run's folder: the folder three levels above
    it exists, or is not local. If not, a missing file may only be out of reach.
    """
    return not is_local(folder) or Path(without_file_scheme(_place(folder))).is_dir()


def require_reachable(folder: str) -> None:
    """Raise UnavailableError unless the storage of a run's folder is ``reachable``."""
    if not reachable(folder):
        raise UnavailableError(
            f"{_place(folder)}: expected the folder below which runs write, found none. Run"
            " ackledger gc where the storage can be reached; if the folder was removed by hand,"
            " make it again"
        )


def remove_run_folder(folder: str, run_id: int) -> None:
    """Delete a run's folder, and the folder of its batch if that is then empty. A no-op if the
    folder does not exist. Raises ConfigurationError unless the folder is named after the run.
    """
    require_own_folder(folder, run_id)
    stores.remove_folder(folder)
    parent = folder.rpartition("/")[0]
    if parent.rpartition("/")[2].startswith("batch"):
        stores.remove_empty(parent)


def beside(folder: str, prefix: str) -> list[str]:
    """Return the siblings of a folder whose names begin with ``prefix``, as absolute paths or
    URLs.
    """
    siblings = stores.entries(folder.rpartition("/")[0])
    return [entry.path for entry in siblings if entry.name.startswith(prefix)]


def runs_beside(folder: str) -> dict[int, str]:
    """List the folders of all runs of a batch, by run id. ``folder``: the folder of one of the
    runs. Empty if it is not in the folder of a batch.
    """
    place = re.search(r"/batch[=-]\d+/run([=-])\d+\Z", folder)
    if place is None:
        return {}
    prefix = f"run{place[1]}"
    names = (
        (path.rstrip("/"), path.rstrip("/").rpartition(prefix)[2])
        for path in beside(folder, prefix)
    )
    return {int(number): path for path, number in names if number.isdecimal()}
