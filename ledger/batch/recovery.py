"""What to do about a batch that stands still, in words; what of it is done; what keeps states
over batches waiting.
"""

import shlex
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from ledger.core import commands
from ledger.core.commands import ANY_TARGET, moment
from ledger.core.run_request import REPROCESS, Interval
from ledger.core.states import BatchKind, BatchStatus, Obstacle, RunState, Settle
from ledger.errors import LostFileError
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import SinkStep
from ledger.storage.manifest import Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import batches, checkpoints, holds, runs
from ledger.store.queries.batches import Batch
from ledger.store.queries.runs import Run

# Of a settled batch for which a state waits: what it lacks, and what to do about that.
_OBSTACLES = {
    Obstacle.UNDECIDED: ("it has just been settled", "Ask again"),
    Obstacle.BEING_REPLACED: ("it is being replaced", "It goes on once that is decided"),
    Obstacle.RECORDS_FAILED: (
        'records of it are failed, and its pipeline has settle="hold"',
        "ackledger failed --batch {original} says which and why; replay them: ackledger replay"
        " {target} --batch {original}",
    ),
    Obstacle.UNITS_TO_REBUILD: (
        "units of it are yet to be asked for again without the records that were quarantined",
        "To ask for them: ackledger publish {target}",
    ),
}
_LONGEST = 300  # characters of a failure that are repeated in a sentence


def run_again(
    batch: Batch, step: str | None = None, target: str = ANY_TARGET, options: Sequence[str] = ()
) -> str:
    """The command, or the click, that goes on with a batch at ``step``, or where it stands.
    ``options``: further ones of a command that runs it.
    """
    if _follows(batch, step):  # another batch's run may be at it
        command = shlex.join(["ackledger", "publish", target, "--batch", str(batch.batch_id)])
        return f"{command}, or in Airflow clear the task that failed" if batch.dag_id else command
    if batch.dag_id:
        return f"in Airflow clear the failed tasks of {_airflow_run(batch)}"
    if batch.kind is BatchKind.REPLAY:
        of_original = ["--batch", str(batch.original_id), "--run-id", asked_as(batch)]
        return shlex.join(["ackledger", "replay", target, *of_original, *options])
    return commands.run(target, _interval(batch), "--run-id", batch.run_id, *options)


def _airflow_run(batch: Batch) -> str:
    run_id = batch.run_id.removesuffix(REPROCESS)  # the batch has it, Airflow's run has not
    return f"run {run_id} of DAG {batch.dag_id}"


def asked_as(batch: Batch) -> str:
    """The ``--run-id`` that finds a batch of the command line again."""
    if batch.kind is BatchKind.REPLAY:
        return batch.run_id.removesuffix(f"-{batch.original_id}")
    return batch.run_id


def stands_at(connection: Connection, batch: Batch) -> str:
    """What keeps an undecided batch from its settlement, and what to do about that; in
    sentences.
    """
    return ". ".join(_cause(connection, batch))


def reprocess(batch: Batch, target: str = ANY_TARGET) -> str:
    """The command that reads a batch's interval anew."""
    return commands.run(target, _interval(batch), "--reprocess")


def _interval(batch: Batch) -> Interval:
    return Interval(batch.interval_start, batch.interval_end, batch.params)


def _follows(batch: Batch, name: str | None) -> bool:
    """Whether a step follows the settlement."""
    step = next((one for one in batch.topology if one["name"] == name), {})
    return bool(step.get("after"))


def waits_for(connection: Connection, batch_id: int) -> list[str]:
    """Of each state that a batch is not in, one sentence: what it waits for, and what to do about
    that."""
    return [
        f"the state {row.step!r} of batch {batch_id} {_why(connection, row, batch_id)}"
        for row in checkpoints.waiting(connection, batch_id=batch_id)
    ]


def waiting_states(connection: Connection, pipeline: str | None = None) -> list[str]:
    """Of each state that batches wait for, of one pipeline or of all, one sentence: how many do,
    and why."""
    return [
        f"pipeline {row.pipeline}: {row.batches} "
        f"{'batch is' if row.batches == 1 else 'batches are'} not in "
        f"the state {row.step!r}, which {_why(connection, row)}"
        for row in checkpoints.waiting(connection, pipeline=pipeline)
    ]


