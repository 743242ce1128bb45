"""The command that audits a script: ``audit``."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ledger.cli.base import Json, app, err, example

if TYPE_CHECKING:
    from ledger.auditing.report import AuditReport
    from ledger.auditing.scripts.running import ScriptProgress

NOT_COMPLETE = 2  # the exit code if a script failed, or records could not be followed


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=example("audit my_job.py", "audit --html report.html my_job.py --date 2026-01-31"),
)
def audit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A PySpark script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Those of the script.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(help="An output that records have to reach, as the script calls it. Repeat."),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Only report records of this source. Repeat.")
    ] = None,
    expected: Annotated[
        Path | None, typer.Option(help="A file of expected losses, which are no errors.")
    ] = None,
    write_expected: Annotated[
        Path | None, typer.Option(help="Write all losses to a file of expected losses.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report, with the job's graph, to a page.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For the copies: one that the executors see.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Report which records a PySpark script loses, and why.

    The script needs no change, and writes nothing: what it writes goes to a temporary folder.
    Files that Python itself writes are written.

    Exit codes: 0 no record is lost unless it is expected, 1 records are lost, 2 the script failed
    or records could not be followed.
    """
    with _folder(folder) as copies, _progress() as progress:
        from ledger.auditing.scripts.running import audit_script

        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            report = audit_script(
                script, arguments or [], copies, final=output or [], progress=progress
            )
        report = report.of_sources(source or [])
        if expected is not None:
            report = report.expecting(expected)
        if write_expected is not None:
            report.write_expected(write_expected)
        if html is not None:
            report.save_html(html)
        if as_json:
            sys.stdout.write(json.dumps(report.as_dict(), indent=2) + "\n")
        else:
            sys.stdout.write(f"{report}\n")
        raise typer.Exit(_exit_code(report))


def _exit_code(report: "AuditReport") -> int:
    if report.failure or not report.results or any(each.unknown for each in report.results):
        return NOT_COMPLETE
    return 1 if report.lost_records else 0


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ackledger-audit-", dir=parent)).absolute()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _progress() -> Iterator["ScriptProgress"]:
    """Lines for what the script writes, then a bar over its outputs, on stderr."""
    from ledger.auditing.scripts.running import ScriptProgress

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20))
    with Progress(*columns, MofNCompleteColumn(), console=err, transient=True) as bar:
        bar.stop()  # until the script has ended: it may print
        task: Any = bar.add_task("looking for lost records", total=None)

        def on_write(name: str, place: str) -> None:
            err.print(f"{place} writes {name}, to a copy", highlight=False, soft_wrap=True)

        def on_ended(outputs: int) -> None:
            bar.update(task, total=outputs)
            bar.start()

        def on_output(name: str) -> None:
            bar.update(task, description=f"looking for lost records of {name}", advance=1)

        yield ScriptProgress(on_write, on_ended, on_output)
