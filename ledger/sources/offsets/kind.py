"""The kind of source that is read by offsets."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ledger.core.run_request import Interval
from ledger.errors import InputError, quote
from ledger.sources.base import Claim, Scope, Source, SourceReader
from ledger.sources.offsets.source import OffsetSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ledger.settings import Settings


class Offsets(Source):
    """The ``Source`` of an OffsetSource."""

    incremental = True
    by_offset = True
    not_reread = "its system may have forgotten what is committed"

    def __init__(self, declared: OffsetSource):
        self._declared = declared
        self.schema = declared.schema
        self.place = declared.shown
        self.commits = type(declared).commit is not OffsetSource.commit

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Return a note that the system is asked only when a batch opens."""
        return f"{self.place} is asked when a batch opens"

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """Claim the records between ``start`` and the offset that the declared ``latest`` returns.

        Raises InputError if it returns None after an offset.
        """
        end = self._declared.latest(deepcopy(start), room)
        if end is None and start is not None:
            raise InputError(
                f"source {scope.source!r}: latest returned None after offset {quote(repr(start))}:"
                " expected an offset, which is that one if there is nothing new"
            )
        return scope.claim(end=end, records=room)

    def commit(self, batch_id: int, end: Any) -> None:
        """Call the ``commit`` of the declared object."""
        self._declared.commit(batch_id, end)

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of a range of offsets."""
        from ledger.sources.offsets.reader import OffsetReader

        return OffsetReader(spark, self._declared)
