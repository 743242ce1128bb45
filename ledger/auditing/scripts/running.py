"""Run a script as ``python script.py`` does, and audit it."""

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from ledger.auditing.report import AuditReport
from ledger.auditing.scripts.files import ScriptFiles, intercept_files
from ledger.auditing.scripts.forbidden import CONNECT, forbid
from ledger.auditing.scripts.interrupts import INTERRUPTED, take_interrupts
from ledger.auditing.scripts.java_calls import intercept_java
from ledger.auditing.scripts.job import JobAudit
from ledger.auditing.scripts.patches import Patches, own_calls
from ledger.auditing.scripts.readers import intercept_reads
from ledger.auditing.scripts.statements import intercept_statements
from ledger.auditing.scripts.stops import ScriptStop, first_line
from ledger.auditing.scripts.unseen import note_unseen
from ledger.auditing.scripts.writers import intercept_writes
from ledger.errors import InputError
from ledger.lineage.spark_faults import avoid_known_faults


@dataclass(frozen=True)
class ScriptProgress:
    """Functions that an audit calls while it runs. ``on_write``: of an output and its line, once it
    is written. ``on_ended``: of the number of outputs, once the script has ended. ``on_output``:
    of an output whose losses are looked for.
    """

    on_write: Callable[[str, str], None] = lambda name, place: None
    on_ended: Callable[[int], None] = lambda outputs: None
    on_output: Callable[[str], None] = lambda name: None


def audit_script(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    *,
    final: Sequence[str] = (),
    progress: ScriptProgress = ScriptProgress(),
) -> AuditReport:
    """Run a script with its reads and writes intercepted, and return what became of its records. If
    the script fails or is stopped, the report's ``failure`` says how.

    ``folder``: an empty one for the copies.
    ``final``: names of the outputs that count; without one that the script has written, all count.

    Raises InputError if there is no such script.
    """
    if script.is_dir():
        raise InputError(f"{script}: expected a Python script, found a folder")
    if not script.is_file():
        raise InputError(f"{script}: expected a Python script, found no file")
    if os.environ.get("SPARK_REMOTE"):
        raise InputError(f"{script} {CONNECT}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # the job's folder stays as it is
    job = JobAudit(folder.resolve(), lambda output: progress.on_write(output.name, output.place))
    failure = ""
    ScriptStop.raised.clear()
    INTERRUPTED.clear()
    files = ScriptFiles(job)
    with intercepted(job, files):
        try:
            _run(script, arguments)
        except ScriptStop as stop:
            failure = f"stopped at {stop}"
        except SystemExit as exit_:
            if exit_.code not in (None, 0):
                failure = f"ended with {exit_.code!r}"
        except Exception as error:
            if INTERRUPTED.is_set():  # it fails for want of its JVM, which was interrupted, too
                raise KeyboardInterrupt from error
            failure = _sentence_on(script, error)
    if ScriptStop.raised and not failure.startswith("stopped"):  # the script went on
        failure = f"stopped at {ScriptStop.raised[0]}"
    files.conclude()
    with own_calls():
        names = [*(each.name for each in job.written.outputs), *(each.name for each in job.others)]
        final = [name for name in final if name in names]
        progress.on_ended(len(job.written.outputs))
        return replace(job.report(final, progress.on_output), title=script.name, failure=failure)


@contextmanager
def intercepted(job: JobAudit, files: ScriptFiles) -> Iterator[None]:
    """Have reads, writes, statements and calls for files in the block intercepted."""
    patches = Patches()

    def with_options(
        method: Callable[..., Any], session: SparkSession, *args: Any, **kwargs: Any
    ) -> None:
        method(session, *args, **kwargs)
        avoid_known_faults(session)
        take_interrupts()

    patches.replace(SparkSession, "__init__", with_options)
    intercept_reads(patches, job)
    intercept_writes(patches, job)
    intercept_statements(patches, job)
    forbid(patches, job, files)
    _note_driver_rows(patches, job)
    intercept_java(patches, files)
    intercept_files(patches, files)
    note_unseen(patches, job)
    try:
        with job.sites.watching(every_thread=True):
            yield
    finally:
        patches.undo()
        job.tables.close()


def _note_driver_rows(patches: Patches, job: JobAudit) -> None:
    """Have frames noted whose rows leave Spark's plans."""

    def collected(method: Callable[..., Any], frame: DataFrame, *args: Any, **kwargs: Any) -> Any:
        job.note_driver_rows(frame, f"{method.__name__}()")
        return method(frame, *args, **kwargs)

    for name in ("collect", "tail", "toArrow", "toJSON", "toLocalIterator", "toPandas"):
        patches.replace(ClassicDataFrame, name, collected)
    rdd: Any = ClassicDataFrame.__dict__["rdd"]

    def with_note(frame: DataFrame) -> Any:
        job.note_driver_rows(frame, "rdd")
        return rdd.__get__(frame, ClassicDataFrame)

    patches.replace_property(ClassicDataFrame, "rdd", with_note)


def _run(script: Path, arguments: Sequence[str]) -> None:
    before, path, writes_no_bytecode = sys.argv, sys.path[:], sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script.absolute()), run_name="__main__")
    finally:
        sys.argv, sys.path[:], sys.dont_write_bytecode = before, path, writes_no_bytecode


def _sentence_on(script: Path, error: Exception) -> str:
    """Return a sentence on an error of the script, with its last line in the script."""
    frames = traceback.extract_tb(error.__traceback__)
    path = script.resolve()
    own = [each for each in frames if Path(each.filename).resolve() == path]
    place = f" at {script.name}:{own[-1].lineno}" if own else ""
    message = first_line(str(error))
    if isinstance(error, SyntaxError) and error.filename:
        place, message = f" at {Path(error.filename).name}:{error.lineno}", error.msg
    name = type(error).__name__
    words = [message] if isinstance(error, Py4JError) else filter(None, [name, message])
    return f"failed{place}: {': '.join(words)}"
