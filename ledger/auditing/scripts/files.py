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
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pandas
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
from pyspark import SparkContext
from pyspark.sql import DataFrame

from ledger.auditing.losses import OutputResult
from ledger.auditing.scripts.earlier import EarlierFiles, files_in, full_name
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.listings import Listings, listed
from ledger.auditing.scripts.patches import Patches
from ledger.auditing.scripts.places import ABOVE, AT, INSIDE, place_of
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import WrittenOutput, full_path
from ledger.auditing.sources import relation_of
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.sites import LIBRARIES, UNKNOWN, is_of_python, user_line

_Names = dict[Any, tuple[str, ...]]
_REMOVING: _Names = {os: ("remove", "removedirs", "rmdir", "unlink"), shutil: ("rmtree",)}
_MOVING: _Names = {os: ("rename", "renames", "replace"), shutil: ("move",)}
_COPYING: _Names = {shutil: ("copy", "copy2", "copyfile", "copytree")}
_OPENING: _Names = {builtins: ("open",), io: ("open",)}
_LISTING: _Names = {os: ("listdir", "scandir")}
_LOOKING: _Names = {os: ("lstat", "stat")}
_MAKING: _Names = {os: ("mkdir",)}
_CREATING: _Names = {os: ("open",)}
_LINKING: _Names = {os: ("symlink",)}
# Functions and classes that read files without Python's open().
_READING: _Names = {
    SparkContext: (
        *("binaryFiles", "binaryRecords", "hadoopFile", "newAPIHadoopFile", "pickleFile"),
        *("sequenceFile", "textFile", "wholeTextFiles"),
    ),
    pandas: ("read_feather", "read_hdf", "read_orc", "read_parquet"),
    pyarrow.csv: ("open_csv", "read_csv"),
    pyarrow.dataset: ("dataset",),
    pyarrow.feather: ("read_feather", "read_table"),
    pyarrow.parquet: ("read_metadata", "read_pandas", "read_schema", "read_table"),
    pyarrow.parquet.ParquetDataset: ("__init__",),
    pyarrow.parquet.ParquetFile: ("__init__",),
}
_ARROW = {
    pyarrow.csv: "write_csv",
    pyarrow.dataset: "write_dataset",
    pyarrow.feather: "write_feather",
    pyarrow.parquet.ParquetWriter: "__init__",
}
_PATHS = ("path", "path_or_paths", "source", "where", "input_file", "name")  # that are read
_TARGETS = ("where", "output_file", "base_dir", "dest")  # of Arrow's functions
_OF_SPARK = re.compile(r"\.?(_SUCCESS|part-\d{5}).*")
_HERE = f"{Path(__file__).parent}{os.sep}"
_LOGGING = f"{Path(logging.__file__).parent}{os.sep}"
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
    """

    job: JobAudit
    opened: dict[str, OutputResult] = field(default_factory=dict)
    taken: list[tuple[DataFrame, str]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    earlier: EarlierFiles = field(default_factory=EarlierFiles)
    listings: Listings = field(init=False)

    def __post_init__(self) -> None:
        self.listings = Listings(self.job.written, self.job.unwritten)

    def is_removal_left_out(self, call: str, path: str) -> bool:
        """Return whether a removal must not happen, which is noted. Ends the script if it removes
        a part of an output.
        """
        path = full_name(path)
        if part := self._own(path, INSIDE):
            raise ScriptStop(f"removes a part of {part[0].name} by {call}(), and {_IN_COPY}")
        own = self._own(path, AT, ABOVE)
        for output in own:
            key, place = output.destination.key, user_line() or UNKNOWN
            self.job.written.drop("path", key, place, f"{call}()")
        self.removed.add(path)
        if not own and not self._is_of_spark(path) and not self._is_source(path):
            return False
        self.note_left_out(call, path)
        if os.path.lexists(path):
            self.listings.hidden.add(path)
        return True

    def is_move_left_out(self, call: str, path: str, target: str) -> bool:
        """Return whether a move must not happen, which is noted: of what Spark has read."""
        full, to = full_path(path), full_path(target)
        if self._own(full, AT, INSIDE, ABOVE) or not self._is_source(full):
            return False
        self.note_left_out(call, path)
        self.removed.add(full)
        self.listings.hidden.add(full)
        self.listings.moved[to] = full
        return True

    def _is_source(self, path: str) -> bool:
        """Whether Spark has read files at or in a path that were there before the audit began."""
        near = (INSIDE, AT, ABOVE)
        is_read = any(place_of(path, each) in near for each in self.job.paths_read)
        return is_read and self.earlier.has(path)

    def note_left_out(self, call: str, path: str) -> None:
        """Note a call that does nothing."""
        name = full_path(path).removeprefix(f"{os.getcwd()}/")
        self.job.notes.append(f"{call}() of {name} at {user_line() or UNKNOWN} is left out")

    def note_changed(self, call: str, path: str, changed: Iterable[str] | None = None) -> None:
        """Note that Python changes files that were there before the audit began.

        ``changed``: paths of the files, if these are not all that are at or in ``path``.
        """
        if path.startswith(_SYSTEM) or not any(
            map(self.earlier.has, [path] if changed is None else changed)
        ):
            return
        name = full_path(path).removeprefix(f"{os.getcwd()}/")
        note = f"{call}() of {name} at {user_line() or UNKNOWN} is executed: Python changes it"
        self.job.notes += [note] if note not in self.job.notes else []

    def require_readable(self, path: str) -> None:
        """End the script if Spark reads files that it has removed, moved or never got."""
        near = [
            gone
            for gone in (*self.listings.hidden, *self.listings.moved, *self.job.unwritten)
            if place_of(path, gone)
        ]
        if near:
            raise ScriptStop(
                f"reads {path}, and the script has removed, moved or written {near[0]} by Python, "
                "which the audit has left out. Audit what comes before and after"
            )

    def require_listable(self, call: str, path: str) -> None:
        """End the script if a library uses files that are not as the script left them."""
        self.require_other(call, path)
        self.require_readable(full_path(path))
        if own := self._own(full_path(path), ABOVE):
            raise ScriptStop(f"uses files of {own[0].name} by {call}(), and {_IN_COPY}")

    def require_other(self, call: str, path: str) -> None:
        """End the script if a path is at, in or, with a wildcard, above an output of its own."""
        if own := self.own(path):
            raise ScriptStop(f"uses files of {own[0].name} by {call}(), and {_IN_COPY}")
        full = full_path(path)
        for moved in self.listings.moved:
            if place_of(full, moved) in (AT, INSIDE):
                raise ScriptStop(
                    f"uses {path} by {call}(), where the audit has moved nothing. Audit what "
                    "comes before"
                )
        if full in self.job.unwritten:
            raise ScriptStop(
                f"uses {path} by {call}(), which the audit has not let pandas write. Audit what "
                "comes before and after"
            )

    def own(self, path: str) -> list[WrittenOutput]:
        """Return the outputs of the script at a path or around it."""
        return self._own(full_path(path), AT, INSIDE)

    def _own(self, path: str, *places: str) -> list[WrittenOutput]:
        """The outputs of the script to which a full path has one of some places."""
        paths = (
            o.destination.key for o in self.job.written.outputs if o.destination.kind == "path"
        )
        keys = [key for key in dict.fromkeys(paths) if place_of(path, key) in places]
        return [output for key in keys for output in self.job.written.live("path", key)]

    def require_unchanged(self, call: str, path: str) -> None:
        """End the script if it moves or replaces what Spark has written, now or earlier."""
        self.require_other(call, path)
        if self._own(full_path(path), ABOVE) or self._is_of_spark(full_path(path)):
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
        if at.is_symlink() and self.earlier.is_own(full_name(path)):
            return False
        return any(
            _OF_SPARK.fullmatch(os.path.basename(each)) and not self.earlier.is_own(each)
            for each in files_in(full_path(path))
        )


def intercept_files(patches: Patches, files: ScriptFiles) -> None:
    """Have calls of Python that touch files looked at."""
    _intercept_reads(patches, files)

    def removed(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_path(path):
            if files.is_removal_left_out(_name(function), os.fsdecode(path)):
                return None
            files.note_changed(_name(function), os.fsdecode(path))
        return function(path, *args, **kwargs)

    def moved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path, target = _paths(args, kwargs)
        if _name(function) == "move" and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(path.rstrip("/")))
        files.require_unchanged(_name(function), target)
        if files.is_move_left_out(_name(function), path, target):
            return target
        files.require_unchanged(_name(function), path)
        for each in (path, target):
            files.note_changed(_name(function), each)
        full, to = full_name(path), full_name(target)
        result = function(*args, **kwargs)
        files.earlier.move(full, to)
        return result

    def copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        source, target = _paths(args, kwargs)
        name = _name(function)
        if name in ("copy", "copy2") and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(source))
        files.require_other(name, source)
        files.require_unchanged(name, target)
        files.note_changed(name, target, _copies(source, target))
        files.note_python_file(target)
        with files.earlier.making(target):
            return function(*args, **kwargs)

    def arrow(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        targets = (kwargs[name] for name in _TARGETS if name in kwargs)
        target: Any = args[1] if len(args) > 1 else next(targets, None)
        files.note_python_file(target)
        if not _is_path(target) or kwargs.get("filesystem") is not None:
            return function(*args, **kwargs)
        path = os.fsdecode(target)
        files.require_unchanged(_name(function), path)
        files.note_changed(_name(function), path, [full_path(path)])
        with files.earlier.making(path):
            return function(*args, **kwargs)

    def linked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        *_, target = _paths(args, kwargs)
        with files.earlier.making(target):
            return function(*args, **kwargs)

    _replace(patches, {removed: _REMOVING, moved: _MOVING, copied: _COPYING, linked: _LINKING})
    for owner, name in _ARROW.items():
        patches.replace(owner, name, arrow)


def _intercept_reads(patches: Patches, files: ScriptFiles) -> None:
    """Have calls of Python that look for files, or read them, answered as the script left them."""

    def opened(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("file")
        if not _is_path(path):
            return function(*args, **kwargs)
        name = os.fsdecode(path)
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
        is_written = not set("wax+").isdisjoint(mode)
        if not _is_of_library(caller()):
            files.require_other(_name(function), name)
            if is_written:
                files.listings.reveal(name)
                files.note_changed(_name(function), name, [full_path(name)])
                files.note_python_file(name)
            elif files.listings:
                files.listings.stat_path(name)
        with files.earlier.making(name) if is_written else nullcontext():
            return function(*args, **kwargs)

    def created(
        function: Callable[..., Any], path: Any, flags: int, *args: Any, **more: Any
    ) -> Any:
        is_new = _is_path(path) and flags & os.O_CREAT and more.get("dir_fd") is None
        with files.earlier.making(os.fsdecode(path)) if is_new else nullcontext():
            return function(path, flags, *args, **more)

    def looked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("path")
        others = {name: value for name, value in kwargs.items() if name != "path"}
        is_known = files.listings and _is_path(path) and kwargs.get("dir_fd") is None
        if is_known and not _is_of_library(caller()):
            path = files.listings.stat_path(os.fsdecode(path))
        return function(path, *args[1:], **others)

    def listing(function: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if path is None or (_is_path(path) and not _is_of_library(caller())):
            name = os.fsdecode("." if path is None else path)
            files.require_other(_name(function), name)
            if files.listings:
                return listed(files.listings, function, name, isinstance(path, bytes))
        return function(path, *args, **kwargs)

    def make(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if files.listings and _is_path(path) and files.listings.make(os.fsdecode(path)):
            return None
        is_new = _is_path(path) and kwargs.get("dir_fd") is None and not os.path.lexists(path)
        with files.earlier.making(os.fsdecode(path)) if is_new else nullcontext():
            return function(path, *args, **kwargs)

    def read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        values = [*args[:2], *(kwargs[name] for name in _PATHS if name in kwargs)]
        paths: Any = next((each for each in values if _is_path(each) or isinstance(each, list)), [])
        for path in paths if isinstance(paths, list) else os.fsdecode(paths).split(","):
            files.require_listable(_name(function), os.fsdecode(path))
        return function(*args, **kwargs)

    looking = {opened: _OPENING, looked: _LOOKING, listing: _LISTING, make: _MAKING}
    _replace(patches, {**looking, created: _CREATING, read: _READING})


def _replace(patches: Patches, others: dict[Callable[..., Any], _Names]) -> None:
    for other, owners in others.items():
        for owner, names in owners.items():
            for name in names:
                patches.replace(owner, name, other)


def _copies(source: str, target: str) -> Iterator[str]:
    """Yield the full paths that get the file at a path, or the files in a folder."""
    base, to = full_path(source), full_path(target)
    return (f"{to}{each.removeprefix(base)}" for each in files_in(base))


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
    return str(function.__qualname__).removesuffix(".__init__").rpartition(".")[2]


def _is_path(value: object) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    """The two paths of a call that moves or copies."""
    values = [*args[:2], *(kwargs[name] for name in ("src", "old", "dst", "new") if name in kwargs)]
    return (os.fsdecode(value) for value in values if _is_path(value))
