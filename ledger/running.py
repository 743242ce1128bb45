"""Run steps of a batch: one, as spark-submit does for Airflow, or all of them in one process."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ledger import follow_ups, recovery, state_runs
from ledger.database.connection import Database
from ledger.errors import Failures, FencedError, NotReadyError, UnavailableError
from ledger.payloads import try_to_keep
from ledger.pipeline import Pipeline
from ledger.publishing import Published, lost, needs_withholding, publish, unshown
from ledger.queries import checkpoints, publications
from ledger.remote import briefly
from ledger.replaced import remove_replaced
from ledger.settlement import Settlement, settle_once
from ledger.spark.failures import recorded, told, translated
from ledger.stage_runs import (
    Attempt,
    OpenedRun,
    Record,
    begin,
    fail,
    heartbeat,
    interrupt,
    open_run,
)
from ledger.state_runs import Elsewhere, StateRun
from ledger.states import BatchStatus
from ledger.steps import CombineStep, SinkStep, SourceStep, StateStep, Step
from ledger.storage import private_output

if TYPE_CHECKING:
    from ledger.spark.job import Job

# How long to wait for another driver that is at a state, and how often to look.
STATE_WAIT_SECONDS = 300.0
STATE_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """What one step did. ``record`` is None if its batch was settled already."""

    name: str
    record: Record | None
    seconds: float


def run_step(
    job: "Job",
    batch_id: int,
    name: str,
    attempt: Attempt,
    on_fenced: Callable[[], None] | None = None,
) -> StepResult:
    """Run one step of a batch as ``attempt``.

    ``on_fenced``: called from another thread once a newer attempt owns the step; default: the
    session's jobs are cancelled. Raises what the step raised, after its run has ended.
    """
    started = time.monotonic()
    step = job.pipeline.step(name)
    run = open_run(job.database, batch_id, name, attempt)
    if run is None:
        return StepResult(name, None, time.monotonic() - started)
    record = _living(job, run, step, on_fenced)
    return StepResult(name, record, time.monotonic() - started)


def run_steps(
    job: "Job",
    batch_id: int,
    on_step: Callable[[str, StepResult | None], None],
    attempt: Attempt | None = None,
    on_fenced: Callable[[], None] | None = None,
) -> list[StepResult]:
    """Run the steps of a batch in order, as one attempt: those that are not committed, and what reads them.
    ``on_step`` hears of each before (None) and after. ``attempt``: default: one that begins now."""
    results: list[StepResult] = []
    trying = attempt or begin(job.database)
    done = recovery.finished(job.database, job.pipeline, batch_id)
    for step in job.pipeline.steps():
        if step.name in done and done.issuperset(step.inputs):
            _log.info("batch %s: %s is committed and does not run again", batch_id, step.name)
            continue
        done.discard(step.name)  # whatever reads it runs again, too
        on_step(step.name, None)
        results.append(run_step(job, batch_id, step.name, trying, on_fenced))
        on_step(step.name, results[-1])
    return results


def settle_and_follow(
    job: "Job",
    batch_id: int,
    *,
    now: datetime | None = None,
    on_fenced: Callable[[], None] | None = None,
    attempt: Attempt | None = None,
) -> Settlement:
    """Settle the batch if it can be decided at ``now``, then do what follows: its sinks show what is
    acked, folders that it has replaced go, its sources are told what became of it, and states over batches
    take in what is their turn. What fails of it is raised once the rest is done."""
    settlement = settle_once(job.database, batch_id, now=now)
    assert settlement is not None
    if settlement.status is BatchStatus.SETTLED:
        _follow(job, batch_id, on_fenced, attempt)
    return settlement


def _follow(
    job: "Job",
    batch_id: int,
    on_fenced: Callable[[], None] | None,
    attempt: Attempt | None,
) -> None:
    """Do what follows a settlement, in order: none of it waits for what fails before it."""
    failures = Failures(told)
    try_to_keep(job.database, batch_id)
    with failures.kept():
        publish_settled(job, batch_id)
    with failures.kept():
        combine(job, batch_id, on_fenced, attempt)
    with failures.kept():
        remove_replaced(job.database, batch_id)
    with failures.kept():
        notify(job, batch_id)
    with failures.kept():
        advance_states(job, batch_id, on_fenced)
    failures.raise_first()


def withhold(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.withhold``; starts nothing where nothing failed and no staged file is
    lost."""
    failures, done = Failures(told), []
    if needs_withholding(job.database, batch_id):
        from ledger.spark import withhold as withholding

        with failures.kept():
            done += withholding.withhold(job, batch_id)
    with failures.kept():
        done += _stage_lost(job, batch_id)
    failures.raise_first()
    return done


