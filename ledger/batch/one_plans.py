"""Steps of a batch that run as one plan: which may, and how their runs open, commit and end.

Only the last step of a plan writes its rows: a stage, or the sink of a line of stages. The others
have files of what did not arrive there. See docs/decisions/052-stages-as-one-plan.md.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from sqlalchemy import Connection

from ledger.batch.step_runs import (
    MOST_FAILURE,
    Attempt,
    OpenedRun,
    StepOutput,
    begin_run,
    commit_in,
    open_run,
)
from ledger.core.probes import reached
from ledger.core.states import BatchKind, BatchStatus
from ledger.core.text import storable
from ledger.errors import FencedError, shown
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep, StageStep
from ledger.store.connection import Database
from ledger.store.queries import batches, one_plans, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.one_plans import StageHistory

MOST_REJECTIONS = 10  # that are counted: after them a plan is tried once in a thousand batches
# Share of rows that do not go on. Of a stage's rows: above it the stage runs by itself. Of a plan's
# rows, at all of its stages: above it the plan ends before the sink.
MOST_ENDED = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedSteps:
    """Consecutive steps of a batch that may run as one plan.

    ``sink``: the sink that reads the last of the ``stages``; None: the plan ends there.
    """

    stages: Sequence[StageStep]
    sink: SinkStep | None = None

    @property
    def names(self) -> list[str]:
        """Names of the steps, in order."""
        return [step.name for step in (*self.stages, *([self.sink] if self.sink else []))]


@dataclass(frozen=True)
class OpenedPlan:
    """Running runs of consecutive steps, each of which reads the one before it."""

    one_plan_id: int
    runs: Sequence[OpenedRun]


def plans_of(database: Database, pipeline: Pipeline, batch_id: int) -> list[PlannedSteps]:
    """Return the sequences of at least two consecutive steps that run as one plan in a batch. A
    batch that is no tracked original has none, nor has a pipeline without ``one_plan``.

    A stage takes part if at most ``MOST_ENDED`` of its input rows ended there in the pipeline's
    last settled original; a whole stage, or one behind it, if no record did. If a stage multiplied
    rows there, the sequence ends with it. Without the sink it also ends with its first whole stage,
    which writes the records of each row. A stage that read no rows there runs by itself, and so do
    all stages if the pipeline's steps have changed since. A plan that was rejected n times in a row
    pauses for 2 to the power of n originals; one of stages and their sink is replaced by its stages
    then.
    """

    def work(connection: Connection) -> list[PlannedSteps]:
        batch = batches.get_batch(connection, batch_id)
        if not (pipeline.one_plan and batch.tracking and batch.kind is BatchKind.ORIGINAL):
            return []
        history = history_of(connection, batch)
        merging = {step.name for step in batch.topology if step.merges}
        plans: list[PlannedSteps] = []
        for stages in _plans(pipeline, merging, history):
            ways = [PlannedSteps(_up_to_whole(stages, merging))]
            sink = pipeline.graph.sink_after(stages)
            if sink is not None and _may_write(sink, batch, stages, history):
                ways.insert(0, PlannedSteps(stages, sink))
            for steps in ways:
                if len(steps.names) > 1 and _may_run(connection, batch, steps.names):
                    plans.append(steps)
                    break
        return plans

    return database.transact(work)


def history_of(connection: Connection, batch: Batch) -> Mapping[str, StageHistory]:
    """Return what the steps of a batch did in the last one, by name."""
    history = one_plans.stage_history(connection, batch.pipeline_id, batch.batch_id)
    return {step.step: step for step in history}


def _plans(
    pipeline: Pipeline, merging: Set[str], history: Mapping[str, StageHistory]
) -> Iterator[tuple[StageStep, ...]]:
    """Yield the longest sequences of stages, none of which needs files of the one before it. Some
    are empty. ``merging``: the whole stages and those behind them.
    """
    for stages in pipeline.graph.stages_in_a_row():
        plan: tuple[StageStep, ...] = ()
        for stage in stages:
            if stage.name not in history or _ends_many(history[stage.name], merging):
                yield plan
                plan = ()
            elif plan and history[plan[-1].name].multiplies:
                yield plan
                plan = (stage,)
            elif plan or merging.isdisjoint(stage.inputs):  # a plan's input has one record a row
                plan = (*plan, stage)
        yield plan


def _up_to_whole(stages: Sequence[StageStep], merging: Set[str]) -> Sequence[StageStep]:
    """Return the stages up to the first whole one, with it."""
    whole = (number for number, stage in enumerate(stages, 1) if stage.name in merging)
    return stages[: next(whole, None)]


def _ends_many(stage: StageHistory, merging: Set[str]) -> bool:
    """Return whether so many rows ended at a stage that it has to run by itself. What ends at a
    whole stage, or behind one, always rejects a plan.
    """
    return stage.rows_ended > (0 if stage.step in merging else MOST_ENDED * stage.input_rows)


def _may_write(
    sink: SinkStep,
    batch: Batch,
    stages: Sequence[StageStep],
    history: Mapping[str, StageHistory],
) -> bool:
    """Return whether a sink may write the rows of a plan. Its files need not say which record a row
    comes from, so it must never have to withhold one. ``stages``: those of a line to the sink.
    """
    if not batch.exactly_once or sink.sink.dedup != "none" or sink.name not in history:
        return False
    ran = [history[step.name] for step in stages]
    ended = sum(stage.rows_ended for stage in ran)
    multiplies = any(stage.multiplies for stage in ran)
    refused = history[sink.name].failed_rows > 0
    return not (multiplies or refused or ended > MOST_ENDED * ran[0].input_rows)


def _may_run(connection: Connection, batch: Batch, steps: Sequence[str]) -> bool:
    """Return whether a plan was not rejected lately."""
    rejected = one_plans.last_rejections(connection, batch.batch_id, steps, MOST_REJECTIONS)
    if not rejected:
        return True
    pause = 1 << len(rejected)
    since = one_plans.originals_after(connection, batch.pipeline_id, rejected[0], pause + 1)
    return since > pause


def open_plan(
    database: Database, batch_id: int, steps: Sequence[str], attempt: Attempt
) -> OpenedPlan | None:
    """Open a run of each step, in one transaction; None if the batch is settled already.

    Raises what ``open_run`` raises.
    """
    first = open_run(database, batch_id, steps[0], attempt)
    if first is None:
        return None

    def work(connection: Connection) -> OpenedPlan:
        batches.lock_batch(connection, batch_id)
        opened = [first]
        for step in steps[1:]:
            before = opened[-1]
            read = {before.step: runs.get_run(connection, before.run_id)}
            opened.append(
                begin_run(
                    connection,
                    first.batch,
                    step,
                    attempt,
                    lambda all_runs, read=read: read,  # type: ignore[misc]
                    BatchStatus.OPEN,
                )
            )
        number = one_plans.insert_plan(connection, batch_id, steps)
        one_plans.set_plan(connection, [run.run_id for run in opened], number)
        return OpenedPlan(number, opened)

    return database.transact(work)


def commit_plan(database: Database, plan: OpenedPlan, outputs: Sequence[StepOutput]) -> None:
    """Make all runs of a plan count, in one transaction. Raises what ``commit`` raises."""

    def work(connection: Connection) -> None:
        for run, output in zip(plan.runs, outputs, strict=True):
            commit_in(connection, run, output)
        one_plans.end_plan(connection, plan.one_plan_id)

    database.transact(work)
    reached("run committed", plan.runs[-1].step)


def reject_plan(database: Database, plan: OpenedPlan, reason: str) -> None:
    """Note why the rows of a plan do not count. ``reason``: any text; what it quotes of records is
    left out if the pipeline redacts.

    Raises FencedError if a newer attempt has ended its runs, as which its jobs may have failed.
    """

    def work(connection: Connection) -> None:
        why = storable(shown(reason, masks=plan.runs[0].masks)[:MOST_FAILURE])
        one_plans.end_plan(connection, plan.one_plan_id, why)
        own = {run.step: run.run_id for run in plan.runs}
        for run in runs.runs_of(connection, plan.runs[0].batch.batch_id):
            if run.step_run_id > own.get(run.step, run.step_run_id):
                raise FencedError(
                    f"run {own[run.step]} of {run.step} was followed by a newer attempt: this one"
                    " stops"
                )

    database.transact(work)


def how_it_ran(connection: Connection, batch_id: int) -> list[str]:
    """Return a sentence for each plan of several steps of a batch: which they are, or why its rows
    do not count.
    """
    sentences = []
    for plan in one_plans.tried_plans(connection, batch_id):
        *others, last = plan.steps
        steps = f"{', '.join(others)} and {last}"
        if plan.rejected is None:
            sentences.append(f"{steps} ran as one plan: only {last} wrote its rows")
        else:
            sentences.append(f"{steps} ran one by one. As one plan: {plan.rejected}")
    return sentences
