"""The kinds of steps, a module each; a new kind is a module here and its class in ``KINDS``.

``ledger.execution.runners`` names the function that runs it.
"""

from ledger.pipeline.steps.base import Step
from ledger.pipeline.steps.combine import CombineStep
from ledger.pipeline.steps.sink import SinkStep
from ledger.pipeline.steps.source import Notice, SourceStep
from ledger.pipeline.steps.stage import Acks, AnchorsOf, Emits, Filters, StageStep
from ledger.pipeline.steps.state import StateStep

KINDS: tuple[type[Step], ...] = (SourceStep, StageStep, SinkStep, CombineStep, StateStep)

__all__ = [
    "KINDS",
    "Acks",
    "AnchorsOf",
    "CombineStep",
    "Emits",
    "Filters",
    "Notice",
    "SinkStep",
    "SourceStep",
    "StageStep",
    "StateStep",
    "Step",
]
