"""Folds and posts in the executors: what takes more memory than the driver is to have, or lies on a
store that the executors are nearer to.

Files that share no input with another are folded one by one, each into a bucket of its own; the
rows of the others, and of large files that lie in no order, are exchanged by root first.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
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
from ledger.deltas import posting
from ledger.deltas.footers import Footer, sharing
from ledger.deltas.kernel import Deltas, united
from ledger.deltas.portions import Folded, Output, Portion, fold_rows_read
from ledger.deltas.posting import Posted
from ledger.deltas.stored import FIRST, SHARED, Seen
from ledger.deltas.windows import UnorderedError
from ledger.spark.folding.outcome import FoldOutcome, Frame, ways_in_words
from ledger.spark.folding.refusals import refusing
from ledger.spark.frames.stored import positioned
from ledger.spark.job import Job, PostingTask, Witness
from ledger.spark.session import SPARK_ERRORS
from ledger.storage.manifest import DataFile, Manifest

MOST_ROWS = 1 << 22  # in no order, or deltas, that a task has in its memory
READ_ROWS = 1 << 20  # of a frame that a task acks at a time
BUCKETS = 1 << 20  # more than a portion can have
_REPORT = "report string"

Fold = Callable[[pa.Table], Folded]


def fold_files(
    job: Job, run: OpenedRun, portion: Portion, footers: Sequence[Footer], first: int
) -> tuple[list[FoldOutcome], str]:
    """Fold and post the files of a portion in buckets from ``first`` on; and how."""
    alone, groups = sharing(footers) if portion.by_input else (list(portion.files), [])
    outcomes, unordered = _by_file(job, run, portion, alone, first)
    shared = [file for group in groups for file in group]
    if shared or unordered:
        assert isinstance(portion, Output)
        files = sorted([*shared, *unordered], key=lambda file: file.first_position)
        outcomes += _exchanged(job, run, portion, files, first + len(alone))
    ways = (
        (len(alone) - len(unordered), "each by itself"),
        (len(shared), "exchanged, they share inputs"),
        (len(unordered), "exchanged, out of order"),
    )
    return outcomes, f"{ways_in_words(ways)}, by executors"


def fold_frame(job: Job, run: OpenedRun, frame: Frame, first: int) -> list[FoldOutcome]:
    """Fold and post rows as they were read, a part at a time."""
    rows = frame.rows.coalesce(run.batch.ackers)
    return _by_rows(job, run, rows, partial(fold_rows_read, edges=frame.edges), first, READ_ROWS)


def _by_file(
    job: Job, run: OpenedRun, portion: Portion, files: Sequence[DataFile], first: int
) -> tuple[list[FoldOutcome], list[DataFile]]:
    """What files add that share no input, and those that were not folded, for they are large and
    their rows lie in no order.
    """
    if not files:
        return [], []
    tasks = _tasks(run, files)
    work = partial(_fold_files, portion, files, tasks, _Posting(job, run), first, MOST_ROWS)
    reports = _collected(job, run, job.spark.range(0, len(tasks), 1, len(tasks)), work)
    unordered = [files[report["unordered"]] for report in reports if "unordered" in report]
    return [_outcome(run, report) for report in reports if "posted" in report], unordered


def _tasks(run: OpenedRun, files: Sequence[DataFile]) -> list[list[int]]:
    """Which files each of at most ``ackers`` tasks takes, about as many rows each."""
    tasks: list[list[int]] = [[] for _ in range(min(run.batch.ackers, len(files)))]
    for number in sorted(range(len(files)), key=lambda number: -files[number].rows):
        min(tasks, key=lambda task: sum(files[place].rows for place in task)).append(number)
    return tasks


class _Posting:
    """Posts what a task folds, part by part, and sums up what there was to it."""

    def __init__(self, job: Job, run: OpenedRun):
        self._to = (job.database.dsn, run.batch.batch_id, run.run_id)

    def post(self, bucket: int, parts: Iterable[Folded]) -> pa.RecordBatch:
        """All parts in one bucket; a report to the driver."""
        seen, read_carried, with_rows = Seen(), 0, 0
        drops: Counter[str] = Counter()

        def noted(part: Folded) -> Deltas:
            nonlocal seen, read_carried, with_rows
            seen += part.wrote
            read_carried += part.read_carried
            with_rows += part.deltas.with_rows
            drops.update(part.deltas.drops)
            return part.deltas

        posted = posting.post_bucket(*self._to, bucket, _united(map(noted, parts)))
        return _report(
            posted=asdict(posted),
            wrote=asdict(seen),
            read_carried=read_carried,
            with_rows=with_rows,
            drops=drops,
        )


def _report(**values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"report": json.dumps(values)}])


def _united(parts: Iterable[Deltas]) -> Iterator[Deltas]:
    """The same deltas with fewer of one root: as many parts at a time as memory allows."""
    waiting: list[Deltas] = []
    for part in parts:
        waiting.append(part)
        if sum(len(deltas.root) for deltas in waiting) > MOST_ROWS:
            yield united(waiting)
            waiting = []
    if waiting:
        yield united(waiting)


def _fold_files(
    portion: Portion, files: Sequence[DataFile], tasks: list[list[int]], to: _Posting,
    first: int, most: int, batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for batch in batches:
        for task in batch.column(0).to_pylist():
            for number in tasks[task]:
                yield _fold_file(portion, files, number, to, first + number, most)


def _fold_file(
    portion: Portion, files: Sequence[DataFile], number: int, to: _Posting, bucket: int, most: int
) -> pa.RecordBatch:
    file = files[number]
    try:
        return to.post(bucket, portion.in_order(file))
    except UnorderedError:  # nothing of the bucket was committed
        if not portion.by_input:
            return to.post(bucket, portion.as_they_lie(file))
        if file.rows > most:
            return _report(unordered=number)
    return to.post(bucket, portion.gathered([file]))


def _exchanged(
    job: Job, run: OpenedRun, portion: Output, files: Sequence[DataFile], first: int
) -> list[FoldOutcome]:
    """The rows of files by what they come from, so that all of one input are together: then the
    same kernel.
    """
    manifest = Manifest(tuple(files))
    stored = positioned(job.spark, manifest, POSITION)
    identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
    marks = [n for n in (FAILED, DROPPED, CARRIED) if n in stored.columns]
    seen = Witness(*identity)
    rows = seen.watch(stored.select(*identity, POSITION, *marks))
    flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
    buckets = max(run.batch.ackers, manifest.rows // MOST_ROWS + 1)
    parted = flat.repartition(buckets, *(n for n in (ROOT, PARENT, INPUT) if n in flat.columns))
    fold_table = replace(portion, files=()).fold_table
    outcomes = _by_rows(job, run, parted, fold_table, first, None)
    return [*outcomes, FoldOutcome(run, wrote=seen.seen)]


def _by_rows(
    job: Job, run: OpenedRun, rows: DataFrame, fold: Fold, first: int, most: int | None
) -> list[FoldOutcome]:
    """Fold and post the rows of each partition by themselves, at ``most`` so many at a time."""
    work = partial(_fold_rows, fold, most, _Posting(job, run), first)
    return [_outcome(run, report) for report in _collected(job, run, rows, work)]


def _fold_rows(
    fold: Fold, most: int | None, to: _Posting, first: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield to.post(first + context.partitionId(), map(fold, _tables(batches, most)))


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


def _collected(
    job: Job, run: OpenedRun, frame: DataFrame, task: PostingTask
) -> list[dict[str, Any]]:
    """The reports of the tasks. The job is started once; Spark may run each task as often as it
    likes. The address of the ledger travels in the task's closure, never in an argument.
    """
    with refusing(run, *SPARK_ERRORS):
        rows = frame.mapInArrow(job.on_task(task), _REPORT).collect()
    return [json.loads(row["report"]) for row in rows]


def _outcome(run: OpenedRun, report: dict[str, Any]) -> FoldOutcome:
    posted, wrote = Posted(**report.pop("posted")), Seen(**report.pop("wrote"))
    return FoldOutcome(run, posted, wrote, **report)
