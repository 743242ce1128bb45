"""Errors of Spark, of files and of users' own code as the ledger's: one line with what, where and
what to do.

A failure of an executor arrives as the text of a Java exception, which contains the cause: the
worker's own traceback, the file that could not be read, or Spark's error condition. Nothing here
imports Spark: what is looked at is text.
"""

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ledger import errors
from ledger.core.paths import without_file_scheme
from ledger.core.text import printable
from ledger.errors import (
    ConfigurationError,
    InputError,
    IntegrityError,
    LedgerError,
    LostFileError,
    StageError,
    UnavailableError,
    quote,
)
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import verbose
from ledger.storage.folders import FULL, no_space, not_made, scratch_of

_log = logging.getLogger(__name__)

_LONGEST = 500  # characters of another's message that are repeated
_PACKAGE = f"{Path(__file__).parents[1]}/"
# Code of libraries: its frames do not show where a user has to look.
_FOREIGN = re.compile(
    r"/(?:site|dist)-packages/(?:pyspark|py4j|pyarrow|pandas|numpy|sqlalchemy|psycopg2|deltalake|fsspec|"
    r"airflow|pydantic\w*|typer|click|rich|alembic)[/.]|/pyspark\.zip/|/py4j[^/]*\.zip/|"
    r"/lib/python3[^/]*/(?!(?:site|dist)-packages/)|^<frozen"
)
# The package, of those that are installed: a user's own, or what it calls.
_INSTALLED = re.compile(r"^(.*/(?:site|dist)-packages/[^/]+)")
# A file below a run's folder: see ``Job.folder`` and where sinks stage.
_OF_A_RUN = re.compile(r"/batch[=-]\d+/(?:run[=-]\d+|kept-[\w-]+)/")

# Spark's error classes, and Hadoop's words, for a file that cannot be read.
_UNREADABLE = (
    "FAILED_READ_FILE",
    "PATH_NOT_FOUND",
    "FileNotFoundException",
    "CANNOT_READ_FILE",
    "not a gzip file",
)
_GONE = ("PATH_NOT_FOUND", "FileNotFoundException")
# Of a file that is there: what its error says, and what to do.
_WAYS_OUT = {
    "ArithmeticException: long overflow": "It has a timestamp that Spark cannot hold, before the"
    " year -290308 or after 294247: write another value, or null",
    "Unsupported encoding": "Write it without this encoding",
}
# Messages of the system, and not words that any error may have.
_FULL = re.compile(
    r"(?i:no space left on device)|Disk quota exceeded|\[Errno 27\]|\(os error 27\)|"
    r"\b(?:IO|FileSystem)Exception: (?:/.+: )?File too large$",
    re.MULTILINE,
)
_UNMADE = re.compile(r"Mkdirs failed to create (\S+)")
_WRITTEN = re.compile(r"while writing rows to ([^\s]+?)\.?(?:\s|$)")
# Conditions that only report that a task failed, and not why.
_WRAPPERS = ("TASK_WRITE_FAILED", "WRITING_JOB_ABORTED")
# How Java reports, of a store, that it did not answer: none of it is the step's fault.
_AWAY = re.compile(
    r"^(?:Caused by|): (?:[\w$]+\.)*(?:(?:Connect|Socket|SocketTimeout|UnknownHost|NoHttpResponse|"
    r"NoRouteToHost|ConnectTimeout|SSL)Exception: |\w*Exception: [^\n]*(?:Unexpected HTTP response:"
    r" code=(?:5\d\d|429)|Premature EOF|Failed to rename|SlowDown|Status Code: (?:5\d\d|429)))"
    r"[^\n]*",
    re.MULTILINE,
)
# How Java reports that a task found no Python.
_NO_PYTHON = re.compile(r'Cannot run program "([^"]*python[^"]*)": (error=\d+, [^\n]+)')
_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError|^(?:\w+\.)*\w*MemoryError\b", re.MULTILINE)
# How Spark reports that it is stopping, and a Connect server that it has lost the session.
_STOPPING = (
    "SparkContext was shut down",
    "stopped SparkContext",
    "INVALID_HANDLE.SESSION_",
    "server side session identifier",
)
# What is left of a call if the JVM ends before it answers: no Java exception, no trace.
_UNANSWERED = re.compile(r"An error occurred while calling \S+")

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ([^\n]+)")
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): ([^\n]+)", re.MULTILINE)
# Java's exceptions in the text of one, where it names them itself, each with its condition if it
# has one.
_RAISED = re.compile(
    r"(?:^Caused by: |^: |JVM stacktrace:\n)(?:[\w$]+\.)*([\w$]+)(?:: \[([A-Z][A-Z0-9_.]*)\])?",
    re.MULTILINE,
)
_LEADING = re.compile(r"\[([A-Z][A-Z0-9_.]*)\] ")
_OWN = re.compile(r"ledger\.errors\.(\w+): (.+)")  # an error of ours, raised by a task
_AUTHORS = "USER_RAISED_EXCEPTION"
_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+)$')
_RUN = re.compile(r"/run[=-](\d+)/")  # a run's folder
_PATH = re.compile(r"(?:reading file|Path does not exist:|File) ((?:[a-z0-9]+:)?/[^\s\"']+)")


