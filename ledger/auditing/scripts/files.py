"""Files that a script reads, writes or removes other than with Spark's readers and writers.

Where the script has written with Spark there is nothing, or what an earlier run has written: the
rows are in a copy. Such a path can be neither read nor changed.
"""

import builtins
import bz2
import glob
import io
import logging
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from errno import EISDIR, ENOTEMPTY
from pathlib import Path
from types import FrameType
from typing import Any

import pandas
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
from pyspark import SparkContext
from pyspark.sql import DataFrame

from ledger.auditing.losses import OutputResult
from ledger.auditing.scripts.earlier import EarlierFiles, files_in, full_name
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches, own_calls
from ledger.auditing.scripts.phantoms import IN_COPY, left_out, named
from ledger.auditing.scripts.places import ABOVE, AT, INSIDE
from ledger.auditing.scripts.stops import ScriptStop
from ledger.auditing.scripts.written import full_path
from ledger.auditing.sources import relation_of
from ledger.lineage.catalyst import Catalyst
from ledger.lineage.sites import LIBRARIES, UNKNOWN, is_of_python, user_line

_Names = dict[Any, tuple[str, ...]]
_REMOVING: _Names = {os: ("remove", "unlink"), shutil: ("rmtree",)}
_EMPTYING: _Names = {os: ("removedirs", "rmdir")}
_MOVING: _Names = {os: ("rename", "renames", "replace"), shutil: ("move",)}
_COPYING: _Names = {shutil: ("copy", "copy2", "copyfile", "copytree")}
# Modules of Python that keep a name of their own for open().
_OPENING: _Names = {
    **{builtins: ("open",), io: ("open",)},
    **{bz2: ("_builtin_open",), tarfile: ("bltn_open",)},
}
_GLOBBER = getattr(glob, "_StringGlobber", None)  # of Path.glob, since Python 3.13
_LISTING: _Names = {os: ("listdir", "scandir"), _GLOBBER: ("scandir",)}
_GLOBBING: _Names = {glob: ("glob", "iglob")}
_LOOKING: _Names = {os: ("lstat", "stat"), _GLOBBER: ("lstat",)}
_MAKING: _Names = {os: ("mkdir",)}
_CREATING: _Names = {os: ("open",)}
_CHANGING: _Names = {os: ("chmod", "truncate", "utime")}
_LINKING: _Names = {os: ("link", "symlink")}
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
_ARROW: _Names = {
    pyarrow.csv: ("write_csv",),
    pyarrow.dataset: ("write_dataset",),
    pyarrow.feather: ("write_feather",),
    pyarrow.orc: ("write_table",),
    pyarrow.parquet: ("write_metadata", "write_table", "write_to_dataset"),
    pyarrow.parquet.ParquetWriter: ("__init__",),
}
_PATHS = ("path", "path_or_paths", "source", "where", "input_file", "name")  # that are read
_TARGETS = ("where", "output_file", "base_dir", "dest", "root_path")  # of Arrow's functions
_OF_SPARK = re.compile(r"\.?(_SUCCESS|part-\d{5}).*")
_HERE = f"{Path(__file__).parent}{os.sep}"
_LOGGING = f"{Path(logging.__file__).parent}{os.sep}"
_SYSTEM = ("/dev/", "/proc/")
_ROWS = "Python writes it, and rows went through the driver"


