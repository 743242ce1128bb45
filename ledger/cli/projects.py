"""Commands that create and check a project: ``init``, ``check``."""

from datetime import datetime
from importlib import resources
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer
from rich.text import Text

from ledger.batch.upkeep.checks import Finding, examine
from ledger.batch.upkeep.installation import examine_installation
from ledger.cli import tables
from ledger.cli.base import (
    LOCAL,
    Json,
    Params,
    Spark,
    app,
    err,
    example,
    interval_options,
    load,
    out,
    params_of,
    show,
)
from ledger.cli.porting.writing import port
from ledger.cli.runs import spark_session
from ledger.core.commands import ackledger
from ledger.core.connect_server import checked_place, is_remote
from ledger.core.run_request import Interval
from ledger.errors import InputError, LedgerError
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.store.upgrade import connect

# The word of a finding and its color, by whether it is well; None: not checked, or not wholly.
_WORDS = {True: ("ok", "green"), False: ("wrong", "red"), None: ("hint", "yellow")}
# Where each template goes; the pipeline's name stands for {name}.
_FILES = {
    "pipeline.py.template": "{name}.py",
    "dag.py.template": "dags/{name}_dag.py",
    "ledger_dags.py.template": "dags/ledger_dags.py",
    "test.py.template": "tests/test_{name}.py",
    "orders.csv": "data/orders/2026-01-01/orders.csv",
    "customers.csv": "data/customers.csv",
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
    "gitignore": ".gitignore",
}


