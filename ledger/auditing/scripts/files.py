"""Files that a script reads, writes or removes other than with Spark's readers and writers.

Where the script has written with Spark there is nothing, or what an earlier run has written: the
rows are in a copy. Such a path can be neither read nor changed.
"""

import builtins
import io
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
from pyspark.sql import DataFrame

from ledger.auditing.losses import OutputResult
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import WrittenOutput, full_path
from ledger.auditing.sources import relation_of
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.sites import LIBRARIES, UNKNOWN, is_of_python, user_line

_Names = dict[ModuleType, tuple[str, ...]]
_REMOVING: _Names = {os: ("remove", "removedirs", "rmdir", "unlink"), shutil: ("rmtree",)}
_MOVING: _Names = {os: ("rename", "renames", "replace"), shutil: ("move",)}
_COPYING: _Names = {shutil: ("copy", "copy2", "copyfile", "copytree")}
_READING: _Names = {os: ("listdir", "scandir"), builtins: ("open",), io: ("open",)}
_ARROW = {
    pyarrow.csv: "write_csv",
    pyarrow.dataset: "write_dataset",
    pyarrow.feather: "write_feather",
    pyarrow.parquet.ParquetWriter: "__init__",
}
_TARGETS = ("where", "output_file", "base_dir", "dest")  # of Arrow's functions
_OF_SPARK = re.compile(r"\.?(_SUCCESS|part-\d{5}).*")
_HERE = f"{Path(__file__).parent}{os.sep}"
_LOGGING = f"{Path(logging.__file__).parent}{os.sep}"
_AT, _IN, _ABOVE = "at", "in", "above"  # of an output
_SYSTEM = ("/dev/", "/proc/")
_ROWS = "Python writes it, and rows went through the driver"
_IN_COPY = "the audit has written a copy instead. Audit what comes before"


@dataclass
class ScriptFiles:
    """Files of a script, which the audit knows by the calls that touch them.

    Attributes:
        opened: the files that Python has written, by their name.
        taken: frames whose rows went out of Spark's plans, with the call and its line.
        removed: the full paths that the script has removed, or would have.
        started: the time when the audit began, in seconds since 1970.
    """

    job: JobAudit
    opened: dict[str, OutputResult] = field(default_factory=dict)
    taken: list[tuple[DataFrame, str]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.time)

    def is_removal_left_out(self, call: str, path: str) -> bool:
        """Return whether a removal must not happen, which is noted. Ends the script if it removes
        a part of an output.
        """
        path = full_path(path)
        if part := self._own(path, _IN):
            raise ScriptStop(f"removes a part of {part[0].name} by {call}(), and {_IN_COPY}")
        own = self._own(path, _AT, _ABOVE)
        for output in own:
            key, place = output.destination.key, user_line() or UNKNOWN
            self.job.written.drop("path", key, place, f"{call}()")
        self.removed.add(path)
        if own or self._is_of_spark(path):
            self.note_left_out(call, path)
            return True
        return False

    def note_left_out(self, call: str, path: str) -> None:
        """Note a call that does nothing."""
        name = full_path(path).removeprefix(f"{os.getcwd()}/")
        self.job.notes.append(f"{call}() of {name} at {user_line() or UNKNOWN} is left out")

    def require_other(self, call: str, path: str) -> None:
        """End the script if a path is at, in or, with a wildcard, above an output of its own."""
        if own := self.own(path):
            raise ScriptStop(f"uses files of {own[0].name} by {call}(), and {_IN_COPY}")

    def own(self, path: str) -> list[WrittenOutput]:
        """Return the outputs of the script at a path or around it."""
        return self._own(full_path(path), _AT, _IN)

    def _own(self, path: str, *places: str) -> list[WrittenOutput]:
        """The outputs of the script to which a full path has one of some places."""
        paths = (
            o.destination.key for o in self.job.written.outputs if o.destination.kind == "path"
        )
        keys = [key for key in dict.fromkeys(paths) if _place(path, key) in places]
        return [output for key in keys for output in self.job.written.live("path", key)]

    def require_unchanged(self, call: str, path: str) -> None:
        """End the script if it moves or replaces what Spark has written, now or earlier."""
        self.require_other(call, path)
        if self._own(full_path(path), _ABOVE) or self._is_of_spark(full_path(path)):
            raise ScriptStop(
                f"moves or replaces {path} by {call}(), which Spark has written: the audit does "
                "not change such files. Audit what comes before"
            )

    def note_python_file(self, target: Any) -> None:
        """Note a file that Python writes."""
        is_path = isinstance(target, (str, os.PathLike))
        name = str(target) if is_path else f"a {type(target).__name__}"
        if not name.startswith(_SYSTEM):
            self.opened.setdefault(
                name, OutputResult(name, user_line() or UNKNOWN, _ROWS, is_final=True)
            )

    def conclude(self) -> None:
        """Take each file that may have rows for an output, once the script has ended."""
        taken = [call for frame, call in self.taken if _reads_tables(frame)]
        if taken:
            self.job.others += self.opened.values()
        if taken and not self.job.others:
            self.job.notes.append(
                f"rows went through {taken[0]}: where Python sends them is not known, and "
                "they may have arrived there"
            )

    def _is_of_spark(self, path: str) -> bool:
        """Whether Spark has written a file, or one in a folder, before the audit began."""
        at = Path(path)
        files = at.rglob("*") if at.is_dir() else iter([at])
        return any(
            _OF_SPARK.fullmatch(each.name) and each.lstat().st_mtime < self.started
            for each in files
            if each.is_file()
        )


