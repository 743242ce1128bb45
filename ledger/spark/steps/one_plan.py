"""Run consecutive steps as one Spark job, prove that every row arrived, and commit their runs.

Only the last step writes its rows: a stage, or the sink of a line of stages. Where the stages
before it hand rows on, these are counted with XOR and sum. Rows that did not arrive run through the
stages once more, one stage after the other, with files: this says where each ended, and why. The
plan is accepted if these rows are all that is missing wherever rows were counted. Otherwise nothing
of it counts, and its steps run one by one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.batch.one_plans import OpenedPlan, PlannedSteps, commit_plan
from ledger.batch.step_runs import Record, StepOutput
from ledger.batch.whole import note_whole
from ledger.core.column_names import ANCHORS, NUMBERS, PARENT, POSITION, ROOT
from ledger.deltas.portions import Output, PassedOn, Portion, Reading, fold_in_plan
from ledger.deltas.rows import Longs
from ledger.deltas.stored import Checksum
from ledger.deltas.unarrived import UnarrivedRows
from ledger.errors import FencedError, RejectedPlanError, UnavailableError
from ledger.lineage.anchors import RowNumbers
from ledger.pipeline.steps import StageStep
from ledger.spark.actions import noting_actions
from ledger.spark.failures import recorded, translated
from ledger.spark.folding.fold import fold
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.frames.anchors import Rooting, anchor_type, rooting
from ledger.spark.frames.inputs import input_frames, passed_on
from ledger.spark.frames.side_inputs import side_inputs
from ledger.spark.frames.stored import read_files
from ledger.spark.job import Job
from ledger.spark.steps.losses import StageLosses
from ledger.spark.steps.plan_ends import PlanEnd, Rerun, SinkEnd, StageEnd
from ledger.spark.steps.stage import StageOutput, stage_output, warn_of_unusual_drops
from ledger.spark.tracking import (
    StageFiles,
    edges_of,
    output_portion,
    posted,
    readings,
    write_output,
)
from ledger.storage.manifest import Manifest
from ledger.types.spark import local_rows

ANSWER_SECONDS = 60.0  # for which counts are waited for once the rows are written

_log = logging.getLogger(__name__)


def run_plan(job: Job, plan: OpenedPlan, steps: PlannedSteps) -> list[Record]:
    """Run steps as one plan and commit their runs. Return what was recorded of each.

    Raises RejectedPlanError, with nothing committed, also where a step fails: run by itself, it
    says why.
    """
    try:
        return _OnePlan(job, plan, steps).run()
    except Exception as exc:
        if isinstance(translated(exc), RejectedPlanError | FencedError | UnavailableError):
            raise
        raise RejectedPlanError(recorded(exc)) from exc


@dataclass
class _OnePlan:
    """One try of a plan.

    ``borders``: what was counted of the rows of each stage that does not write them.
    ``by_row``: the stages before the first whole one. A second run has only some of the rows, so it
    ends there.
    """

    job: Job
    plan: OpenedPlan
    steps: PlannedSteps
    borders: list[Rooting] = field(default_factory=list)
    by_row: Sequence[StageStep] = ()

    @property
    def stages(self) -> Sequence[StageStep]:
        """The stages of the plan, in order."""
        return self.steps.stages

    def run(self) -> list[Record]:
        runs = self.plan.runs
        arguments = [
            side_inputs(self.job, run.batch, step)
            for run, step in zip(runs, self.stages, strict=False)
        ]
        end = self._write(arguments)
        (reading,) = readings(self.job, runs[0])
        self._require_whole(reading)
        missing = end.missing(reading)
        absent = missing.position
        if len(absent):
            self._require_lists_possible()
        reruns = self._rerun(missing, arguments)
        outputs: list[StepOutput] = []
        rows = runs[0].input_run.output_rows or 0
        for place in range(len(self.borders)):
            outputs.append(self._inner(place, reading, absent, reruns[place], rows))
            rows = outputs[-1].record.output_rows
        outputs.append(end.output(reading, absent, reruns[-1], rows))
        self.job.require_inputs(runs[0])
        commit_plan(self.job.database, self.plan, outputs)
        for run, each in zip(runs, outputs, strict=True):
            warn_of_unusual_drops(self.job, run, each.losses)
        return [each.record for each in outputs]

    def _write(self, arguments: Sequence[Mapping[str, Any]]) -> PlanEnd:
        """Write the rows of the last step, and count those of the others on their way."""
        job, sink, run = self.job, self.steps.sink, self.plan.runs[-1]
        frames = input_frames(job, self.plan.runs[0])
        last, reaching = self.stages[-1], None
        for place, (step, own) in enumerate(zip(self.stages, arguments, strict=True)):
            output = self._output(step, frames, own)
            gathering = [*map(str, output.gathering)]
            note_whole(job.database, job.pipeline, self.plan.runs[place], gathering)
            if reaching is None and gathering:
                (reaching,) = frames.values()
            if reaching is None:
                self.by_row = self.stages[: place + 1]
            rows = output.rows
            if step is not last or sink is not None:
                border = rooting(job.pipeline, step, rows.columns)
                self.borders.append(border)
                frames = self._next_frames(step, border.watch(rows))
        end: PlanEnd = StageEnd(job, run, last)
        if sink is not None:
            (rows,) = frames.values()
            end = SinkEnd(job, run, sink, self.plan.runs[-2], last, reaching)
        for place, border in enumerate(self.borders):
            if border.wrote.occurrences(rows) != 1:
                raise RejectedPlanError(
                    f"rows of stage {self.stages[place].name!r} are not read once: a stage after it"
                    " uses its input more than once, or Spark has left them out"
                )
        end.write(rows)
        if not all(border.wrote.answers(ANSWER_SECONDS) for border in self.borders):
            raise RejectedPlanError("Spark has not said how many rows it counted")
        return end

    def _require_whole(self, reading: Reading) -> None:
        """Raise RejectedPlanError if a whole stage, or one behind it, has another number of records
        than reached the first whole stage. ``output`` of the plan's end shows whether they are the
        same records.
        """
        expected = reading.size
        if self.by_row and len(self.by_row) <= len(self.borders):
            before = self.borders[len(self.by_row) - 1]
            expected = before.records.rows - before.wrote.failed - before.wrote.dropped
        for place in range(len(self.by_row), len(self.borders)):
            counted = self.borders[place].records.rows
            if counted != expected:
                raise RejectedPlanError(
                    f"{expected:,} records reached stage {self.stages[len(self.by_row)].name!r},"
                    f" whose rows depend on which others there are, and {counted:,} are behind"
                    f" {self.stages[place].name!r}: some ended there, or are there twice"
                )

    def _require_lists_possible(self) -> None:
        """Raise RejectedPlanError if a row has more records than a list may have. Records that did
        not arrive are replayed with all others of the batch, step by step.
        """
        limit = self.job.pipeline.max_anchors
        for step, border in zip(self.stages, self.borders, strict=False):
            if border.most > limit:
                raise RejectedPlanError(
                    f"stage {step.name!r} has a row of {border.most:,} records, max_anchors is"
                    f" {limit:,}, and a replay of the records that ended before it needs lists"
                )

    def _output(
        self, step: StageStep, frames: Mapping[str, DataFrame], arguments: Mapping[str, Any]
    ) -> StageOutput:
        form = None if self.steps.sink is None else RowNumbers(anchor_type(step))
        with noting_actions(next(iter(frames.values()))) as actions:
            output = stage_output(self.job.pipeline, step, frames, arguments, form)
        # It might ask for other rows the second time, and what it runs counts at earlier borders.
        if actions.has_calls:
            raise RejectedPlanError(
                f"stage {step.name!r} asks for rows ({actions}) before it returns its frame"
            )
        columns, writes = output.rows.columns, step.name == self.steps.names[-1]
        if ANCHORS in columns and not writes:
            raise RejectedPlanError(f"a row of stage {step.name!r} may come from several records")
        if NUMBERS[0] in columns and ROOT in columns:
            raise RejectedPlanError(
                f"stage {step.name!r} marks rows of one record, beside rows of several"
            )
        return output

    def _next_frames(self, step: StageStep, rows: DataFrame) -> Mapping[str, DataFrame]:
        """Return the rows that a stage hands on. Each keeps its position in the plan's input, or
        the numbers of its records.
        """
        following = self.steps.names[self.stages.index(step) + 1]
        if PARENT in rows.columns:
            rows = rows.withColumn(POSITION, F.col(PARENT))
        handed = passed_on(rows)
        return {step.name: self.job.on_read(following, handed)}

    def _rerun(self, missing: UnarrivedRows, arguments: Sequence[Mapping[str, Any]]) -> list[Rerun]:
        """Run the rows that did not arrive through each stage, as far as they come. Raises
        RejectedPlanError if some come through all stages before the first whole one.
        """
        reruns = [Rerun() for _ in self.stages]
        if not len(missing.position):
            return reruns
        names = ", ".join(step.name for step in self.by_row or self.stages[:1])
        _log.info("%s: running %s rows again that did not arrive", names, len(missing.position))
        frames = {
            name: rows.join(
                local_rows(self.job.spark, {POSITION: pa.array(missing.position)}),
                POSITION,
                "left_semi",
            )
            for name, rows in input_frames(self.job, self.plan.runs[0]).items()
        }
        for place, (run, step) in enumerate(zip(self.plan.runs, self.by_row, strict=False)):
            output = self._output(step, frames, arguments[place])
            if output.gathering:
                raise RejectedPlanError(f"stage {step.name!r} has another plan the second time")
            first = write_output(self.job, step, output.rows, f"{self.job.folder(run)}/rerun")
            arrived, passing = _positions(output_portion(self.job, run, step, first))
            written = [first]
            losses = StageLosses(self.job, run, step, output.rows.schema, output.followed, written)
            lost = missing.without(arrived)
            if len(lost.position):
                losses.attribute_losses([lost])
            missing = missing.among(passing)
            reruns[place] = Rerun(written, losses.record(), len(passing))
            if not len(passing):
                return reruns
            if step is not self.stages[-1]:
                rows = read_files(self.job.spark, first.manifest)
                frames = dict(self._next_frames(step, rows))
        number, others = len(missing.position), self.stages[len(self.by_row) :]
        if others:
            raise RejectedPlanError(
                f"{number:,} rows did not arrive, and end at no stage before {others[0].name!r},"
                " whose rows depend on which others there are"
            )
        raise RejectedPlanError(
            f"{number:,} rows arrived only the second time: a stage gives another answer to the"
            " same rows"
        )

    def _inner(
        self, place: int, reading: Reading, absent: Longs, rerun: Rerun, input_rows: int
    ) -> StepOutput:
        """Return what a stage commits that wrote only the rows that did not arrive. Raises
        RejectedPlanError unless these are all that is missing among the rows counted there.
        """
        job, run, step = self.job, self.plan.runs[place], self.stages[place]
        border = self.borders[place]
        edges = edges_of(job, run)
        arrived = PassedOn(reading.files, edges, reading.size, roots=reading.roots, absent=absent)
        own = partial(fold_in_plan, emits_one=step.emits == "one")
        portions: list[Portion] = [
            arrived,
            *(Output(each.manifest.files, own, edges, each.anchors) for each in rerun.written),
        ]
        passed = (self.plan.runs[0].input_run.output_rows or 0) - len(absent) + rerun.passed
        first, *drops = [*rerun.written] or [StageFiles(Manifest(()), Checksum())]

        def check(outcome: FoldOutcome) -> None:
            counted = sum((each.checksum for each in drops), border.records)
            marks = border.wrote.failed, border.wrote.dropped
            if (outcome.wrote, first.failed, first.dropped) != (counted, *marks):
                raise RejectedPlanError(
                    f"behind stage {step.name!r} {counted} were counted, and what arrived and what"
                    f" ran again are {outcome.wrote}: a stage gives other rows the second time, or"
                    " several rows of one"
                )
            if outcome.posted.emitted_edges != passed * len(edges.consumers):
                raise RejectedPlanError(f"stage {step.name!r} makes several rows of one")

        border.check()
        outcome = fold(job, run, portions, check)
        rows = border.wrote.rows - border.wrote.failed - border.wrote.dropped
        record = posted(Record(input_rows, rows, first.failed), outcome)
        return StepOutput(
            record, rerun.files.files, outcome.post, outcome.drops, losses=rerun.losses
        )


def _positions(output: Output) -> tuple[Longs, Longs]:
    """Return the input positions of a stage's rows, and of those that go on. Raises
    RejectedPlanError if two rows have the same.
    """
    arrived, passing = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for file in output.files:
        for part in output.parts(file):
            parent, goes_on = part.rows.parent, part.rows.goes_on
            arrived.append(parent)
            passing.append(parent if goes_on is None else parent[goes_on])
    positions = np.concatenate(arrived)
    if len(np.unique(positions)) != len(positions):
        raise RejectedPlanError(f"stage {output.edges.step!r} makes several rows of one")
    return np.sort(positions), np.sort(np.concatenate(passing))
