"""The base class of states that a user's object keeps, with the lifecycle of JStorm's batch
transactions.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StatefulStage(ABC):
    """Hooks that carry a state from batch to batch, in the pipeline's state task.
    ``Pipeline.stateful`` takes an object of a subclass.

    All are called in the driver, for one batch after the other. The object may be a new one for
    each batch, so what counts is the snapshot: JSON that the ledger keeps, either the state itself
    or the key of a large one kept elsewhere.
    """

    def init_state(self, snapshot: Any) -> None:  # noqa: B027 - a hook, no duty
        """Start from the last committed snapshot, before each batch. None: nothing is committed
        yet.
        """

    @abstractmethod
    def finish_batch(self, batch_id: int, batch: "DataFrame") -> Any:
        """Return the state after this batch, from the state before it and the batch's acked rows
        with the user's columns.
        """

    def rows(self, state: Any) -> "DataFrame":
        """Return the rows that sinks which read the stage publish; by default the state itself, if
        it is a frame.
        """
        return state  # type: ignore[no-any-return]

    @abstractmethod
    def commit(self, batch_id: int, state: Any) -> Any:
        """Keep the state where it outlives this process, and return a small snapshot of it, or the
        key of a large one.

        It prepares: the state counts once the ledger has the snapshot, which follows at once or
        never. So write beside what is committed, never over it, and under a key of this
        attempt's own, such as a UUID: one that was replaced may still be writing.
        """

    def roll_back(self, snapshot: Any) -> None:  # noqa: B027
        """Forget what an attempt after this committed snapshot kept: it was rolled back.
        ``init_state`` follows.
        """

    def ack_commit(self, batch_id: int) -> None:  # noqa: B027
        """Remove what older states kept: the batch is committed as a whole, and its sinks are
        published. The call may come twice, and late. Its errors are logged, and it is retried.
        """