def translated(exc: BaseException) -> LedgerError:
    """Return the ledger's error for an exception of a step. Its own errors are unchanged."""
    if isinstance(exc, LedgerError):
        return exc
    for find in _CAUSES:
        error = find(exc)
        if error is not None:
            return error
    text = _text(exc)
    where, message = _worker_failure(text) or (_place(exc), None)
    if message is None:
        words = exc.msg if isinstance(exc, SyntaxError) else _first_line(text)
        message = _condition(text) or f"{type(exc).__name__}: {words}"
    if where is None and not _is_sparks(exc):
        return LedgerError(
            f"unexpected {quote(message)}. With --verbose the traceback is printed: please report"
            " it"
        )
    return StageError(f"{quote(message[: 2 * _LONGEST])}{f' ({where})' if where else ''}")


def _of_a_task(exc: BaseException) -> LedgerError | None:
    """Return the ledger's own error that a task raised, or None."""
    where, message = _worker_failure(_text(exc)) or (None, "")
    own = _OWN.fullmatch(message)
    if own is None or where is not None:
        return None
    kind: type[LedgerError] = getattr(errors, own[1])
    return kind(quote(own[2]))


def _no_python(exc: BaseException) -> ConfigurationError | None:
    """Return the error for a Python that is missing where Spark's tasks run, else None."""
    program = _NO_PYTHON.search(_text(exc)) if _is_sparks(exc) else None
    if program is None:
        return None
    return ConfigurationError(
        f"expected a Python at {program[1]} where Spark's tasks run, found none ({program[2]}): it"
        " is the one of PYSPARK_PYTHON, or of spark.pyspark.python. On a cluster ship it to the"
        " executors (docs/how-to/cluster.md); with a master on this machine unset the variable"
    )


def is_spark_gone(exc: BaseException) -> bool:
    """Return whether an exception was raised because Spark has ended: py4j's JVM does not answer,
    or the Connect server is away or has lost the session.
    """
    return _spark_gone(exc) is not None


def _spark_gone(exc: BaseException) -> UnavailableError | None:
    message, error, seen = None, exc, set[int]()
    while message is None:  # in the exception, or in one that it was raised from
        message = _last_words(error)
        seen.add(id(error))
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            break
        error = cause
    if message is None:
        return None
    return UnavailableError(
        f"Spark does not answer any more ({message}): its JVM, or its Spark Connect server, was"
        " stopped or died. Unless it was stopped on purpose, see whether it ran out of memory,"
        " then run this again"
    )


