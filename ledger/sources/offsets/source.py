"""The base class of a source that is read by offsets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class OffsetSource(ABC):
    """What ``Pipeline.source`` takes for a system that it knows nothing of, such as a queue or an
    API: what it has is read from one offset to another.

    ``schema``: a StructType or a DDL string, the columns of what ``read`` returns. An offset is any
    JSON: a number, a token, or ``{"0": 5, "1": 7}``, a number for each partition. The ledger keeps
    the offsets; a batch claims the records between two of them when it opens.
    """

    schema: "StructType | str"

    @abstractmethod
    def latest(self, start: Any, room: int | None) -> Any:
        """The offset up to which a batch reads on from ``start`` (None: from the beginning): at
        most ``room`` records further (None: any number), or the least that can be read. ``start``
        itself if there is nothing new.

        Called in the process that opens the batch, maybe more than once.
        """

    @abstractmethod
    def read(self, spark: "SparkSession", start: Any, end: Any) -> "DataFrame":
        """The records after ``start`` up to ``end``, of the schema's columns: the same ones every
        time, until ``commit``. The frame is run later, a task of it maybe twice.
        """

    def commit(self, batch_id: int, end: Any) -> None:  # noqa: B027 - a hook, no duty
        """Everything up to ``end`` is committed as a whole, settled and published: the system may
        forget it. In the order of offsets, but late, or twice, and after a later one where two
        batches are notified at once: ignore an end before the last. What it raises is logged; the
        call comes again with the next batch's.
        """

    @property
    def shown(self) -> str:
        """What messages and the ledger call it."""
        return type(self).__qualname__
