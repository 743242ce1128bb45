"""What tasks of the executors run: they fold files, or rows on their way from files, and leave what
there is to post as files. Nothing here needs Spark, or the ledger's database.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from ledger.deltas.fold_files import FoldFiles, FoldWriter, TaskReport
from ledger.deltas.portions import Folded, Portion
from ledger.deltas.windows import UnorderedError
from ledger.storage.manifest import DataFile

REPORT = "report string"  # the schema of what tasks return

Fold = Callable[[pa.Table], Folded]


def fold_files(
    portion: Portion,
    files: Sequence[DataFile],
    tasks: Sequence[Sequence[int]],
    writer: FoldWriter,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Fold the files, by number, of each task that is named by its own."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                yield _row(_fold_file(portion, files, number, writer))


def _fold_file(
    portion: Portion, files: Sequence[DataFile], number: int, writer: FoldWriter
) -> TaskReport:
    file = files[number]
    try:
        return writer.write(portion.in_order(file))
    except UnorderedError:  # what was written of it is removed
        if not portion.by_input:
            return writer.write(portion.as_they_lie(file))
        if file.rows > writer.most:
            return TaskReport(FoldFiles(), unordered=number)
    return writer.write(portion.gathered([file]))


def fold_rows(
    fold: Fold, most: int | None, writer: FoldWriter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task, at ``most`` so many at a time; None: all at once."""
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


def _row(report: TaskReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"report": report.as_text()}])
