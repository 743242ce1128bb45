"""Run steps of a batch: one, as spark-submit does for Airflow, or all of them in one process."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ledger.batch import recovery
from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import resume
from ledger.batch.one_plans import PlannedSteps, open_plan, plans_of, reject_plan
from ledger.batch.publishing import publish
from ledger.batch.step_runs import (
    Attempt,
    OpenedRun,
    Record,
    begin,
    fail,
    heartbeat,
    interrupt,
    note_folder,
    open_run,
)
from ledger.core.connect_server import briefly
from ledger.core.logs import about
from ledger.core.probes import reached
from ledger.core.states import BatchStatus
from ledger.errors import FencedError, RejectedPlanError, UnavailableError
from ledger.pipeline.steps import Step
from ledger.spark.failures import error_text, masking, recorded, redacted, translated, unread_runs
from ledger.spark.progress import Tasks, watching
from ledger.storage.folders import private_output

if TYPE_CHECKING:
    from ledger.spark.job import Job

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """Result of one step. ``record``, ``step_run_id``: None if the step did not run because it was
    already committed, or its batch was settled.
    """

    name: str
    record: Record | None
    seconds: float
    step_run_id: int | None = None


def run_step(job: "Job", batch_id: int, name: str, attempt: Attempt) -> StepResult:
    """Run one step of a batch as ``attempt``, and return its result. The result has no record if
    the batch is settled already. If the step raises, its run is ended first, and the error is
    raised again.

    A sink with at_least_once publishes its rows at once. If that fails, the error is only logged,
    and the rows are published after the settlement.

    Raises what ``open_run`` raises, too.
    """
    started = time.monotonic()
    step = job.pipeline.step(name)
    run = open_run(job.database, batch_id, name, attempt)
    if run is None:
        return StepResult(name, None, time.monotonic() - started)
    run = replace(run, masks=bool(job.pipeline.redact))
    with holding_lease(job, run):
        record = execute(job, run, step)
    if step.is_published and not run.batch.exactly_once:
        try:
            with masking(job.pipeline):
                publish(job, batch_id, [name])
        except Exception as exc:  # the step is done: its rows are published after the settlement
            _log.warning("sink %r is not published yet: %s", name, error_text(exc))
    return StepResult(name, record, time.monotonic() - started, run.run_id)


def run_steps(
    job: "Job",
    batch_id: int,
    on_step: Callable[[str, StepResult | None], None],
    attempt: Attempt | None = None,
) -> list[StepResult]:
    """Run the steps of a batch in order, as one attempt. Steps that are committed, and whose inputs
    are unchanged, do not run again. Steps that ``plans_of`` puts into one plan run together; if
    their plan is rejected, each runs by itself, as a new attempt.

    ``on_step``: called before each step, with None, and after it, with its result. For a step that
    does not run again, it is called once, with a result without a record. For stages in one plan,
    it is called as ``run_as_one_plan`` says.
    ``attempt``: None: a new attempt.
    """
    results: list[StepResult] = []
    trying = attempt or begin(job.database)
    done = recovery.finished(job.database, job.pipeline, batch_id)
    tried = plans_of(job.database, job.pipeline, batch_id) if job.sees_plans else []
    plans = {plan.stages[0].name: plan for plan in tried}
    for step in job.pipeline.steps():
        if step.name in {result.name for result in results}:
            continue
        plan = plans.get(step.name)
        if plan is not None and done.isdisjoint(plan.names):
            run = run_as_one_plan(job, batch_id, plan, trying, on_step)
            results += run
            if run:
                continue
            trying = replace(trying, attempt_id=uuid4())
        if step.name in done and done.issuperset(step.inputs):
            _log.info("batch %s: %s is committed and does not run again", batch_id, step.name)
            on_step(step.name, StepResult(step.name, None, 0.0))
            continue
        done.discard(step.name)  # the steps that read it run again, too
        on_step(step.name, None)
        results.append(run_step(job, batch_id, step.name, trying))
        on_step(step.name, results[-1])
    return results


def run_as_one_plan(
    job: "Job",
    batch_id: int,
    steps: PlannedSteps,
    attempt: Attempt,
    on_step: Callable[[str, StepResult | None], None],
) -> list[StepResult]:
    """Run consecutive steps of a batch as one Spark plan, and return a result for each of them.

    Return an empty list if the plan is rejected: then the caller runs each step by itself, as
    another attempt. If the batch is settled already, the results have no record, and ``on_step`` is
    not called.

    ``on_step``: called with None before the first step only, and with the result of each step.
    """
    from ledger.spark.steps.one_plan import run_plan

    names = ", ".join(steps.names)
    started = time.monotonic()
    plan = open_plan(job.database, batch_id, steps.names, attempt)
    if plan is None:
        return [StepResult(name, None, 0.0) for name in steps.names]
    masks = bool(job.pipeline.redact)
    plan = replace(plan, runs=[replace(run, masks=masks) for run in plan.runs])
    on_step(steps.names[0], None)
    try:
        with holding_lease(job, plan.runs[0], beside=plan.runs[1:]):
            records = run_plan(job, plan, steps)
    except RejectedPlanError as exc:
        reject_plan(job.database, plan, str(exc))
        _log.warning("batch %s: %s run one by one. As one plan: %s", batch_id, names, exc)
        return []
    seconds = time.monotonic() - started
    results = [
        StepResult(run.step, record, seconds, run.run_id)
        for run, record in zip(plan.runs, records, strict=True)
    ]
    for result in results:
        on_step(result.name, result)
    return results


@contextmanager
def holding_lease(job: "Job", run: OpenedRun, beside: Collection[OpenedRun] = ()) -> Iterator[None]:
    """Renew a run's lease while the block executes the run, and add its keys to log lines. If a
    newer attempt takes over, call ``job.on_fenced``, or else cancel the session's Spark jobs.

    If the block raises, end the run, add the command that goes on to the error, and raise it again;
    redacted if the pipeline redacts columns.

    ``beside``: runs that write in the same block, and end with it.
    """
    runs = [run, *beside]
    with ExitStack() as stack:
        stack.enter_context(about(**keys_of(run)))
        on_fenced = job.on_fenced or partial(_cancel, job)
        for step_run in runs:
            stack.enter_context(private_output(job.folder(step_run)))
        try:
            with ExitStack() as leases:  # left before the run's end is recorded, which is no fence
                for step_run in runs:
                    leases.enter_context(heartbeat(job.database, step_run.run_id, on_fenced))
                for step_run in runs:
                    note_folder(job.database, step_run, job.written_to(step_run))
                reached("run opened", run.step)
                leases.enter_context(watching(job.spark, partial(_log_progress, run)))
                yield
        except BaseException as exc:
            failure = redacted(exc) if job.pipeline.redact and isinstance(exc, Exception) else exc
            if not isinstance(exc, FencedError):
                settled = run.status is BatchStatus.SETTLED  # its caller has not named the step
                what = f"That was step {run.step!r} of batch {run.batch.batch_id}. "
                way = sentences(resume(run.batch, run.step))
                failure.add_note(f"{what if settled else ''}{way}")
            for step_run in runs:
                end(job, step_run, failure)
            if failure is exc:
                raise
            raise failure from None


def _log_progress(run: OpenedRun, tasks: Tasks, seconds: float) -> None:
    rows, batch_id = f"{tasks}, " if tasks.total else "", run.batch.batch_id
    _log.info("%s of batch %s: %s%.0f s", run.step, batch_id, rows, seconds)


def execute(job: "Job", run: OpenedRun, step: Step) -> Record:
    """Run a step with the function for its kind, and return the run's record."""
    from ledger.execution.runners import RUNNERS

    return RUNNERS[type(step)](job, run, step)


