"""Folders as a script has left them: with its outputs, without what it has removed or moved.

Spark has written the outputs to copies, and what the script removes may stay. So the calls of
Python that look for files get answers that differ from the folders.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from errno import EEXIST, ENOENT
from os.path import basename, join
from typing import Any

from ledger.auditing.scripts.places import ABOVE, AT, INSIDE, place_of
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Written, WrittenOutput, full_path

_MARK = "_SUCCESS"  # in the folder of an output


@dataclass
class Listings:
    """Files as a script sees them.

    Attributes:
        hidden: full paths that are there, and which the script has removed.
        moved: full paths to which the script has moved others, which stay where they are.
        unwritten: full paths that the script would have written, and which may not be there.
    """

    written: Written
    unwritten: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.written.outputs or self.hidden or self.moved or self.unwritten)

    def is_hidden(self, path: str) -> bool:
        """Return whether a full path is one that the script has removed, or below it."""
        return any(place_of(path, gone) in (AT, INSIDE) for gone in self.hidden)

    def stat_path(self, path: str) -> str:
        """Return the path that has the properties of one. Raises FileNotFoundError, or ends the
        script if only the files of an output have them.
        """
        full = full_path(path)
        for output in self.written.outputs:
            key = output.destination.key
            place = place_of(full, key)
            if not place or not self._is_live(output):
                continue
            if place == ABOVE and os.path.isdir(path) and not self.is_hidden(full):
                return path
            if place in (AT, ABOVE):
                return str(output.copy)
            if full == join(key, _MARK):
                return join(output.copy, _MARK)
            raise ScriptStop(
                f"looks for {path} in {output.name}, and the audit has written a copy in other "
                "files instead. Audit what comes before"
            )
        if full in self.moved:
            return self.moved[full]
        if full in self.unwritten or any(place_of(full, to) == INSIDE for to in self.moved):
            raise ScriptStop(
                f"looks for {path}, which the audit has not let the script write or move there. "
                "Audit what comes before"
            )
        if self.is_hidden(full):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
        return path

    def make(self, path: str) -> bool:
        """Return whether a folder is made that the script has removed before, and which is there.

        From now on the script sees it, without what was in it.
        """
        full = full_path(path)
        if any(
            self._is_live(o) and place_of(full, o.destination.key) in (AT, ABOVE)
            for o in self.written.outputs
        ):
            raise FileExistsError(EEXIST, os.strerror(EEXIST), path)
        if full not in self.hidden or not os.path.isdir(path):
            return False
        self.hidden.remove(full)
        self.hidden |= {join(full, name) for name in os.listdir(path)}
        return True

    def reveal(self, path: str) -> None:
        """Have the script see a file again, which it writes."""
        full = full_path(path)
        self.hidden.discard(full)
        if self.is_hidden(full):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
        parent = os.path.dirname(full)
        if not os.path.isdir(parent) and self.names(parent)[1]:
            os.makedirs(parent)  # Spark would have made it

    def _is_live(self, output: WrittenOutput) -> bool:
        to = output.destination
        return to.kind == "path" and any(output is e for e in self.written.live("path", to.key))

    def require_known(self, path: str) -> None:
        """End the script if it lists a folder that has not all files that it would have."""
        full = full_path(path)
        for other in (*self.moved, *self.unwritten):
            if os.path.dirname(other) == full:
                raise ScriptStop(
                    f"lists {path}, and the audit has not let the script write or move {other} "
                    "there. Audit what comes before"
                )

    def names(self, path: str) -> tuple[set[str], dict[str, str]]:
        """Return the names in a folder that a script does not see, and those that only it sees,
        each with the path of a copy.
        """
        full = full_path(path)
        hidden = {basename(gone) for gone in self.hidden if os.path.dirname(gone) == full}
        own = {}
        for output in self.written.outputs:
            key = output.destination.key
            if self._is_live(output) and place_of(full, key) == ABOVE:
                name = key[len(full) :].lstrip("/").split("/")[0]
                hidden.discard(name)
                own[name] = str(output.copy)
        return hidden, own


class _Entry:
    """An entry of ``os.scandir`` for the folder of an output."""

    def __init__(self, folder: str, name: str, copy: str) -> None:
        self.name, self.path, self._copy = name, join(folder, name), copy

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        return os.stat(self._copy).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return True

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def is_symlink(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._copy)


class _Entries:
    """Entries, as an iterator of ``os.scandir``."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())


def listed(listings: Listings, function: Callable[..., Any], path: str, is_bytes: bool) -> Any:
    """Return what ``os.listdir`` or ``os.scandir`` has for a script."""
    listings.require_known(path)
    hidden, own = listings.names(path)
    if listings.is_hidden(full_path(path)) and not own:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
    if not hidden and not own:
        return function(os.fsencode(path) if is_bytes else path)
    real: list[Any] = []
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            real = [each for each in entries if each.name not in hidden]
    there = {each.name for each in real}
    real += [_Entry(path, name, copy) for name, copy in own.items() if name not in there]
    return _Entries(real) if function.__name__ == "scandir" else [each.name for each in real]
