"""States over batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.core.stateful import StatefulStage
from ledger.errors import DeclarationError
from ledger.pipeline.steps.base import Step, checked_name, named_references, one_input


@dataclass(frozen=True)
class StateStep(Step):
    """A state over batches: a function of the state and a batch's acked rows, or an object that
    keeps it.
    """

    name: str
    inputs: tuple[str, ...]
    function: "Callable[..., Any] | None" = None
    references: tuple[str, ...] = ()
    hooks: StatefulStage | None = None
    kind = "stateful"
    in_words = "a state over batches"
    files = "states"
    ends_tracking = True
    is_state = True

    @property
    def is_kept_elsewhere(self) -> bool:
        """See ``Step``: an object may keep its state where its users find it."""
        return self.hooks is not None


def state_step(function: "Callable[..., Any]", reads: str | Sequence[str]) -> StateStep:
    name = checked_name("stateful", function.__name__)
    frames = ("the state so far", one_input("stateful", name, reads))
    references = named_references("stateful", name, function, frames)
    return StateStep(name, frames[1:], function, references)


def hooks_step(name: str, hooks: StatefulStage, reads: str | Sequence[str]) -> StateStep:
    if not isinstance(hooks, StatefulStage):
        raise DeclarationError(
            f"stateful {name!r}: expected an object of a subclass of StatefulStage, found"
            f" {type(hooks).__name__}"
        )
    inputs = (one_input("stateful", name, reads),)
    return StateStep(checked_name("stateful", name), inputs, hooks=hooks)