@app.command(
    epilog=example("init shop", "init shop --name sales", "init --from jobs/my_job.py pipelines")
)
def init(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Made if it is missing. With --from, by default the job's folder."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Of the pipeline and its module, for example orders.")
    ] = "orders",
    job: Annotated[
        Path | None,
        typer.Option("--from", metavar="JOB", help="Write a pipeline for this PySpark job."),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --from, note the losses that this file lists."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a project: pipeline, DAG, test, a day of data.

    Its README says what to type. No file is overwritten.

    With --from it reads a job, without running it, and writes JOB_pipeline.py: sources, stages that
    call the job's own functions, sinks, and a list of what is left to do.
    """
    if job is not None:
        write_port(job, folder or job.parent, expected, as_json)
        return
    if folder is None or expected is not None:
        needed = "--expected needs --from JOB" if folder else "expected a FOLDER, or --from JOB"
        raise InputError(needed)
    is_taken = name in ("ledger", "dags", "tests", "data")
    if is_taken or not name.isidentifier() or iskeyword(name):
        raise InputError(
            f"--name {name!r}: expected a name of a Python module, such as orders, that is neither"
            " ledger nor a folder of the project"
        )
    places = {source: folder / path.format(name=name) for source, path in _FILES.items()}
    existing = [str(path) for path in places.values() if path.exists()]
    if existing:
        raise InputError(
            f"these files are there already: {', '.join(existing)}. Name another folder, or remove"
            " them"
        )
    templates = resources.files("ledger.cli") / "new"
    for source, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (templates / source).read_text()
        path.write_text(Template(text).substitute(name=name))
    day = {"from": "2026-01-01", "to": "2026-01-02"}
    run = ackledger("run", f"{name}:pipeline", **day)
    show(
        {
            "files": [str(path.relative_to(folder)) for path in places.values()],
            "next": f"cd {folder} && ACKLEDGER_DATA=data {run}",
            "then": f"read {folder / 'README.md'}",
        },
        as_json,
        lambda data: tables.fact_lines({**data, "files": ", ".join(data["files"])}),
    )


def write_port(job: Path, folder: Path, expected: Path | None, as_json: bool) -> None:
    """Write the pipeline of a job into a folder, which is made if it is missing, and show what is
    left to do. Raises InputError if the file exists.
    """
    from ledger.auditing.expected import read_expected

    ported = port(job, read_expected(expected) if expected else ())
    path = folder / f"{ported.name}.py"
    if path.exists():
        raise InputError(f"{path} exists: expected no such file. Name another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(ported.text, encoding="utf-8")
    next_command = ackledger("check", f"{ported.name}:pipeline")
    if folder.resolve() != job.resolve().parent:
        next_command = f"PYTHONPATH={job.resolve().parent} {next_command}"
    if folder != Path():
        next_command = f"cd {folder} && {next_command}"
    if as_json:
        show({"file": str(path), "left to do": ported.todo, "next": next_command}, True, Text)
    else:  # a line each, however wide the terminal is
        todo = "".join(f"\n  {line}" for line in ported.todo) or " nothing"
        out.print(f"file: {path}\nleft to do:{todo}\nnext: {next_command}", soft_wrap=True)


START, END = interval_options("CHECK")


@app.command(
    epilog=example(
        "check",
        "check etl:shop --from 2026-01-01 --to 2026-01-02",
        "check etl:shop --json",
    )
)
def check(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:PIPELINE]", help="For example jobs.flights:pipeline."),
    ] = None,
    interval_start: Annotated[datetime | None, START] = None,
    interval_end: Annotated[datetime | None, END] = None,
    param: Params = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Check what a run needs, and report what is wrong.

    A line for each thing, with what to do where it is wrong; then the exit code is 1.

    Without a pipeline the installation: versions, Java or the Spark Connect server, storage,
    database, roles, clock, the sweeper's last run, batches that wait for a machine with their
    storage. With one, what a run of it needs: database, Spark, storage, sources, stages and sinks.
    Stages are called over frames without rows, and their columns compared with the sinks' tables.
    With an interval, headers and footers of its source files are read. Nothing is claimed or
    written.
    """
    interval = None
    if target and interval_start and interval_end:
        interval = Interval(interval_start, interval_end, params_of(param or []))
    elif interval_start or interval_end or param:
        raise InputError(
            "an interval and parameters need MODULE:PIPELINE, --from and --to: give all of them"
        )
    remote = spark if is_remote(checked_place(spark)) else None
    if target is None:
        findings = examine_installation(Settings(), remote)
    else:
        findings = examine_pipeline(load(target), interval, spark, remote)
    if as_json:
        show([finding.as_row() for finding in findings], True, _lines)
    else:  # a line each, however wide the terminal is
        out.print(_lines([finding.as_row() for finding in findings]), soft_wrap=True)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def examine_pipeline(
    pipeline: Pipeline, interval: Interval | None, spark: str, remote: str | None
) -> list[Finding]:
    """Check what a run of the pipeline needs, then its steps. Without the Java or the Connect
    server that it needs, the steps are not checked.

    ``spark``: the master, or the Spark Connect server ``remote``.
    """
    with err.status("checking the ledger, sources and sinks") as status:
        settings = Settings()
        earlier = {each.subject: each for each in examine(settings, pipeline, interval, remote)}
        place = "java" if remote is None else "spark"
        if not earlier[place].ok:
            why = f"not checked, because {place} is wrong"
            return [*earlier.values(), Finding("stages", why, hint=True)]
        from ledger.spark.dry_run import DryRun

        database = connect(settings) if earlier["database"].ok else None
        status.update("starting Spark")
        try:
            session = spark_session(pipeline, spark)
        except LedgerError as exc:
            return [*earlier.values(), Finding("spark", str(exc), exc)]

        def on_step(subject: str) -> None:
            status.update(f"checking {subject}")

        try:
            run = DryRun(session, settings, pipeline, interval, database, earlier, on_step)
            steps = {each.subject: each for each in run.findings()}
        finally:
            if database is not None:
                database.dispose()
    others = [each for subject, each in earlier.items() if subject not in steps]
    return [*others, *steps.values()]


def _lines(rows: list[dict[str, Any]]) -> Text:
    """Return a line for each finding: its word, its subject and its message."""
    text = Text()
    for row in rows:
        word, style = _WORDS[row["ok"]]
        text.append(f"{word:<7}", style=style)
        text.append(f"{row['check']}: ", style="bold").append(f"{row['message']}\n")
    text.rstrip()
    return text
