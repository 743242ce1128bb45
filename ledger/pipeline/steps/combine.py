"""Combines: functions of all acked rows of a batch and its replays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.pipeline.steps.base import Step, checked_name, parameters


@dataclass(frozen=True)
class CombineStep(Step):
    """A function of all acked rows of a batch and its replays; tracking ends at what it reads."""

    name: str
    function: "Callable[..., Any]"
    inputs: tuple[str, ...]
    references: tuple[str, ...]
    partial: bool = False
    kind = "combine"
    in_words = "a combine"
    files = "results"
    ends_tracking = True
    reads_family = True

    def described(self) -> dict[str, Any]:
        return {"partial": self.partial}


def combine_step(
    function: "Callable[..., Any]", reads: str | Sequence[str], partial: bool
) -> CombineStep:
    name = checked_name("combine", function.__name__)
    inputs, references = parameters("combine", name, function, reads)
    return CombineStep(name, function, inputs, references, partial)
