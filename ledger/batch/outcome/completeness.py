"""Whether a pipeline has processed an interval completely: what downstream DAGs wait for before
they read what it publishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """What the batches over an interval have come to: of their ``records`` those that are failed
    or quarantined. ``undecided``: why that is not the whole answer; None: it is.
    """

    batch_ids: tuple[int, ...]
    records: int
    lost: int
    undecided: str | None

    @property
    def lost_ratio(self) -> float:
        """0 where there are no records."""
        return self.lost / self.records if self.records else 0.0


@dataclass(frozen=True)
class IntervalReader:
    """The batch that has an interval, and ``why`` no other reads it."""

    batch_id: int
    why: str


def losses(database: Database, pipeline: str, interval: Interval) -> Losses:
    """How much of an interval is lost by now."""
    rows = _over(database, pipeline, interval)
    undecided = [
        f"batch {row.batch_id} is {BatchStatus(row.status).words}"
        for row in rows
        if not _decided(row)
    ]
    return Losses(
        tuple(row.batch_id for row in rows),
        sum(row.total for row in rows),
        sum(row.failed + row.quarantined for row in rows),
        next(iter(undecided), _gap(rows, interval)),
    )


def waits_for(database: Database, pipeline: str, interval: Interval) -> str | None:
    """Why an interval is not complete; None: it is. One batch or many have to cover it, and each of
    them and its replays to be complete, and published: see ``Summary.outcome``.
    """
    rows = _over(database, pipeline, interval)
    gap = _gap(rows, interval)
    if gap is not None:
        return gap
    lacks = (_lacks(database, row.batch_id) for row in reversed(rows))  # new ones lack most
    return next((lack for lack in lacks if lack is not None), None)


def reader_of(
    database: Database, pipeline: str, key: RunKey, interval: Interval
) -> IntervalReader | None:
    """The batch that reads an interval: the run's own if it is decided, or another run's.
    None: the run has it to read.

    Raises InputError for a batch that has read a part of it only, or more.
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


def _lacks(database: Database, batch_id: int) -> str | None:
    """What an original and its replays lack."""
    for number in sorted(database.transact(lambda c: reports.family(c, batch_id))):
        summary = summarize(database, number)
        lacks = number == batch_id and summary.outcome is not Outcome.COMPLETE
        if lacks or any(work.incomplete for work in summary.pending):
            advice = advise(summary)
            assert advice is not None
            return advice.because
    return None


def _decided(row: Counts) -> bool:
    return BatchStatus(row.status).decided


def _gap(rows: Sequence[Counts], interval: Interval) -> str | None:
    """The first part of the interval that no batch reads; rows are in order of their start."""
    covered = interval.start
    for row in rows:
        if row.interval_start > covered:
            return f"no batch reads {covered:{_MINUTE}} to {row.interval_start:{_MINUTE}}"
        covered = max(covered, row.interval_end)
    if covered < interval.end:
        return f"no batch reads {covered:{_MINUTE}} to {interval.end:{_MINUTE}}"
    return None