def _stage_lost(job: "Job", batch_id: int, sinks: Collection[str] | None = None) -> list[str]:
    """Stage anew what these sinks, or all, are to publish of a batch's family and is lost; the sinks. What is
    wrong with one keeps no other waiting; it is raised at the end."""
    failures = Failures(told)
    missing = lost(job.database, job.settings, job.pipeline, batch_id, failures, sinks)
    if missing:
        from ledger.spark.withhold import stage_anew

        for row in missing:
            with failures.kept(unshown(row)):
                stage_anew(job, row)
    failures.raise_first()
    return [row.sink for row in missing]


def publish_settled(job: "Job", batch_id: int) -> list[Published]:
    """Withhold what failed, then publish what is decided of a batch's family in the sinks of records; what was
    published."""
    failures, shown = Failures(told), []
    with failures.kept():  # of one sink: the others do not wait for it
        withhold(job, batch_id)
    with failures.kept():
        shown = publish(job.database, job.settings, job.pipeline, batch_id)
    failures.raise_first()
    return shown


def combines_due(database: Database, pipeline: Pipeline, batch_id: int) -> bool:
    """Whether something that follows the settlement of a batch is undone: a combine, or a sink of one."""
    if any(_is_due(database, batch_id, step) for step in pipeline.combined()):
        return True
    pending = database.transact(lambda c: publications.pending(c, batch_id))
    return any(row.sink in _names(pipeline.combined()) for row in pending)


def combine(
    job: "Job",
    batch_id: int,
    on_fenced: Callable[[], None] | None = None,
    attempt: Attempt | None = None,
) -> list[Published]:
    """Run the combines of a batch that are due, and their sinks; what these show now. It starts nothing where
    nothing is due. One that fails keeps no other waiting, and is raised at the end.

    ``attempt``: of a task of Airflow.
    """
    failures, shown = Failures(told), []
    for step in job.pipeline.combined():
        with failures.kept():
            run = _opened_follower(job.database, batch_id, step, attempt or Attempt())
            if run is not None:
                _living(job, run, step, on_fenced)
    sinks = _names(job.pipeline.combined())
    with failures.kept():
        _stage_lost(job, batch_id, sinks)
    with failures.kept():
        shown = publish(job.database, job.settings, job.pipeline, batch_id, sinks)
    failures.raise_first()
    return shown


def _names(steps: Iterable[Step]) -> list[str]:
    return [step.name for step in steps]


def _is_due(database: Database, batch_id: int, step: Step) -> bool:
    if isinstance(step, CombineStep):
        return follow_ups.is_due(database, batch_id, step)
    return follow_ups.is_waiting(database, batch_id, step)


def _opened_follower(
    database: Database, batch_id: int, step: Step, attempt: Attempt
) -> OpenedRun | None:
    if isinstance(step, CombineStep):
        return follow_ups.open_combine(database, batch_id, step, attempt)
    assert isinstance(step, SinkStep)
    return follow_ups.open_combined_sink(database, batch_id, step, attempt)


def advance_states(
    job: "Job", batch_id: int | None = None, on_fenced: Callable[[], None] | None = None
) -> list[StepResult]:
    """Bring the pipeline's states over batches as far as its batches are settled, in order, and show each.

    Whoever comes does what earlier ones could not; what is wrong with one state, or its sinks, keeps no other
    waiting, and is raised at the end. ``batch_id``: say what this one waits for, if it does.
    """
    results: list[StepResult] = []
    failures = Failures(told)
    for step in job.pipeline.states():
        with failures.kept():
            _advance(job, step, results, on_fenced)
    if batch_id is not None:
        for sentence in job.database.transact(lambda c: recovery.waits_for(c, batch_id)):
            _log.warning("%s", sentence)
    failures.raise_first()
    return results


def _advance(
    job: "Job",
    step: StateStep,
    results: list[StepResult],
    on_fenced: Callable[[], None] | None,
) -> None:
    """Do all that is due of one state. A sink that cannot show it fails only the last: the next one takes its place."""
    failures = _show_states(job, step)
    while (run := _next_state(job, step)) is not None:
        started = time.monotonic()
        record = _living_state(job, run, step, on_fenced)
        results.append(StepResult(step.name, record, time.monotonic() - started))
        _log.info("batch %s: %s", run.run.batch.batch_id, results[-1])
        failures = _show_states(job, step)
    failures.raise_first()


