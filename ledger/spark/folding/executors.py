"""Folds in the executors: what takes more memory than the driver is to have, or lies on a store
that the executors are nearer to. They have no connection to the ledger: their tasks leave files
(``ledger.deltas.fold_files``), which the driver posts.

Files that have no root in common with another are folded one by one; the rows of the others, and of
files that lie in no order, are exchanged first.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import (
    ANCHORS,
    CARRIED,
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
from ledger.deltas.portions import Output, Portion, fold_rows_read
from ledger.deltas.spans import Spans
from ledger.deltas.stored import FIRST, SHARED
from ledger.deltas.stretches import Stretches, sorted_out
from ledger.spark.folding.outcome import FoldOutcome, Frame, ways_in_words
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Job, Witness
from ledger.storage.manifest import DataFile, Manifest

MOST_ROWS = 1 << 22  # in no order, or deltas, that a task has in its memory
READ_ROWS = 1 << 20  # of a frame that a task acks at a time
MOST_TASKS = 256  # each leaves files

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Executors:
    """Where a run is folded. ``folder``: where tasks write what they fold."""

    job: Job
    run: OpenedRun
    spans: Spans
    folder: str

    @property
    def _writer(self) -> FoldWriter:
        return FoldWriter(self.folder, self.spans, MOST_ROWS)

    def fold_files(self, portion: Portion) -> tuple[FoldOutcome, str]:
        """What the files of a portion come to; and how."""
        files = list(portion.files)
        # Rows that are not folded by their input may lie as they like.
        stretches = self._stretches(portion) if portion.by_input else [Stretches()] * len(files)
        ordered, shared, unordered = sorted_out(files, stretches, by_input=portion.by_input)
        outcome = FoldOutcome.of_reports(self.run, self._by_file(portion, ordered))
        if shared or unordered:
            assert isinstance(portion, Output)
            together = sorted([*shared, *unordered], key=lambda file: file.first_position)
            outcome += self._exchanged(portion, together)
        ways = (
            (len(ordered), "each by itself"),
            (len(shared), "exchanged, they share records"),
            (len(unordered), "exchanged, out of order"),
        )
        return outcome, f"{ways_in_words(ways)}, by executors"

    def fold_frame(self, frame: Frame) -> FoldOutcome:
        """What rows come to as they were read, a part at a time."""
        fold = partial(fold_rows_read, edges=frame.edges)
        return FoldOutcome.of_reports(self.run, self._by_rows(frame.rows, fold, READ_ROWS))

    def _stretches(self, portion: Portion) -> list[Stretches]:
        """Of each file, in which of its stretches rows lie in order."""
        files = portion.files
        tasks = _tasks(files)
        reports = self._run(tasks, partial(fold_tasks.find_stretches, portion, files, tasks))
        return [
            Stretches(tuple((first, last) for first, last in ranges), in_order)
            for _, ranges, in_order in sorted(map(json.loads, reports))
        ]

    def _by_file(self, portion: Portion, files: Sequence[DataFile]) -> list[TaskReport]:
        """What each file adds by itself."""
        tasks = _tasks(files)
        work = partial(fold_tasks.fold_files, portion, files, tasks, self._writer)
        return list(map(TaskReport.of_text, self._run(tasks, work)))

    def _run(self, tasks: Sequence[object], work: Task) -> list[str]:
        """What so many tasks report."""
        return reported(self.job.spark.range(0, len(tasks), 1, len(tasks)), work) if tasks else []

    def _exchanged(self, portion: Output, files: Sequence[DataFile]) -> FoldOutcome:
        """The rows of files by what they come from, so that all of one input are together: then the
        same kernel.
        """
        manifest = Manifest(tuple(files))
        stored = positioned(self.job.spark, manifest, POSITION)
        identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
        marks = [n for n in (FAILED, DROPPED, CARRIED) if n in stored.columns]
        seen = Witness(*identity)
        rows = seen.watch(stored.select(*identity, POSITION, *marks))
        flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
        parts = max(min(MOST_TASKS, len(files)), manifest.rows // MOST_ROWS + 1)
        parted = flat.repartition(parts, *(n for n in (ROOT, PARENT, INPUT) if n in flat.columns))
        fold_table = replace(portion, files=()).fold_table
        outcome = FoldOutcome.of_reports(self.run, self._by_rows(parted, fold_table, None))
        return outcome.plus(FoldSums(wrote=seen.seen))

    def _by_rows(
        self, rows: DataFrame, fold: fold_tasks.Fold, most: int | None
    ) -> list[TaskReport]:
        """What the rows of each partition add by themselves, at ``most`` so many at a time."""
        work = partial(fold_tasks.fold_rows, fold, most, self._writer)
        return list(map(TaskReport.of_text, reported(rows, work)))


def reported(frame: DataFrame, task: Task) -> list[str]:
    """What the tasks report. The job is started once; Spark may run each task as often as it
    likes, and takes the report of one try.
    """
    return [row["report"] for row in frame.mapInArrow(task, fold_tasks.REPORT).collect()]


def _tasks(files: Sequence[DataFile]) -> list[list[int]]:
    """Which files each task takes, about as many rows each."""
    tasks: list[list[int]] = [[] for _ in range(min(MOST_TASKS, len(files)))]
    for number in sorted(range(len(files)), key=lambda number: -files[number].rows):
        min(tasks, key=lambda task: sum(files[place].rows for place in task)).append(number)
    return tasks


def by_anchor(output: DataFrame) -> DataFrame:
    """Rows of several anchors (``ANCHORS``: root, parent and maybe input, sorted) as a row for
    each. ``FIRST``: whether it is the row's first of that root. ``SHARED``: whether the row
    has others.
    """
    anchor = F.col("_ackledger_one")
    kind = output.schema[ANCHORS].dataType.elementType  # type: ignore[attr-defined]
    fields = [name for name in kind.names if name != "unit"]
    before = F.get(F.col(ANCHORS), F.col("_ackledger_place") - 1)["root"]
    shared = F.array_min(ANCHORS)["root"] != F.array_max(ANCHORS)["root"]
    rows = output.select("*", F.posexplode(ANCHORS).alias("_ackledger_place", "_ackledger_one"))
    return rows.select(
        *(name for name in output.columns if name != ANCHORS),
        *(anchor[name].alias(f"{PREFIX}{name}") for name in fields),
        (~before.eqNullSafe(anchor["root"])).alias(FIRST),
        shared.alias(SHARED),
    )
