"""Run the tasks of a fold: in threads of the driver, or in Spark's executors."""

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from heapq import heapreplace
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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
from ledger.deltas.fold_files import FoldWriter, TaskReport
from ledger.deltas.footers import Footer, groups_by_input
from ledger.deltas.portions import Output, fold_rows_read
from ledger.deltas.spans import Spans
from ledger.deltas.stored import FIRST, SHARED
from ledger.spark.folding.outcome import Frame
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Witness
from ledger.storage.manifest import DataFile, Manifest

MOST_THREADS = 8  # each needs the memory of a window
MOST_DELTAS = 1 << 20  # that a thread unites by root
MOST_ROWS = 1 << 22  # or deltas, that a task of Spark has in its memory
PART_ROWS = MOST_ROWS  # that are exchanged into one partition
READ_ROWS = 1 << 20  # of a frame that a task of Spark acks at a time
MOST_TASKS = 256  # of a job of Spark; each leaves files

Result = TypeVar("Result")


class FoldRunner(Protocol):
    """Runs the tasks of a fold. ``where``: the place in words, for the log."""

    where: str
    writer: FoldWriter

    def apart(self, output: Output, footers: Sequence[Footer]) -> list[DataFile]:
        """Return the files of an output that are folded one by one, by ``each``. All others are
        folded ``together``.

        ``footers``: the footers of the files.
        """

    def each(self, work: Callable[[DataFile], Result], files: Sequence[DataFile]) -> list[Result]:
        """Do the work on each file, and return the results in the order of the files."""

    def together(self, output: Output, files: Sequence[DataFile]) -> list[TaskReport]:
        """Fold files that may have rows of the same input, in any order."""

    def frame(self, frame: Frame) -> list[TaskReport]:
        """Fold the rows of a frame that a sink has read."""


class Threads:
    """Runs tasks in threads of the driver, without a Spark job or Python workers: numpy and pyarrow
    release the interpreter's lock. Deltas to post stay in memory.

    ``folder``: the folder for the files of deltas by root.
    """

    where = "in the driver"

    def __init__(self, spans: Spans, folder: str):
        self.writer = FoldWriter(folder, spans, MOST_DELTAS, in_memory=True)

    def apart(self, output: Output, footers: Sequence[Footer]) -> list[DataFile]:
        """Return no file: all threads take part in folding all files together."""
        return []

    def each(self, work: Callable[[DataFile], Result], files: Sequence[DataFile]) -> list[Result]:
        """Do the work on several files at a time."""
        with _threads() as pool:
            return list(pool.map(work, files))

    def together(self, output: Output, files: Sequence[DataFile]) -> list[TaskReport]:
        """Fold the files as one, in memory."""
        with _threads() as pool:
            return [self.writer.write(output.fold_together(files, pool.map))]

    def frame(self, frame: Frame) -> list[TaskReport]:
        """Fold the rows of a frame at once."""
        return [self.writer.write([fold_rows_read(frame.rows.toArrow(), frame.edges)])]


class Executors:
    """Runs tasks in Spark's executors. Used for portions that need more memory than the driver
    should use, or that are on a store closer to the executors. Executors cannot reach the ledger,
    so their tasks write files (``ledger.deltas.fold_files``), which the driver posts.

    ``folder``: the folder for these files.
    """

    where = "by executors"

    def __init__(self, spark: SparkSession, spans: Spans, folder: str):
        self.writer = FoldWriter(folder, spans, MOST_ROWS)
        self._spark = spark

    def apart(self, output: Output, footers: Sequence[Footer]) -> list[DataFile]:
        """Return the files whose rows one task can hold in memory, and that share no input with
        another file.
        """
        groups = groups_by_input(footers)
        files = [output.files[group[0]] for group in groups if len(group) == 1]
        return [file for file in files if file.rows <= MOST_ROWS]

    def each(self, work: Callable[[DataFile], Result], files: Sequence[DataFile]) -> list[Result]:
        """Do the work in one job, whose tasks take about as many rows each."""
        if not files:
            return []
        tasks = _tasks(files)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        results = run_tasks(numbers, partial(fold_tasks.run_tasks, work, files, tasks))
        return [result for _, result in sorted(results, key=lambda pair: int(pair[0]))]

    def together(self, output: Output, files: Sequence[DataFile]) -> list[TaskReport]:
        """Shuffle the rows so that all rows of one input are in one partition, and fold each
        partition.
        """
        manifest = Manifest(tuple(files))
        stored = positioned(self._spark, manifest, POSITION)
        identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
        marks = [n for n in (FAILED, DROPPED) if n in stored.columns]
        witness = Witness(*identity)
        rows = witness.watch(stored.select(*identity, POSITION, *marks))
        flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
        parts = max(min(MOST_TASKS, len(files)), manifest.rows // PART_ROWS + 1)
        parted = flat.repartition(parts, *(n for n in (ROOT, PARENT, INPUT) if n in flat.columns))
        reports = self._rows(parted, replace(output, files=()).fold_table, None)
        return [*reports, TaskReport(wrote=witness.checksum)]

    def frame(self, frame: Frame) -> list[TaskReport]:
        """Fold about ``READ_ROWS`` rows of a frame at a time."""
        return self._rows(frame.rows, partial(fold_rows_read, edges=frame.edges), READ_ROWS)

    def _rows(self, rows: DataFrame, fold: fold_tasks.Fold, most: int | None) -> list[TaskReport]:
        """Fold the rows of each partition, about ``most`` rows at a time; None: all rows of a
        partition at once.
        """
        return run_tasks(rows, partial(fold_tasks.fold_rows, fold, most, self.writer))


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))


def run_tasks(frame: DataFrame, task: Any) -> list[Any]:
    """Run a task on each partition of a frame, and return what all tasks report.

    The job is started once. Spark may run each task more than once, and takes the report of one
    try.
    """
    rows = frame.mapInArrow(task, fold_tasks.REPORT).collect()
    return [pickle.loads(row["report"]) for row in rows]


def _tasks(files: Sequence[DataFile]) -> list[list[int]]:
    """Distribute the files over tasks with about equal numbers of rows. Return the indexes of each
    task's files.
    """
    tasks: list[list[int]] = [[] for _ in range(min(MOST_TASKS, len(files)))]
    loads = [(0, task) for task in range(len(tasks))]
    for number in sorted(range(len(files)), key=lambda number: -files[number].rows):
        rows, task = loads[0]
        tasks[task].append(number)
        heapreplace(loads, (rows + files[number].rows, task))
    return tasks


def by_anchor(output: DataFrame) -> DataFrame:
    """Return a row for each anchor of ``output``, whose rows have a list ``ANCHORS`` (root, parent
    and maybe input, sorted).

    ``FIRST``: whether the anchor is its row's first of that root. ``SHARED``: whether its row has
    other roots as well.
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
