"""What the overview, a pipeline's page and a run's page have."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from ledger.core.run_request import REPROCESS
from ledger.core.states import BatchStatus, is_tolerated
from ledger.store.connection import Database
from ledger.store.queries import pages


def names(database: Database) -> list[str]:
    """All pipelines."""
    return database.transact(pages.names)


def overview(database: Database, pipelines: Sequence[str]) -> dict[str, Any]:
    """``pipelines``: each with its latest batch, or none. ``recent``: the latest batches of all.
    ``open``: those under way. ``waiting``: those that wait for a person.
    """

    def work(connection: Connection) -> dict[str, Any]:
        latest = pages.latest(connection, pipelines)
        recent = pages.recent(connection, pipelines)
        under_way = pages.open_batches(connection, pipelines)
        waiting = pages.waiting(connection, pipelines)
        found = _batches(connection, {*latest, *recent, *under_way, *waiting})
        last = {found[number]["pipeline"]: found[number] for number in latest}
        return {
            "pipelines": [{"name": name, "latest": last.get(name)} for name in pipelines],
            "recent": [found[number] for number in recent],
            "open": _with_progress(connection, [found[number] for number in under_way]),
            "waiting": [found[number] for number in waiting],
        }

    return database.transact(work)


def pipeline(database: Database, name: str) -> dict[str, Any]:
    """``intervals``: the latest originals that count, by start: not those that were abandoned and
    whose interval a later one reads. ``recent``: the latest batches.
    """

    def work(connection: Connection) -> dict[str, Any]:
        originals, recent = pages.originals(connection, name), pages.recent(connection, [name])
        found = _batches(connection, {*originals, *recent})
        intervals = _that_count([found[number] for number in originals])
        return {
            "name": name,
            "intervals": sorted(intervals, key=lambda one: one["interval_start"]),
            "recent": [found[number] for number in recent],
        }

    return database.transact(work)


def _that_count(originals: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of ``originals``, latest first, all but abandoned ones whose interval is read later."""
    read = set()
    for one in originals:
        interval = one["interval_start"], one["interval_end"]
        if one["status"] != BatchStatus.ABANDONED or interval not in read:
            yield one
        read.add(interval)


def of_run(database: Database, dag_id: str, run_id: str) -> dict[str, Any]:
    """``batches``: what a run of a DAG has opened, latest first; cleared, it may have reprocessed
    its interval by another one.
    """

    def work(connection: Connection) -> dict[str, Any]:
        numbers = pages.of_run(connection, dag_id, [run_id, run_id + REPROCESS])
        found = _batches(connection, numbers)
        return {"batches": [found[number] for number in numbers]}

    return database.transact(work)


def as_batch(row: Row[Any]) -> dict[str, Any]:
    """A row of ``pages.batches`` as the pages have it, with its ``state`` in one word."""
    return {**row._mapping, "state": _state(row)}


def _state(row: Row[Any]) -> str:
    """open, held, abandoned, superseded; of a settled batch failed, quarantined (and not
    accepted), unpublished, tolerated or complete. What combines and states have left to do is said
    by the batch's own page.
    """
    if row.status != BatchStatus.SETTLED:
        return str(row.status)
    lost = row.failed + row.quarantined
    if lost > row.accepted and is_tolerated(lost, row.total, row.tolerate):
        return "tolerated"
    if row.failed:
        return "failed"
    if row.quarantined > row.accepted:
        return "quarantined"
    return "unpublished" if row.unpublished else "complete"


def _batches(connection: Connection, numbers: Any) -> dict[int, dict[str, Any]]:
    return {row.batch_id: as_batch(row) for row in pages.batches(connection, sorted(numbers))}


def _with_progress(
    connection: Connection, under_way: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    numbers = [batch["batch_id"] for batch in under_way]
    steps = {row.batch_id: row for row in pages.progress(connection, numbers)}
    return [
        {**batch, "committed": steps[number].committed, "steps": steps[number].steps}
        for number, batch in zip(numbers, under_way, strict=True)
    ]
