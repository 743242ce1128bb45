"""States that an object of the user's own keeps: the base classes of their lifecycle, after
JStorm's batch transactions.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Stateful(ABC):
    """The hooks that a stateful stage and a stateful source share.

    All are called in the driver, for one batch after the other. The object may be a new one for
    each batch, so what counts is the snapshot: JSON that the ledger keeps, either the state
    itself or the key of a large one kept elsewhere.
    """

    def init_state(self, snapshot: Any) -> None:  # noqa: B027 - a hook, no duty
        """Start from the last committed snapshot; None: nothing is committed yet. Before each
        batch.
        """

    @abstractmethod
    def commit(self, batch_id: int, state: Any) -> Any:
        """Keep the state where it outlives this process; a small snapshot of it, or the key of a
        large one.

        It prepares: the state counts once the ledger has the snapshot, which follows at once or
        never. So write beside what is committed, never over it, and under a key of this
        attempt's own, such as a UUID: one that was replaced may still be writing.
        """

    def roll_back(self, snapshot: Any) -> None:  # noqa: B027
        """An attempt after this committed snapshot was rolled back: forget what it kept.
        ``init_state`` follows.
        """

    def ack_commit(self, batch_id: int) -> None:  # noqa: B027
        """The batch is committed as a whole, its sinks published: what older states kept may go.
        It may come twice, and late; what it raises is logged and the call is retried.
        """


class StatefulStage(Stateful):
    """What ``Pipeline.stateful`` takes: hooks that carry a state from batch to batch, in the
    pipeline's state task.
    """

    @abstractmethod
    def finish_batch(self, batch_id: int, batch: "DataFrame") -> Any:
        """This batch's state: the one before it and the acked rows of the batch, the user's
        columns.
        """

    def rows(self, state: Any) -> "DataFrame":
        """What sinks that read the stage publish of the state; by default that frame."""
        return state  # type: ignore[no-any-return]


class StatefulSource(Stateful):
    """What ``Pipeline.source`` takes for a system that it knows nothing of: hooks that carry a
    position, or a token, from batch to batch.

    ``schema``: a StructType or a DDL string, the columns of what ``read`` gives. The state is of
    what was emitted: the snapshot is committed in the transaction that commits the batch's
    records, whatever becomes of them later. Replays, and a batch whose source is rerun, take
    what was emitted from the ledger's own snapshot of the records: no hook is called for them,
    and what the source held before a committed state is not needed any more.
    """

    schema: "StructType | str"

    @abstractmethod
    def read(self, spark: "SparkSession") -> "DataFrame":
        """The records from the state on, of the schema's columns. Fix here up to where they go:
        the frame is run later, a task of it maybe twice.
        """

    @abstractmethod
    def finish_batch(self, batch_id: int) -> Any:
        """The state after the records that ``read`` gave; they were emitted."""

    @property
    def shown(self) -> str:
        """What messages and the ledger call it."""
        return type(self).__qualname__
