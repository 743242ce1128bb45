"""How far a batch is, on stderr: a bar on a terminal, else a line for each step that is done."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ledger.cli.base import err

if TYPE_CHECKING:
    from ledger.execution import StepResult


class BatchProgress:
    """Hears of each step of one batch before and after it runs."""

    def __init__(self, batch_id: int, steps: int, bar: Progress):
        self._name = f"batch {batch_id}"
        self._bar = bar
        self._task = bar.add_task(f"{self._name}: starting Spark", total=steps + 1, rows="")

    def on_step(self, name: str, result: "StepResult | None") -> None:
        """A step begins (None), or has done what ``result`` says."""
        if result is None:
            self._bar.update(self._task, description=f"{self._name}: {name}")
            return
        rows = f"{result.record.output_rows:,} rows" if result.record else "settled before"
        self._bar.update(self._task, advance=1, rows=rows)
        self._say(f"{self._name}: {name}, {rows}, {result.seconds:.1f} s")

    def settling(self) -> None:
        """All steps are done."""
        self._bar.update(self._task, description=f"{self._name}: settling")
        self._say(f"{self._name}: settling")

    def _say(self, line: str) -> None:
        if not err.is_terminal:
            err.print(line, highlight=False, soft_wrap=True)


@contextmanager
def progress_of(batch_id: int, steps: int) -> Iterator[BatchProgress]:
    """The progress of a batch with so many steps; a bar goes once the batch is settled."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield BatchProgress(batch_id, steps, bar)
