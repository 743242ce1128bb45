"""Carry the states over batches forward, in the batches' order, and publish them."""

import logging
import time
from typing import TYPE_CHECKING

from ledger.batch import recovery, state_runs
from ledger.batch.publishing import publish
from ledger.batch.state_runs import HeldByAnotherDriver, StateRun
from ledger.batch.step_runs import Attempt
from ledger.core.logs import about
from ledger.errors import NotReadyError
from ledger.execution.steps import StepResult, holding_lease, keys_of
from ledger.pipeline.steps import StateStep
from ledger.spark.failures import Failures
from ledger.store.queries import following

if TYPE_CHECKING:
    from ledger.spark.job import Job

# How long to wait for another driver that runs a state, and how often to look.
STATE_WAIT_SECONDS = 300.0
STATE_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def advance_states(job: "Job", batch_id: int | None = None) -> list[StepResult]:
    """Update each state over batches with the settled batches that it lacks, in order, and publish
    it. Batches that earlier drivers left out are included.

    A state that fails does not stop the next ones; the first error is raised at the end.

    ``batch_id``: log why the states do not include this batch yet.
    """
    results: list[StepResult] = []
    failures = Failures(job.pipeline)
    for step in job.pipeline.states():
        with failures.collect():
            _update_and_publish(job, step, results)
    if batch_id is not None:
        for sentence in job.database.transact(lambda c: recovery.waits_for(c, batch_id)):
            _log.warning("%s", sentence)
    failures.raise_first()
    return results


def _update_and_publish(job: "Job", step: StateStep, results: list[StepResult]) -> None:
    """Update one state with each batch that is due, publish it to its sinks, and append the
    results. Each state replaces the one before, so errors of its sinks are raised only after the
    last update.
    """
    failures = _publish_states(job, step)
    while (run := _next_state(job, step)) is not None:
        from ledger.spark.steps.state import run_state

        started = time.monotonic()
        with holding_lease(job, run.run, beside=run.sinks.values()):
            record = run_state(job, run, step)
        seconds = time.monotonic() - started
        results.append(StepResult(step.name, record, seconds, run.run.run_id))
        with about(**keys_of(run.run)):
            _log.info("batch %s: %s", run.run.batch.batch_id, results[-1])
        failures = _publish_states(job, step)
    failures.raise_first()


def _publish_states(job: "Job", step: StateStep) -> Failures:
    """Publish the current state to the sinks that lack it, and delete older states that nothing
    needs any more. Return the errors; a publication that another process is doing is no error.
    """
    failures = Failures(job.pipeline)
    sinks = [sink.name for sink in job.pipeline.sinks_of(step.name)]
    late = job.database.transact(
        lambda c: following.waiting(c, job.pipeline.name, ["publish"], steps=sinks)
    )
    for batch_id in late:
        with failures.collect():
            try:
                publish(job, batch_id, sinks)
            except NotReadyError as exc:  # another process is publishing it
                _log.info("%s", exc)
    for state in job.pipeline.states():
        state_runs.acknowledge(job.database, job.pipeline, state)
    return failures


def _next_state(job: "Job", step: StateStep) -> StateRun | None:
    """Open a run for the next batch that is due. Return None if no batch is due, or if another
    driver's run has not ended after ``STATE_WAIT_SECONDS``.
    """
    deadline = time.monotonic() + STATE_WAIT_SECONDS
    while True:
        run = state_runs.open_next(job.database, job.pipeline, step, Attempt())
        if not isinstance(run, HeldByAnotherDriver):
            return run
        if time.monotonic() > deadline:
            _log.warning("state %s: another driver is running it, skipped: %s", step.name, run)
            return None
        time.sleep(STATE_POLL_SECONDS)
