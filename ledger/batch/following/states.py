"""Carry the states over batches forward."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Surroundings, Task, Undone
from ledger.batch.following.publications import WITHHOLD
from ledger.pipeline.pipeline import Pipeline
from ledger.store.queries import checkpoints

if TYPE_CHECKING:
    from ledger.store.connection import Database


def _no_state_due(at: Surroundings, batch_id: int) -> str | None:
    from ledger.batch.recovery import waits_for

    if _is_state_due(at.database, at.pipeline):
        return None
    waits = at.database.transact(lambda c: waits_for(c, batch_id))
    return "; ".join(waits) or "the states include this batch"


def _is_state_due(database: "Database", pipeline: Pipeline) -> bool:
    from ledger.batch.state_runs import is_due

    return is_due(database, pipeline)


def _waiting_states(connection: Connection, batch_id: int) -> Undone | None:
    from ledger.batch.recovery import waits_for

    waits = tuple(waits_for(connection, batch_id))
    return Undone(STATE.name, len(waits), waits, incomplete=False) if waits else None


STATE = FollowUp(
    "state",
    "Carry the states over batches forward, in the batches' order, and publish them.",
    task=Task(after=lambda _: WITHHOLD.name),
    wanted=lambda pipeline: bool(pipeline.states()),
    not_due=_no_state_due,
    is_due=_is_state_due,
    overdue=checkpoints.overdue,
    undone=_waiting_states,
)
