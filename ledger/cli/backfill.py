"""The command that runs many intervals: ``backfill``."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any

import typer

from ledger.batch.outcome.completeness import reader_of
from ledger.batch.outcome.summary import summarize
from ledger.cli.base import (
    LOCAL,
    Json,
    Params,
    Spark,
    Target,
    app,
    err,
    example,
    params_of,
    time_option,
)
from ledger.cli.runs import finish, place, run_interval, summary_of
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import Guarantee
from ledger.errors import InputError

_MINUTE = "%Y-%m-%d %H:%M"


class Every(StrEnum):
    """Length of each interval."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


_LENGTHS = {
    Every.HOUR: timedelta(hours=1),
    Every.DAY: timedelta(days=1),
    Every.WEEK: timedelta(weeks=1),
}


@app.command(
    epilog=example(
        "backfill etl:shop --from 2026-01-01 --to 2026-02-01",
        "backfill etl:shop --from 2026-01-01 --to 2027-01-01 --every month",
    )
)
def backfill(
    target: Target,
    start: Annotated[
        datetime,
        time_option("Start of the first interval.", "--from", envvar="ACKLEDGER_BACKFILL_FROM"),
    ],
    end: Annotated[
        datetime,
        time_option("End of the last interval, exclusive.", "--to", envvar="ACKLEDGER_BACKFILL_TO"),
    ],
    every: Annotated[Every, typer.Option(help="How long each interval is.")] = Every.DAY,
    param: Params = None,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="Instead of the pipeline's own.")
    ] = None,
    spark: Spark = LOCAL,
    as_json: Json = False,
) -> None:
    """Run a pipeline over many intervals, one batch each.

    The same command goes on after a failure: what is decided does not run again, and an interval
    that another run has read is left to it. Records that failed keep no later interval waiting.
    """
    at = place(target, spark)
    if all(step.source.incremental for step in at.pipeline.sources()):
        raise InputError(
            f"pipeline {at.pipeline.name!r} reads what is new, whatever the interval: use"
            " 'ackledger run'"
        )
    done = []
    for interval in intervals(start, end, every, params_of(param or [])):
        key = RunKey("", f"backfill-{interval.start:%Y-%m-%dT%H:%M}-{every}")
        reader = reader_of(at.database, at.pipeline.name, key, interval)
        if reader is None:
            done.append(int(run_interval(at, key, interval, guarantee=guarantee)["batch_id"]))
            continue
        notice = (
            f"{interval.start:{_MINUTE}} {reader.why}: batch {reader.batch_id} is left as it is"
        )
        err.print(notice, highlight=False, soft_wrap=True)
        done.append(reader.batch_id)
    summaries = [summary_of(summarize(at.database, batch_id), target=target) for batch_id in done]
    finish(at.database, summaries, as_json)


def intervals(
    start: datetime, end: datetime, every: Every, params: Mapping[str, Any]
) -> list[Interval]:
    """Return the intervals from ``start`` to ``end``. Raises InputError unless they fill it."""
    whole = Interval(start, end)
    bounds = [whole.start]
    if every is Every.MONTH and whole.start.day != 1:
        raise InputError(f"--from {whole.start:%Y-%m-%d}: expected the first day of a month")
    while bounds[-1] < whole.end:
        if every is Every.MONTH:
            bounds.append((bounds[-1] + timedelta(days=31)).replace(day=1))
        else:
            bounds.append(bounds[-1] + _LENGTHS[every])
    if bounds[-1] != whole.end:
        raise InputError(
            f"--to {whole.end:{_MINUTE}}: expected the end of an interval, which with --every"
            f" {every} is {bounds[-2]:{_MINUTE}} or {bounds[-1]:{_MINUTE}}"
        )
    return [Interval(*bound, params) for bound in pairwise(bounds)]
