"""How the command line shows things: rich tables of plain rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ledger.batch.holds import UNDECIDED
from ledger.core.commands import ANY_TARGET
from ledger.core.states import BatchStatus

_SHORT = 24  # characters: a narrower column is never broken over lines

Rows = Sequence[Mapping[str, Any]]


def rows(data: Rows) -> RenderableType:
    """Any rows, with their keys as the header; a line per column where they are too wide."""
    if not data:
        return Text("no rows")
    return _fitting(data)


def _fitting(data: Rows) -> RenderableType:
    names = list(data[0])
    return _Fitting((_table(data, names), _table(data, names, gap=0)), data)


@dataclass(frozen=True)
class _Fitting:
    """The first of the tables that fits the console, else the rows one below the other."""

    tables: tuple[Table, ...]
    data: Rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbound = options.update(max_width=10_000)
        for table in self.tables:
            if Measurement.get(console, unbound, table).maximum <= options.max_width:
                yield table
                return
        width = max(len(name) for name in self.data[0])
        for number, row in enumerate(self.data, 1):
            yield Text(f"row {number}", style="bold")
            lines = (f"  {name:<{width}}  {_cell(name, value)}" for name, value in row.items())
            yield line("\n".join(lines))


def facts(data: Mapping[str, Any]) -> RenderableType:
    """One mapping, a line each; what has no value is left out."""
    told = (f"{key}: {value}" for key, value in data.items() if value is not None)
    return Group(*map(line, told))


def batches(data: Rows) -> RenderableType:
    """Batches with their counts."""
    if not data:
        return Text(f"the ledger holds no batch yet: 'ackledger run {ANY_TARGET}' makes one")
    shown = [
        {
            **row,
            "from": f"{row['interval_start']:%Y-%m-%d}",
            "status": BatchStatus(row["status"]).words,
        }
        for row in data
    ]
    names = [
        "batch_id",
        "pipeline",
        "kind",
        "from",
        "status",
        "total",
        "acked",
        "failed",
        "quarantined",
        "accepted",
        "pending",
    ]
    # Of most ledgers these are 0: what is left fits a narrow terminal.
    idle = {"pending", "quarantined", "accepted"}
    kept = [name for name in names if name not in idle or any(row[name] for row in shown)]
    return _fitting([{name: row[name] for name in kept} for row in shown])


def failures(data: Rows) -> RenderableType:
    """Failed records by step and reason."""
    if not data:
        return Text("no record is failed or quarantined")
    names = ["batch_id", "pipeline", "step", "reason", "status", "messages", "example_root"]
    return _fitting([{name: row[name] for name in names} for row in data])


def summary(data: Mapping[str, Any]) -> RenderableType:
    """One batch: its steps, its counts, and what to do if it is incomplete."""
    roots = data["roots"]
    counts = ", ".join(f"{value:,} {key}" for key, value in roots.items() if key != "total")
    counts += f"; {data['accepted']:,} of the quarantined accepted" if data["accepted"] else ""
    status = BatchStatus(data["status"])
    title = f"batch {data['batch_id']} of {data['pipeline']} ({data['kind']}): {status.words}"
    if status.decided:
        title += f", {data['outcome']}"
    names = ["name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"]
    if not any(step["duplicates"] for step in data["steps"]):
        names.remove("duplicates")
    parts: list[RenderableType] = [
        line(title, "bold"),
        _fitting([{name: step[name] for name in names} for step in data["steps"]]),
        line(f"{roots['total']:,} records: {counts}"),
    ]
    if data.get("preview"):
        parts += [line(UNDECIDED, "bold"), _fitting(data["preview"])]
    waits = [one["sentences"] for one in data["undone"] if not one["incomplete"]]
    parts += [line(sentence, "yellow") for sentence in chain(*waits)]
    if "advice" in data:
        parts.append(line(data["advice"], "yellow"))
    return Group(*parts)


def sweep(data: Mapping[str, Any]) -> RenderableType:
    """What a sweep did."""
    settled = [
        {key: one[key] for key in ("batch_id", "status", "roots", "failed", "reason")}
        for one in data["settlements"]
    ]
    asking = ", ".join(str(one["batch_id"]) for one in data["replays"]) or "none"
    tail = [
        line(f"partitions dropped: {len(data['dropped'])}; batches that ask for a replay: {asking}")
    ]
    if data["overdue"]:
        overdue = ", ".join(str(one["batch_id"]) for one in data["overdue"])
        told = f"batches that are settled, and of which something is left to do: {overdue}."
        command = f"ackledger publish {ANY_TARGET} --batch N"
        tail.append(line(f"{told} Airflow's sweeper does it, or {command}", "yellow"))
    for batch_id, error in data["errors"].items():
        tail.append(line(f"batch {batch_id} could not be settled: {error}", "red"))
    return Group(rows(settled) if settled else Text("no open batch"), *tail)


def line(text: str, style: str = "") -> Text:
    """Text that is not broken into lines, so that the commands in it can be pasted."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _table(data: Rows, names: Sequence[str], gap: int = 1) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    for name in names:
        values = [row[name] for row in data]
        numeric = all(isinstance(value, int | float | None) for value in values)
        short = max(len(_cell(name, value)) for value in values) <= _SHORT
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(name, justify=justify, no_wrap=short, overflow="fold")
    for row in data:
        table.add_row(*(_cell(name, row[name]) for name in names))
    return table


def _cell(name: str, value: Any) -> str:
    """A value as it is shown; an id as it is pasted back, a count with separators."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool) and not _is_id(name):
        return f"{value:,}"
    return str(value)


def _is_id(name: str) -> bool:
    return name in ("id", "pid", "root", "message", "min", "max") or name.endswith(("_id", "_root"))
