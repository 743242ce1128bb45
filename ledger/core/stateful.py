"""States that an object of the user's own keeps: the base class of their lifecycle, after JStorm's
batch transactions.
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
        """Start from the last committed snapshot; None: nothing is committed yet. Before each
        batch.
        """

    @abstractmethod
    def finish_batch(self, batch_id: int, batch: "DataFrame") -> Any:
        """This batch's state: the one before it and the acked rows of the batch, the user's
        columns.
        """

    def rows(self, state: Any) -> "DataFrame":
        """Return the rows that sinks which read the stage publish; by default the state itself, if
        it is a frame.
        """
        return state  # type: ignore[no-any-return]

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
