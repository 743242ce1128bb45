"""Tasks of a fold. Each task folds a file, or rows that were read from files, and reports the
deltas to post. The driver runs tasks in threads, Spark runs them in executors. Nothing here needs
Spark, or the ledger's database.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ledger.deltas.fold_files import FoldWriter, TaskReport
from ledger.deltas.portions import Folded, Portion
from ledger.storage.manifest import DataFile

REPORT = "report binary"  # the schema of what a task of Spark returns: pickled

Fold = Callable[[pa.Table], Folded]


def fold_file(portion: Portion, writer: FoldWriter, file: DataFile) -> TaskReport:
    """Fold one file without any other, and return the report."""
    return writer.write(portion.fold_file(file))


def run_tasks(
    work: Callable[[DataFile], object],
    files: Sequence[DataFile],
    tasks: Sequence[Sequence[int]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in ``batches``, and yield a row for each file: its number,
    and the result of ``work`` for it.

    ``tasks``: the numbers of the files of each task.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                yield _row((number, work(files[number])))


def fold_rows(
    fold: Fold, most: int | None, writer: FoldWriter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the rows of one task, and yield its report.

    ``most``: fold as soon as so many rows have arrived. None: fold all rows at once.
    """
    yield _row(writer.write(map(fold, _tables(batches, most))))


def _tables(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.Table]:
    """Yield the batches as tables of at least ``most`` rows, or as a single table if ``most`` is
    None.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if most is not None and sum(some.num_rows for some in waiting) >= most:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _row(report: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"report": pickle.dumps(report)}])