def _why(connection: Connection, row: Row[Any], asked: int | None = None) -> str:
    target = _target(connection, batches.get_batch(connection, row.batch_id))
    if row.state == "due" or row.waits_because == Obstacle.STATE_DUE:
        return f"is due: the next run applies it, or ackledger publish {target}"
    batch = batches.get_batch(connection, row.waits_for_batch_id)
    own = "" if batch.batch_id == asked else f" for batch {batch.batch_id}"
    interval = f"{moment(batch.interval_start)} to {moment(batch.interval_end)}"
    if batch.status is not BatchStatus.SETTLED:
        found = [f"waits{own}: it is {batch.status} (interval {interval})"]
        return ". ".join([*found, *_cause(connection, batch)])
    lacks, to_do = _OBSTACLES[Obstacle(row.waits_because)]
    to_do = to_do.format(original=batch.original_id, target=target)
    return f"waits{own}: {lacks} (interval {interval}). {to_do}"


def _target(connection: Connection, batch: Batch) -> str:
    return batches.target(connection, batch.pipeline_id) or ANY_TARGET


def _cause(connection: Connection, batch: Batch) -> Sequence[str]:
    """What is the matter with an undecided batch, and what to do, as sentences without their
    stops."""
    if batch.status is BatchStatus.HELD:
        ways = (f"{what}: {how}" for what, how in ways_from_hold(connection, batch))
        return [_first_line(batch.held_reason), *ways]
    again = partial(run_again, batch, target=_target(connection, batch))
    step = checkpoints.unfinished_step(connection, batch.batch_id)
    if step is None or step.after:
        return [f"All its steps are done: settle it with ackledger sweep, or {again()}"]
    state = RunState(step.state) if step.state else None
    if state is RunState.RUNNING and step.alive:
        return [f"Its step {step.name!r} is running"]
    if state is RunState.FAILED or step.failure:
        ended = "failed" if state is RunState.FAILED else "was interrupted"
        told = f"Its step {step.name!r} {ended}: {_first_line(step.failure)}"
        gone = "; if its source never comes, the sweeper abandons it after message_timeout"
        return [told, f"To go on: {again(step.name)}{gone * (step.kind == 'source')}"]
    died = "was running, and its driver has died" if state is RunState.RUNNING else "has not run"
    return [f"Its step {step.name!r} {died}. To go on: {again(step.name)}"]


def ways_from_hold(connection: Connection, batch: Batch) -> tuple[tuple[str, str], ...]:
    """What a person can do about a batch on hold: what each is for, and the command or the click.
    A release is for too many failures alone."""
    rerun = run_again(batch, target=_target(connection, batch))
    if batch.dag_id:
        rerun = (
            f"in {_airflow_run(batch)} clear the task of the fixed step (or `run`, if the DAG has"
            " one task a batch) and those downstream"
        )
    if not holds.is_over_limit(connection, batch.batch_id):
        return (("To go on", rerun),)
    published_later = batch.exactly_once and batch.settle is Settle.PUBLISH_ACKED
    otherwise = "Or publish the rest anyway" if published_later else "Or let these records fail"
    return (("Fix it and rerun", rerun), (otherwise, f"ackledger release {batch.batch_id}"))


def _first_line(told: str | None) -> str:
    lines = (told or "").strip().splitlines()
    return lines[0][:_LONGEST].rstrip(". ") if lines else "no reason is recorded"


def finished(database: Database, pipeline: Pipeline, batch_id: int) -> set[str]:
    """Steps that are committed and whose output is there. A batch that is held, or of which a
    step failed, is run again because something has been fixed, whichever step that was: of its
    runs those count that began since.
    """
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    if batch.status is BatchStatus.HELD:
        return set()
    found = database.transact(lambda c: runs.runs_of(c, batch_id))
    committed = [run for run in found if run.state is RunState.COMMITTED]
    if batch.status.decided:
        return {run.step for run in committed}
    since = _last_fix(batch, found)
    sinks = {step.name for step in pipeline.steps() if isinstance(step, SinkStep)}
    return {
        run.step
        for run in committed
        if run.opened_at >= since and (run.step in sinks or _is_there(database, run.step_run_id))
    }


def _last_fix(batch: Batch, found: Sequence[Run]) -> datetime:
    """The last moment at which something may have been broken that is fixed by now: the batch
    was abandoned or held, before it was opened again, or a step failed.
    """
    failed = [run.closed_at for run in found if run.state is RunState.FAILED]
    return max([batch.opened_at, *filter(None, failed)])


def _is_there(database: Database, run_id: int) -> bool:
    files = database.transact(lambda c: runs.files(c, run_id))
    try:
        check_files(Manifest(files))
    except LostFileError:
        return False
    return True
