"""Tasks of a fold in Spark's executors. Each task folds files, or rows that were read from files,
and reports the deltas to post. Nothing here needs Spark, or the ledger's database.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from ledger.deltas.fold_files import FoldWriter
from ledger.deltas.portions import Folded, Portion
from ledger.storage.manifest import DataFile

REPORT = "report binary"  # the schema of what a task of Spark returns: pickled

Fold = Callable[[pa.Table], Folded]


def fold_files(
    portion: Portion,
    writer: FoldWriter,
    tasks: Sequence[Sequence[DataFile]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are in ``batches``, and yield the report of each: it folds its
    files one by one.

    ``tasks``: the files of each task.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield _row(writer.write(chain.from_iterable(map(portion.fold_file, tasks[task]))))


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
