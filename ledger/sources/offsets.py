"""Sources that are read by offsets: the class to subclass, its kind of source and its reader."""

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ledger.core.run_request import Interval
from ledger.errors import InputError, quote
from ledger.sources.base import Claim, Scope, Source, SourceReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ledger.settings import Settings


class OffsetSource(ABC):
    """Base class of a source that is read from one offset to another, such as a queue or an API.

    Subclass it for a system that ackledger does not know, and pass an instance to
    ``Pipeline.source``.

    ``schema``: the columns of the frame that ``read`` returns, a StructType or a DDL string.

    An offset is any JSON: a number, a token, or ``{"0": 5, "1": 7}``, a number for each partition.
    The ledger keeps the offsets. When a batch opens, it claims the records between two of them.
    """

    schema: "StructType | str"

    @abstractmethod
    def latest(self, start: Any, room: int | None) -> Any:
        """Return the offset up to which a batch reads on from ``start`` (None: from the beginning).

        It is at most ``room`` records further (None: any number), or the least that can be read.
        Return ``start`` itself if there is nothing new.

        Called in the process that opens the batch, maybe more than once.
        """

    @abstractmethod
    def read(self, spark: "SparkSession", start: Any, end: Any) -> "DataFrame":
        """Return the records after ``start`` up to ``end``, with the schema's columns.

        They have to be the same records every time, until ``commit``. The frame is run later, and a
        task of it may run twice.
        """

    def commit(self, batch_id: int, end: Any) -> None:  # noqa: B027 - a hook, no duty
        """Let the system forget everything up to ``end``, which is committed as a whole: settled
        and published.

        Calls come in the order of offsets, but a call may be late, or come twice. It may also come
        after the call for a later offset, if two batches are notified at once: ignore an ``end``
        before the last. An exception is logged, and the call comes again with that of the next
        batch.
        """

    @property
    def shown(self) -> str:
        """The name of the source in messages and in the ledger."""
        return type(self).__qualname__


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
        return OffsetReader(spark, self._declared)


class OffsetReader(SourceReader):
    """Reads one source from offset to offset."""

    def __init__(self, spark: "SparkSession", source: OffsetSource):
        from ledger.sources.parsing import typed

        self._spark = spark
        self._source = source
        self.schema = typed.struct(source.schema)
        typed.check_schema(self.schema)

    def records(self, claim: Claim) -> "DataFrame":
        """Return the records that ``read`` returns: the schema's columns, ``RAW`` and ``ERROR``.
        Raises InputError if a column is missing or has another type.
        """
        from ledger.sources.parsing import typed

        if claim.end is None:
            return typed.checked(typed.no_rows(self._spark, self.schema), self.schema)
        frame = self._source.read(self._spark, claim.start, claim.end)
        typed.check_columns(f"read of {self._source.shown}", frame.schema, self.schema)
        columns = [f"`{name}`" for name in self.schema.names]
        return typed.checked(frame.select(*columns), self.schema)

    def parse_again(self, stored: "DataFrame") -> "DataFrame":
        """Return stored records in today's schema, with ``MESSAGE`` if they have it. A value that
        does not fit fails its record. A record that did not fit before stays as it is, unless it
        still has all of its values.
        """
        from ledger.sources.parsing import typed

        return typed.parsed_again(stored, self.schema)
