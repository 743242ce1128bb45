"""Run the tasks of a fold: in threads of the driver, or in Spark's executors."""

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from heapq import heapreplace
from itertools import chain
from typing import Any

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
from ledger.deltas.portions import Output, Portion, fold_rows_read
from ledger.deltas.spans import Spans
from ledger.deltas.stored import FIRST, SHARED
from ledger.spark.folding.outcome import Frame
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Witness
from ledger.storage.manifest import DataFile, Manifest

MOST_THREADS = 8  # each needs the memory of a window
MOST_DELTAS = 1 << 20  # that a thread unites by root
TASK_DELTAS = 1 << 22  # that a task of Spark unites by root
TASK_BYTES = 256 << 20  # of the ledger's columns of a file that a task of Spark gathers
PART_BYTES = 64 << 20  # of the ledger's columns that are exchanged into one partition
READ_ROWS = 1 << 20  # of a frame that a task of Spark acks at a time
MOST_TASKS = 256  # of a job of Spark; each leaves files


class Threads:
    """Runs the tasks of a fold in threads of the driver, without a Spark job or Python workers:
    numpy and pyarrow release the interpreter's lock. Deltas to post stay in memory.

    ``where``: the place in words, for the log.
    ``folder``: the folder for the files of deltas by root.
    """

    where = "in the driver"

    def __init__(self, spans: Spans, folder: str):
        self.writer = FoldWriter(folder, spans, MOST_DELTAS, in_memory=True)

    def apart(self, output: Output, footers: Sequence[Footer]) -> list[DataFile]:
        """Return no file: all threads take part in folding all files together."""
        return []

    def one_by_one(self, portion: Portion, files: Sequence[DataFile]) -> list[TaskReport]:
        """Fold several files at a time, each without the others, and report them as one task."""
        with _threads() as pool:
            parts = pool.map(lambda file: [*portion.fold_file(file)], files)
            return [self.writer.write(chain.from_iterable(parts))]

    def together(self, output: Output, files: Sequence[DataFile], size: int) -> list[TaskReport]:
        """Fold the files as one, in memory."""
        with _threads() as pool:
            return [self.writer.write(output.fold_together(files, pool.map))]

    def frame(self, frame: Frame) -> list[TaskReport]:
        """Fold the rows of a frame at once."""
        return [self.writer.write([fold_rows_read(frame.rows.toArrow(), frame.edges)])]


class Executors:
    """Runs the tasks of a fold in Spark's executors. Used for portions that need more memory than
    the driver should use, or that are on a store closer to the executors. Executors cannot reach
    the ledger, so their tasks write files (``ledger.deltas.fold_files``), which the driver posts.

    ``where``: the place in words, for the log.
    ``folder``: the folder for these files.
    """

    where = "by executors"

    def __init__(self, spark: SparkSession, spans: Spans, folder: str):
        self.writer = FoldWriter(folder, spans, TASK_DELTAS)
        self._spark = spark

    def apart(self, output: Output, footers: Sequence[Footer]) -> list[DataFile]:
        """Return the files whose rows one task can hold in memory, and that share no input with
        another file.
        """
        alone = [group[0] for group in groups_by_input(footers) if len(group) == 1]
        return [output.files[number] for number in alone if footers[number].bytes <= TASK_BYTES]

    def one_by_one(self, portion: Portion, files: Sequence[DataFile]) -> list[TaskReport]:
        """Fold each file without the others, in a job whose tasks have about equally many rows."""
        tasks = _tasks(files)
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        return run_tasks(numbers, partial(fold_tasks.fold_files, portion, self.writer, tasks))

    def together(self, output: Output, files: Sequence[DataFile], size: int) -> list[TaskReport]:
        """Shuffle the rows so that all rows of one input are in one partition, and fold each
        partition.

        ``size``: the bytes of the ledger's columns of the files.
        """
        manifest = Manifest(tuple(files))
        stored = positioned(self._spark, manifest, POSITION)
        identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
        marks = [n for n in (FAILED, DROPPED) if n in stored.columns]
        witness = Witness(*identity)
        rows = witness.watch(stored.select(*identity, POSITION, *marks))
        flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
        parts = max(min(MOST_TASKS, len(files)), size // PART_BYTES + 1)
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


FoldRunner = Threads | Executors


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))


def run_tasks(frame: DataFrame, task: Any) -> list[Any]:
    """Run a task on each partition of a frame, and return what all tasks report.

    The job is started once. Spark may run each task more than once, and takes the report of one
    try.
    """
    rows = frame.mapInArrow(task, fold_tasks.REPORT).collect()
    return [pickle.loads(row["report"]) for row in rows]


def _tasks(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Distribute the files over tasks with about equal numbers of rows. Return the tasks' files."""
    tasks: list[list[DataFile]] = [[] for _ in range(min(MOST_TASKS, len(files)))]
    loads = [(0, task) for task in range(len(tasks))]
    for file in sorted(files, key=lambda file: -file.rows):
        rows, task = loads[0]
        tasks[task].append(file)
        heapreplace(loads, (rows + file.rows, task))
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
