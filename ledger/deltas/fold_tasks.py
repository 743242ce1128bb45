"""Tasks of a fold: each folds a file, or rows on their way from files, and reports what there is to
post. The driver runs them in threads, Spark in executors. Nothing here needs Spark, or the ledger's
database.
"""

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ledger.deltas.fold_files import FoldWriter, TaskReport
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.stored import root_windows
from ledger.deltas.stretches import Stretches
from ledger.storage.manifest import DataFile

REPORT = "report binary"  # the schema of what a task of Spark returns: pickled

Fold = Callable[[pa.Table], Folded]


def find_stretches(file: DataFile) -> Stretches:
    """Return the stretches of a file in which its rows are in the order of their roots."""
    return Stretches.of(root_windows(file))


def fold_file(
    portion: Portion, unordered: Collection[str], writer: FoldWriter, file: DataFile
) -> TaskReport:
    """Fold a file by itself: window by window unless its path is one of ``unordered``."""
    by_window = file.path not in unordered
    return writer.write(portion.by_window(file) if by_window else portion.gathered([file]))


def run_tasks(
    work: Callable[[DataFile], object],
    files: Sequence[DataFile],
    tasks: Sequence[Sequence[int]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in ``batches``: each does the ``work`` on some of the files.
    Yields a row for each file, with the file's number and what was returned of it.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                yield _row((number, work(files[number])))


def fold_rows(
    fold: Fold, most: int | None, writer: FoldWriter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task, and yield its report. A part is folded as soon as it has ``most``
    rows; None: all rows are folded at once.
    """
    yield _row(writer.write(map(fold, _tables(batches, most))))


def _tables(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.Table]:
    """The batches as tables of at least ``most`` rows, or as one."""
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