def intercept_files(patches: Patches, files: ScriptFiles) -> None:
    """Have calls of Python that touch files looked at."""

    def removed(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_path(path) and files.is_removal_left_out(_name(function), os.fsdecode(path)):
            return None
        return function(path, *args, **kwargs)

    def moved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for path in _paths(args, kwargs):
            files.require_unchanged(_name(function), path)
        return function(*args, **kwargs)

    def copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        source, *targets = _paths(args, kwargs)
        files.require_other(_name(function), source)
        for path in targets:
            files.require_unchanged(_name(function), path)
            files.note_python_file(path)
        return function(*args, **kwargs)

    def read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("file", kwargs.get("path"))
        if _is_path(path) and not _is_of_library(caller()):
            files.require_other(_name(function), os.fsdecode(path))
            mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
            if _name(function) == "open" and set(mode) & set("wax+"):
                files.note_python_file(os.fsdecode(path))
        return function(*args, **kwargs)

    def arrow(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        targets = (kwargs[name] for name in _TARGETS if name in kwargs)
        files.note_python_file(args[1] if len(args) > 1 else next(targets, None))
        return function(*args, **kwargs)

    others = {removed: _REMOVING, moved: _MOVING, copied: _COPYING, read: _READING}
    for other, modules in others.items():
        for module, names in modules.items():
            for name in names:
                patches.replace(module, name, other)
    for owner, name in _ARROW.items():
        patches.replace(owner, name, arrow)


def _place(path: str, key: str) -> str:
    """Return whether a full path is at an output's, in it or above it; empty: elsewhere.

    Wildcards match all they may.
    """
    wanted, names = path.split("/"), key.split("/")
    patterns = [re.sub(r"[\[{].*", "*", part) for part in wanted]
    pairs = zip(wanted, patterns, names, strict=False)
    if not all(name == part or fnmatchcase(name, pattern) for part, pattern, name in pairs):
        return ""
    return _ABOVE if len(wanted) < len(names) else _IN if len(wanted) > len(names) else _AT


def _reads_tables(frame: DataFrame) -> bool:
    catalyst = Catalyst(frame.sparkSession)
    nodes = catalyst.nodes(catalyst.analyzed(frame))
    return any(relation_of(node) is not None for node in nodes)


def caller() -> FrameType:
    """Return the frame that has called a method or function that is replaced."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def _is_of_library(frame: FrameType | None) -> bool:
    """Whether Spark, this library or a log opens a file, through modules of Python or itself."""
    while frame is not None and is_of_python(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_LOGGING):
            return True
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(LIBRARIES)


def _name(function: Callable[..., Any]) -> str:
    return str(function.__name__)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    """The two paths of a call that moves or copies."""
    values = [*args[:2], *(kwargs[name] for name in ("src", "old", "dst", "new") if name in kwargs)]
    return (os.fsdecode(value) for value in values if _is_path(value))
