"""The command that shows the rows derived from a record: ``trace``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from ledger.cli import tables
from ledger.cli.base import RECORD_HELP, Json, app, example, show
from ledger.core.commands import ackledger
from ledger.settings import Settings
from ledger.store.upgrade import connect

_ROWS = 10  # of one step that came out of one row
_STYLES = {"passed on": "green", "acked": "green", "failed": "red", "lost": "red"}


@app.command("trace", epilog=example("trace 28677", "trace 28677 --attempt 1"))
def trace_record(
    record: Annotated[int, typer.Argument(help=RECORD_HELP)],
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt, from 1, instead of the last.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rows derived from a record, step by step."""
    from ledger.batch.records.trace import trace  # numpy and pyarrow take longer than most commands

    show(asdict(trace(connect(Settings()), record, attempt)), as_json, _traced)


def _traced(data: Mapping[str, Any]) -> RenderableType:
    head = f"record {data['record']} of {data['pipeline']}: {data['verdict']}"
    place = f"attempt {data['attempt']} of {data['attempts']}, batch {data['batch_id']}"
    tree = Tree(_label(data["tree"]))
    _grow(tree, data["tree"])
    failed = f"failed at {data['failed_at']}: {data['reason']}"
    return Group(
        Text(f"{head} ({place})", style="bold"),
        *([] if data["failed_at"] is None else [Text(failed, style="red")]),
        tree,
        tables.line(f"why, and what to do: {ackledger('explain', data['record'])}", "yellow"),
    )


def _grow(tree: Tree, row: Mapping[str, Any]) -> None:
    """Add the branches of a row, of many rows of one step the first ones."""
    for step, rows in groupby(row["branches"], key=lambda branch: branch["step"]):
        branches = list(rows)
        for branch in branches[:_ROWS]:
            _grow(tree.add(_label(branch)), branch)
        if len(branches) > _ROWS:
            tree.add(Text(f"{len(branches) - _ROWS:,} more rows of {step}: --json has them"))


def _label(branch: Mapping[str, Any]) -> Text:
    fate = str(branch["fate"])
    text = Text(branch["step"], style="bold")
    text.append(f"  {fate}", style=f"not bold {_STYLES.get(fate, 'yellow')}")
    for part in _parts(branch):
        text.append(part, style="not bold")
    return text


def _parts(branch: Mapping[str, Any]) -> Iterator[str]:
    if branch["reason"] is not None:
        yield f": {branch['reason']}"
    if branch["content"] is not None:
        yield f"  {branch['content']}"
    if branch["repeated"]:
        yield "  (its branches are above)"
