"""Files that were there before an audit, told from those that its script has made since.

Their times do not tell: a rename, ``chmod`` or ``touch`` sets them, too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ledger.auditing.scripts.written import full_path


@dataclass
class EarlierFiles:
    """The files that a script has made where nothing was. All others are taken for earlier ones.

    ``_own``: whether the script has made a file or folder, by its full path. A file without an
    entry has that of the closest folder above it.
    """

    _own: dict[str, bool] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        """Return whether a path is an earlier file, or a folder with one."""
        return any(not self.is_own(each) for each in files_in(path))

    def is_own(self, full: str) -> bool:
        """Return whether the script has made what is at a full path."""
        above = (str(each) for each in (Path(full), *Path(full).parents))
        return next((self._own[each] for each in above if each in self._own), False)

    @contextmanager
    def making(self, path: str) -> Iterator[None]:
        """Note what the block makes at a path where nothing is, or in a folder that is there."""
        before = set(files_in(full_path(path))) if os.path.lexists(path) else None
        full = full_name(path)
        yield
        new = {full} if before is None else set(files_in(full_path(path))) - before
        for each in new:
            if not self.is_own(each):
                if os.path.isdir(each):
                    self._forget(each)
                self._own[each] = True

    def move(self, full: str, target: str) -> None:
        """Note that the script has moved a file or folder: it stays earlier, or its own."""
        below = {path: own for path, own in self._own.items() if path.startswith(f"{full}/")}
        is_own = self.is_own(full)
        for each in (full, target):
            self._forget(each)
        self._own[target] = is_own
        self._own |= {f"{target}{path.removeprefix(full)}": own for path, own in below.items()}

    def _forget(self, full: str) -> None:
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
