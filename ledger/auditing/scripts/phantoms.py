"""Paths at which the files are not as a script left them.

The script has written there, and the rows are in a copy; or it has removed or moved the files, and
they stay. A call that uses such a path ends the script, because what it would find is not what the
script expects. A few calls are answered: whether something is there, and ``mkdir``.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from errno import EEXIST, ENOENT

from ledger.auditing.scripts.earlier import full_name
from ledger.auditing.scripts.places import ABOVE, AT, INSIDE, place_of
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import Written, WrittenOutput, full_path
from ledger.lineage.sites import UNKNOWN, user_line

EVERY = (AT, INSIDE, ABOVE)
IN_COPY = "the audit has written a copy instead. Audit what comes before"
_MARK = "_SUCCESS"  # in the folder of an output


@dataclass
class Phantoms:
    """Full paths at which the files are not as the script left them: outputs, which are in copies,
    and files of calls that the audit has left out.

    Attributes:
        written: the outputs.
        read: the full paths that Spark has read, which may have wildcards.
        removed: the full paths that are there, and that the script has removed or moved, each with
            the call that is left out.
        unmade: the full paths to which it has moved them, or written by pandas, with the call.
    """

    written: Written
    read: set[str] = field(default_factory=set)
    removed: dict[str, str] = field(default_factory=dict)
    unmade: dict[str, str] = field(default_factory=dict)
    _remade: set[str] = field(default_factory=set)  # removed folders that it has made again

    def __bool__(self) -> bool:
        return bool(self.written.outputs or self.removed or self.unmade)

    def remove(self, call: str, path: str) -> None:
        """Note a full path that the script has removed by a call, and that stays."""
        self.removed[path] = left_out(call, path)
        self._remade.discard(path)

    def is_removed(self, path: str) -> bool:
        """Return whether the script has removed what is at a full path, or a folder above it."""
        return path not in self._remade and any(
            place_of(path, gone, is_pattern=False) in (AT, INSIDE) for gone in [*self.removed]
        )

    def outputs(self, path: str, *places: str, is_pattern: bool = False) -> Iterator[WrittenOutput]:
        """Yield the outputs of the script, also tables, for whose folder a full path has one of
        ``places``: ``AT`` it, ``INSIDE`` it or ``ABOVE`` it.
        """
        targets = [output.destination for output in self.written.outputs]
        there = {(to.kind, to.key): to.folder for to in targets if to.folder}
        for (kind, key), folder in there.items():
            if place_of(path, folder, is_pattern=is_pattern) in places:
                yield from self.written.live(kind, key)

    def require_none(self, call: str, path: str, *places: str, is_pattern: bool = False) -> None:
        """End the script if a call uses one of these paths, a path in it or a path above it.

        ``places``: the places relative to one of these paths that matter; none: all of them.
        """
        for own in self.outputs(path, *(places or EVERY), is_pattern=is_pattern):
            raise ScriptStop(f"uses files of {own.name} by {call}(), and {IN_COPY}")
        self._require_left(f"uses {named(path)} by {call}()", path, places or EVERY, is_pattern)

    def require_readable(self, path: str) -> None:
        """End the script if Spark reads a full path, which may have wildcards, at, in or above
        files that the script has removed, moved or never got.
        """
        self._require_left(f"reads {path}", path, EVERY, is_pattern=True)

    def has_removed(self, path: str) -> bool:
        """Return whether the script has removed what is at a full path, or files in it."""
        return any(place_of(path, each, is_pattern=False) in (AT, ABOVE) for each in self.removed)

    def _require_left(self, what: str, path: str, places: Sequence[str], is_pattern: bool) -> None:
        for other, call in {**self.removed, **self.unmade}.items():
            if place_of(path, other, is_pattern=is_pattern) in places:
                raise ScriptStop(
                    f"{what}, and {call} is left out: the files are not as the script left them. "
                    "Audit what comes before"
                )

    def require_target(self, call: str, path: str, *places: str) -> None:
        """End the script if a call makes something at one of these paths, or in a folder that only
        Spark would have made.
        """
        self.require_none(call, path, *places)
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self.require_none(call, parent)

    def require_names(self, call: str, path: str) -> None:
        """End the script if a folder has, because of these paths, other names in it than the script
        would see.
        """
        full = full_path(path)
        self.require_none(call, full, AT, INSIDE)
        own = {output.destination.folder: True for output in self.outputs(full, ABOVE)}
        gone = {each: not self.is_removed(each) for each in [*self.removed]}
        there = {**gone, **dict.fromkeys(self.unmade, True), **own}
        for other, is_there in there.items():
            if place_of(full, other, is_pattern=False) != ABOVE:
                continue
            child = "/".join(other.split("/")[: full.count("/") + 2])
            if (is_there or child != other) != os.path.lexists(child):
                self.require_none(call, child)

    def seen(self, path: str, full: str) -> str:
        """Return the path to look at instead of ``path``, such as the copy of an output. Raises
        FileNotFoundError for a path that the script has removed. Ends the script if no file has the
        properties that it would see.
        """
        for output in self.outputs(full, *EVERY):
            folder = output.destination.folder
            place = place_of(full, folder, is_pattern=False)
            if place == ABOVE and os.path.isdir(full) and not self.is_removed(full):
                return path
            if place in (AT, ABOVE):
                return str(output.copy)
            if full == os.path.join(folder, _MARK):
                return os.path.join(output.copy, _MARK)
            raise ScriptStop(
                f"looks for {path} in {output.name}, and the audit has written a copy in other "
                "files instead. Audit what comes before"
            )
        for other, call in [*self.unmade.items()]:
            if place_of(full, other, is_pattern=False) in (AT, INSIDE):
                raise ScriptStop(
                    f"looks for {path}, and {call} is left out. Audit what comes before"
                )
        if self.is_removed(full):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path)
        return path

    def exists(self, full: str) -> bool:
        """Return whether the script would find something at a full path. Ends the script where
        ``seen`` does.
        """
        try:
            return os.path.exists(self.seen(full, full))
        except FileNotFoundError:
            return False

    def is_made(self, path: str) -> bool:
        """Return whether the script makes a folder again that it has removed, and that is still
        there: then ``mkdir`` has nothing to do. Raises FileExistsError if the folder exists for the
        script, and ends the script where ``require_target`` does.
        """
        full = full_name(path)
        if full in self._remade or any(self.outputs(full, AT, ABOVE)):
            raise FileExistsError(EEXIST, os.strerror(EEXIST), path)
        if full in self.removed and os.path.isdir(full):
            self._remade.add(full)
            return True
        self.require_target("mkdir", full, AT, INSIDE)
        return False


def left_out(call: str, path: str) -> str:
    """Return the text that names a call that is left out: the call, the path and the line."""
    return f"{call}() of {named(path)} at {user_line() or UNKNOWN}"


def named(path: str) -> str:
    """Return a full path as messages name it: relative if it is in the current folder."""
    return path.removeprefix(f"{os.getcwd()}/")
