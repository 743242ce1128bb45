"""Files that were there before an audit, told from those that its script has made since.

The times of a file are no proof: a rename, ``chmod`` or ``touch`` changes them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ledger.auditing.scripts.places import is_pattern, place_of
from ledger.auditing.scripts.written import full_path


@dataclass
class EarlierFiles:
    """Files that a script has made where nothing was. All other files count as earlier ones.

    ``read``: full paths that Spark has read, which may have wildcards.
    ``_own``: the identity of each file or folder that the script has made, by its full path; None:
    the script has moved an earlier one there. If a path has another file now, a command of the
    shell may have put it there, so it is earlier. A path without an entry is as the closest folder
    above it that has one, unless Spark has read it.
    """

    read: set[str] = field(default_factory=set)
    _own: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        """Return whether a path is an earlier file, or a folder with one."""
        return any(not self.is_own(each) for each in files_in(path))

    def is_read(self, full: str) -> bool:
        """Return whether Spark has read files at a full path, in it or above it."""
        if any(str(each) in self.read for each in (full, *Path(full).parents)):
            return True
        return any(
            each.startswith(f"{full}/") or (is_pattern(each) and bool(place_of(each, full)))
            for each in self.read
        )

    def is_own(self, full: str) -> bool:
        """Return whether the script has made what is at a full path."""
        above = [] if self.is_read(full) else map(str, Path(full).parents)
        closest = next((each for each in (full, *above) if each in self._own), None)
        own = None if closest is None else self._own[closest]
        return own is not None and own == _identity(str(closest))

    @contextmanager
    def making(self, path: str) -> Iterator[None]:
        """Note what the block makes at a path where nothing is, or in a folder that is there."""
        before = set(files_in(full_path(path))) if os.path.lexists(path) else None
        full = full_name(path)
        yield
        new = {full, *files_in(full)}
        if before is not None:
            new = set(files_in(full_path(path))) - before
        for each in new:
            self.forget(each)
            if os.path.lexists(each):
                self._own[each] = _identity(each)

    def move(self, full: str, target: str, is_own: dict[str, bool]) -> None:
        """Note that the script has moved a file or folder. An earlier file stays earlier, and the
        script's own file its own.

        ``is_own``: whether each file and folder was the script's own before the move, by full path.
        """
        for each in (full, target):
            self.forget(each)
        for path, own in is_own.items():
            moved = f"{target}{path.removeprefix(full)}"
            self._own[moved] = _identity(moved) if own and os.path.lexists(moved) else None

    def owned(self, full: str) -> dict[str, bool]:
        """Return for a full path, and each file in it, whether the script has made it."""
        return {each: self.is_own(each) for each in {full, *files_in(full)}}

    def forget(self, full: str) -> None:
        """Note that nothing is at a full path any more."""
        for path in [each for each in self._own if each == full or each.startswith(f"{full}/")]:
            del self._own[path]


def files_in(path: str) -> Iterator[str]:
    """Yield the full path of a file, or those of the files in a folder."""
    full = full_name(path)
    at = Path(full)
    if at.is_dir() and not at.is_symlink():
        yield from (str(each) for each in at.rglob("*") if each.is_symlink() or each.is_file())
    elif os.path.lexists(full):
        yield full


def full_name(path: str) -> str:
    """Return the full path of a file or of a link, which is not followed."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(full_path(parent), name) if name.strip(".") else full_path(path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and the number of a file; None: there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
