"""Carry the states over batches forward."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Pending
from ledger.batch.following.publications import Withhold
from ledger.batch.surroundings import Surroundings
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step

if TYPE_CHECKING:
    from ledger.store.connection import Database


class State(FollowUp):
    """See ``ledger.execution.states``."""

    name = "state"
    does = "Carry the states over batches forward, in the batches' order, and publish them."
    of_pipeline = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return bool(pipeline.states())

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        return [step for step in pipeline.followers() if pipeline.graph.is_stateful(step.name)]

    def skip_reason(self, at: Surroundings, batch_id: int) -> str | None:
        from ledger.batch.recovery import waits_for

        if self.is_due(at.database, at.pipeline):
            return None
        waits = at.database.transact(lambda c: waits_for(c, batch_id))
        return "; ".join(waits) or "the states include this batch"

    def is_due(self, database: "Database", pipeline: Pipeline) -> bool:
        from ledger.batch.state_runs import is_due

        return is_due(database, pipeline)

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        from ledger.batch.recovery import waits_for

        waits = tuple(waits_for(connection, batch_id))
        return Pending(self.name, len(waits), waits, incomplete=False) if waits else None
