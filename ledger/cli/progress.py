"""Progress of a batch, on stderr: a bar on a terminal, else a line for each step that is done, and
one a minute for a step that takes longer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from ledger.cli.base import err
from ledger.core.text import quantity

if TYPE_CHECKING:
    from ledger.execution import StepResult
    from ledger.spark.progress import Tasks

_BAR_SECONDS = 0.5  # between two looks at Spark's tasks, on a terminal


class BatchProgress:
    """The progress of one batch, notified of each step before and after it runs, and of its tasks.

    ``steps``: by the name of each step, the steps that it reads.
    """

    def __init__(self, batch_id: int, steps: Mapping[str, Sequence[str]], bar: Progress):
        self._name = f"batch {batch_id}"
        self._bar = bar
        self._steps, self._rows = steps, dict[str, int]()
        self._doing, self._done = "", 0
        total = len(steps) + 1
        self._task = bar.add_task("starting Spark", total=total, rows="")
        self._watching = ExitStack()
        self._restart: Callable[[], object] = lambda: None  # until a session is asked for tasks

    def watch(self, session: Any) -> None:
        """Ask a session for its tasks until the batch is done."""
        from ledger.spark.progress import MINUTE, watching

        every = _BAR_SECONDS if err.is_terminal else MINUTE
        self._restart = self._watching.enter_context(watching(session, self.on_tasks, every))

    def close(self) -> None:
        """Ask for no more tasks: the batch is done."""
        self._watching.close()

    def on_step(self, name: str, result: "StepResult | None") -> None:
        """Show that a step begins (``result`` is None), or is done."""
        if result is None:
            self._begin(name, self._to_read(name))
            return
        rows, shown = "", "committed before, does not run again"
        if result.record:
            self._rows[name] = result.record.output_rows
            rows = quantity(result.record.output_rows, "row")
            shown = f"{rows}, {result.seconds:.1f} s"
        self._done += 1
        self._bar.update(self._task, completed=self._done, rows=rows)
        self._print(f"{self._name}: {name}, {shown}")

    def on_tasks(self, tasks: "Tasks", seconds: float) -> None:
        """Show how many tasks of the step are done, after so many seconds."""
        if not self._doing:
            return
        parts = [str(tasks)] if tasks.total else []
        parts += filter(None, [self._to_read(self._doing)])
        share = tasks.done / tasks.total if tasks.total else 0
        self._bar.update(self._task, completed=self._done + min(share, 0.99), rows=", ".join(parts))
        self._print(", ".join([f"{self._name}: {self._doing}", *parts, f"{seconds:.0f} s"]))

    def settling(self) -> None:
        """Show that all steps are done."""
        self._begin("settling")
        self._print(f"{self._name}: settling")

    def _begin(self, doing: str, rows: str = "") -> None:
        self._doing = doing
        self._restart()
        self._bar.update(self._task, description=doing, rows=rows)

    def _to_read(self, name: str) -> str:
        """Return how many rows the step reads, if the steps before it ran in this process."""
        reads = self._steps.get(name, ())
        if not reads or not self._rows.keys() >= set(reads):
            return ""
        return f"{quantity(sum(self._rows[step] for step in reads), 'row')} to read"

    def _print(self, line: str) -> None:
        if not err.is_terminal:
            err.print(line, highlight=False, soft_wrap=True)


@contextmanager
def progress_of(batch_id: int, steps: Mapping[str, Sequence[str]]) -> Iterator[BatchProgress]:
    """Yield the progress of a batch with these steps. Its bar goes at the end of the block."""
    columns = (
        SpinnerColumn(),
        TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
        BarColumn(bar_width=10),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[rows]}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
    )
    quiet = not err.is_terminal
    with Progress(*columns, console=err, transient=True, expand=True, disable=quiet) as bar:
        progress = BatchProgress(batch_id, steps, bar)
        try:
            yield progress
        finally:
            progress.close()
