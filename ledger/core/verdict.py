"""Verdicts on open batches: settle, expire, abandon or wait. Pure, with time as an argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ledger.core.states import RunState


class Decision(StrEnum):
    """Action of a settlement on a batch."""

    SETTLE = "settle"  # every step is committed: what is not zero now never will be
    EXPIRE = "expire"  # a step died: roots that are not zero fail
    ABANDON = "abandon"  # the emit died: there are no roots to judge
    WAIT = "wait"


@dataclass(frozen=True)
class Verdict:
    """The action and why, in words for a person."""

    action: Decision
    reason: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepFacts:
    """Facts on one step of a batch.

    ``state``, ``lease_until``, ``closed_at``: those of the newest run; None without a run.
    ``committed``: whether a run of the step is committed now.
    """

    name: str
    kind: str
    committed: bool
    state: RunState | None = None
    lease_until: datetime | None = None
    closed_at: datetime | None = None


@dataclass(frozen=True)
class Limits:
    """Time limits of a batch.

    ``message_timeout``: counts from the last sign of life of a step that failed or died.
    ``deadline``: the time at which the batch is decided, even if a driver is running.
    """

    message_timeout: timedelta
    deadline: datetime


def decide(steps: Sequence[StepFacts], now: datetime, limits: Limits) -> Verdict:
    """Settle once everything is committed; expire ``message_timeout`` after the last sign of life.

    A batch that merely waits for its next task never expires: only a run that failed, or whose
    lease lapsed without a newer run, starts the clock. While a driver lives, nothing is decided: a
    step that is rerun is about to replace what its committed run did. Past the batch's greatest
    age none of this holds.
    """
    missing = tuple(step.name for step in steps if not step.committed)
    alive = [step.name for step in steps if _lives(step, now)]
    too_old = now >= limits.deadline
    if alive and not too_old:
        return Verdict(Decision.WAIT, f"{', '.join(alive)} running", missing)
    if not missing:
        return Verdict(Decision.SETTLE, "every step is committed")
    if too_old:
        return _expire(steps, missing, "before the batch reached its greatest age")
    deaths = [_death(step) for step in steps if not step.committed]
    died = [instant for instant in deaths if instant is not None]
    if not died:
        return Verdict(Decision.WAIT, f"waits for {', '.join(missing)} to run", missing)
    deadline = max(died) + limits.message_timeout
    if now < deadline:
        return Verdict(
            Decision.WAIT, f"a run died; expires at {deadline:%Y-%m-%d %H:%M:%S}", missing
        )
    return _expire(steps, missing, "in time")


def _expire(steps: Sequence[StepFacts], missing: tuple[str, ...], when: str) -> Verdict:
    if any(step.kind == "source" for step in steps if not step.committed):
        return Verdict(Decision.ABANDON, f"its emit did not commit {when}", missing)
    return Verdict(Decision.EXPIRE, f"{missing[0]} did not commit {when}", missing)


def _lives(step: StepFacts, now: datetime) -> bool:
    return (
        step.state is RunState.RUNNING and step.lease_until is not None and now < step.lease_until
    )


def _death(step: StepFacts) -> datetime | None:
    """Return the time at which the step's newest run failed, or its lease ends. None: it has no
    run, or its run is superseded and waits for the rerun.
    """
    if step.state is None or step.state is RunState.SUPERSEDED:
        return None
    return step.lease_until if step.state is RunState.RUNNING else step.closed_at