def _last_words(exc: BaseException) -> str | None:
    """Return the text of an exception raised because Spark has ended; None for any other."""
    name = type(exc).__name__
    if not _is_sparks(exc):
        # py4j lets errors of its sockets pass.
        frames = traceback.extract_tb(exc.__traceback__)
        of_py4j = any("/py4j/" in frame.filename for frame in frames)
        return f"{name}: {exc}" if isinstance(exc, ConnectionError) and of_py4j else None
    try:
        text = str(exc)
    except Exception:  # only Java knows the text, and does not answer
        return name
    status = getattr(exc, "getGrpcStatusCode", lambda: None)()  # of errors that come from a server
    gone = (
        name == "Py4JNetworkError"
        or getattr(status, "name", None) == "UNAVAILABLE"
        or _UNANSWERED.fullmatch(text)
        or any(words in text for words in _STOPPING)
    )
    return f"{name}: {_first_line(text)}" if gone else None


def one_line(exc: BaseException) -> str:
    """Return the text of an exception, translated to the ledger's error, as one printable line."""
    return printable(_in_one_line(str(translated(exc))))


def _in_one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def recorded(exc: BaseException) -> str:
    """Return the class and the text of an exception as one line for the ledger. Texts of Spark,
    Java and libraries may quote records, so only names, the file and the place are kept of these.
    """
    if not isinstance(exc, Exception):  # it was interrupted
        return type(exc).__name__
    error = translated(exc)
    if error is exc or not _may_quote(exc):
        return f"{type(error).__name__}: {one_line(error)}"
    words = "The driver's log, or ackledger --verbose, has its words"
    return f"{type(error).__name__}: {_name(exc)}. {words}"


def unread_runs(exc: BaseException) -> list[int]:
    """Return the ids of the runs whose lost or damaged files an error names by path."""
    error = translated(exc)
    return [*map(int, _RUN.findall(str(error)))] if isinstance(error, IntegrityError) else []


def _may_quote(exc: Exception) -> bool:
    """Return whether the text of an exception may quote a record. The ledger's own errors and
    errors of analysis do not; an error from a stage's own code counts as its author's words.
    """
    if any(find(exc) for find in (_spark_gone, _setting, _of_a_task, _full_disk, _no_python)):
        return False
    if read_failure(exc):
        return True
    if _out_of_memory(exc):
        return False
    text = _text(exc)
    worker = _worker_failure(text)
    if worker is not None:
        return worker[0] is None
    if not _is_sparks(exc):
        return _place(exc) is None
    conditions = [name for name, _ in _CONDITION.findall(text) if name not in _WRAPPERS]
    planned = any(kind.__name__ == "AnalysisException" for kind in type(exc).__mro__)
    return not planned and conditions[-1:] != [_AUTHORS]


def redacted(exc: Exception) -> LedgerError:
    """Return the error without values: of others' errors only the class and the place."""
    return errors.redacted(exc, type(translated(exc)), _name(exc))


@contextmanager
def masking(pipeline: Pipeline) -> Iterator[None]:
    """Re-raise errors of this block as ``redacted`` ones, if the pipeline redacts columns."""
    try:
        yield
    except Exception as exc:
        if not pipeline.redact:
            raise
        raise redacted(exc) from None


class Failures:
    """Collects the failures of independent tasks. All tasks are tried; the first failure is raised
    at the end.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._failures: list[Exception] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Log an error of this block instead of raising it."""
        try:
            with masking(self._pipeline):
                yield
        except Exception as exc:
            _log.warning("the rest goes on without this: %s", error_text(exc))
            self._failures.append(exc)

    def raise_first(self) -> None:
        """Raise the first failure, if there is one."""
        for failure in self._failures:
            raise failure


def _name(exc: Exception) -> str:
    """Return class and condition of the innermost exception, with its file and its place."""
    text = _text(exc)
    leading, worker = _LEADING.match(text), _worker_failure(text)
    raised = [(type(exc).__name__, leading[1] if leading else ""), *_RAISED.findall(text)]
    name, condition = next((pair for pair in raised[::-1] if pair[1] not in _WRAPPERS), raised[0])
    if worker is not None:
        name, condition = re.split(r"[^\w.]", worker[1])[0], ""
    summary = f"{name} [{condition}]" if condition else name
    path = _PATH.search(text) if read_failure(exc) else None
    if path:
        summary += " of " + path[1].rstrip(".,")
    where, frames = _place(exc), traceback.extract_tb(exc.__traceback__)
    if where is None and frames and not _is_sparks(exc):  # in anyone's code
        where = f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"
    return f"{summary} ({where})" if where else summary


