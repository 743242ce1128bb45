"""Completeness of an interval: downstream DAGs wait for it before they read the data that a
pipeline publishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ledger.batch.outcome.report import advise
from ledger.batch.outcome.summary import summarize
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus, Outcome
from ledger.errors import InputError
from ledger.store.connection import Database
from ledger.store.queries import batches, reports
from ledger.store.queries.reports import Counts

_MINUTE = "%Y-%m-%d %H:%M"


@dataclass(frozen=True)
class Losses:
    """Lost records of the batches over an interval.

    ``records``: number of records.
    ``lost``: number of those that are failed or quarantined.
    ``undecided``: why these counts are not final; None: they are final.
    """

    batch_ids: tuple[int, ...]
    records: int
    lost: int
    undecided: str | None

    @property
    def lost_ratio(self) -> float:
        """Lost records as a share of the records; 0 without records."""
        return self.lost / self.records if self.records else 0.0


@dataclass(frozen=True)
class IntervalReader:
    """The batch that reads an interval. ``why``: why no other batch reads it."""

    batch_id: int
    why: str


def losses(database: Database, pipeline: str, interval: Interval) -> Losses:
    """Return the losses of an interval by now."""
    rows = _over(database, pipeline, interval)
    undecided = [
        f"batch {row.batch_id} is {BatchStatus(row.status).words}"
        for row in rows
        if not BatchStatus(row.status).decided
    ]
    return Losses(
        tuple(row.batch_id for row in rows),
        sum(row.total for row in rows),
        sum(row.failed + row.quarantined for row in rows),
        next(iter(undecided), _gap(rows, interval)),
    )


def waits_for(database: Database, pipeline: str, interval: Interval) -> str | None:
    """Return why an interval is not complete; None: it is complete.

    One or several batches have to cover it, and all of them and their replays have to be complete
    and published: see ``Summary.outcome``.
    """
    rows = _over(database, pipeline, interval)
    gap = _gap(rows, interval)
    if gap is not None:
        return gap
    for row in reversed(rows):  # the newest is the first that is not complete, as a rule
        for number in sorted(database.transact(partial(reports.family, batch_id=row.batch_id))):
            summary = summarize(database, number)
            is_original = number == row.batch_id
            is_incomplete = is_original and summary.outcome is not Outcome.COMPLETE
            if is_incomplete or any(work.incomplete for work in summary.pending):
                advice = advise(summary)
                assert advice is not None
                return advice.because
    return None


def reader_of(
    database: Database, pipeline: str, key: RunKey, interval: Interval
) -> IntervalReader | None:
    """Return the batch that reads an interval: the run's own if it is decided, or another run's.
    None: the run has to read the interval itself.

    Raises InputError for a batch that has read only a part of the interval, or more than it.
    """
    own = database.transact(lambda c: batches.find_run(c, pipeline, key.dag_id, key.run_id))
    if own is not None:
        return IntervalReader(own.batch_id, "is decided") if own.status.decided else None
    rows = _over(database, pipeline, interval)
    for row in rows:
        if (row.interval_start, row.interval_end) != (interval.start, interval.end):
            raise InputError(
                f"batch {row.batch_id} has read {row.interval_start:{_MINUTE}} to"
                f" {row.interval_end:{_MINUTE}}, which is not {interval.start:{_MINUTE}} to"
                f" {interval.end:{_MINUTE}}: expected intervals that do not overlap. Choose"
                " --every, --from and --to as that run had them"
            )
    return next(
        (IntervalReader(row.batch_id, f"was read by run {row.run_id!r}") for row in rows), None
    )


def _over(database: Database, pipeline: str, interval: Interval) -> list[Counts]:
    bounds = (pipeline, interval.start, interval.end)
    return database.transact(lambda c: reports.over(c, *bounds), engine=database.reader)


def _gap(rows: Sequence[Counts], interval: Interval) -> str | None:
    """Return the first part of the interval that no batch reads. The rows are in order of their
    start.
    """
    covered = interval.start
    for row in rows:
        if row.interval_start > covered:
            return f"no batch reads {covered:{_MINUTE}} to {row.interval_start:{_MINUTE}}"
        covered = max(covered, row.interval_end)
    if covered < interval.end:
        return f"no batch reads {covered:{_MINUTE}} to {interval.end:{_MINUTE}}"
    return None
