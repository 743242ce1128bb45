"""The list of failed records: ``failed --records``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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

from ledger.batch.advice.records import status_in_words
from ledger.core.commands import ackledger
from ledger.core.text import quantity

_LEAST = 20  # characters of the content; columns behind it go rather than that it gets less
_LEAST_KEY = 8
_WIDEST = {"key or line": 24, "step": 16, "reason": 24, "status": 20}


def listed(data: Mapping[str, Any]) -> RenderableType:
    """Return records, at least one, as a table with a line each. Their content is cut to the
    terminal.
    """
    records, total = data["records"], data["total"]
    more = (
        f"{len(records)} of {quantity(total, 'record')}: --limit {total} lists all, "
        "--output FILE.csv writes them to a file"
    )
    rest = [Text(more)] if total > len(records) else []
    about = Text(f"All about one: {ackledger('explain', records[0]['record'])}")
    lines = [
        {
            "record": str(record["record"]),
            "key or line": place(record),
            "content": record["content"] or "not kept yet",
            "step": record["step"],
            "reason": record["reason"],
            "status": status_in_words(record["status"], record["accepted_by"]),
        }
        for record in records
    ]
    cells = [{name: " ".join(cell.split()) for name, cell in line.items()} for line in lines]
    return Group(_Listing(cells), *rest, about)


@dataclass(frozen=True)
class _Listing:
    """A table with a line for each record. Its number is whole. A narrow console omits columns
    after the content, and says where to see them.
    """

    records: Sequence[Mapping[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = {
            name: min(
                max(cell_len(name), *(cell_len(record[name]) for record in self.records)),
                _WIDEST.get(name, options.max_width),
            )
            for name in self.records[0]
        }
        shown = list(widths)
        hidden: list[str] = []
        while len(shown) > 3 and self._room(widths, shown, options) < _LEAST:
            hidden.insert(0, shown.pop())
        wanting = max(0, _LEAST - self._room(widths, shown, options))
        widths["key or line"] -= min(wanting, max(0, widths["key or line"] - _LEAST_KEY))
        widths["content"] = max(1, self._room(widths, shown, options))
        table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in shown:
            justify: JustifyMethod = "right" if name == "record" else "left"
            table.add_column(
                name, justify=justify, width=widths[name], no_wrap=True, overflow="ellipsis"
            )
        for record in self.records:
            table.add_row(*(Text(record[name]) for name in shown))
        yield table
        if hidden:
            names = " and ".join(filter(None, (", ".join(hidden[:-1]), hidden[-1])))
            yield Text(f"{names}: in a wider terminal, or with --json")

    def _room(
        self, widths: Mapping[str, int], shown: Sequence[str], options: ConsoleOptions
    ) -> int:
        """Return the width in characters that the other columns leave to the content."""
        others = sum(widths[name] for name in shown if name != "content")
        return options.max_width - others - 2 * len(shown) - 1


def place(record: Mapping[str, Any]) -> str:
    """Return the text by which users identify a record: its key, else where it was read; empty if
    neither is known.
    """
    if record["key"] is not None:
        key = record["key"].items()
        return ", ".join(f"{name}={'?' if value is None else value}" for name, value in key)
    if record["source_file"] is None:
        return ""
    name = Path(record["source_file"]).name
    if record.get("source_line") is not None:
        return f"{name}:{record['source_line']}"
    return name if record["source_row"] is None else f"{name} record {record['source_row']}"