def noted(exc: BaseException) -> str:
    """Return ``one_line`` with the notes that were added to an exception."""
    notes = dict.fromkeys(getattr(exc, "__notes__", []))
    return ". ".join([one_line(exc).rstrip(". "), *notes]) if notes else one_line(exc)


def error_text(exc: BaseException) -> str:
    """Return ``noted``; with ``--verbose`` after the traceback."""
    return "".join([*(traceback.format_exception(exc) if verbose() else ()), noted(exc)])


def read_failure(exc: BaseException) -> InputError | LostFileError | None:
    """Return the error for a file that vanished or cannot be read, with its path: one of a source,
    or one that a step wrote; None for any other.
    """
    text = _text(exc)
    if not _is_sparks(exc) or not any(word in text for word in _UNREADABLE):
        return None
    path = _PATH.search(text)
    lines = [line.strip() for line in text.splitlines() if any(w in line for w in _UNREADABLE)]
    what = path[1].rstrip(".,") if path else lines[0][:_LONGEST]
    causes = [f"{name}: {message}" for name, message in _CAUSED.findall(text)]
    java = causes[-1][:_LONGEST].rstrip(". ") if causes else ""
    cause = f" ({quote(java)})" if java else ""
    file = what if path else quote(what)
    state = "vanished" if any(word in text for word in _GONE) else "cannot be read"
    if _OF_A_RUN.search(what):
        return LostFileError(
            f"a file that a step wrote {state}: {file}{cause}. The next run of its batch runs"
            " that step again; in Airflow clear the task that ran it, and those downstream. If the"
            " batch is settled, read the interval again, with --reprocess"
        )
    way = next((way for words, way in _WAYS_OUT.items() if words in java), None)
    if way is None:
        folder, slash, name = without_file_scheme(what).rpartition("/")
        sums = f"{folder}{slash}.{name}.crc"
        way = "Put a whole one in its place"
        if Path(sums).exists():
            way += f"; or, if it is whole, delete {sums}, with which Hadoop compares it"
    return InputError(f"a source file {state}: {file}{cause}. {way}, then run this again")


def _setting(exc: BaseException) -> ConfigurationError | None:
    """Return the error for an ``ACKLEDGER_*`` variable with an invalid value, else None."""
    if not isinstance(exc, ValidationError) or exc.title != "Settings":
        return None
    first = exc.errors()[0]
    name = "_".join(map(str, first["loc"])).upper()
    return ConfigurationError(f"ACKLEDGER_{name}={first['input']}: {first['msg']}")


def _full_disk(exc: BaseException) -> UnavailableError | None:
    text, unmade = _text(exc), _UNMADE.search(_text(exc))
    if (isinstance(exc, OSError) and exc.errno in FULL) or _FULL.search(text):
        written, name = _WRITTEN.search(text), getattr(exc, "filename", None)
        folder = written[1] if written else name if isinstance(name, str) else None
        # Of Spark's shuffles and spills: as the environment says, or a session that runs here.
        scratch = os.environ.get("SPARK_LOCAL_DIRS")
        sql: Any = sys.modules.get("pyspark.sql")
        if not scratch and sql:
            with suppress(Exception):  # Spark has ended: its error is another's to report
                session = sql.SparkSession.getActiveSession()
                scratch = session and session.conf.get("spark.local.dir", None)
        return no_space(folder, scratch_of(scratch))
    return not_made(unmade[1]) if unmade else None