def keys_of(run: OpenedRun) -> dict[str, Any]:
    """Return the keys of a run for log lines: its batch, step and id."""
    return {"batch_id": run.batch.batch_id, "step": run.step, "step_run_id": run.run_id}


def _cancel(job: "Job") -> None:
    """Cancel the Spark jobs of this session, because a newer attempt has taken over the step."""
    _log.error("a newer attempt owns the step: this one is cancelled")
    briefly(job.spark.interruptAll)


def end(job: "Job", run: OpenedRun, exc: BaseException) -> None:
    """Record that a run failed, or that it was interrupted. A run is interrupted if it was stopped
    or fenced, if its plan was rejected, or if Spark, a database or a file system did not answer;
    the next attempt then continues at its step. An error while this is recorded is only logged.
    """
    reached("before failure", run.step)
    try:
        if isinstance(exc, KeyboardInterrupt):
            interrupt(job.database, run)
        elif isinstance(translated(exc), FencedError | UnavailableError | RejectedPlanError):
            interrupt(job.database, run, recorded(exc))
        else:
            fail(job.database, run, recorded(exc), unread_runs(exc))
    except Exception as second:  # the first is raised all the same
        _log.warning(
            "run %s could not be ended, its lease will lapse: %s", run.run_id, error_text(second)
        )
