"""Sinks: what is published."""

from dataclasses import dataclass
from typing import Any

from ledger.pipeline.steps.base import Step
from ledger.sinks.base import Sink
from ledger.sinks.options import Bloom


@dataclass(frozen=True)
class SinkStep(Step):
    """A sink, fed by one stage or source."""

    name: str
    sink: Sink
    reads: str
    kind = "sink"
    in_words = "a sink"
    files = "staged"
    is_published = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """The step that it reads."""
        return (self.reads,)

    def described(self) -> dict[str, Any]:
        """See ``Step``. ``in_place``: its files are its table's; ``dedup_window``: with how many
        earlier batches it compares (-1: all).
        """
        described: dict[str, Any] = {"in_place": True} if self.sink.in_place else {}
        dedup = self.sink.dedup
        if isinstance(dedup, Bloom) and dedup.key:
            window = -1 if dedup.window_batches is None else dedup.window_batches
            described |= {"dedup_window": window}
        return described