def _store_away(exc: BaseException) -> UnavailableError | None:
    """Return the error for a store that did not answer Spark; None for any other exception.

    An exception with a traceback of Python was raised by a task's own code, so it is no such error.
    """
    text = _text(exc)
    answer = _AWAY.search(text)
    if answer is None or not _is_sparks(exc) or _worker_failure(text) is not None:
        return None
    words = answer[0].partition(": ")[2][:_LONGEST]
    return UnavailableError(
        f"a store does not answer Spark: {quote(words)}. Nothing is lost: check the store, and how"
        " often Hadoop's client for it tries again, then run this again"
    )


def _out_of_memory(exc: BaseException) -> StageError | None:
    if not isinstance(exc, MemoryError) and not (_is_sparks(exc) and _MEMORY.search(_text(exc))):
        return None
    return StageError(
        "a process of Spark ran out of memory: give it more (spark.driver.memory, "
        "spark.executor.memory), or "
        "less to do at once (spark.sql.shuffle.partitions)"
    )


def _worker_failure(text: str) -> tuple[str | None, str] | None:
    """Return place and message of the last Python traceback in a text; None if it has no traceback.

    The place is the innermost one in the user's code, or None if no code of the user was involved.
    """
    last = None
    frames: list[tuple[str, int, str]] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match:
            frames.append((match[1], int(match[2]), match[3]))
        elif frames and line.strip() and not line[0].isspace():
            last, frames = (frames, line.strip()), []
    return None if last is None else (_own_frame(last[0]), last[1][:_LONGEST])


def _place(exc: BaseException) -> str | None:
    """Return the place in the user's code where the driver raised an exception, or None."""
    if isinstance(exc, SyntaxError):
        return f"{exc.filename}:{exc.lineno}"
    stack = traceback.extract_tb(exc.__traceback__)
    return _own_frame([(frame.filename, frame.lineno or 0, frame.name) for frame in stack])


def _own_frame(frames: Sequence[tuple[str, int, str]]) -> str | None:
    """Return the innermost frame of code that is neither ackledger's nor a library's; if all code
    is installed, of the package that was called first.
    """
    own = [
        frame
        for frame in frames
        if not frame[0].startswith(_PACKAGE) and not _FOREIGN.search(frame[0])
    ]
    if not own:
        return None
    packages = [_INSTALLED.match(path) for path, _, _ in own]
    first = next((match[1] for match in packages if match), None)
    candidates = [frame for frame, match in zip(own, packages, strict=True) if not match] or [
        frame for frame, match in zip(own, packages, strict=True) if match and match[1] == first
    ]
    path, line, name = candidates[-1]
    return f"{path}:{line}, in {name}"


def _condition(text: str) -> str | None:
    """Return the text of Spark's innermost error condition, without its code for SQL."""
    conditions = [pair for pair in _CONDITION.findall(text) if pair[0] not in _WRAPPERS]
    if not conditions:
        causes = _CAUSED.findall(text)
        return ": ".join(causes[-1])[:_LONGEST] if causes else None
    name, message = conditions[-1]
    message = re.sub(r"\s*SQLSTATE: \w+.*$", "", message).strip()[:_LONGEST]
    return message if name == _AUTHORS else f"[{name}] {message}"


def explained(exc: BaseException, what: str, advice: str) -> LedgerError:
    """Return the error of a step, of the same class: what failed, with what words, and how to go
    on.
    """
    error = translated(exc)
    return errors.base_class_of(error)(f"{what}: {_in_one_line(errors.clause(error))}. {advice}")


def _is_sparks(exc: BaseException) -> bool:
    """Return whether Spark, or py4j, raised an exception."""
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(exc).__mro__)


def _text(exc: BaseException) -> str:
    """Return the text of an exception; empty if it raises one of its own."""
    try:
        return str(exc)
    except Exception:  # of a user's class
        return ""


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_LONGEST] if lines else "without a message"


# In the order in which they are asked what an error comes from.
_CAUSES = (
    _spark_gone,
    _setting,
    _of_a_task,
    _full_disk,
    _store_away,
    _no_python,
    read_failure,
    _out_of_memory,
)
