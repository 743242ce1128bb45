"""Write the rows of a plan's last step: a stage, or the sink of a line of stages.

The plan's other steps are in ``ledger.spark.steps.one_plan``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.step_runs import OpenedRun, OperationLoss, Record, StepOutput
from ledger.core.column_names import NUMBERS, PARENT, POSITION, ROOT
from ledger.deltas.portions import PassedOn, Reading
from ledger.deltas.rows import Longs
from ledger.deltas.stored import Checksum
from ledger.deltas.unarrived import UnarrivedRows, unarrived_rows
from ledger.errors import RejectedPlanError
from ledger.pipeline.steps import SinkStep, StageStep
from ledger.spark.folding.fold import fold
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.frames.anchors import record_witness, records_of
from ledger.spark.frames.misplaced import counting_misplaced, misplaced_number
from ledger.spark.frames.refused import plan_of
from ledger.spark.job import STORED, Job, Witness, write_files
from ledger.spark.steps.sink import StagedRows, refused_rows, stage_delivery
from ledger.spark.tracking import (
    StageFiles,
    ack_plan_of_stage,
    edges_of,
    output_portion,
    posted,
    write_output,
)
from ledger.storage.manifest import Manifest, take_manifest
from ledger.types.spark import nullable, quoted

MOST_MISSING = 0.25  # share of a plan's input that may run again
FEW_MISSING = 10_000  # rows that may run again, whatever their share is


@dataclass(frozen=True)
class Rerun:
    """Rows of a plan's input that did not arrive at its end, run through one stage.

    ``written``: what they came to there; after the first, rows that operations dropped on purpose.
    ``passed``: how many go on.
    """

    written: Sequence[StageFiles] = ()
    losses: Sequence[OperationLoss] = ()
    passed: int = 0

    @property
    def files(self) -> Manifest:
        """All files of the stage."""
        return sum((each.manifest for each in self.written), Manifest(()))


class PlanEnd(Protocol):
    """The last step of a plan, which writes the plan's rows."""

    def write(self, rows: DataFrame) -> None:
        """Write the rows, which runs the plan. Raises RejectedPlanError if they do not count."""

    def missing(self, reading: Reading) -> UnarrivedRows:
        """Return the rows of the plan's input that did not arrive. Raises RejectedPlanError if they
        are too many.
        """

    def output(self, reading: Reading, absent: Longs, rerun: Rerun, input_rows: int) -> StepOutput:
        """Return what the step commits. Raises RejectedPlanError unless its rows are those of the
        plan's input without the ``absent`` positions.
        """


def require_few(missing: int, rows: int) -> None:
    """Raise RejectedPlanError if too many rows of a plan's input did not arrive."""
    if missing > max(FEW_MISSING, MOST_MISSING * rows):
        raise RejectedPlanError(
            f"{missing:,} of {rows:,} rows did not arrive, which is too many to run them again one"
            " by one"
        )


@dataclass
class StageEnd:
    """A stage that writes a plan's rows. Some may be marked as failed or dropped."""

    job: Job
    run: OpenedRun
    step: StageStep
    written: StageFiles = field(init=False)

    def write(self, rows: DataFrame) -> None:
        """Write the rows as the stage's output."""
        self.written = write_output(self.job, self.step, rows, self.job.folder(self.run))

    def missing(self, reading: Reading) -> UnarrivedRows:
        """Return the input rows that no row in the written files comes from."""
        output = output_portion(self.job, self.run, self.step, self.written)
        (missing,) = unarrived_rows([reading], output)
        require_few(len(missing.position), reading.size)
        return missing

    def output(self, reading: Reading, absent: Longs, rerun: Rerun, input_rows: int) -> StepOutput:
        """Return what the stage commits: its rows, and those of the second run that ended here."""
        job, run = self.job, self.run
        files = [self.written, *rerun.written]
        plan = ack_plan_of_stage(job, run, self.step, files)
        outcome = fold(job, run, plan.portions, plan.check)
        failed = sum(each.failed for each in files)
        rows = self.written.manifest.rows - self.written.failed - self.written.dropped
        record = posted(Record(input_rows, rows, failed), outcome)
        manifest = sum((each.manifest for each in files), Manifest(()))
        return StepOutput(
            record, manifest.files, outcome.post, plan.drops(outcome), losses=rerun.losses
        )


