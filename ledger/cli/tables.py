"""The output of the command line: rich tables of plain rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.table import Table
from rich.text import Text

from ledger.batch.advice.actions import Action, Advice, lines, sentences
from ledger.batch.advice.batches import publish
from ledger.batch.advice.records import status_in_words
from ledger.batch.advice.sinks import SinkState
from ledger.batch.holds import UNDECIDED
from ledger.batch.outcome.report import accepted_in_words
from ledger.core.commands import ANY_TARGET, ackledger
from ledger.core.states import BatchStatus
from ledger.core.text import quantity

_LONGEST = 200  # characters of a reason; ``explain`` has the whole
_IDS = ("id", "pid", "root", "message", "record", "min", "max")  # columns without separators
_NARROWEST = 12  # characters: a text is not folded into a narrower column

Rows = Sequence[Mapping[str, Any]]


def rows(data: Rows) -> RenderableType:
    """Return rows as a table with their keys as header, or with a line per column if too wide;
    without rows, the text "no rows".
    """
    return _Fitting((data,)) if data else Text("no rows")


def labelled(data: Rows) -> RenderableType:
    """Return one or more rows of the ledger with the headers of the other tables."""
    return _Fitting((data,), _LABELS)


@dataclass(frozen=True)
class _Fitting:
    """A table of the first of the ``forms`` of some rows that fits the console, with long texts
    folded. If none fits, each row of the last form is a block of lines. ``labels``: headers other
    than the names.
    """

    forms: Sequence[Rows]
    labels: Mapping[str, str] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for data in self.forms:
            columns = [_Column.of(name, self.labels.get(name, name), data) for name in data[0]]
            for gap in (1, 0):
                if sum(column.least + gap + 1 for column in columns) + 1 <= options.max_width:
                    yield _table(columns, gap)
                    return
        for number, row in enumerate(self.forms[-1]):
            block = Table.grid(padding=(0, 2, 0, 0))
            block.add_column(style="bold", no_wrap=True)
            block.add_column(overflow="fold")
            for name, value in row.items():
                block.add_row(self.labels.get(name, name), Text(_cell(name, value)))
            yield from [""] if number else []
            yield block
        yield ""


@dataclass(frozen=True)
class _Column:
    label: str
    cells: Sequence[str]
    numeric: bool

    @classmethod
    def of(cls, name: str, label: str, data: Rows) -> "_Column":
        values = [row[name] for row in data]
        numeric = all(isinstance(value, int | float | Decimal | None) for value in values)
        return cls(label, [_cell(name, value) for value in values], numeric)

    @property
    def least(self) -> int:
        """The least width of the column in characters. Numbers are never wrapped."""
        lines = chain.from_iterable(cell.split("\n") for cell in (self.label, *self.cells))
        widest = max(map(cell_len, lines))
        return widest if self.numeric else min(widest, _NARROWEST)


def _table(columns: Sequence[_Column], gap: int) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        justify: JustifyMethod = "right" if column.numeric else "left"
        table.add_column(column.label, justify=justify, no_wrap=column.numeric, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _without_empty(data: Rows, optional: Iterable[str]) -> Rows:
    """Return the rows without those ``optional`` columns that are empty in every row."""
    return _without(data, {name for name in optional if not any(row[name] for row in data)})


def _without(data: Rows, names: Collection[str]) -> Rows:
    return [{name: row[name] for name in row if name not in names} for row in data]


def fact_lines(data: Mapping[str, Any]) -> RenderableType:
    """Return a mapping as lines ``key: value``. Keys whose value is None are left out."""
    texts = (f"{key}: {value}" for key, value in data.items() if value is not None)
    return Group(*map(line, texts))


def batches(data: Rows) -> RenderableType:
    """Return batches with their counts. A narrow console has one column for all counts of records
    that are not acked.
    """
    if not data:
        command = f"'{ackledger('run', ANY_TARGET)}'"
        return Text(
            f"the ledger holds no batch yet: {command} makes one, and so does a run of a DAG"
        )
    heads = [
        {
            **{name: row[name] for name in ("batch_id", "pipeline", "kind")},
            "from": f"{row['interval_start']:%Y-%m-%d}",
            "status": BatchStatus(row["status"]).words,
            **{name: row[name] for name in ("total", "acked")},
        }
        for row in data
    ]
    counts = [{name: row[name] for name in _NOT_ACKED} for row in data]
    wide = [{**head, **count} for head, count in zip(heads, counts, strict=True)]
    short = [
        {**head, "not acked": _not_acked(count)} for head, count in zip(heads, counts, strict=True)
    ]
    # In most ledgers these are 0: the rest fits a narrow terminal.
    idle = ("pending", "quarantined", "accepted")
    counted = _without_empty(wide, idle)
    return _Fitting((counted, _without_empty(counted, ("failed",)), short), _LABELS)


_NOT_ACKED = ("failed", "quarantined", "accepted", "pending")
_LABELS = {"batch_id": "batch", "example_record": "example"}


def _not_acked(counts: Mapping[str, int]) -> str:
    """Return the counts that are not 0 as text, such as 'failed 12,345, quarantined 9 (accepted
    3)'.
    """
    shown = {name: f"{name} {count:,}" for name, count in counts.items() if count}
    accepted = shown.pop("accepted", None)
    if accepted is not None:
        shown["quarantined"] += f" ({accepted})"
    return ", ".join(shown.values())


def failures(data: Rows) -> RenderableType:
    """Return one or more rows of failed records by step and reason."""
    names = ["batch_id", "pipeline", "step", "reason", "status", "records", "example_record"]
    shown = [
        {
            **{name: row[name] for name in names},
            "reason": f"{row['reason'][:_LONGEST]}{'…' if len(row['reason']) > _LONGEST else ''}",
            "status": status_in_words(row["status"], row["accepted_by"]),
        }
        for row in data
    ]
    batches = {row["batch_id"] for row in data}
    return _Fitting((_without(shown, {"pipeline"}) if len(batches) == 1 else shown,), _LABELS)


def summary(data: Mapping[str, Any], failed: Rows = ()) -> RenderableType:
    """Return one batch: its steps, counts and failures, and what to do if it is incomplete."""
    records = data["records"]
    counted = {**records, "quarantined": records["quarantined"] - data["accepted"]}
    counts = ", ".join(f"{value:,} {key}" for key, value in counted.items() if key != "total")
    if data["accepted"]:
        counts += f"; {accepted_in_words(data['accepted'], data['accepted_by'], records['total'])}"
    status = BatchStatus(data["status"])
    title = f"batch {data['batch_id']} of {data['pipeline']} ({data['kind']}): {status.words}"
    if status.decided:
        title += f", {data['outcome']}"
    names = ["name", "kind", "state", "input", "output", "failed", "duplicates", "seconds"]
    steps = [{name: step[name] for name in names} for step in data["steps"]]
    for step in steps:
        if step["seconds"] is not None:  # aligned at the point
            step["seconds"] = Decimal(step["seconds"]).quantize(Decimal("0.1"))
    parts: list[RenderableType] = [
        line(title, "bold"),
        _Fitting((_without_empty(steps, ("failed", "duplicates")),))
        if steps
        else Text("no step has run yet"),
        line(f"{quantity(records['total'], 'record')}: {counts}"),
    ]
    if data.get("preview"):
        parts += [line(UNDECIDED, "bold"), _Fitting((data["preview"],), _LABELS)]
    for sink in data["sinks"]:  # its published rows, and the command that releases the others
        actions = tuple(Action(*pair) for pair in sink["commands"])
        style = "" if SinkState(sink["state"]).is_final else "yellow"
        parts.append(line(str(Advice(sink["because"], actions)), style))
    waits = [row["sentences"] for row in data["pending"] if not row["incomplete"]]
    parts += [line(sentence, "yellow") for sentence in chain(*waits, data["notes"])]
    if failed:
        parts.append(failures(failed))
    if "advice" in data:
        ways = lines(Action(*pair) for pair in data["commands"])
        parts.append(line("\n  ".join([data["advice"], *ways]), "yellow"))
    return Group(*parts)


def released(data: Mapping[str, Any]) -> RenderableType:
    """Return the result of a settlement or release."""
    return fact_lines({**data, "status": BatchStatus(data["status"]).words})


def restored(data: Mapping[str, Any]) -> RenderableType:
    """Return the numbers from which the ledger goes on after a restore, and a warning of the rows
    that sinks may have beside it.
    """
    newest, undecided = data["newest_batch"], ", ".join(map(str, data["open_batches"]))
    above = "any batch" if newest is None else f"a batch above {newest}"
    also = f". Leave those of {undecided}, which the ledger has not decided" if undecided else ""
    return Group(
        line(
            f"the next batch is {data['next_batch']}, the next run {data['next_run']}, the next"
            f" record {data['next_record']} or above"
        ),
        line(
            f"Sinks that are newer than the ledger may have rows of {above}: remove them before"
            f" these intervals run again{also} (docs/how-to/backup.md)",
            "yellow",
        ),
    )


def sweep(data: Mapping[str, Any]) -> RenderableType:
    """Return the result of a sweep: the batches that it settled, and what it did or asked for."""
    settled = [
        {key: batch[key] for key in ("batch_id", "status", "records", "failed", "reason")}
        | {"status": BatchStatus(batch["status"]).words}
        for batch in data["settlements"]
    ]
    asking = ", ".join(str(batch["batch_id"]) for batch in data["replays"]) or "none"
    tail = [line(f"batches that ask for a replay: {asking}")]
    if data["overdue"]:
        overdue = ", ".join(str(batch["batch_id"]) for batch in data["overdue"])
        text = f"settled batches with something pending: {overdue}."
        first = data["overdue"][0]
        ways = publish(first["target"] or ANY_TARGET, first["batch_id"], "Or do it now", None)
        tail.append(line(f"{text} Airflow's sweeper does it. {sentences(ways)}", "yellow"))
    for batch_id, error in data["errors"].items():
        tail.append(line(f"batch {batch_id} could not be settled: {error}", "red"))
    return Group(rows(settled) if settled else Text("no open batch"), *tail)


def line(text: str, style: str = "") -> Text:
    """Return a text that is not broken into lines, so that the commands in it can be pasted."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _cell(name: str, value: Any) -> str:
    """Return a value as it is shown: ids as they are pasted back, counts with separators."""
    if value is None:
        return ""
    is_id = name in _IDS or name.endswith(("_id", "_root", "_record"))
    if isinstance(value, int) and not isinstance(value, bool) and not is_id:
        return f"{value:,}"
    return str(value)
