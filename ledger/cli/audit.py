"""The command that audits a script: ``audit``."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ledger.cli.base import Json, app, err, example
from ledger.core.requirements import require_java
from ledger.core.text import quantity
from ledger.errors import InputError

if TYPE_CHECKING:
    from ledger.auditing.report import AuditReport
    from ledger.auditing.scripts.running import ScriptProgress

# The exit code if the command has an error, a script failed, or records could not be followed.
NOT_COMPLETE = 2


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=example("audit my_job.py", "audit --html report.html my_job.py --date 2026-01-31"),
)
def audit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A PySpark script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Passed to the script, options too."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Count only records that reach this output. Repeatable."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Report only records of this source. Repeatable."),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Accept the losses that this file lists."),
    ] = None,
    write_expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all losses to a file for --expected."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report and the job's graph as a page."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Put the temporary copies here. On a cluster, name a shared folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Report which records a PySpark script loses, and why.

    The script runs unchanged. What it writes with Spark goes to temporary copies, which
    are removed at the end. Files that Python itself writes are written.

    Options of this command come before SCRIPT.

    Exit codes: 0 no records are lost except expected ones, 1 records are lost, 2 the command has
    an error, the script failed or some records could not be followed, 130 interrupted.
    """
    from ledger.auditing.scripts.interrupts import interrupt

    expected, html, write_expected = _usable_files(expected, html, write_expected)
    signal.signal(signal.SIGTERM, interrupt)  # the copies are removed then, too
    only_results = _only_results() if as_json else nullcontext(sys.stdout)
    with only_results as results, _folder(folder) as copies, _progress() as progress:
        from ledger.auditing.scripts.running import audit_script

        report = audit_script(
            script, arguments or [], copies, final=output or [], progress=progress
        )
        missing = list(_missing(report, output or [], source or []))
        own = {result.source.name for result in report.results} & set(source or [])
        report = report.of_sources(sorted(own))
        if expected is not None:
            report = report.expecting(expected)
        if write_expected is not None and not missing:
            report.write_expected(write_expected)
        if html is not None:
            report.save_html(html)
        text = json.dumps(report.as_dict(), indent=2) if as_json else str(report)
        results.write(f"{text}\n")
    if missing:
        raise InputError(". ".join(missing))
    raise typer.Exit(_exit_code(report))


def is_audit(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of ``ackledger`` are those of this command."""
    return next((each for each in arguments if not each.startswith("-")), "") == "audit"


def _exit_code(report: "AuditReport") -> int:
    if report.failure or not report.results or any(each.unknown for each in report.results):
        return NOT_COMPLETE
    return 1 if report.lost_records else 0


def _missing(
    report: "AuditReport", outputs: Sequence[str], sources: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each asked output and source that the report does not have."""
    there = {
        "output": (outputs, [each.name for each in report.outputs]),
        "source": (sources, [each.source.name for each in report.results]),
    }
    for kind, (wanted, names) in there.items():
        for name in wanted:
            if name not in names:
                what = f"expected one of {', '.join(names)}" if names else "found none"
                yield f"--{kind} {name}: the script has no such {kind}, {what}"


def _usable_files(expected: Path | None, *files: Path | None) -> list[Path | None]:
    """Return the absolute paths of all files, because the script may change its folder. Raises
    InputError before it runs if the expected losses cannot be read or a file cannot be written,
    ConfigurationError if there is no Java that Spark can use.
    """
    from ledger.auditing.expected import read_expected

    if expected is not None:
        read_expected(expected)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # which names a JVM that runs
        require_java()
    for file in filter(None, files):
        if file.is_dir():
            raise InputError(f"{file}: expected a file to write, found a folder")
        if not file.absolute().parent.is_dir():
            raise InputError(f"{file}: expected a file to write, found no folder for it")
    return [file and file.absolute() for file in (expected, *files)]


@contextmanager
def _only_results() -> Iterator[IO[str]]:
    """Yield a stream to stdout. Everything else that this process or its JVM prints goes to
    stderr.
    """
    stdout = os.dup(1)
    with redirect_stdout(sys.stderr), os.fdopen(os.dup(stdout), "w", encoding="utf-8") as results:
        os.dup2(2, 1)
        try:
            yield results
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """Yield a new temporary folder in ``parent``. At the end, stop the Spark session if it was
    started in the block, and remove the folder. Raises InputError if ``parent`` is no folder.
    """
    if parent is not None and not parent.is_dir():
        raise InputError(f"--folder {parent}: expected a folder, found none")
    folder = Path(tempfile.mkdtemp(prefix="ackledger-audit-", dir=parent)).absolute()
    end, before = "", _spark_context()
    try:
        yield folder
    except KeyboardInterrupt:
        end = "ackledger: interrupted, so there is no report"
        raise
    finally:
        context = _spark_context() if before is None else None
        if context is not None:
            with suppress(Exception):  # its JVM has died
                context.stop()
        shutil.rmtree(folder, ignore_errors=True)
        if end:
            err.print(end, style="red")


def _spark_context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


@contextmanager
def _progress() -> Iterator["ScriptProgress"]:
    """Yield callbacks that print a line for each write of the script, then a bar over its outputs,
    on stderr.
    """
    from ledger.auditing.scripts.running import ScriptProgress

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20))
    is_shown = err.is_terminal
    bar = Progress(*columns, MofNCompleteColumn(), console=err, transient=True)
    task: Any = bar.add_task("looking for lost records", total=None)
    done = count()

    def say(line: str) -> None:
        err.print(line, highlight=False, soft_wrap=True)

    def on_write(name: str, place: str) -> None:
        say(f"{place} writes {name}, to a copy")

    def on_ended(outputs: int) -> None:
        bar.update(task, total=outputs)
        if is_shown:
            bar.start()
        elif outputs:
            say(f"looking for lost records of {quantity(outputs, 'output')}")

    def on_output(name: str) -> None:
        description = f"looking for lost records of {name}"
        bar.update(task, description=description, completed=next(done))

    try:
        yield ScriptProgress(on_write, on_ended, on_output)
    finally:
        if is_shown:
            bar.stop()