@dataclass
class ScriptFiles:
    """Files of a script, which the audit knows by the calls that touch them.

    ``opened``: the files that Python has written, by their name.
    """

    job: JobAudit
    opened: dict[str, OutputResult] = field(default_factory=dict)
    earlier: EarlierFiles = field(init=False)

    def __post_init__(self) -> None:
        self.phantoms = self.job.phantoms
        self.earlier = EarlierFiles(self.job.paths_read)

    def is_removal_left_out(self, call: str, path: str) -> bool:
        """Return whether the audit leaves out a removal: of files that Spark has read, or written
        before the audit, or of an output whose path has earlier files or none. The removal is
        noted, and the files are gone for the script. An output that the script removes counts as
        dropped.

        Ends the script if it removes a part of an output, or files of a table. Raises the error
        that the call would raise for the script, if nothing is there, or a folder.
        """
        full = full_name(path)
        for part in self.phantoms.outputs(full, INSIDE):
            raise ScriptStop(f"removes a part of {part.name} by {call}(), and {IN_COPY}")
        own = list(self.phantoms.outputs(full, AT, ABOVE))
        self.phantoms.seen(path, full)
        if tables := [output.name for output in own if output.destination.kind == "table"]:
            raise ScriptStop(f"removes files of {tables[0]} by {call}(), and {IN_COPY}")
        if os.path.islink(full):
            return False  # it has no data
        if call in ("remove", "unlink") and (own or os.path.isdir(full)):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
        for output in own:
            key, place = output.destination.key, user_line() or UNKNOWN
            self.job.written.drop("path", key, place, f"{call}()")
        is_kept = (
            self._is_of_spark(full) or self._is_source(full) or self.phantoms.has_removed(full)
        )
        if not is_kept and not (own and (self.earlier.has(full) or not os.path.lexists(full))):
            return False
        self.leave_out(call, full)
        return True

    def is_move_left_out(self, call: str, full: str, target: str) -> bool:
        """Return whether the audit leaves out a move: of files that Spark has read, or written
        before the audit. The move is noted, and the files are gone for the script.
        """
        if os.path.islink(full) or not (self._is_source(full) or self._is_of_spark(full)):
            return False
        self.leave_out(call, full)
        self.phantoms.unmade[target] = self.phantoms.removed[full]
        return True

    def _is_source(self, full: str) -> bool:
        """Return whether Spark has read files at or in a path that were there before the audit
        began.
        """
        return self.earlier.is_read(full) and self.earlier.has(full)

    def leave_out(self, call: str, full: str) -> None:
        """Note that a call is left out. What is at the full path is gone for the script."""
        self.note_left_out(call, full)
        if os.path.lexists(full):
            self.phantoms.remove(call, full)

    def note_left_out(self, call: str, full: str) -> None:
        """Add a note that a call is left out."""
        self.job.notes.append(f"{left_out(call, full)} is left out")

    def note_changed(self, call: str, full: str, changed: Iterable[str] | None = None) -> None:
        """Add a note that Python changes files that were there before the audit began, if it does.
        Files of the system are not noted.

        ``changed``: full paths of the files, if these are not all that are at or in ``full``.
        """
        if full.startswith(_SYSTEM) or not any(
            map(self.earlier.has, [full] if changed is None else changed)
        ):
            return
        note = f"{left_out(call, full)} is executed: Python changes it"
        self.job.notes += [note] if note not in self.job.notes else []

    def require_not_of_spark(self, call: str, full: str) -> None:
        """End the script if it replaces what Spark has written before the audit."""
        if not os.path.islink(full) and self._is_of_spark(full):
            raise ScriptStop(
                f"replaces {named(full)} by {call}(), which Spark has written: the audit "
                "does not change such files. Audit what comes before"
            )

    def require_target(self, call: str, full: str) -> None:
        """End the script if it makes or replaces files that the audit keeps in copies or has left
        out, or that Spark has written before the audit.
        """
        self.phantoms.require_target(call, full)
        self.require_not_of_spark(call, full)

    def note_python_file(self, target: Any) -> None:
        """Register a file that Python writes, for ``conclude``. Files of the system are left
        out.
        """
        is_path = isinstance(target, (str, os.PathLike))
        name = str(target) if is_path else f"a {type(target).__name__}"
        if not name.startswith(_SYSTEM):
            self.opened.setdefault(
                name, OutputResult(name, user_line() or UNKNOWN, _ROWS, is_final=True)
            )

    def conclude(self) -> None:
        """Once the script has ended, take each file that Python has written for an output, if rows
        went out of Spark's plans: they may be in it. Add a note if there is no file for such rows.
        """
        taken = [call for frame, call in self.job.taken if _reads_tables(frame)]
        if taken:
            self.job.others += self.opened.values()
        if taken and not self.job.others:
            self.job.notes.append(
                f"rows went through {taken[0]}: where Python sends them is not known, and "
                "they may have arrived there"
            )

    def _is_of_spark(self, full: str) -> bool:
        """Return whether Spark has written a file, or one in a folder, before the audit began."""
        return any(
            _OF_SPARK.fullmatch(os.path.basename(each)) and not self.earlier.is_own(each)
            for each in files_in(full)
        )


