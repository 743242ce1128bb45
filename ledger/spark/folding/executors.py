"""Folds in the executors: what takes more memory than the driver is to have, or lies on a store
that the executors are nearer to. They have no connection to the ledger: their tasks leave files
(``ledger.deltas.fold_files``), which the driver posts.

Files that share no input with another are folded one by one; the rows of the others, and of large
files that lie in no order, are exchanged first.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapreplace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import (
    ANCHORS,
    DROPPED,
    FAILED,
    INPUT,
    PARENT,
    POSITION,
    PREFIX,
    ROOT,
)
from ledger.deltas import fold_tasks
from ledger.deltas.fold_files import FoldSums, FoldWriter, TaskReport
from ledger.deltas.footers import Footer, related
from ledger.deltas.portions import Output, Portion, fold_rows_read
from ledger.deltas.spans import Spans
from ledger.deltas.stored import FIRST, SHARED
from ledger.deltas.stretches import Stretches, sort_out
from ledger.spark.folding.outcome import FoldOutcome, Frame, ways_in_words
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Job, Witness
from ledger.storage.manifest import DataFile, Manifest

MOST_ROWS = 1 << 22  # in no order, or deltas, that a task has in its memory
PART_ROWS = MOST_ROWS  # that are exchanged into one partition
READ_ROWS = 1 << 20  # of a frame that a task acks at a time
MOST_TASKS = 256  # each leaves files

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Executors:
    """Folds the files and frames of a run in Spark's executors.

    ``folder``: the folder to which tasks write what they fold.
    """

    job: Job
    run: OpenedRun
    spans: Spans
    folder: str

    @property
    def _writer(self) -> FoldWriter:
        return FoldWriter(self.folder, self.spans, MOST_ROWS)

    def fold_files(self, portion: Portion, footers: Sequence[Footer]) -> tuple[FoldOutcome, str]:
        """Fold the files of a portion, and return the outcome with a description of how they were
        folded.
        """
        ordered, shared, unordered = list(portion.files), list[DataFile](), list[DataFile]()
        if portion.by_input:  # other rows may lie as they like
            groups = related(footers, by_input=True)
            ordered, shared, unordered = sort_out(ordered, self._stretches(portion), groups)
        large = [file for file in unordered if file.rows > MOST_ROWS]
        small = [file for file in unordered if file.rows <= MOST_ROWS]
        outcome = FoldOutcome.of_reports(self.run, self._by_file(portion, ordered, small))
        if shared or large:
            assert isinstance(portion, Output)
            together = sorted([*shared, *large], key=lambda file: file.first_position)
            outcome += self._exchanged(portion, together)
        ways = (
            (len(ordered) + len(small), "each by itself"),
            (len(shared), "exchanged, they may share records"),
            (len(large), "exchanged, out of order"),
        )
        return outcome, f"{ways_in_words(ways)}, by executors"

    def fold_frame(self, frame: Frame) -> FoldOutcome:
        """Fold the rows of a frame as they were read, about ``READ_ROWS`` at a time."""
        fold = partial(fold_rows_read, edges=frame.edges)
        return FoldOutcome.of_reports(self.run, self._by_rows(frame.rows, fold, READ_ROWS))

    def _stretches(self, portion: Portion) -> list[Stretches]:
        """Return for each file the stretches in which its rows are in order."""
        files = portion.files
        tasks = _tasks(files)
        reports = self._run(tasks, partial(fold_tasks.find_stretches, portion, files, tasks))
        return [
            Stretches(tuple((first, last) for first, last in ranges), in_order)
            for _, ranges, in_order in sorted(map(json.loads, reports))
        ]

    def _by_file(
        self, portion: Portion, ordered: Sequence[DataFile], unordered: Sequence[DataFile]
    ) -> list[TaskReport]:
        """Fold each file separately, and return the tasks' reports.

        ``ordered``: files whose rows are in order.
        ``unordered``: files whose rows are in no order, small enough for the memory of a task.
        """
        files = [*ordered, *unordered]
        tasks = _tasks(files)
        work = partial(fold_tasks.fold_files, portion, files, len(ordered), tasks, self._writer)
        return list(map(TaskReport.of_text, self._run(tasks, work)))

    def _run(self, tasks: Sequence[object], work: Task) -> list[str]:
        """Run a Spark task for each of ``tasks``, and return their reports."""
        return run_tasks(self.job.spark.range(0, len(tasks), 1, len(tasks)), work) if tasks else []

    def _exchanged(self, portion: Output, files: Sequence[DataFile]) -> FoldOutcome:
        """The rows of files by what they come from, so that all of one input are together: then the
        same kernel.
        """
        manifest = Manifest(tuple(files))
        stored = positioned(self.job.spark, manifest, POSITION)
        identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
        marks = [n for n in (FAILED, DROPPED) if n in stored.columns]
        seen = Witness(*identity)
        rows = seen.watch(stored.select(*identity, POSITION, *marks))
        flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
        parts = max(min(MOST_TASKS, len(files)), manifest.rows // PART_ROWS + 1)
        parted = flat.repartition(parts, *(n for n in (ROOT, PARENT, INPUT) if n in flat.columns))
        fold_table = replace(portion, files=()).fold_table
        outcome = FoldOutcome.of_reports(self.run, self._by_rows(parted, fold_table, None))
        return outcome.plus(FoldSums(wrote=seen.seen))

    def _by_rows(
        self, rows: DataFrame, fold: fold_tasks.Fold, most: int | None
    ) -> list[TaskReport]:
        """Fold the rows of each partition separately, and return the tasks' reports.

        ``most``: about how many rows are folded at a time; None: all of a partition at once.
        """
        work = partial(fold_tasks.fold_rows, fold, most, self._writer)
        return list(map(TaskReport.of_text, run_tasks(rows, work)))


def run_tasks(frame: DataFrame, task: Task) -> list[str]:
    """Run a task on each partition of a frame, and return the reports of all tasks.

    The job is started once. Spark may run each task more than once, and takes the report of one
    try.
    """
    return [row["report"] for row in frame.mapInArrow(task, fold_tasks.REPORT).collect()]


def _tasks(files: Sequence[DataFile]) -> list[list[int]]:
    """Return for each task the numbers of the files that it takes: about as many rows for each."""
    tasks: list[list[int]] = [[] for _ in range(min(MOST_TASKS, len(files)))]
    loads = [(0, task) for task in range(len(tasks))]
    for number in sorted(range(len(files)), key=lambda number: -files[number].rows):
        rows, task = loads[0]
        tasks[task].append(number)
        heapreplace(loads, (rows + files[number].rows, task))
    return tasks


def by_anchor(output: DataFrame) -> DataFrame:
    """Rows of several anchors (``ANCHORS``: root, parent and maybe input, sorted) as a row for
    each. ``FIRST``: whether it is the row's first of that root. ``SHARED``: whether the row
    has others.
    """
    anchor = F.col("_ackledger_one")
    kind = output.schema[ANCHORS].dataType.elementType  # type: ignore[attr-defined]
    before = F.get(F.col(ANCHORS), F.col("_ackledger_place") - 1)["root"]
    shared = F.array_min(ANCHORS)["root"] != F.array_max(ANCHORS)["root"]
    rows = output.select("*", F.posexplode(ANCHORS).alias("_ackledger_place", "_ackledger_one"))
    return rows.select(
        *(name for name in output.columns if name != ANCHORS),
        *(anchor[name].alias(f"{PREFIX}{name}") for name in kind.names),
        (~before.eqNullSafe(anchor["root"])).alias(FIRST),
        shared.alias(SHARED),
    )
