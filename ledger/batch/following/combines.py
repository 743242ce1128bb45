"""Run the combines of a batch."""

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Surroundings, Task, Undone
from ledger.batch.following.publications import WITHHOLD
from ledger.store.queries import combines


def _nothing_to_combine(at: Surroundings, batch_id: int) -> str | None:
    from ledger.batch.combine_runs import combines_due

    due = combines_due(at.database, at.pipeline, batch_id)
    return None if due else "nothing is to be combined: it has been, or records are failed"


def _uncombined(connection: Connection, batch_id: int) -> Undone | None:
    if not combines.combine_is_due(connection, batch_id):
        return None
    return Undone(COMBINE.name, 1, ("combines are yet to publish what is acked of it",))


COMBINE = FollowUp(
    "combine",
    "Run the combines, once all records of a batch are acked or quarantined, and their sinks.",
    task=Task(after=lambda _: WITHHOLD.name),
    wanted=lambda pipeline: bool(pipeline.combined()),
    not_due=_nothing_to_combine,
    left=combines.waiting,
    overdue=combines.combine_overdue,
    undone=_uncombined,
)
