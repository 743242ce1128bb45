"""The command that looks before a run: ``check``."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from ledger.batch.upkeep.checks import examine
from ledger.batch.upkeep.installation import examine_installation
from ledger.cli.base import (
    LOCAL,
    End,
    Json,
    Params,
    Spark,
    Start,
    app,
    example,
    load,
    out,
    params_of,
    show,
)
from ledger.core.connect_server import checked_place, is_remote
from ledger.core.run_request import Interval
from ledger.errors import InputError
from ledger.settings import Settings


@app.command(
    epilog=example(
        "check",
        "check etl:shop --interval-start 2026-01-01 --interval-end 2026-01-02",
        "check etl:shop --json",
    )
)
def check(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:PIPELINE]", help="For example jobs.flights:pipeline."),
    ] = None,
    interval_start: Annotated[datetime | None, Start] = None,
    interval_end: Annotated[datetime | None, End] = None,
    param: Params = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Check what a run needs, and report what is wrong.

    A line for each thing, with what to do where it is wrong; then the exit code is 1.

    Without a pipeline the installation: versions, Java or the Spark Connect server, storage,
    database, roles, clock, the sweeper's last run, batches that wait for a machine with their
    storage. With one, what a run of it needs: database, Spark, storage, sources and sinks; with an
    interval, also whether its source files are there. Nothing is claimed.
    """
    interval = _interval(target, interval_start, interval_end, param)
    remote = spark if is_remote(checked_place(spark)) else None
    if target is None:
        findings = examine_installation(Settings(), remote)
    else:
        findings = examine(Settings(), load(target), interval, remote=remote)
    if as_json:
        show([finding.as_row() for finding in findings], True, _lines)
    else:  # a line each, however wide the terminal is
        out.print(_lines([finding.as_row() for finding in findings]), soft_wrap=True)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _interval(
    target: str | None, start: datetime | None, end: datetime | None, params: list[str] | None
) -> Interval | None:
    if target and start and end:
        return Interval(start, end, params_of(params or []))
    if start or end or params:
        raise InputError(
            "an interval and parameters need MODULE:PIPELINE, --interval-start and --interval-end:"
            " give all of them"
        )
    return None


def _lines(rows: list[dict[str, Any]]) -> Text:
    """A line for each finding: whether it is well, what it is about, and what was found."""
    text = Text()
    for row in rows:
        text.append("ok     " if row["ok"] else "wrong  ", style="green" if row["ok"] else "red")
        text.append(f"{row['check']}: ", style="bold").append(f"{row['message']}\n")
    text.rstrip()
    return text
