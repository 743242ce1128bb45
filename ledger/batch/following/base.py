"""What a follow-up is: when it is due, how it is done, and what of it is pending.

DAG files import the follow-ups: what takes long to load is imported when it is called.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection

from ledger.batch.surroundings import Surroundings
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step

if TYPE_CHECKING:
    from ledger.store.connection import Database

SETTLE = "settle"  # the DAG's task


@dataclass(frozen=True)
class Pending:
    """What of a follow-up is pending for a batch: how many of what it counts, and sentences.

    ``incomplete``: so is the batch meanwhile; ``ackledger publish`` does it.
    """

    follow_up: str
    count: int
    sentences: tuple[str, ...]
    incomplete: bool = True


class FollowUp:
    """One thing that follows the settlement of a batch. A kind overrides what differs from this.

    A driver does it, by ``ledger.execution.follow_ups``, unless it is a ``WithoutSpark``.
    """

    name: ClassVar[str]
    """Also of its task."""
    does: ClassVar[str]
    """In a sentence."""
    has_task: ClassVar[bool] = True
    """Whether it has a task in a DAG; if not the task ``settle`` does it."""
    is_awaited: ClassVar[bool] = True
    """Whether the task ``complete`` waits for its task."""
    of_batch: ClassVar[bool] = False
    """Whether ``ackledger publish`` does it for each batch of which it is pending."""
    of_pipeline: ClassVar[bool] = False
    """Whether it is done for all batches of a pipeline at once, if it ``is_due``."""

    def after(self, pipeline: Pipeline) -> str:
        """The task that its task follows: whatever becomes of that one, unless it is ``settle``."""
        return SETTLE

    def is_wanted(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline has it at all."""
        return True

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        """The steps that its driver runs."""
        return ()

    def skip_reason(self, at: Surroundings, batch_id: int) -> str | None:
        """Why there is nothing to do for a batch; None if there is, or it is always run."""
        return None

    def is_due(self, database: "Database", pipeline: Pipeline) -> bool:
        """Whether there is something to do for all batches of a pipeline at once."""
        return False

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        """What of it is pending for a batch. ``steps``: in how many it is, by the view, if it is
        ``of_batch``."""
        return None


class WithoutSpark(FollowUp, ABC):
    """One that any process does."""

    @abstractmethod
    def run(self, at: Surroundings, batch_id: int) -> Sequence[object]:
        """Do it for a batch; what it has done."""
