"""Tasks of the executors: they fold files, or rows on their way from files, and write what there is
to post to files. Nothing here needs Spark, or the ledger's database.
"""

import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from ledger.deltas.fold_files import FoldWriter
from ledger.deltas.portions import Folded, Portion
from ledger.storage.manifest import DataFile

REPORT = "report string"  # the schema of what tasks return

Fold = Callable[[pa.Table], Folded]


def fold_files(
    portion: Portion,
    files: Sequence[DataFile],
    ordered: int,
    tasks: Sequence[Sequence[int]],
    writer: FoldWriter,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Fold the files, by number, of each task that is named by its own. ``ordered``: how many can
    be folded by window, the first ones.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                file = files[number]
                by_window = number < ordered
                parts = portion.by_window(file) if by_window else portion.gathered([file])
                yield _row(writer.write(parts).as_text())


def find_stretches(
    portion: Portion,
    files: Sequence[DataFile],
    tasks: Sequence[Sequence[int]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield a row of JSON for each file of each task: the file's number, and ``ranges`` and
    ``in_order`` of its stretches.
    """
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                some = portion.stretches(files[number])
                yield _row(json.dumps([number, some.ranges, some.in_order]))


def fold_rows(
    fold: Fold, most: int | None, writer: FoldWriter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task, at ``most`` so many at a time; None: all at once."""
    yield _row(writer.write(map(fold, _tables(batches, most))).as_text())


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


def _row(report: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"report": report}])
