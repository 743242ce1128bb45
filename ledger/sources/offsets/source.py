"""The base class of a source that is read by offsets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
