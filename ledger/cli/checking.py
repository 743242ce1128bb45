"""The command that looks before a run: ``check``."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from ledger.batch.checks import examine
from ledger.cli.base import Json, Moment, Remote, Target, app, example, load, out, params_of, show
from ledger.core.run_request import Interval
from ledger.errors import InputError
from ledger.settings import Settings


@app.command(
    epilog=example(
        "check etl:shop --interval-start 2026-01-01 --interval-end 2026-01-02",
        "check etl:shop --json",
    )
)
def check(
    target: Target,
    interval_start: Annotated[datetime | None, Moment] = None,
    interval_end: Annotated[datetime | None, Moment] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the path templates.")
    ] = None,
    remote: Remote = None,
    as_json: Json = False,
) -> None:
    """Look whether a run could work: Java or a Spark Connect server, database, storage, sources
    and sinks; exit code 1 if not.

    With an interval, also whether its source files are there. Nothing is claimed.
    """
    pipeline = load(target)
    if (interval_start is None) != (interval_end is None):
        raise InputError("expected both --interval-start and --interval-end, or neither")
    interval = None
    if interval_start is not None and interval_end is not None:
        interval = Interval(interval_start, interval_end, params_of(param or []))
    findings = examine(Settings(), pipeline, interval, remote=remote)
    if as_json:
        show([one.as_row() for one in findings], True, _lines)
    else:  # a line each, however wide the terminal is
        out.print(_lines([one.as_row() for one in findings]), soft_wrap=True)
    if not all(one.ok for one in findings):
        raise typer.Exit(1)


def _lines(rows: list[dict[str, Any]]) -> Text:
    """A line for each finding: whether it is well, what it is about, and what was found."""
    text = Text()
    for row in rows:
        text.append("ok     " if row["ok"] else "wrong  ", style="green" if row["ok"] else "red")
        text.append(f"{row['check']}: ", style="bold").append(f"{row['message']}\n")
    text.rstrip()
    return text
