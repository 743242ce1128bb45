"""Read on in an interval of which a batch has read a part."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from ledger.batch.following.base import FollowUp, NextRun, Surroundings, Task, Undone
from ledger.batch.following.publications import PUBLISH
from ledger.core.text import quantity
from ledger.store.queries import batches, claims

if TYPE_CHECKING:
    from ledger.store.connection import Database


def _nothing_to_read(at: Surroundings, batch_id: int) -> str | None:
    unread = at.database.transact(lambda c: claims.unread(c, batch_id))
    return None if unread else "the interval is read to its end"


def _next_part(database: "Database", batch_id: int) -> NextRun:
    unread = database.transact(lambda c: claims.unread(c, batch_id))
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    run_id = f"part__{batch_id}"
    tried = database.transact(lambda c: claims.abandoned_runs(c, batch.dag_id, run_id))
    interval = {
        "interval_start": batch.interval_start.isoformat(),
        "interval_end": batch.interval_end.isoformat(),
    }
    left = quantity(unread, "record is", "records are")
    return NextRun(
        batch.dag_id,
        f"{run_id}__{tried}" if tried else run_id,
        {**interval, "guarantee": batch.guarantee.value, **batch.params},
        f"reads on in the interval of batch {batch_id}: {left} left",
    )


def _unread(connection: Connection, batch_id: int) -> Undone | None:
    count = claims.unread(connection, batch_id)
    sentence = (
        f"{quantity(count, 'record')} of its interval wait for further batches (max_pending): run"
        " the same interval again, under another run id, until none is left"
    )
    return Undone(NEXT_PART.name, count, (sentence,), by_publish=False) if count else None


NEXT_PART = FollowUp(
    "next_part",
    "Trigger another run of the DAG for what is left of the interval, whatever the sinks publish.",
    task=Task(after=lambda _: PUBLISH.name, awaited=False),
    wanted=lambda pipeline: pipeline.reads_in_parts,
    next_run=_next_part,
    not_due=_nothing_to_read,
    overdue=claims.unread_intervals,
    undone=_unread,
)
