"""Folds a run's deltas, and posts them: a few rows in this process, with the commit; many in the
executors.

The kernel is one (``ledger.deltas``). A run's files are folded file by file where no two have
rows of one input, as the footers say; else the rows are exchanged by root first.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import psycopg2
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import Connection

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
from ledger.core.probes import reached
from ledger.deltas import posting
from ledger.deltas.kernel import Deltas, Fails, united
from ledger.deltas.portions import Folded, Output, Portion, Reading
from ledger.deltas.posting import Posted
from ledger.deltas.stored import FIRST, SHARED, Seen
from ledger.errors import FencedError, UnavailableError
from ledger.spark.frames.inputs import read_stored
from ledger.spark.frames.stored import with_position
from ledger.spark.job import Job, PostingTask, Witness
from ledger.spark.session import SPARK_ERRORS
from ledger.storage.manifest import DataFile, Manifest
from ledger.storage.parquet import stored_file
from ledger.store.driver_errors import raw_cursor

MOST_ROWS = 1 << 22  # of one file, or of an exchange, that a task folds in its memory
READ_ROWS = 1 << 20  # that a task acks at a time
BUCKETS = 1 << 20  # more than a portion can have
_TOLD = "told string"


@dataclass(frozen=True)
class Outcome:
    """What a run's fold came to. ``pending``: deltas that are to be posted in the transaction
    that commits the run; None: the executors have posted theirs. ``fails``: roots that fail,
    beside those of the deltas.
    """

    run: OpenedRun
    posted: Posted
    wrote: Seen
    read_carried: int
    with_rows: int
    drops: dict[str, int]
    pending: Deltas | None = None
    fails: Sequence[Fails] = ()

    def post(self, connection: Connection) -> None:
        """Post what is pending, in the transaction that commits the run."""
        batch_id = self.run.batch.batch_id
        with raw_cursor(connection) as cursor:
            if self.pending is not None:
                posting.post(cursor, batch_id, self.run.run_id, 0, self.pending)
            posting.post_fails(cursor, batch_id, self.run.run_id, self.fails)

    def __add__(self, other: "Outcome") -> "Outcome":
        drops = {
            reason: self.drops.get(reason, 0) + other.drops.get(reason, 0)
            for reason in {*self.drops, *other.drops}
        }
        return replace(
            self,
            posted=self.posted + other.posted,
            wrote=self.wrote + other.wrote,
            read_carried=self.read_carried + other.read_carried,
            with_rows=self.with_rows + other.with_rows,
            drops=drops,
        )


@dataclass(frozen=True)
class Read:
    """Rows that a run acks because it read them, as it read them: see
    ``ledger.spark.frames.inputs.root_rows``. ``size``: how many there are.
    """

    frame: DataFrame
    reading: Reading
    size: int


def fold(job: Job, run: OpenedRun, portions: Sequence[Portion | Read]) -> Outcome:
    """Fold the portions of a run. Raises UnavailableError when the ledger does not answer,
    FencedError when the batch was decided and its partition is gone.
    """
    if not portions:
        return Outcome(run, Posted(), Seen(), 0, 0, {})
    if sum(portion.size for portion in portions) <= job.few_rows:
        folded = reduce(Folded.__add__, map(_fold_here, portions))
        return _outcome(run, folded, Posted.of(folded.deltas), folded.deltas)
    nothing = Outcome(run, Posted(), Seen(), 0, 0, {})
    found = [
        outcome
        for place, portion in enumerate(portions)
        for outcome in _fold_there(job, run, portion, place * BUCKETS)
    ]
    reached("deltas posted", run.step)
    return reduce(Outcome.__add__, found, nothing)


def _fold_here(portion: Portion | Read) -> Folded:
    if isinstance(portion, Read):
        return portion.reading.fold_table(portion.frame.toArrow())
    return portion.fold(portion.files)


def _fold_there(job: Job, run: OpenedRun, portion: Portion | Read, first: int) -> list[Outcome]:
    """Fold and post in the executors, in buckets from ``first`` on."""
    if isinstance(portion, Read):
        fold_table: Callable[[pa.Table], Folded] = portion.reading.fold_table
        rows = portion.frame.coalesce(run.batch.ackers)
        return _by_rows(job, run, rows, fold_table, first, READ_ROWS)
    if _mixed(portion):
        assert isinstance(portion, Output)
        return _exchanged(job, run, portion, first)
    tasks = _tasks(run, portion)
    work = partial(_fold_files, job.database.dsn, run.batch.batch_id, run.run_id, first, tasks)
    return _collected(job, run, job.spark.range(0, len(tasks), 1, len(tasks)), work)


def _outcome(
    run: OpenedRun, folded: Folded, posted: Posted, pending: Deltas | None = None
) -> Outcome:
    deltas = folded.deltas
    return Outcome(
        run,
        posted,
        folded.wrote,
        folded.read_carried,
        deltas.with_rows,
        dict(deltas.drops),
        pending,
    )


@dataclass(frozen=True)
class _Task:
    """Files that one task folds and posts."""

    portion: Portion
    files: Sequence[DataFile]


def _tasks(run: OpenedRun, portion: Portion) -> list[_Task]:
    """At most ``ackers`` tasks, with about as many rows each."""
    buckets: list[list[DataFile]] = [[] for _ in range(min(run.batch.ackers, len(portion.files)))]
    for file in sorted(portion.files, key=lambda file: -file.rows):
        min(buckets, key=lambda some: sum(one.rows for one in some)).append(file)
    return [
        _Task(portion, sorted(files, key=lambda one: one.first_position))
        for files in buckets
        if files
    ]


class _Posting:
    """Posts what a task folds, part by part, and sums up what there was to it."""

    def __init__(self, dsn: str, batch_id: int, run_id: int):
        self._to = (dsn, batch_id, run_id)
        self._wrote, self._read_carried, self._with_rows = Seen(), 0, 0
        self._drops: Counter[str] = Counter()

    def post(self, bucket: int, parts: Iterable[Folded]) -> pa.RecordBatch:
        """All parts in one bucket; what the driver is told."""
        posted = posting.post_bucket(*self._to, bucket, _united(map(self._noted, parts)))
        told = {
            "posted": asdict(posted),
            "wrote": asdict(self._wrote),
            "read_carried": self._read_carried,
            "with_rows": self._with_rows,
            "drops": self._drops,
        }
        return pa.RecordBatch.from_pylist([{"told": json.dumps(told)}])

    def _noted(self, part: Folded) -> Deltas:
        self._wrote += part.wrote
        self._read_carried += part.read_carried
        self._with_rows += part.deltas.with_rows
        self._drops.update(part.deltas.drops)
        return part.deltas


def _united(parts: Iterable[Deltas]) -> Iterator[Deltas]:
    """The same deltas with fewer of one root: as many parts at a time as memory allows."""
    waiting: list[Deltas] = []
    for part in parts:
        waiting.append(part)
        if sum(len(one.root) for one in waiting) > MOST_ROWS:
            yield united(waiting)
            waiting = []
    if waiting:
        yield united(waiting)


def _fold_files(
    dsn: str, batch_id: int, run_id: int, first: int, tasks: list[_Task],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for batch in batches:
        for number in batch.column(0).to_pylist():
            portion, files = tasks[number].portion, tasks[number].files
            parts = (portion.fold([file]) for file in files)
            yield _Posting(dsn, batch_id, run_id).post(first + number, parts)


def _exchanged(job: Job, run: OpenedRun, portion: Output, first: int) -> list[Outcome]:
    """The rows of all files by what they come from, so that all of one input are together: then
    the same kernel.
    """
    manifest = Manifest(tuple(portion.files))
    stored = with_position(read_stored(job, manifest), manifest, POSITION)
    identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
    marks = [n for n in (FAILED, DROPPED, CARRIED) if n in stored.columns]
    seen = Witness(*identity)
    rows = seen.watch(stored.select(*identity, POSITION, *marks))
    flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
    buckets = max(run.batch.ackers, portion.size // MOST_ROWS + 1)
    parted = flat.repartition(buckets, *(n for n in (ROOT, PARENT, INPUT) if n in flat.columns))
    found = _by_rows(job, run, parted, replace(portion, files=()).fold_table, first, None)
    return [*found, Outcome(run, Posted(), Seen(*seen.seen), 0, 0, {})]


def _by_rows(
    job: Job,
    run: OpenedRun,
    rows: DataFrame,
    fold_table: Callable[[pa.Table], Folded],
    first: int,
    most: int | None,
) -> list[Outcome]:
    """Fold and post the rows of each partition by themselves, at ``most`` so many at a time."""
    to = (job.database.dsn, run.batch.batch_id, run.run_id)
    return _collected(job, run, rows, partial(_fold_rows, *to, first, fold_table, most))


def _fold_rows(
    dsn: str, batch_id: int, run_id: int, first: int, fold_table: Callable[[pa.Table], Folded],
    most: int | None, batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    context = TaskContext.get()
    assert context is not None
    bucket = first + context.partitionId()
    yield _Posting(dsn, batch_id, run_id).post(bucket, map(fold_table, _tables(batches, most)))


def _tables(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.Table]:
    """The batches as tables of at least ``most`` rows, or as one."""
    given: list[pa.RecordBatch] = []
    for batch in batches:
        given.append(batch)
        if most is not None and sum(one.num_rows for one in given) >= most:
            yield pa.Table.from_batches(given)
            given = []
    if given:
        yield pa.Table.from_batches(given)


def by_anchor(output: DataFrame) -> DataFrame:
    """Rows of several anchors (``ANCHORS``: root, parent and maybe input, sorted) as a row for
    each. ``FIRST``: whether it is the row's first of that root. ``SHARED``: whether the row
    has others.
    """
    one = F.col("_ackledger_one")
    anchor = output.schema[ANCHORS].dataType.elementType  # type: ignore[attr-defined]
    fields = [name for name in anchor.names if name != "unit"]
    before = F.get(F.col(ANCHORS), F.col("_ackledger_place") - 1)["root"]
    shared = F.array_min(ANCHORS)["root"] != F.array_max(ANCHORS)["root"]
    rows = output.select("*", F.posexplode(ANCHORS).alias("_ackledger_place", "_ackledger_one"))
    return rows.select(
        *(name for name in output.columns if name != ANCHORS),
        *(one[name].alias(f"{PREFIX}{name}") for name in fields),
        (~before.eqNullSafe(one["root"])).alias(FIRST),
        shared.alias(SHARED),
    )


def _collected(job: Job, run: OpenedRun, frame: DataFrame, task: PostingTask) -> list[Outcome]:
    """What the tasks tell. The job is started once; Spark may run each task as often as it
    likes. The address of the ledger travels in the task's closure, never in an argument.
    """
    try:
        rows = frame.mapInArrow(job.on_task(task), _TOLD).collect()
    except SPARK_ERRORS as exc:
        refused = _refused(run, exc)
        if refused is None:
            raise
        raise refused from exc
    return [_heard(run, json.loads(row["told"])) for row in rows]


def _heard(run: OpenedRun, told: dict[str, Any]) -> Outcome:
    posted, wrote = Posted(**told.pop("posted")), Seen(**told.pop("wrote"))
    return Outcome(run, posted, wrote, **told)


def _refused(run: OpenedRun, exc: Exception) -> Exception | None:
    batch_id = run.batch.batch_id
    if f'UndefinedTable: relation "{posting.partition(batch_id)}"' in str(exc):
        return FencedError(
            f"batch {batch_id} was decided and its deltas were removed: run {run.run_id} "
            "comes too late and "
            f"changes nothing. See what became of it: ackledger status --batch {batch_id}"
        )
    reason = unavailable(exc)
    if reason is None:
        return None
    return UnavailableError(
        f"the ledger did not take the deltas of run {run.run_id}: {reason}. Run the step again"
    )


def unavailable(exc: Exception) -> str | None:
    """What the database said, if a task failed because it was away, stopped, locked or full."""
    for name, said in reversed(re.findall(r"psycopg2\.(?:errors\.)?(\w+): (.*)", str(exc))):
        kind = getattr(psycopg2.errors, name, None) or getattr(psycopg2, name, None)
        if kind and issubclass(kind, psycopg2.OperationalError | psycopg2.InterfaceError):
            return str(said).strip()
    return None


def _mixed(portion: Portion) -> bool:
    """Whether rows of one input may lie in several files, so that no file can be folded by
    itself.
    """
    if not isinstance(portion, Output):
        return False
    if any(file.rows > MOST_ROWS for file in portion.files):
        return True
    with ThreadPoolExecutor(8) as pool:
        ranges = sorted(one for one in pool.map(_parents, portion.files) if one is not None)
    if any(one is _UNKNOWN for one in ranges):
        return True
    return any(later[0] <= earlier[1] for earlier, later in pairwise(ranges))


_UNKNOWN = (-1, -1)


def _parents(file: DataFile) -> tuple[int, int] | None:
    """The least and the greatest parent in a file, by its footer; None: it has no row with one."""
    with stored_file(file.path) as stored:
        metadata = stored.metadata
    found, named = [], metadata.num_rows == 0
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            path = column.path_in_schema
            # Of a list the path between depends on who wrote the file, and how.
            if path == PARENT or (path.startswith(f"{ANCHORS}.") and path.endswith(".parent")):
                named = True
                known = column.statistics
                if known is None or (
                    not known.has_min_max and known.null_count != column.num_values
                ):
                    return _UNKNOWN
                if known.has_min_max:
                    found.append((known.min, known.max))
    if not named:
        return _UNKNOWN
    if not found:
        return None
    return min(low for low, _ in found), max(high for _, high in found)
