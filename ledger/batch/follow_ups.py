"""What follows the settlement of a batch: one tuple, in order.

The DAG, the command line, the step program, the sweeper and the summary iterate it. A new follow-up
is a module in ``ledger.batch.following`` and its name in ``FOLLOW_UPS``; if it needs Spark,
``ledger.execution`` names its function.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from ledger.batch.following.base import FollowUp, Undone
from ledger.batch.following.combines import COMBINE
from ledger.batch.following.content import KEEP
from ledger.batch.following.notices import NOTIFY
from ledger.batch.following.publications import PUBLISH, WITHHOLD
from ledger.batch.following.states import STATE
from ledger.pipeline.pipeline import Pipeline
from ledger.store.queries import reports

if TYPE_CHECKING:
    from ledger.store.connection import Database

# In the order in which a driver does them; a task's is after the one that it follows.
FOLLOW_UPS = (KEEP, WITHHOLD, PUBLISH, COMBINE, NOTIFY, STATE)


def with_tasks() -> tuple[FollowUp, ...]:
    """Those that have a task of their own in a DAG."""
    return tuple(one for one in FOLLOW_UPS if one.task is not None)


def tasks_of(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that have a task in the DAG of a pipeline."""
    return tuple(one for one in with_tasks() if one.wanted(pipeline))


def of_settle() -> tuple[FollowUp, ...]:
    """Those that the task ``settle`` does."""
    return tuple(one for one in FOLLOW_UPS if one.task is None)


def of_driver(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that a driver which settles a batch of a pipeline does."""
    return tuple(one for one in FOLLOW_UPS if one.part_of is None and one.wanted(pipeline))


def submitted() -> dict[str, FollowUp]:
    """Those whose task starts a driver, by name."""
    return {one.name: one for one in with_tasks() if one.on_spark}


def overdue(connection: Connection, before: datetime) -> list[Row[Any]]:
    """Batches of a DAG, settled before a moment, whose runs left something undone: batch_id,
    dag_id."""
    return [
        row
        for one in FOLLOW_UPS
        if one.overdue is not None
        for row in one.overdue(connection, before)
    ]


def undone(connection: Connection, batch_id: int) -> tuple[Undone, ...]:
    """What is yet to be done for a batch, in order."""
    found = (one.undone(connection, batch_id) for one in FOLLOW_UPS if one.undone is not None)
    return tuple(one for one in found if one is not None)


def by_publish(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that ``ackledger publish`` does for a batch."""
    return tuple(one for one in of_driver(pipeline) if one.left is not None)


def of_pipeline(pipeline: Pipeline) -> tuple[FollowUp, ...]:
    """Those that are done for all batches of a pipeline at once."""
    return tuple(one for one in of_driver(pipeline) if one.is_due is not None)


def left(database: "Database", pipeline: Pipeline, batch_id: int | None) -> list[int]:
    """Batches of a pipeline, or of the one's family, for which ``ackledger publish`` has something
    to do.
    """

    def ask(connection: Connection) -> list[int]:
        return pending(connection, pipeline.name, batch_id, by_publish(pipeline))

    return database.transact(ask)


def pending(
    connection: Connection,
    pipeline: str,
    batch_id: int | None = None,
    asked: Sequence[FollowUp] = FOLLOW_UPS,
) -> list[int]:
    """As ``left``, of a pipeline by its name."""
    family = [None] if batch_id is None else reports.family(connection, batch_id)
    asks = [one.left for one in asked if one.left is not None]
    return sorted(
        {one for ask in asks for number in family for one in ask(connection, pipeline, number)}
    )


def is_due(database: "Database", pipeline: Pipeline) -> bool:
    """Whether something is to be done for all batches of a pipeline at once."""
    asked = [one.is_due for one in of_pipeline(pipeline) if one.is_due is not None]
    return any(ask(database, pipeline) for ask in asked)
