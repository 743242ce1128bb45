"""Failed records by cause, and what each cause needs: the end of ``failed`` and ``run``. Legend of
``***`` in what a command has printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ledger.batch.advice.actions import lines
from ledger.batch.advice.records import by_cause
from ledger.batch.outcome.readings import redacted_columns
from ledger.batch.records.failures import ON_HOLD, SAMPLE, cases, failures, holds_of
from ledger.cli import tables
from ledger.cli.base import out
from ledger.core.commands import ackledger
from ledger.core.run_request import instant
from ledger.errors import MASK
from ledger.store.connection import Database


def print_causes(database: Database, filters: Mapping[str, Any]) -> None:
    """Print failed and quarantined records by step and reason, then what to do for each cause.
    Recovered records need nothing.
    """
    rows = rows_of(database, filters)
    if not rows:
        out.print(nothing(database, filters), soft_wrap=True)
        return
    out.print(tables.failures(rows), crop=False)
    print_legend(database, rows)
    _print_holds(database, rows)
    for actions in [] if filters.get("recovered") else by_cause(cases(database, filters)):
        # A command is pasted from a line that is not broken.
        out.print(Text("\n  ".join(lines(actions)), "yellow"), soft_wrap=True)


def print_legend(database: Database, shown: Sequence[Mapping[str, Any]]) -> None:
    """Print which columns the pipelines of these rows redact, if a value of a row is masked."""
    masked = {row["pipeline"] for row in shown if any(MASK in str(value) for value in row.values())}
    for name in sorted(masked):
        columns = ", ".join(redacted_columns(database, name)) or "columns that it names no longer"
        legend = f"{MASK} stands for masked values: pipeline {name!r} redacts {columns}"
        out.print(Text(legend), soft_wrap=True)


def rows_of(database: Database, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``failures`` as rows of a table."""
    return list(map(asdict, failures(database, filters)))


def nothing(database: Database, filters: Mapping[str, Any], where: str | None = None) -> str:
    """Return the sentence for no matching failed record, with the command that lists others.
    ``where``: a condition on fields.
    """
    words = {
        "pipeline": " of pipeline {}",
        "batch_id": " of batch {}",
        "step": " at {}",
        "reason": " for a reason like '{}'",
        "since": " since {}",
    }
    since = filters.get("since")
    shown = {**filters, "since": None if since is None else instant(since)}
    of, at = (
        "".join(words[name].format(shown[name]) for name in names if shown.get(name) is not None)
        for names in (("pipeline", "batch_id"), ("step", "reason", "since"))
    )
    matching = "" if where is None else f", with {where}"
    state = "was recovered" if filters.get("recovered") else "is failed or quarantined"
    sentence = f"no record{of} {state}{at}{matching}"
    wider: list[dict[str, Any]] = [{}] if of or at or matching else []
    if filters.get("batch_id") is not None and (at or matching):
        wider.insert(0, {"batch_id": filters["batch_id"]})
    for scope in wider:
        if failures(database, scope):
            return f"{sentence}; see '{ackledger('failed', batch=scope.get('batch_id'))}'"
    return sentence


def _print_holds(database: Database, failed: Sequence[Mapping[str, Any]]) -> None:
    """Print why each batch on hold is on hold, and what to do."""
    numbers = [row["batch_id"] for row in failed if row["status"] == ON_HOLD]
    for sentence in holds_of(database, numbers):
        out.print(sentence, style="yellow", highlight=False, soft_wrap=True)


def print_sampled(
    database: Database, filters: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]
) -> None:
    """Print how many records a batch on hold would fail, if only a sample is listed, and what to
    do.
    """
    if not any(row["status"] == ON_HOLD for row in listed):
        return
    rows = rows_of(database, filters)
    would_fail = sum(row["records"] for row in rows if row["status"] == ON_HOLD)
    each = f"the first {SAMPLE} of each step and reason"
    out.print(f"on hold: not decided. Of {would_fail:,} records that would fail, {each} are kept")
    _print_holds(database, listed)
