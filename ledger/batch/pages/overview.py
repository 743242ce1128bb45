"""Content of the overview, of a pipeline's page and of a run's page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ledger.batch.outcome.summary import Policy
from ledger.core.run_request import REPROCESS
from ledger.core.states import BatchStatus
from ledger.store.connection import Database
from ledger.store.queries import pages
from ledger.store.queries import pipelines as queries
from ledger.store.queries.pages import ListedBatch


@dataclass(frozen=True)
class PageBatch(ListedBatch):
    """A batch with its ``state`` in one word. ``committed``: number of committed ``steps`` while it
    is open.
    """

    state: str
    committed: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class LatestBatch:
    """A pipeline with its latest original, if it has one."""

    name: str
    latest: PageBatch | None


@dataclass(frozen=True)
class Overview:
    """Content of the overview.

    ``recent``: the latest batches of all pipelines.
    ``open``: the batches that are running.
    ``waiting``: the batches that wait for a person.
    """

    pipelines: list[LatestBatch]
    recent: list[PageBatch]
    open: list[PageBatch]
    waiting: list[PageBatch]


@dataclass(frozen=True)
class PipelinePage:
    """Content of a pipeline's page.

    ``intervals``: the latest originals, by start, without abandoned ones whose interval a later one
    reads.
    ``recent``: the latest batches.
    """

    name: str
    intervals: list[PageBatch]
    recent: list[PageBatch]


def pipelines(database: Database) -> list[str]:
    """Return all pipelines, sorted by name."""
    return database.transact(queries.names)


def overview(database: Database, pipelines: Sequence[str]) -> Overview:
    """Return the content of the overview of these pipelines."""

    def work(connection: Connection) -> Overview:
        latest = pages.latest(connection, pipelines)
        recent = pages.recent(connection, pipelines)
        under_way = pages.open_batches(connection, pipelines)
        waiting = pages.waiting(connection, pipelines)
        batches = page_batches(connection, {*latest, *recent, *under_way, *waiting})
        progress = {row.batch_id: row for row in pages.progress(connection, under_way)}
        last = {batches[number].pipeline: batches[number] for number in latest}
        return Overview(
            [LatestBatch(name, last.get(name)) for name in pipelines],
            [batches[number] for number in recent],
            [
                replace(batches[row.batch_id], committed=row.committed, steps=row.steps)
                for row in map(progress.__getitem__, under_way)
            ],
            [batches[number] for number in waiting],
        )

    return database.transact(work)


def pipeline(database: Database, name: str) -> PipelinePage:
    """Return the content of the page of a pipeline."""

    def work(connection: Connection) -> PipelinePage:
        originals, recent = pages.originals(connection, name), pages.recent(connection, [name])
        batches = page_batches(connection, {*originals, *recent})
        intervals = _without_reread([batches[number] for number in originals])
        return PipelinePage(
            name,
            sorted(intervals, key=lambda batch: batch.interval_start),
            [batches[number] for number in recent],
        )

    return database.transact(work)


def _without_reread(originals: Sequence[PageBatch]) -> Iterator[PageBatch]:
    """Yield ``originals``, latest first, except abandoned ones whose interval a later one reads."""
    read = set()
    for batch in originals:
        interval = batch.interval_start, batch.interval_end
        if batch.status != BatchStatus.ABANDONED or interval not in read:
            yield batch
        read.add(interval)


def of_run(database: Database, dag_id: str, run_id: str) -> list[PageBatch]:
    """Return the batches that a run of a DAG has opened, latest first. A run that was cleared may
    have reprocessed its interval in a second batch.
    """

    def work(connection: Connection) -> list[PageBatch]:
        numbers = pages.of_run(connection, dag_id, [run_id, run_id + REPROCESS])
        batches = page_batches(connection, numbers)
        return [batches[number] for number in numbers]

    return database.transact(work)


def page_batches(connection: Connection, numbers: Iterable[int]) -> dict[int, PageBatch]:
    """Return batches by number, newest first."""
    rows = pages.batches(connection, sorted(numbers))
    return {row.batch_id: PageBatch(**vars(row), state=_state(row)) for row in rows}


def _state(row: ListedBatch) -> str:
    """Return the state of a batch in one word: open, held, abandoned or superseded; of a settled
    batch failed, quarantined (and not accepted), unpublished, tolerated or complete.

    Pending work of combines and states is shown on the batch's own page.
    """
    if row.status != BatchStatus.SETTLED:
        return str(row.status)
    lost = row.failed + row.quarantined
    if lost > row.accepted and Policy(row.allow_failed, lost, row.total).tolerated:
        return "tolerated"
    if row.failed:
        return "failed"
    if row.quarantined > row.accepted:
        return "quarantined"
    return "unpublished" if row.unpublished else "complete"
