"""Run the combines of a batch."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Pending
from ledger.batch.following.publications import Withhold
from ledger.batch.surroundings import Surroundings
from ledger.pipeline.pipeline import Pipeline
from ledger.pipeline.steps import Step


class Combine(FollowUp):
    """See ``ledger.execution.combines``."""

    name = "combine"
    does = (
        "Run the combines, once all records of a batch are acked or quarantined, and their sinks."
    )
    of_batch = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def is_wanted(self, pipeline: Pipeline) -> bool:
        return bool(pipeline.combined())

    def steps(self, pipeline: Pipeline) -> Sequence[Step]:
        return pipeline.combined()

    def skip_reason(self, at: Surroundings, batch_id: int) -> str | None:
        from ledger.batch.combine_runs import combines_due

        due = combines_due(at.database, at.pipeline, batch_id)
        return None if due else "nothing is to be combined: it has been, or records are failed"

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        sentence = "combines are yet to publish what is acked of it"
        return Pending(self.name, 1, (sentence,)) if steps else None
