"""Commands and processes that a script starts, and file systems of Arrow that it uses.

The audit does not see the files that they write or remove, so the report names the lines.
"""

import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

import pyarrow.fs

from ledger.auditing.scripts.files import caller
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches, own_calls
from ledger.auditing.scripts.stops import ScriptStop
from ledger.lineage.sites import LIBRARIES, UNKNOWN, user_line

# The function or method that starts a command, and the index of the command in its arguments.
_COMMANDS: tuple[tuple[Any, str, int], ...] = (
    (subprocess.Popen, "__init__", 1),
    (os, "system", 0),
    *((os, name, 1) for name in ("posix_spawn", "posix_spawnp")),
    *((os, name, 2) for name in ("spawnv", "spawnve", "spawnvp", "spawnvpe")),  # of each spawn*
)
_ENDING = ("_exit", "abort", "execv", "execve")  # the last two are called by each exec*
_OF_PYTHON = ("ctypes.util", "platform", "uuid")  # modules that start commands of their own
_MOST_COMMANDS = 5  # of a line that are named: it may start one for each file
_MOST_CHARACTERS = 50  # of a command
_FILE_SYSTEM = pyarrow.fs.FileSystem


def note_unseen(patches: Patches, job: JobAudit) -> None:
    """Add a note for each line that starts a command or process, or uses a file system of Arrow,
    because the audit does not see what that changes. Calls that would end the process end the
    script.
    """
    noted: dict[str, list[str]] = defaultdict(list)

    def note(what: str) -> None:
        line = user_line() or UNKNOWN
        if what in noted[line] or len(noted[line]) > _MOST_COMMANDS:
            return
        noted[line].append(what)
        name = "another command" if len(noted[line]) > _MOST_COMMANDS else what
        job.notes.append(
            f"{name} at {line} is executed: the audit does not see what it writes or removes"
        )

    for owner, name, at in _COMMANDS:
        patches.replace(owner, name, _noted_command(note, at))
    _note_processes(patches, note)
    _note_file_systems(patches, note)
    _forbid_ends(patches)


def _noted_command(note: Callable[[str], None], at: int) -> Callable[..., Any]:
    def started(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if _is_of_script():
            command = args[at] if len(args) > at else kwargs.get("args", kwargs.get("command"))
            note(f"`{_shortened(command)}`")
        return result

    return started


def _note_processes(patches: Patches, note: Callable[[str], None]) -> None:
    def started(function: Callable[..., Any], *args: Any) -> Any:
        with own_calls(False):  # a child of the script is intercepted as it is
            result = function(*args)
            note("a process")
        return result

    for owner, name in ((os, "fork"), (os, "forkpty"), (BaseProcess, "start")):
        patches.replace(owner, name, started)


def _note_file_systems(patches: Patches, note: Callable[[str], None]) -> None:
    """Add a note if the script gets the class of a file system of ``pyarrow.fs``, whose methods
    cannot be replaced.
    """

    class Watched(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            is_class = isinstance(value, type) and issubclass(value, _FILE_SYSTEM)
            if (is_class or name == "copy_files") and not _is_of_arrow():
                note("pyarrow.fs")
            return value

        def __reduce__(self) -> tuple[Any, ...]:  # a worker has the module itself
            return import_module, (self.__name__,)

    patches.put(pyarrow.fs, "__class__", ModuleType, Watched)


def _forbid_ends(patches: Patches) -> None:
    """End a script that would end the audit, and with it the report."""
    own = os.getpid()

    def ended(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != own:
            return function(*args, **kwargs)
        raise ScriptStop(
            f"calls {function.__name__}(), which ends the process without a report: expected "
            "subprocess.run() or sys.exit(). Audit what comes before"
        )

    for name in _ENDING:
        patches.replace(os, name, ended)


def _is_of_script() -> bool:
    """Return whether the script starts a command, not Spark, this library or Python by itself."""
    frame = caller()
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "subprocess"):
        frame = frame.f_back
    is_of_library = frame.f_code.co_filename.startswith(LIBRARIES)
    return not is_of_library and frame.f_globals.get("__name__") not in _OF_PYTHON


def _is_of_arrow() -> bool:
    """Return whether Arrow, pandas or this library uses a file system."""
    frame = caller()
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return module in ("pandas", "pyarrow") or frame.f_code.co_filename.startswith(LIBRARIES)


def _shortened(command: Any) -> str:
    """Return the first words of a command."""
    words = command if isinstance(command, (list, tuple)) else [command]
    texts = (os.fsdecode(w) if isinstance(w, (str, bytes, os.PathLike)) else str(w) for w in words)
    text = " ".join(" ".join(texts).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
