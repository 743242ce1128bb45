"""Carry over: in a replay by unit record-wise steps run for the records that failed there. What
they had made of the others is taken from the latest batch that emitted them, under the roots
that the replay gives these.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ledger.batch.step_runs import OpenedRun
from ledger.core.column_names import CARRIED, ERROR, FAILED, MESSAGE, ROOT, UNIT, is_own
from ledger.core.commands import ackledger
from ledger.core.states import BatchKind, RunState
from ledger.errors import InputError, IntegrityError, StageError
from ledger.pipeline.steps import SourceStep, StageStep
from ledger.spark.frames.inputs import delivered_rows, stored_rows, user_columns
from ledger.spark.frames.stored import local_numbers
from ledger.spark.job import Job
from ledger.store.queries import batches, replays, runs
from ledger.store.queries.runs import Run

Frames = Mapping[str, DataFrame]


def with_carried(job: Job, run: OpenedRun, step: SourceStep, records: DataFrame) -> DataFrame:
    """The records of a replay by unit, which have ``MESSAGE``, with ``CARRIED``: the root
    under which all that record-wise stages make of a record is stored; null for one that they
    are to run for again.
    """
    if not job.pipeline.graph.carries(step.name):
        return records
    original = run.batch.original_id
    again = job.database.transact(lambda c: replays.messages_to_run(c, original, step.name))
    emits = job.database.transact(lambda c: replays.settled_emits(c, original))
    marked = local_numbers(job.spark, MESSAGE, again).withColumn(FAILED, F.lit(True))
    rows, latest = records.join(marked, MESSAGE, "left"), F.col(MESSAGE)
    earlier = [
        stored_rows(job, emit.emit_run_id, ROOT, emit.first_root).select(MESSAGE, ROOT)
        for emit in emits
        if emit.source == step.name and emit.batch_id != original
    ]
    if earlier:
        newest = (
            reduce(DataFrame.unionByName, earlier).groupBy(MESSAGE).agg(F.max(ROOT).alias(ROOT))
        )
        rows, latest = rows.join(newest, MESSAGE, "left"), F.coalesce(ROOT, MESSAGE)
    complete = F.col(FAILED).isNull() & F.col(ERROR).isNull()
    names = [f"`{name}`" for name in records.columns]
    return rows.select(*names, F.when(complete, latest).alias(CARRIED))


def carry_over(
    job: Job, run: OpenedRun, step: StageStep, frames: Frames
) -> "RunsForAll | CarryOver":
    """Return for which rows of ``frames`` a stage runs, and what it carries over in a replay.

    Raises InputError if an earlier batch that has the rows had no such stage.
    """
    if run.batch.kind is not BatchKind.REPLAY or not job.pipeline.graph.carries(step.name):
        return RunsForAll(frames)
    carried = _carried_roots(job, run, step)
    counts = {} if carried is None else _batches_of(job, run, carried)
    if carried is None or not counts:
        return RunsForAll(frames)
    return CarryOver(job, run, step, frames, carried, counts)


class RunsForAll:
    """A stage that runs for every row that it reads, those too that others carried over before.

    ``fresh``: the rows that it runs for. ``takes_over``: whether it reads others, which it acks by
    reading.
    """

    def __init__(self, frames: Frames):
        self.fresh: Frames = {
            name: frame.drop(CARRIED) if CARRIED in frame.columns else frame
            for name, frame in frames.items()
        }
        self.takes_over = False

    def united(self, output: DataFrame) -> DataFrame:
        """Return the output as it is."""
        return output


class CarryOver:
    """The records that a stage does not run for in a replay: the rows of them that it reads,
    which it acks by reading, and those that it made of them in earlier batches, which it hands
    on.
    """

    def __init__(
        self,
        job: Job,
        run: OpenedRun,
        step: StageStep,
        frames: Frames,
        roots: DataFrame,
        counts: Mapping[int, int],
    ):
        self._job, self._run, self._step = job, run, step
        self._roots, self._counts = roots, counts
        self.fresh: Frames = {name: _fresh(frame) for name, frame in frames.items()}
        self.takes_over = any(CARRIED in frame.columns for frame in frames.values())
        self._stored = {
            batch_id: _stored_run(job, step, batch_id, records)
            for batch_id, records in counts.items()
        }

    def united(self, output: DataFrame) -> DataFrame:
        """Return the stage's output for the rows that it ran for, with the rows that are carried
        over.

        Raises StageError unless both have the same columns.
        """
        for batch_id, stored in self._stored.items():
            if stored is not None:
                rows = delivered_rows(self._job, stored)
                self._check(output.schema, rows.schema, batch_id)
                output = output.unionByName(self._renamed(rows), allowMissingColumns=True)
        nothing = F.lit(None).cast("bigint")
        return output if CARRIED in output.columns else output.withColumn(CARRIED, nothing)

    def _renamed(self, rows: DataFrame) -> DataFrame:
        """Rows of an earlier batch under the roots, and with the units, that this one gives
        their records.
        """
        columns = [name for name in (ROOT, UNIT) if name in self._roots.columns]
        roots = self._roots.select(F.col(CARRIED).alias(ROOT), F.struct(*columns).alias(CARRIED))
        names = user_columns(rows)
        joined = rows.select(*names, ROOT).join(roots, ROOT, "inner")
        own = [F.col(CARRIED)[name].alias(name) for name in columns]
        return joined.select(*names, *own, F.col(ROOT).alias(CARRIED))

    def _check(self, schema: StructType, stored: StructType, batch_id: int) -> None:
        if ROOT not in stored.names:
            why = "its rows there were of several records, or not tracked"
            raise _misfit(self._step, batch_id, self._counts[batch_id], why)
        expected, actual = _columns(stored), _columns(schema)
        if sorted(expected) != sorted(actual):
            raise StageError(
                f"stage {self._step.name!r} returned the columns {', '.join(actual)}; batch"
                f" {batch_id}, from which the rows of {self._counts[batch_id]} records that did not"
                f" fail are carried over, has {', '.join(expected)}: expected the same names and"
                " types. Declare the stage as it was, or reprocess the interval"
            )


def _fresh(frame: DataFrame) -> DataFrame:
    """The rows that are not carried over, without the column that marks those."""
    if CARRIED not in frame.columns:
        return frame
    return frame.where(F.col(CARRIED).isNull()).drop(CARRIED)


def _carried_roots(job: Job, run: OpenedRun, step: StageStep) -> DataFrame | None:
    """Return the records that a stage does not run for: ``ROOT`` here, ``CARRIED`` and, with
    units, ``UNIT``; None if its sources name none.
    """
    graph, frames = job.pipeline.graph, []
    for source, read in run.sources.items():
        if read.emitted and source in graph.sources(step.name) and graph.in_units(source):
            rows = stored_rows(job, read.step_run_id, ROOT, read.emitted.first_root)
            if CARRIED in rows.columns:
                own = [name for name in (ROOT, CARRIED, UNIT) if name in rows.columns]
                frames.append(rows.where(F.col(CARRIED).isNotNull()).select(*own))
    return reduce(DataFrame.unionByName, frames) if frames else None


def _batches_of(job: Job, run: OpenedRun, roots: DataFrame) -> dict[int, int]:
    """Count the records that are carried over, by batch."""
    emits = job.database.transact(lambda c: replays.settled_emits(c, run.batch.original_id))
    ranges = [(emit.batch_id, emit.first_root, emit.numbers.stop - 1) for emit in emits]
    spans = job.spark.createDataFrame(
        ranges, "_ackledger_batch bigint, _ackledger_first bigint, _ackledger_last bigint"
    )
    within = F.col(CARRIED).between(F.col("_ackledger_first"), F.col("_ackledger_last"))
    joined = roots.select(CARRIED).join(F.broadcast(spans), within, "left")
    groups = joined.groupBy("_ackledger_batch").agg(F.count("*")).collect()
    counts = {row[0]: row[1] for row in groups}
    if None in counts:
        raise IntegrityError(
            f"batch {run.batch.batch_id}: {counts[None]} records are carried over that no settled"
            f" batch of batch {run.batch.original_id} has read. Run all of its steps again; first"
            f" type: {ackledger('restart', run.batch.batch_id)}"
        )
    return counts


def _stored_run(job: Job, step: StageStep, batch_id: int, records: int) -> Run | None:
    """The run of a stage that counts in an earlier batch. None if it never committed there: then
    nothing reached it of records that did not fail. Raises InputError if the batch had no such
    stage, or with other inputs.
    """
    batch = job.database.transact(lambda c: batches.get_batch(c, batch_id))
    stages = {each.name: each for each in batch.topology if each.kind == "stage"}
    if step.name not in stages:
        raise _misfit(step, batch_id, records, f"its stages were {', '.join(stages) or 'none'}")
    read = stages[step.name].reads
    if sorted(read) != sorted(step.inputs):  # what came by another input was never in its output
        raise _misfit(step, batch_id, records, f"it read {', '.join(read)} there")
    step_runs = job.database.transact(lambda c: runs.runs_of(c, batch_id))
    committed = [run for run in step_runs if run.state is RunState.COMMITTED]
    return next((run for run in committed if run.step == step.name), None)


def _misfit(step: StageStep, batch_id: int, records: int, difference: str) -> InputError:
    return InputError(
        f"stage {step.name!r}: expected its rows of {records} records that did not fail in batch"
        f" {batch_id}, from which they are carried over; {difference}. Declare the pipeline as it"
        " was, or reprocess the interval"
    )


def _columns(schema: StructType) -> list[str]:
    """The user's columns of a stage's output, with their types."""
    return [f"{f.name} {f.dataType.simpleString()}" for f in schema if not is_own(f.name)]
