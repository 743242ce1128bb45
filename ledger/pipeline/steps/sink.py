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
        """The step that the sink reads, as a tuple of one name."""
        return (self.reads,)

    def described(self) -> dict[str, Any]:
        dedup, window = self.sink.dedup, None
        if isinstance(dedup, Bloom) and dedup.key:
            window = -1 if dedup.window_batches is None else dedup.window_batches
        return {"in_place": self.sink.in_place, "dedup_window": window}
