"""Progress of batches that are not decided: the step they wait at, the steps that are done, and the
reasons why states over batches wait. ``ledger.batch.advice`` words them.
"""

from dataclasses import replace

from sqlalchemy import Connection

from ledger.batch.advice.actions import Actions, Advice
from ledger.batch.advice.batches import Standing, of_hold, of_obstacle, of_standing
from ledger.batch.advice.batches import restart as restart_actions
from ledger.batch.refining import of_files, steps_to_rerun
from ledger.core.commands import ANY_TARGET
from ledger.core.run_request import instant
from ledger.core.states import BatchStatus, Obstacle, RunState
from ledger.errors import LedgerError, LostFileError
from ledger.pipeline.pipeline import Pipeline
from ledger.storage.manifest import Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import batches, checkpoints, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.checkpoints import UnfinishedStep, WaitingState


def stands_at(connection: Connection, batch: Batch) -> Advice:
    """Return what keeps an undecided batch from its settlement, and what to do about that."""
    target = batch.target or ANY_TARGET
    if batch.status is BatchStatus.HELD:
        return of_hold(batch, target)
    step = checkpoints.unfinished_step(connection, batch.batch_id)
    if step is None or step.after:
        unread = of_files(connection, batch) is not None
        standing = Standing.UNREFINED if unread else Standing.STEPS_DONE
        return of_standing(batch, target, standing, None, None)
    advice = of_standing(batch, target, _standing(step), step.name, step.failure)
    return replace(advice, actions=advice.actions + restarts(connection, batch))


def restarts(connection: Connection, batch: Batch) -> Actions:
    """Return how to run all steps of a batch again; nothing unless one failed after others were
    committed.
    """
    step = checkpoints.unfinished_step(connection, batch.batch_id)
    if batch.status is not BatchStatus.OPEN or step is None or step.after:
        return ()
    all_runs = runs.runs_of(connection, batch.batch_id)
    is_begun = any(run.state is RunState.COMMITTED for run in all_runs)
    has_failed = _standing(step) is Standing.STEP_FAILED
    return restart_actions(batch) if is_begun and has_failed else ()


def restarts_of(database: Database, batch_id: int) -> Actions:
    """Return how to run all steps of a batch again, as ``restarts``; nothing if the ledger does not
    answer, because the failure of a step is reported in any case.
    """
    try:
        return database.transact(lambda c: restarts(c, batches.get_batch(c, batch_id)))
    except LedgerError:
        return ()


def needs_refinement(connection: Connection, batch: Batch) -> bool:
    """Return whether an open batch waits only for a machine that can read its storage."""
    step = checkpoints.unfinished_step(connection, batch.batch_id)
    return (step is None or step.after) and of_files(connection, batch) is not None


def on_hold(connection: Connection, batch: Batch) -> str:
    """Return sentences on a batch that is on hold: that it is, why, and what to do."""
    return f"batch {batch.batch_id} is {batch.status.words}. {stands_at(connection, batch)}"


def _standing(step: UnfinishedStep) -> Standing:
    """Return how far a batch is at this step, see ``unfinished_step``."""
    state = RunState(step.state) if step.state else None
    if state is RunState.RUNNING and step.alive:
        return Standing.STEP_RUNS
    if state is RunState.FAILED:
        return Standing.STEP_FAILED
    if step.failure:
        return Standing.INTERRUPTED
    return Standing.DRIVER_DIED if state is RunState.RUNNING else Standing.NOT_RUN


def waits_for(connection: Connection, batch_id: int) -> list[str]:
    """Return a sentence for each state that does not include a batch: what it waits for, and what
    to do about that.
    """
    return [
        f"the state {row.step!r} of batch {batch_id} {_why(connection, row, batch_id)}"
        for row in checkpoints.waiting(connection, batch_id=batch_id)
    ]


def waiting_states(connection: Connection, pipeline: str | None = None) -> list[str]:
    """Return a sentence for each state that batches wait for: how many do, and why. ``pipeline``:
    None: of all pipelines.
    """
    return [
        f"pipeline {row.pipeline}: {row.batches} "
        f"{'batch is' if row.batches == 1 else 'batches are'} not in "
        f"the state {row.step!r}, which {_why(connection, row)}"
        for row in checkpoints.waiting(connection, pipeline=pipeline)
    ]


def _why(connection: Connection, row: WaitingState, asked: int | None = None) -> str:
    batch = batches.get_batch(connection, row.batch_id)
    if row.state == "due" or row.waits_because == Obstacle.STATE_DUE:
        due = of_obstacle(Obstacle.STATE_DUE, batch.target or ANY_TARGET, batch.original_id)
        return f"is due: {due}"
    assert row.waits_for_batch_id is not None
    assert row.waits_because is not None
    batch = batches.get_batch(connection, row.waits_for_batch_id)
    own = "" if batch.batch_id == asked else f" for batch {batch.batch_id}"
    interval = f"(interval {instant(batch.interval_start)} to {instant(batch.interval_end)})"
    if batch.status is not BatchStatus.SETTLED:
        why = f"it is {batch.status.words} {interval}"
        return f"waits{own}: {why}. {stands_at(connection, batch)}"
    obstacle = Obstacle(row.waits_because)
    advice = of_obstacle(obstacle, batch.target or ANY_TARGET, batch.original_id)
    because = f"waits{own}: {advice.because} {interval}"
    return str(replace(advice, because=because))


def finished(database: Database, pipeline: Pipeline, batch_id: int) -> set[str]:
    """Return the steps that are committed and whose output is there, as far as is known. A step's
    output is missing if a reader of the step failed at a damaged file of it.

    No step of a batch on hold is finished, because the batch is run again after a fix of any step.
    Once it is open again, only runs that began since then count.
    """
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    if batch.status is BatchStatus.HELD:
        return set()
    all_runs = database.transact(lambda c: runs.runs_of(c, batch_id))
    committed = [run for run in all_runs if run.state is RunState.COMMITTED]
    if batch.status.decided:
        return {run.step for run in committed}
    sinks = {step.name for step in pipeline.sinks()}
    damaged = database.transact(lambda c: runs.damaged_steps(c, batch_id))
    there = {
        run.step
        for run in committed
        if run.opened_at >= batch.opened_at
        and run.step not in damaged
        and (run.step in sinks or _is_there(database, run.step_run_id))
    }
    asked = database.transact(lambda c: of_files(c, batch)) if there else None
    there -= steps_to_rerun(asked) if asked else set()
    # A stage of a plan has no rows for one that runs again by itself.
    broken = {run.one_plan_id for run in committed if run.step not in there} - {None}
    return there - {run.step for run in committed if run.one_plan_id in broken}


def _is_there(database: Database, run_id: int) -> bool:
    files = database.transact(lambda c: runs.files(c, run_id))
    try:
        check_files(Manifest(files))
    except LostFileError:
        return False
    return True
