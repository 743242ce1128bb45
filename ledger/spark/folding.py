"""Folds a run's deltas, and posts them: a few rows in this process, with the commit; many in the executors.

The kernel is one (``ledger.deltas``). A run's files are folded file by file where no two have rows of one input, as
the footers say; else the rows are exchanged by root first.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import fsspec
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from sqlalchemy import Connection

from ledger.deltas import posting
from ledger.deltas.kernel import Deltas, Fails
from ledger.deltas.portions import Folded, Output, Portion, Reading
from ledger.deltas.posting import Posted
from ledger.deltas.stored import FIRST, POSITION, SHARED, Seen
from ledger.errors import FencedError, UnavailableError
from ledger.manifest import DataFile, Manifest
from ledger.spark.inputs import read_stored
from ledger.spark.job import ANCHORS, CARRIED, DROPPED, FAILED, INPUT, PARENT, ROOT, Job, Witness
from ledger.spark.manifest import with_position
from ledger.spark.session import SPARK_ERRORS
from ledger.stage_runs import OpenedRun

FEW_ROWS = 100_000  # folded in this process: no task, and no connection but the commit's
MOST_ROWS = 1 << 24  # of one file that a task folds in its memory
_TOLD = "told string"


@dataclass(frozen=True)
class Outcome:
    """What a run's fold came to. ``pending``: deltas that are to be posted in the transaction that commits the run;
    None: the executors have posted theirs. ``fails``: roots that fail, beside those of the deltas."""

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
        with closing(connection.connection.cursor()) as cursor:
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
    """Rows that a run acks because it read them, as it read them: see ``ledger.spark.inputs.root_rows``. ``rows``: how
    many there may be."""

    frame: DataFrame
    reading: Reading
    rows: int


def fold(job: Job, run: OpenedRun, portions: Sequence[Portion | Read]) -> Outcome:
    """Fold the portions of a run. Raises UnavailableError when the ledger does not answer, FencedError when the batch
    was decided and its partition is gone."""
    if not portions:
        return Outcome(run, Posted(), Seen(), 0, 0, {})
    if sum(map(_size, portions)) <= FEW_ROWS:
        folded = reduce(Folded.__add__, map(_fold_here, portions))
        return _outcome(run, folded, Posted.of(folded.deltas), folded.deltas)
    first, found = 0, list[Outcome]()
    for portion in portions:
        made = _fold_there(job, run, portion, first)
        first += len(made)
        found += made
    return reduce(Outcome.__add__, found)


def _size(portion: Portion | Read) -> int:
    return portion.rows if isinstance(portion, Read) else sum(one.rows for one in portion.files)


def _fold_here(portion: Portion | Read) -> Folded:
    if isinstance(portion, Read):
        return portion.reading.fold_table(portion.frame.toArrow())
    return portion.fold(portion.files)


def _fold_there(job: Job, run: OpenedRun, portion: Portion | Read, first: int) -> list[Outcome]:
    """Fold and post in the executors, in buckets from ``first`` on."""
    if isinstance(portion, Read):
        fold_table: Callable[[pa.Table], Folded] = portion.reading.fold_table
        return _by_rows(job, run, portion.frame.coalesce(run.batch.ackers), fold_table, first)
    if _mixed(portion):
        assert isinstance(portion, Output)
        return _exchanged(job, run, portion, first)
    tasks = _tasks(run, portion)
    work = partial(_fold_files, job.database.dsn, run.batch.batch_id, run.run_id, first, tasks)
    return _collected(run, job.spark.range(0, len(tasks), 1, len(tasks)), work)


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
    return [_Task(portion, sorted(files, key=lambda one: one.first_position)) for files in buckets]


def _fold_files(
    dsn: str, batch_id: int, run_id: int, first: int, tasks: list[_Task],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    for batch in batches:
        for number in batch.column(0).to_pylist():
            folded = tasks[number].portion.fold(tasks[number].files)
            bucket = first + number
            posted = posting.post_bucket(dsn, batch_id, run_id, bucket, folded.deltas)
            yield _told(folded, posted)


def _exchanged(job: Job, run: OpenedRun, portion: Output, first: int) -> list[Outcome]:
    """The rows of all files by root, so that all of one input are together: then the same kernel."""
    manifest = Manifest(tuple(portion.files))
    stored = with_position(read_stored(job, manifest), manifest, POSITION)
    identity = [n for n in (ANCHORS, ROOT, PARENT, INPUT) if n in stored.columns]
    marks = [n for n in (FAILED, DROPPED, CARRIED) if n in stored.columns]
    seen = Witness(*identity)
    rows = seen.watch(stored.select(*identity, POSITION, *marks))
    flat = by_anchor(rows) if ANCHORS in identity else rows.where(F.col(ROOT).isNotNull())
    buckets = max(run.batch.ackers, manifest.rows // MOST_ROWS + 1)
    parted = flat.repartition(buckets, ROOT)
    found = _by_rows(job, run, parted, replace(portion, files=()).fold_table, first)
    found[0] = replace(found[0], wrote=Seen(*seen.seen))
    return found


def _by_rows(
    job: Job,
    run: OpenedRun,
    rows: DataFrame,
    fold_table: Callable[[pa.Table], Folded],
    first: int,
) -> list[Outcome]:
    """Fold and post the rows of each partition by themselves."""
    fields = to_arrow_schema(rows.schema)
    work = partial(
        _fold_rows, job.database.dsn, run.batch.batch_id, run.run_id, first, fold_table, fields
    )
    return _collected(run, rows, work)


def _fold_rows(
    dsn: str, batch_id: int, run_id: int, first: int, fold_table: Callable[[pa.Table], Folded],
    fields: pa.Schema, batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    context = TaskContext.get()
    assert context is not None
    given = list(batches)
    folded = fold_table(pa.Table.from_batches(given, given[0].schema if given else fields))
    bucket = first + context.partitionId()
    yield _told(folded, posting.post_bucket(dsn, batch_id, run_id, bucket, folded.deltas))


def by_anchor(output: DataFrame) -> DataFrame:
    """Rows of several anchors (``_anchors``: root, parent and maybe input, sorted) as a row for each. ``_first``:
    whether it is the row's first of that root. ``_shared``: whether the row has others."""
    one = F.col("_one")
    anchor = output.schema[ANCHORS].dataType.elementType  # type: ignore[attr-defined]
    fields = [name for name in anchor.names if name != "unit"]
    before = F.get(F.col(ANCHORS), F.col("_place") - 1)["root"]
    shared = F.array_min(ANCHORS)["root"] != F.array_max(ANCHORS)["root"]
    rows = output.select("*", F.posexplode(ANCHORS).alias("_place", "_one"))
    return rows.select(
        *(name for name in output.columns if name != ANCHORS),
        *(one[name].alias(f"_{name}") for name in fields),
        (~before.eqNullSafe(one["root"])).alias(FIRST),
        shared.alias(SHARED),
    )