def intercept_files(patches: Patches, files: ScriptFiles) -> None:
    """Have calls of Python that touch files looked at."""
    _intercept_removals(patches, files)
    _intercept_writes(patches, files)
    _intercept_system_calls(patches, files)
    _intercept_reads(patches, files)


def _intercept_removals(patches: Patches, files: ScriptFiles) -> None:
    def removed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("path")
        if not _is_path(path) or kwargs.get("dir_fd") is not None:
            return function(*args, **kwargs)
        call, full = _name(function), full_name(os.fsdecode(path))
        try:
            if files.is_removal_left_out(call, os.fsdecode(path)):
                return None
        except FileNotFoundError:
            if call != "rmtree" or not (args[1:] or kwargs):
                raise
            return function(files.job.folder / "nothing", *args[1:], **kwargs)  # to ignore errors
        files.note_changed(call, full)
        result = function(*args, **kwargs)
        if not os.path.lexists(full):
            files.earlier.forget(full)
        return result

    def emptied(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_path(path) and kwargs.get("dir_fd") is None:
            full = full_name(os.fsdecode(path))
            if any(files.phantoms.outputs(full, AT, ABOVE)):
                raise OSError(ENOTEMPTY, os.strerror(ENOTEMPTY), path)
            files.phantoms.seen(os.fsdecode(path), full)
            files.phantoms.require_none(_name(function), full)
        return function(path, *args, **kwargs)

    def moved(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path, target = _paths(args, kwargs)
        call = _name(function)
        files.phantoms.require_none(call, full_name(target), AT, INSIDE)
        if call == "move" and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(path.rstrip("/")))
        full, to = full_name(path), full_name(target)
        files.phantoms.require_none(call, full)
        files.require_target(call, to)
        if files.is_move_left_out(call, full, to):
            return target
        for each in (full, to):
            files.note_changed(call, each)
        is_own = files.earlier.owned(full)
        result = function(*args, **kwargs)
        files.earlier.move(full, to, is_own)
        return result

    _replace(patches, {removed: _REMOVING, emptied: _EMPTYING, moved: _MOVING})


def _intercept_writes(patches: Patches, files: ScriptFiles) -> None:
    def copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        source, target = _paths(args, kwargs)
        call = _name(function)
        files.phantoms.require_none(call, full_path(target), AT, INSIDE)
        if call in ("copy", "copy2") and os.path.isdir(target):
            target = os.path.join(target, os.path.basename(source))
        to = full_path(target)
        files.phantoms.require_none(call, full_path(source))
        files.require_target(call, to)
        if len(args) > 4 or "copy_function" in kwargs:
            with own_calls(False):  # it may move files, or do anything
                return function(*args, **kwargs)
        files.note_changed(call, to, _copies(source, target))
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
        full = full_path(path)
        files.require_target(_name(function), full)
        files.note_changed(_name(function), full, [full])
        with files.earlier.making(path):
            return function(*args, **kwargs)

    def linked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        source, target = _paths(args, kwargs)
        call = _name(function)
        files.phantoms.require_target(call, full_name(target))
        if call == "link":  # another name of a file that stays an earlier one
            files.phantoms.require_none(call, full_path(source))
            return function(*args, **kwargs)
        there = full_path(os.path.join(os.path.dirname(target), source))
        files.phantoms.require_none(call, there, AT, INSIDE)  # else the link leads nowhere
        with files.earlier.making(target):
            return function(*args, **kwargs)

    def make(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_path(path) or kwargs.get("dir_fd") is not None:
            return function(path, *args, **kwargs)
        if files.phantoms and files.phantoms.is_made(os.fsdecode(path)):
            return None
        with files.earlier.making(os.fsdecode(path)):
            return function(path, *args, **kwargs)

    _replace(patches, {copied: _COPYING, linked: _LINKING, make: _MAKING, arrow: _ARROW})


def _intercept_system_calls(patches: Patches, files: ScriptFiles) -> None:
    def created(
        function: Callable[..., Any], path: Any, flags: int, *args: Any, **more: Any
    ) -> Any:
        if not _is_path(path) or more.get("dir_fd") is not None:
            return function(path, flags, *args, **more)
        name = os.fsdecode(path)
        full, is_new = full_path(name), flags & os.O_CREAT
        if not _is_of_library(caller()):
            if is_new:
                files.phantoms.require_target("open", full, AT, INSIDE)
            if flags & (os.O_WRONLY | os.O_RDWR):
                files.note_changed("open", full, [full])
        with files.earlier.making(name) if is_new else nullcontext():
            return function(path, flags, *args, **more)

    def changed(function: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_path(path) and kwargs.get("dir_fd") is None:
            call, full = _name(function), full_path(os.fsdecode(path))
            files.phantoms.require_none(call, full, AT, INSIDE)
            if call == "truncate":
                files.note_changed(call, full)
        return function(path, *args, **kwargs)

    _replace(patches, {created: _CREATING, changed: _CHANGING})


def _intercept_reads(patches: Patches, files: ScriptFiles) -> None:
    """Have calls of Python that look for files, list or read them looked at."""

    def opened(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("file")
        if not _is_path(path):
            return function(*args, **kwargs)
        name = os.fsdecode(path)
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
        is_written, full = not set("wax+").isdisjoint(mode), full_path(name)
        if not _is_of_library(caller()):
            if is_written:
                files.phantoms.require_target("open", full)
                files.note_changed("open", full, [full])
                files.note_python_file(name)
            else:
                files.phantoms.require_none("open", full)
        with files.earlier.making(name) if is_written else nullcontext():
            return function(*args, **kwargs)

    def looked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path: Any = args[0] if args else kwargs.get("path")
        others = {name: value for name, value in kwargs.items() if name != "path"}
        is_known = files.phantoms and _is_path(path) and kwargs.get("dir_fd") is None
        if is_known and not _is_of_library(caller()):
            name = os.fsdecode(path)
            is_link = _name(function) == "lstat" or not kwargs.get("follow_symlinks", True)
            path = files.phantoms.seen(name, full_name(name) if is_link else full_path(name))
        return function(path, *args[1:], **others)

    def listing(function: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if path is None or (_is_path(path) and not _is_of_library(caller())):
            files.phantoms.require_names(_name(function), os.fsdecode(path or "."))
        return function(path, *args, **kwargs)

    def globbed(function: Callable[..., Any], pathname: Any, *args: Any, **kwargs: Any) -> Any:
        name, root = os.fsdecode(pathname), os.fsdecode(kwargs.get("root_dir") or "")
        if not files.phantoms or "**" in name or _is_of_library(caller()):
            return function(pathname, *args, **kwargs)
        pattern = full_path(os.path.join(root, name))
        files.phantoms.require_none(_name(function), pattern, is_pattern=True)
        with own_calls():
            matches = [*function(pathname, *args, **kwargs)]
        return matches if _name(function) == "glob" else iter(matches)

    def read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        values = [*args[:2], *(kwargs[name] for name in _PATHS if name in kwargs)]
        paths: Any = next((each for each in values if _is_path(each) or isinstance(each, list)), [])
        is_of_spark = function.__qualname__.startswith(SparkContext.__name__)
        names = paths if isinstance(paths, list) else os.fsdecode(paths).split(",")
        for path in filter(_is_path, names):
            full = full_path(os.fsdecode(path))
            files.phantoms.require_none(_name(function), full, is_pattern=is_of_spark)
            if is_of_spark:
                files.job.paths_read.add(full)
        return function(*args, **kwargs)

    reading = {opened: _OPENING, looked: _LOOKING, listing: _LISTING, read: _READING}
    reading |= {globbed: _GLOBBING}
    _replace(patches, reading)


def _replace(patches: Patches, others: dict[Callable[..., Any], _Names]) -> None:
    for other, owners in others.items():
        for owner, names in owners.items():
            for name in names if owner is not None else ():
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
    """Return whether Spark, this library or a log opens a file, by itself or through modules of
    Python.
    """
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
    """Return the paths of a call that moves or copies. File descriptors are left out."""
    values = [*args[:2], *(kwargs[name] for name in ("src", "old", "dst", "new") if name in kwargs)]
    return (os.fsdecode(value) for value in values if _is_path(value))
