"""The kind of source that an object of the user's own keeps the position of."""

from typing import TYPE_CHECKING

from ledger.core.run_request import Interval
from ledger.core.stateful import StatefulSource
from ledger.settings import Settings
from ledger.sources.base import Source, SourceReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StatefulKind(Source):
    """What the ledger asks of a StatefulSource."""

    incremental = True
    not_reread = "it keeps its own position"

    def __init__(self, hooks: StatefulSource):
        self.schema = hooks.schema
        self.place = hooks.shown
        self.hooks = hooks

    def check(self, settings: Settings, name: str, interval: Interval | None) -> str:
        """Nothing: its system is known to the hooks alone."""
        return f"{self.place} is asked when it runs"

    def reader(self, spark: "SparkSession") -> SourceReader:
        """What reads on from where the hooks stand."""
        from ledger.sources.stateful.reader import FrameReader

        assert self.hooks is not None
        return FrameReader(spark, self.hooks)