def _show_states(job: "Job", step: StateStep) -> Failures:
    """Show the current state where a sink does not, then let go of older ones, of others that waited for it, too;
    what could not be shown."""
    failures = Failures(told)
    sinks = _names(job.pipeline.sinks_of(step.name))
    late = job.database.transact(lambda c: checkpoints.unshown(c, job.pipeline.name, sinks))
    for batch_id in late:
        with failures.kept():
            _stage_lost(job, batch_id, sinks)
        with failures.kept():
            try:
                publish(job.database, job.settings, job.pipeline, batch_id, sinks)
            except NotReadyError as exc:  # another process is showing it
                _log.info("%s", exc)
    for one in job.pipeline.states():
        state_runs.acknowledge(job.database, job.pipeline, one)
    return failures


def _next_state(job: "Job", step: StateStep) -> StateRun | None:
    """A run for the batch whose turn it is; None if none is due, or another driver goes on being at it."""
    deadline = time.monotonic() + STATE_WAIT_SECONDS
    while True:
        found = state_runs.open_next(job.database, job.pipeline, step, Attempt())
        if not isinstance(found, Elsewhere):
            return found
        if time.monotonic() > deadline:
            _log.warning("%s is left to the driver that is at it: %s", step.name, found)
            return None
        time.sleep(STATE_POLL_SECONDS)


def _living_state(
    job: "Job", opened: StateRun, step: StateStep, on_fenced: Callable[[], None] | None
) -> Record:
    """Execute a run of a state while its lease is renewed; one that raises ends at once."""
    from ledger.spark.state import run_state

    outputs = [opened.run, *opened.sinks.values()]
    with ExitStack() as stack:
        stack.enter_context(heartbeat(job.database, opened.run.run_id, on_fenced or _cancel(job)))
        for run in outputs:
            stack.enter_context(private_output(job.folder(run)))
        try:
            return run_state(job, opened, step)
        except BaseException as exc:
            exc.add_note(_go_on(opened.run))
            for run in outputs:
                _end(job, run, exc)
            raise


def notify(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.notify``; starts nothing for a pipeline whose sources want no notice."""
    if not job.pipeline.wants_notice:
        return []
    from ledger.spark import notify as notices

    return notices.notify(job, batch_id)


def _living(job: "Job", run: OpenedRun, step: Step, on_fenced: Callable[[], None] | None) -> Record:
    """Execute a run while its lease is renewed; one that raises is ended."""
    with (
        heartbeat(job.database, run.run_id, on_fenced or _cancel(job)),
        private_output(job.folder(run)),
    ):
        try:
            return _execute(job, run, step)
        except FencedError:
            raise
        except BaseException as exc:
            exc.add_note(_go_on(run))
            _end(job, run, exc)
            raise


def _go_on(run: OpenedRun) -> str:
    settled = run.status is BatchStatus.SETTLED  # whoever asked for that has not named the step
    what = f"That was step {run.stage!r} of batch {run.batch.batch_id}. " if settled else ""
    return f"{what}To go on: {recovery.run_again(run.batch, run.stage)}"


def _execute(job: "Job", run: OpenedRun, step: Step) -> Record:
    assert not isinstance(step, StateStep), "advance_states runs these"
    from ledger.spark.combine import run_combine, run_combined_sink
    from ledger.spark.emit import run_source
    from ledger.spark.sink import run_sink
    from ledger.spark.stage import run_stage

    if isinstance(step, SourceStep):
        return run_source(job, run, step)
    if isinstance(step, CombineStep):
        return run_combine(job, run, step)
    if isinstance(step, SinkStep):
        after = job.pipeline.graph.follows(step.name)
        return run_combined_sink(job, run, step) if after else run_sink(job, run, step)
    return run_stage(job, run, step)


def _cancel(job: "Job") -> Callable[[], None]:
    def cancel() -> None:
        _log.error("a newer attempt owns the step: this one is cancelled")
        briefly(job.spark.interruptAll)

    return cancel


def _end(job: "Job", run: OpenedRun, exc: BaseException) -> None:
    """Mark a run failed. One that was stopped, or for which Spark, a database or a file system did not answer, has
    only ended, and the next attempt goes on at its step."""
    try:
        if isinstance(exc, KeyboardInterrupt):
            interrupt(job.database, run)
        elif isinstance(translated(exc), UnavailableError):
            interrupt(job.database, run, recorded(exc))
        else:
            fail(job.database, run, recorded(exc))
    except Exception as second:  # it hides the first from nobody
        _log.warning(
            "run %s could not be ended, its lease will lapse: %s", run.run_id, told(second)
        )
