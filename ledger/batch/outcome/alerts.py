"""Reasons to notify a person of a batch: too many of its records failed, it made the quarantine
grow, or its deadline is near.

Each function reads only the ledger, so calling it twice gives the same answer.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ledger.batch import holds
from ledger.batch.outcome.summary import RootCounts, summarize
from ledger.batch.recovery import stands_at
from ledger.core.run_request import REPROCESS
from ledger.core.states import BatchStatus
from ledger.core.text import printable
from ledger.store.connection import Database
from ledger.store.queries import batches, measures, pages
from ledger.store.queries.batches import Batch


@dataclass(frozen=True)
class Facts:
    """Facts on a batch for a notification.

    ``because``: the reason for the notification, in one line without control characters, so that it
    can be a subject.
    ``records``, ``acked``, ``failed``, ``quarantined``, ``pending``: counts of the batch's
    interval, including the results of replays.
    ``lost_ratio``: failed and quarantined records as a share of the records.
    ``deadline``: time at which the batch reaches ``max_batch_age`` and is decided in any case.
    ``preview``: the failures that a batch on hold would record, a line for each step and reason.
    """

    because: str
    pipeline: str
    batch_id: int
    status: str
    interval_start: datetime
    interval_end: datetime
    dag_id: str
    run_id: str
    records: int
    acked: int
    failed: int
    quarantined: int
    pending: int
    lost_ratio: float
    deadline: datetime
    preview: tuple[str, ...] = ()


def batch_of_run(database: Database, dag_id: str, run_id: str) -> int | None:
    """Return the batch that a run of a DAG has opened; None: it has opened none."""
    ids = [run_id, run_id + REPROCESS]
    numbers = database.transact(lambda c: pages.of_run(c, dag_id, ids), engine=database.reader)
    return next(iter(numbers), None)


def failed_ratio(database: Database, batch_id: int, above: float) -> Facts | None:
    """Return the facts if more than a share of the interval's records are failed or quarantined, or
    if the batch is on hold, so that nothing is decided; otherwise None.
    """
    batch, counts = _batch_and_counts(database, batch_id)
    if batch.status is BatchStatus.HELD:
        because = f"batch {batch_id} of {batch.pipeline} is on hold: {batch.held_reason}"
        lines = holds.lines(database.transact(lambda c: holds.failures_of(c, batch_id)))
        preview = tuple(printable(" ".join(line.split())) for line in lines)
        return replace(_facts(batch, counts, because), preview=preview)
    if batch.status is not BatchStatus.SETTLED or _lost_ratio(counts) <= above:
        return None
    lost = counts.failed + counts.quarantined
    return _facts(
        batch,
        counts,
        f"{lost:,} of {counts.total:,} records of {batch.pipeline} are failed or quarantined"
        f" ({_lost_ratio(counts):.2%}): more than {above:.2%}",
    )


def quarantine_growth(
    database: Database, batch_id: int, by: int, within: timedelta
) -> Facts | None:
    """Return the facts if its pipeline's batches quarantined more than ``by`` records in the time
    ``within``, and this batch is the one that crossed the limit; otherwise None.
    """
    batch, counts = _batch_and_counts(database, batch_id)
    until = batch.settled_at
    if until is None:
        return None
    new = database.transact(
        lambda c: measures.quarantined_by_batch(c, batch.pipeline_id, until - within, until),
        engine=database.reader,
    )
    now = sum(new.values())
    if not now - new.get(batch_id, 0) <= by < now:
        return None
    return _facts(
        batch,
        counts,
        f"{now:,} records of {batch.pipeline} were quarantined within"
        f" {str(within).removesuffix(', 0:00:00')}: more than {by:,}",
    )


def still_open(database: Database, batch_id: int) -> Facts | None:
    """Return the facts if the batch is open; otherwise None. Called when its deadline is near."""
    batch, counts = _batch_and_counts(database, batch_id)
    if batch.status is not BatchStatus.OPEN:
        return None
    stands = database.transact(lambda c: stands_at(c, batch))
    return _facts(
        batch,
        counts,
        f"batch {batch_id} of {batch.pipeline} is still open, and decided at"
        f" {_deadline(batch):%Y-%m-%d %H:%M %Z} whatever runs or waits. {stands}",
    )


def _batch_and_counts(database: Database, batch_id: int) -> tuple[Batch, RootCounts]:
    """Return the batch, and the records of its interval by state. The counts are those of the
    original, which include the results of its replays.
    """
    batch = database.transact(lambda c: batches.get_batch(c, batch_id))
    return batch, summarize(database, batch.original_id).roots


def _lost_ratio(counts: RootCounts) -> float:
    return (counts.failed + counts.quarantined) / counts.total if counts.total else 0.0


def _facts(batch: Batch, counts: RootCounts, because: str) -> Facts:
    return Facts(
        because=printable(" ".join(because.split())),  # it may quote a reason of any text
        pipeline=batch.pipeline,
        batch_id=batch.batch_id,
        status=batch.status.value,
        interval_start=batch.interval_start,
        interval_end=batch.interval_end,
        dag_id=batch.dag_id,
        run_id=batch.run_id.removesuffix(REPROCESS),
        records=counts.total,
        acked=counts.acked,
        failed=counts.failed,
        quarantined=counts.quarantined,
        pending=counts.pending,
        lost_ratio=_lost_ratio(counts),
        deadline=_deadline(batch),
    )


def _deadline(batch: Batch) -> datetime:
    return batch.opened_at + batch.max_batch_age