def _told(folded: Folded, posted: Posted) -> pa.RecordBatch:
    told = {
        "posted": asdict(posted),
        "wrote": asdict(folded.wrote),
        "read_carried": folded.read_carried,
        "with_rows": folded.deltas.with_rows,
        "drops": dict(folded.deltas.drops),
    }
    return pa.RecordBatch.from_pylist([{"told": json.dumps(told)}])


def _collected(
    run: OpenedRun, frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]]
) -> list[Outcome]:
    """What the tasks tell. The job is started once; Spark may run each task as often as it likes. The address of
    the ledger travels in the task's closure, never in an argument."""
    try:
        rows = frame.mapInArrow(work, _TOLD).collect()
    except SPARK_ERRORS as exc:
        raise _refused(run, exc) from exc
    return [_heard(run, json.loads(row["told"])) for row in rows]


def _heard(run: OpenedRun, told: dict[str, Any]) -> Outcome:
    posted, wrote = Posted(**told.pop("posted")), Seen(**told.pop("wrote"))
    return Outcome(run, posted, wrote, **told)


def _refused(run: OpenedRun, exc: Exception) -> Exception:
    batch_id = run.batch.batch_id
    if f'UndefinedTable: relation "{posting.partition(batch_id)}"' in str(exc):
        return FencedError(
            f"batch {batch_id} was decided and its deltas were removed: run {run.run_id} "
            "comes too late and "
            f"changes nothing. See what became of it: ackledger status --batch {batch_id}"
        )
    reason = unavailable(exc)
    if reason is None:
        return exc
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
    """Whether rows of one input may lie in several files, so that no file can be folded by itself."""
    if not isinstance(portion, Output) or portion.acks.by_reading or len(portion.files) < 2:
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
    with fsspec.open(file.path, "rb") as stream:
        metadata = pq.read_metadata(stream)
    found = []
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            if column.path_in_schema in (PARENT, f"{ANCHORS}.list.element.parent"):
                known = column.statistics
                if known is None or (
                    not known.has_min_max and known.null_count != column.num_values
                ):
                    return _UNKNOWN
                if known.has_min_max:
                    found.append((known.min, known.max))
    if not found:
        return None
    return min(low for low, _ in found), max(high for _, high in found)
