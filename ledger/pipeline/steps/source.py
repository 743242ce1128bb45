"""Sources: where tracking begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.pipeline.steps.base import Step, checked_name, named_once
from ledger.sources.base import Source
from ledger.sources.registry import AnySource, source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Notice = Callable[[int, "DataFrame"], object]


@dataclass(frozen=True)
class SourceStep(Step):
    """A tracked source. Each of its records is a root, or only those that match ``track``."""

    name: str
    source: Source
    on_ack: Notice | None = None
    on_fail: Notice | None = None
    track: str | None = None
    key: tuple[str, ...] = ()
    kind = "source"
    in_words = "a source"
    files = "snapshots"
    is_source = True
    inputs = ()

    @property
    def has_callbacks(self) -> bool:
        """Whether the source declares ``on_ack`` or ``on_fail``."""
        return self.on_ack is not None or self.on_fail is not None

    @property
    def wants_notice(self) -> bool:
        """Whether the source is notified of a settled batch, by ``on_ack``, ``on_fail`` or
        ``commit``.
        """
        return self.has_callbacks or self.source.commits

    @property
    def rereads(self) -> bool:
        """Whether a replay can read single records of the source again by their key."""
        return bool(self.key) and self.source.not_reread is None

    @property
    def incremental(self) -> bool:
        """Whether a batch reads the records that no other batch has read, instead of an
        interval.
        """
        return self.source.incremental

    @property
    def columns(self) -> "StructType | str | None":
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
) -> SourceStep:
    declared = source_of(f"source {name!r}", source)
    columns = named_once(f"source {name!r}: key", key)
    own = checked_name("source", name)
    return SourceStep(own, declared, on_ack, on_fail, track, columns)
