"""Commands that messages ask for, as one pastes them."""

import shlex
from datetime import datetime
from typing import Any, Protocol

from ledger.core.run_request import Interval, moment

ANY_TARGET = "MODULE:PIPELINE"  # of a pipeline whose place is not known
# What in Airflow goes on with what follows a settlement.
CLEAR_WITHHOLD = (
    "clear `withhold` (or `run`, if the DAG has one task a batch) and what is downstream"
)


class Asked(Protocol):
    """What asks for an interval, from its start inclusive to its end exclusive."""

    @property
    def interval_start(self) -> datetime: ...

    @property
    def interval_end(self) -> datetime: ...


def run(target: str, interval: Interval, *options: str) -> str:
    """The command that runs ``target`` over an interval with its parameters; ``options``: further
    ones of ``ackledger run``.
    """
    words = ["ackledger", "run", target, "--interval-start", moment(interval.start)]
    words += ["--interval-end", moment(interval.end)]
    for name, value in interval.params.items():
        words += ["--param", f"{name}={value}"]
    return shlex.join([*words, *options])


def ways_on(target: str, asked: Asked, owner: Any) -> str:
    """What to do instead of a second run over an interval; ``owner``: the batch that has it,
    with dag_id, run_id and params.
    """
    if owner.dag_id:
        return (
            f"Clear run {owner.run_id!r} of DAG {owner.dag_id!r} to run it again, replay what"
            ' failed in it, or replace it by a run with {"reprocess": true} in its conf'
        )
    interval = Interval(asked.interval_start, asked.interval_end, owner.params)
    return (
        f"Run it again: {run(target, interval, '--run-id', owner.run_id)}; replay what failed in"
        f" it: ackledger replay {target} --batch {owner.batch_id}; or replace it:"
        f" {run(target, interval, '--reprocess')}"
    )
