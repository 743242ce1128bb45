"""Advice on a batch that is not decided, and on pending work of a decided one."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from ledger.batch.advice.actions import IN_AIRFLOW, Action, Actions, Advice
from ledger.core import commands
from ledger.core.commands import ANY_TARGET, ackledger, trigger
from ledger.core.run_request import REPROCESS, Interval
from ledger.core.states import BatchKind, HoldCause, Need, Obstacle, PublishPolicy
from ledger.core.text import quantity
from ledger.store.queries.batches import Batch

_CLEAR_FAILED = "clear the task that failed"
_LONGEST = 300  # characters of a failure that are repeated in a sentence


class Standing(Enum):
    """Progress of an unsettled batch, by its first step that is not committed."""

    STEPS_DONE = "All its steps are done"
    UNREFINED = "All its steps are done, and it needs refinement"
    STEP_RUNS = "Its step {step!r} is running"
    STEP_FAILED = "Its step {step!r} failed: {reason}"
    INTERRUPTED = "Its step {step!r} was interrupted: {reason}"
    DRIVER_DIED = "Its step {step!r} was running, and its driver has died"
    NOT_RUN = "Its step {step!r} has not run"


def of_standing(
    batch: Batch, target: str, standing: Standing, step: str | None, reason: str | None
) -> Advice:
    """Return what keeps a batch from its settlement, and what to do.

    ``reason``: the reason for which the step failed or was interrupted.
    """
    because = standing.value.format(step=step, reason=_first_line(reason))
    if standing is Standing.STEP_RUNS:
        return Advice(because)
    if standing is Standing.STEPS_DONE:
        rerun = Action("Or go on with its run", _run_again(batch, target))
        return Advice(because, (Action("Settle it", ackledger("sweep")), rerun))
    if standing is Standing.UNREFINED:
        lost = Action("Or, if files of it are lost, run it again", _run_again(batch, target))
        return Advice(because, (*where_seen(batch.batch_id), lost))
    ways = resume(batch, step, target)
    failed = standing in (Standing.STEP_FAILED, Standing.INTERRUPTED)
    if failed and any(each.name == step and each.kind == "source" for each in batch.topology):
        never = "If its source never comes, the sweeper abandons the batch after message_timeout"
        ways += (Action(never),)
    return Advice(because, ways)


def where_seen(batch_id: int) -> Actions:
    """Return how to settle a batch whose single records have to be read."""
    command = ackledger("settle", batch_id)
    return (Action("Settle it on a machine that sees its storage", command),)


def of_hold(batch: Batch, target: str) -> Advice:
    """Return why a batch is on hold, and what to do: a release is for too many failures only."""
    rerun, because = _run_again(batch, target), _first_line(batch.held_reason)
    if batch.dag_id:
        is_restarted = batch.held_for is HoldCause.RESTART
        tasks = "the tasks of all steps" if is_restarted else "the task of the fixed step"
        rerun = (
            f"in {_airflow_run(batch)} clear {tasks} (or `run`, if the DAG has one task a batch)"
            " and those downstream"
        )
    if batch.held_for is not HoldCause.FAILURES:
        return Advice(because, (Action("To go on", rerun),))
    published_later = batch.exactly_once and batch.publish is PublishPolicy.SETTLED
    otherwise = "Or publish the rest anyway" if published_later else "Or let these records fail"
    release = Action(otherwise, ackledger("release", batch.batch_id))
    return Advice(because, (Action("Fix it and rerun", rerun), release))


def resume(
    batch: Batch, step: str | None = None, target: str = ANY_TARGET, options: Sequence[str] = ()
) -> Actions:
    """Return how to go on with a batch, at ``step`` if it is given. ``options``: more options of a
    command that runs it.
    """
    is_after = any(each.name == step and each.after for each in batch.topology)
    if is_after:  # another batch's run may be at it
        return publish(target, batch.batch_id, click=_CLEAR_FAILED if batch.dag_id else None)
    return (Action("To go on", _run_again(batch, target, options)),)


def restart(batch: Batch) -> Actions:
    """Return how to run all steps of a batch again after one of them failed."""
    what = "If you fixed an earlier step or the files of a source, "
    command = ackledger("restart", batch.batch_id)
    if not batch.dag_id:
        return (Action(f"{what}first", command),)
    what += "clear its task and those downstream; if the DAG has one task a batch"
    return (Action(f"{what}, run {command} first"),)


def publish(
    target: str, batch_id: int | None, what: str = "To go on", click: str | None = _CLEAR_FAILED
) -> Actions:
    """Return how to do the pending follow-ups of a batch, on the command line and in Airflow."""
    command = Action(what, ackledger("publish", target, batch=batch_id))
    return (command,) if click is None else (command, Action(IN_AIRFLOW, click))


def _run_again(batch: Batch, target: str, options: Sequence[str] = ()) -> str:
    if batch.dag_id:
        return f"in Airflow clear the failed tasks of {_airflow_run(batch)}"
    if batch.kind is BatchKind.REPLAY:
        again = ackledger("replay", target, batch=batch.original_id, run_id=asked_as(batch))
        return " ".join([again, *options])
    return commands.run(target, batch.interval, "--run-id", batch.run_id, *options)


def asked_as(batch: Batch) -> str:
    """Return the ``--run-id`` that finds a batch of the command line again."""
    if batch.kind is BatchKind.REPLAY:
        return batch.run_id.removesuffix(f"-{batch.original_id}")
    return batch.run_id


def reprocess(batch: Batch, target: str = ANY_TARGET) -> str:
    """Return the command that reads a batch's interval again."""
    return commands.run(target, batch.interval, "--reprocess")


