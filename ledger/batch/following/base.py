"""Base classes of follow-ups: when one is due, how it is done, and its pending work.

DAG files import the follow-ups, so a module that takes long to load is imported inside a function.
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
    """Pending work of a follow-up for a batch.

    ``count``: number of pending things, of the kind that the follow-up counts.
    ``sentences``: the pending work in words.
    ``incomplete``: whether the batch is incomplete until ``ackledger publish`` has done the work.
    """

    follow_up: str
    count: int
    sentences: tuple[str, ...]
    incomplete: bool = True


class FollowUp:
    """One thing that follows the settlement of a batch. A subclass overrides what differs from
    this.

    A driver does it, through ``ledger.execution.follow_ups``, unless it is a ``WithoutSpark``.
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
        """Return the task after which this follow-up's task runs. Unless that is ``settle``, it
        need not succeed.
        """
        return SETTLE

    def is_wanted(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline has this follow-up at all."""
        return True

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        """Return the steps that this follow-up's driver runs."""
        return ()

    def skip_reason(self, at: Surroundings, batch_id: int) -> str | None:
        """Return why there is nothing to do for a batch; None if there is, or if the follow-up
        always runs.
        """
        return None

    def is_due(self, database: "Database", pipeline: Pipeline) -> bool:
        """Return whether there is something to do for all batches of a pipeline at once."""
        return False

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        """Return the pending work of this follow-up for a batch; None: there is none.

        ``steps``: number of steps with pending work in the view, if the follow-up is ``of_batch``.
        """
        return None


class WithoutSpark(FollowUp, ABC):
    """A follow-up that any process can do."""

    @abstractmethod
    def run(self, at: Surroundings, batch_id: int) -> Sequence[object]:
        """Do the follow-up for a batch, and return what was done."""
