"""Publish the decided rows of a batch, without those of failed records."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Pending, WithoutSpark
from ledger.batch.surroundings import Surroundings
from ledger.pipeline.pipeline import Pipeline


class Withhold(FollowUp):
    """See ``ledger.spark.steps.withhold``."""

    name = "withhold"
    does = "Leave the rows of failed records out of what sinks are to publish."
    of_batch = True

    def skip_reason(self, at: Surroundings, batch_id: int) -> str | None:
        from ledger.batch.publishing import needs_withholding

        return None if needs_withholding(at.database, batch_id) else "nothing is to be withheld"


class Publish(WithoutSpark):
    """See ``ledger.batch.publishing``."""

    name = "publish"
    does = "Publish what is acked; at least once, what no sink has published by itself."
    of_batch = True

    def after(self, pipeline: Pipeline) -> str:
        return Withhold.name

    def run(self, at: Surroundings, batch_id: int) -> Sequence[object]:
        from ledger.batch.publishing import publish

        return publish(at, batch_id)

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        sinks = "1 sink is" if steps == 1 else f"{steps} sinks are"
        sentence = f"{sinks} yet to publish what is acked of it"
        return Pending(self.name, steps, (sentence,)) if steps else None