@dataclass
class SinkEnd:
    """The sink of a line of stages that begins at a source. It stages a plan's rows.

    A record has one row at most wherever rows are counted, so a record that ends at a stage has no
    row in the sink: nothing is withheld from what the sink has staged.

    ``stage_run``, ``stage``: the last stage, which the sink reads; rows that arrived are read as
    its output.
    ``reaching``: the rows that reach the plan's first whole stage, with root and position, because
    rows of several records do not say which these are. None: the plan has no whole stage.
    """

    job: Job
    run: OpenedRun
    step: SinkStep
    stage_run: OpenedRun
    stage: StageStep
    reaching: DataFrame | None = None
    wrote: Witness = field(init=False)
    staged: StagedRows = field(init=False)

    def write(self, rows: DataFrame) -> None:
        """Stage the rows. Raises RejectedPlanError if the sink refuses some of them."""
        job, run, step = self.job, self.run, self.step
        rows = _nullable(rows)
        plan_of(step, job.publisher(step), rows)
        self.wrote = record_witness(rows.columns, counting_misplaced(step))
        self.staged = stage_delivery(job, run, step, rows, self.wrote)
        misplaced = misplaced_number(self.wrote)
        if misplaced:  # computed again, they could be other rows
            raise RejectedPlanError(
                f"sink {step.name!r} has no folder for {misplaced:,} of its rows"
            )
        refused = refused_rows(job, run, step, self.staged, self.wrote)
        if refused is not None:
            refused.release()
            raise RejectedPlanError(f"sink {step.name!r} refuses rows of {refused.rows:,} records")

    def missing(self, reading: Reading) -> UnarrivedRows:
        """Return the input rows that are not among the staged rows. If there are such rows, the
        plan runs again with no columns but root and position, because no staged file has both.
        """
        missing = reading.size - records_of(self.wrote).rows
        if missing <= 0:  # ``output`` shows whether these are the same records
            return UnarrivedRows(0, np.empty(0, np.int64), np.empty(0, np.int64))
        require_few(missing, reading.size)
        folder = f"{self.job.folder(self.stage_run)}/arrived"
        rows = self.staged.rows if self.reaching is None else self.reaching
        write_files(rows.select(ROOT, F.col(POSITION).alias(PARENT)), folder, STORED)
        arrived = StageFiles(take_manifest(folder), Checksum())
        output = output_portion(self.job, self.stage_run, self.stage, arrived)
        (unarrived,) = unarrived_rows([reading], output)
        return unarrived

    def output(self, reading: Reading, absent: Longs, rerun: Rerun, input_rows: int) -> StepOutput:
        """Return what the sink commits: it acks each row that arrived, if these are the records of
        the rows that its writer got.
        """
        edges = edges_of(self.job, self.run)
        arrived = PassedOn(reading.files, edges, reading.size, roots=reading.roots, absent=absent)
        taken, manifest = records_of(self.wrote), self.staged.manifest

        def check(outcome: FoldOutcome) -> None:
            if outcome.wrote != taken:
                raise RejectedPlanError(
                    f"sink {self.step.name!r} took rows of {taken}, and those that arrived are"
                    f" {outcome.wrote}: a stage gives other rows the second time, or several rows"
                    " of one"
                )

        outcome = replace(fold(self.job, self.run, [arrived], check), proved=True)
        record = posted(Record(input_rows, manifest.rows), outcome)
        return StepOutput(record, manifest.files, outcome.post)


def _nullable(rows: DataFrame) -> DataFrame:
    """Return rows whose columns may be null, as a sink reads them from the files of a stage. A file
    that Spark writes says of each column whether it may.
    """
    columns = []
    number = POSITION if POSITION in rows.columns else NUMBERS[0]
    for each in rows.schema:
        column, kind = F.col(quoted(each.name)), nullable(each.dataType)
        if each.name != number and not (each.nullable and kind == each.dataType):
            # A condition that is true, which Spark does not know.
            either = F.when(F.col(number) >= 0, column).otherwise(F.lit(None).cast(kind))
            column = either.alias(each.name, metadata=each.metadata)
        columns.append(column)
    return rows.select(*columns)
