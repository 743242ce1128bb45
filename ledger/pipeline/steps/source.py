"""Sources: where tracking begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ledger.errors import DeclarationError
from ledger.pipeline.steps.base import Step, checked_name, named_once
from ledger.sources.base import Source
from ledger.sources.registry import AnySource, source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Notice = Callable[[int, "DataFrame"], object]
Span = int | Literal["auto"]

MOST_SPAN = 1 << 20


@dataclass(frozen=True)
class SourceStep(Step):
    """A tracked source: each of its records, or of those for which ``track`` holds, is a root.
    ``span``: how many of these share a row of the ledger; None: as many as their number asks for.
    """

    name: str
    source: Source
    on_ack: Notice | None = None
    on_fail: Notice | None = None
    track: str | None = None
    key: tuple[str, ...] = ()
    span: int | None = None
    kind = "source"
    in_words = "a source"
    files = "snapshots"
    makes_roots = True
    inputs = ()

    @property
    def hears_of_messages(self) -> bool:
        """Whether it is notified of what became of its messages."""
        return self.on_ack is not None or self.on_fail is not None

    @property
    def wants_notice(self) -> bool:
        """Whether it is notified of a batch: what became of its messages, or that it
        is committed.
        """
        return self.hears_of_messages or self.source.commits

    @property
    def rereads(self) -> bool:
        """Whether single records of it are read again by their key."""
        return bool(self.key) and self.source.not_reread is None

    @property
    def incremental(self) -> bool:
        """Whether a batch takes what no other has taken, instead of an interval."""
        return self.source.incremental

    @property
    def columns(self) -> "StructType | str":
        return self.source.schema

    def described(self) -> dict[str, Any]:
        return {
            "notice": self.wants_notice,
            "incremental": self.incremental,
            "rereads": self.rereads,
            "key": self.key or None,
            "layout": self.source.layout,
        }


def source_step(
    name: str,
    source: AnySource,
    on_ack: Notice | None,
    on_fail: Notice | None,
    track: str | None,
    key: str | Sequence[str] = (),
    span: Span = "auto",
) -> SourceStep:
    declared = source_of(f"source {name!r}", source)
    columns = named_once(f"source {name!r}: key", key)
    own = checked_name("source", name)
    return SourceStep(own, declared, on_ack, on_fail, track, columns, _checked_span(name, span))


def _checked_span(name: str, span: Span) -> int | None:
    """The span that a source is declared with; None: by its number of roots."""
    if span == "auto":
        return None
    if type(span) is int and 1 <= span <= MOST_SPAN and span & (span - 1) == 0:
        return span
    raise DeclarationError(
        f"source {name!r}: span={span!r}: expected 'auto' or a power of two from 1 to {MOST_SPAN:,}"
    )
