"""Publish what is decided, without the rows of failed records."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, Surroundings, Task, Undone
from ledger.store.queries import publications


def _nothing_to_withhold(at: Surroundings, batch_id: int) -> str | None:
    from ledger.batch.publishing import needs_withholding

    return None if needs_withholding(at.database, batch_id) else "nothing is to be withheld"


WITHHOLD = FollowUp(
    "withhold",
    "Leave the rows of failed records out of what sinks are to publish.",
    task=Task(),
    part_of="publish",
    not_due=_nothing_to_withhold,
)


def _publish(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.publishing import publish

    return publish(at.database, at.settings, at.pipeline, batch_id)


def _unpublished(connection: Connection, batch_id: int) -> Undone | None:
    count = publications.unpublished(connection, batch_id)
    if count:
        sinks = "1 sink is" if count == 1 else f"{count} sinks are"
        sentence = f"{sinks} yet to publish what is acked of it"
        return Undone(PUBLISH.name, count, (sentence,))
    if batch_id in publications.units_to_rebuild(connection, batch_id):
        sentence = "units of it are yet to be replayed without their quarantined records"
        return Undone(PUBLISH.name, 1, (sentence,))
    return None


PUBLISH = FollowUp(
    "publish",
    "Publish what is acked; at least once, what no sink has published by itself.",
    task=Task(after=lambda _: WITHHOLD.name),
    here=_publish,
    left=publications.waiting,
    overdue=publications.overdue,
    undone=_unpublished,
)
