"""Run a batch in a driver: its steps, its settlement and its follow-ups."""

from ledger.execution.follow_ups import combine, follow, notify, settle_and_follow, withhold
from ledger.execution.states import advance_states
from ledger.execution.steps import StepResult, run_step, run_steps

__all__ = [
    "StepResult",
    "advance_states",
    "combine",
    "follow",
    "notify",
    "run_step",
    "run_steps",
    "settle_and_follow",
    "withhold",
]
