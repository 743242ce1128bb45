"""The follow-ups of a settlement: one tuple, in order.

The DAG, the command line, the step program and the summary iterate it. A new follow-up is a module
in ``ledger.batch.following`` and a line in ``FOLLOW_UPS``; if it needs Spark, also a line with its
function in ``ledger.execution.follow_ups``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Pending, WithoutSpark
from ledger.batch.following.combines import Combine
from ledger.batch.following.content import Keep
from ledger.batch.following.notices import Notify
from ledger.batch.following.publications import Publish, Withhold
from ledger.batch.following.states import State
from ledger.pipeline.pipeline import Pipeline
from ledger.store.queries import following

if TYPE_CHECKING:
    from ledger.store.connection import Database

# In the order in which a driver does them; a task's is after the one that it follows.
FOLLOW_UPS: tuple[FollowUp, ...] = (
    Keep(),
    Withhold(),
    Publish(),
    Combine(),
    Notify(),
    State(),
)


def with_tasks() -> list[FollowUp]:
    """Return the follow-ups that have a task of their own in a DAG."""
    return [each for each in FOLLOW_UPS if each.has_task]


def tasks_of(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that have a task in the DAG of a pipeline."""
    return [each for each in with_tasks() if each.is_wanted(pipeline)]


def of_settle() -> list[WithoutSpark]:
    """Return the follow-ups that the task ``settle`` does."""
    return [each for each in FOLLOW_UPS if isinstance(each, WithoutSpark) and not each.has_task]


def of_driver(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that a driver does after it has settled a batch of a pipeline."""
    return [each for each in FOLLOW_UPS if each.is_wanted(pipeline)]


def submitted() -> dict[str, FollowUp]:
    """Return the follow-ups whose task starts a driver, each by its name."""
    return {each.name: each for each in with_tasks() if not isinstance(each, WithoutSpark)}


def by_publish(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that ``ackledger publish`` does for a batch."""
    return [each for each in of_driver(pipeline) if each.of_batch]


def of_pipeline(pipeline: Pipeline) -> list[FollowUp]:
    """Return the follow-ups that are done for all batches of a pipeline at once."""
    return [each for each in of_driver(pipeline) if each.of_pipeline]


def pending(connection: Connection, batch_id: int) -> tuple[Pending, ...]:
    """Return the pending work of a batch's follow-ups, in their order."""
    steps = following.pending(connection, batch_id, _of_batch(FOLLOW_UPS))
    pendings = (each.pending(connection, batch_id, steps.get(each.name, 0)) for each in FOLLOW_UPS)
    return tuple(work for work in pendings if work is not None)


def waiting(
    connection: Connection,
    pipeline: str,
    batch_id: int | None = None,
    follow_ups: Sequence[FollowUp] | None = None,
) -> list[int]:
    """Return the batches of a pipeline with a pending follow-up.

    ``batch_id``: only batches of its family.
    ``follow_ups``: only these; None: all that ``ackledger publish`` does for a batch.
    """
    names = _of_batch(FOLLOW_UPS if follow_ups is None else follow_ups)
    return following.waiting(connection, pipeline, names, batch_id=batch_id)


def _of_batch(follow_ups: Sequence[FollowUp]) -> list[str]:
    return [each.name for each in follow_ups if each.of_batch]


def is_due(database: "Database", pipeline: Pipeline) -> bool:
    """Return whether a follow-up is due that is done for all batches of a pipeline at once."""
    return any(each.is_due(database, pipeline) for each in of_pipeline(pipeline))
