"""The command that looks before a run: ``check``."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from ledger.batch.upkeep.checks import Finding, examine
from ledger.batch.upkeep.installation import examine_installation
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
from ledger.cli.running import spark_session
from ledger.core.connect_server import checked_place, is_remote
from ledger.core.run_request import Interval
from ledger.errors import InputError, LedgerError
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.store.upgrade import connect

# Whether a thing is well, and the color of that; None: it was not checked, or not wholly.
_WORDS = {True: ("ok", "green"), False: ("wrong", "red"), None: ("hint", "yellow")}

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
    interval = _interval(target, interval_start, interval_end, param)
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
    """Check what a run of the pipeline needs, then its steps. ``spark``: the master, or the Spark
    Connect server ``remote``.
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


def _interval(
    target: str | None, start: datetime | None, end: datetime | None, params: list[str] | None
) -> Interval | None:
    if target and start and end:
        return Interval(start, end, params_of(params or []))
    if start or end or params:
        raise InputError(
            "an interval and parameters need MODULE:PIPELINE, --from and --to: give all of them"
        )
    return None


def _lines(rows: list[dict[str, Any]]) -> Text:
    """A line for each finding: whether it is well, what it is about, and what was found."""
    text = Text()
    for row in rows:
        word, style = _WORDS[row["ok"]]
        text.append(f"{word:<7}", style=style)
        text.append(f"{row['check']}: ", style="bold").append(f"{row['message']}\n")
    text.rstrip()
    return text