def instead_of_a_lost_file(batch: Batch, target: str) -> Actions:
    """Return how to get the rows of a lost staged file back."""
    actions: Actions = (Action("Or reprocess the interval", reprocess(batch, target)),)
    if batch.dag_id:
        command = commands.reprocess_in_airflow(batch.dag_id, batch.interval)
        actions += (Action(IN_AIRFLOW, command),)
    return actions


def _airflow_run(batch: Batch) -> str:
    run_id = batch.run_id.removesuffix(REPROCESS)  # the batch has it, Airflow's run has not
    return f"run {run_id} of DAG {batch.dag_id}"


def _first_line(reason: str | None) -> str:
    stripped = (reason or "").strip().splitlines()
    return stripped[0][:_LONGEST].rstrip(". ") if stripped else "no reason is recorded"


# What the batch lacks that a state waits for, what to do about that, and the command.
_OBSTACLES: Mapping[Obstacle, tuple[str, Mapping[str, str | None]]] = {
    Obstacle.UNDECIDED: ("it has just been settled", {"Ask again": None}),
    Obstacle.BEING_REPLACED: ("it is being replaced", {"It goes on once that is decided": None}),
    Obstacle.RECORDS_FAILED: (
        'records of it are failed, and its pipeline has publish="complete"',
        {"See which and why": "failed", "Replay them": "replay"},
    ),
    Obstacle.STATE_DUE: ("the next run applies it", {"To apply it now": "publish"}),
}
# Why retention keeps the files of a batch, and the command that looks at that, or ends it.
_NEEDS: Mapping[Need, tuple[str, str | None]] = {
    Need.UNDECIDED: ("a batch, or a replay of it, is not decided", "status"),
    Need.RECORDS_FAILED: ("records are failed: replay or quarantine them", "failed"),
    Need.RECORDS_QUARANTINED: ("quarantined records are not accepted", "failed"),
    Need.CONTENT_MISSING: ("the content of failed records is not copied", "publish"),
    Need.UNPUBLISHED: ("a sink is yet to publish", "publish"),
    Need.COMBINE_DUE: ("a combine is yet to run", "publish"),
    Need.NOTICE_PENDING: ("a source is yet to be notified of its records: task notify", None),
    Need.STATE_DUE: ("a state is yet to include it", "status"),
    Need.CURRENT_STATE: ("it has the current state, which the next batch starts from", None),
    Need.DEDUP_WINDOW: ("a sink compares new rows with it (window_batches)", None),
    Need.RECENT: ("something happened to it since: its time is not over", None),
}


def of_obstacle(obstacle: Obstacle, target: str, batch_id: int) -> Advice:
    """Return why a state waits for a decided batch, and what to do."""
    lack, ways = _OBSTACLES[obstacle]
    actions = (Action(what, _about(name, target, batch_id)) for what, name in ways.items())
    return Advice(lack, tuple(actions))


def of_need(need: Need, target: str | None, batch_id: int) -> Action:
    """Return why the files of a batch are kept, and what to do."""
    why, name = _NEEDS[need]
    return Action(why, _about(name, target or ANY_TARGET, batch_id))


def _about(command: str | None, target: str, batch_id: int) -> str | None:
    if command is None:
        return None
    arguments = (target,) if command in ("publish", "replay") else ()
    return ackledger(command, *arguments, batch=batch_id)


def still_failed(batch_id: int, records: int) -> Action:
    """Return how many records of a batch are still failed, and the command that lists them."""
    those = quantity(records, "record of it is", "records of it are")
    return Action(f"{those} still failed", ackledger("failed", batch=batch_id))


def instead_of_a_second_run(target: str, interval: Interval, owner: Any) -> Actions:
    """Return what to do if another batch has the interval that a run was to read.

    ``interval``: the interval, with the other batch's parameters.
    ``owner``: the other batch, with batch_id, dag_id and run_id.
    """
    run_id = owner.run_id.removesuffix(REPROCESS)
    ways = (
        commands.run(target, interval, "--run-id", run_id),
        ackledger("replay", target, batch=owner.batch_id),
        commands.run(target, interval, "--reprocess"),
    )
    if owner.dag_id:
        ways = (
            f"in Airflow clear run {run_id!r} of DAG {owner.dag_id!r}",
            trigger(owner.dag_id, {"replay_of": owner.batch_id}),
            commands.reprocess_in_airflow(owner.dag_id, interval),
        )
    return tuple(map(Action, ("Run it again", "Replay what failed in it", "Or replace it"), ways))
