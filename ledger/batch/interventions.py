"""What people, and replays of units, do to a batch: rebuild, abandon, release."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from ledger.batch.settlement import (
    Settlement,
    abandon_batch,
    decide_publications,
    record_failures,
    settle_once,
)
from ledger.core.states import BatchStatus, RunState
from ledger.core.verdict import Decision, Verdict
from ledger.errors import NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import (
    batches,
    publications,
    runs,
)
from ledger.store.queries import settlement as queries


def request_rebuild(
    connection: Connection,
    batch_id: int,
    roots: Sequence[int],
    step: str,
    seen: Sequence[Any] | None = None,
) -> None:
    """Count roots of a settled batch as failed with their unit, of which another record was
    quarantined: its replay takes the unit without that one. Roots that failed in the batch already
    stay as they are.

    ``seen``: the failed roots by which these were chosen; where they are others by now, the next
    publish chooses.
    """
    batch = batches.lock_family(connection, batch_id)
    assert batch is not None
    if batch.status is not BatchStatus.SETTLED:
        return  # it was superseded meanwhile: nothing of it is replayed
    if seen is not None and publications.failed_roots(connection, batch_id) != seen:
        return
    publications.set_rebuild_requested(connection, batch_id)
    reason = "its unit had a record that was quarantined"
    queries.collect_rebuilds(connection, batch_id, roots, step, reason)
    record_failures(connection, batch)
    queries.record_attempts(connection, batch_id)
    decide_publications(connection, batch, failed=0)


def abandon(database: Database, batch_id: int, reason: str) -> bool:
    """Abandon an open batch with all that it claimed; whether it is abandoned.

    Not one of which a run is committed, or is under way in another process.
    """

    def work(connection: Connection) -> bool:
        batch = batches.lock_family(connection, batch_id)
        assert batch is not None
        now = batches.database_now(connection)
        held = any(
            run.state is RunState.COMMITTED
            or (run.state is RunState.RUNNING and run.lease_until > now)
            for run in runs.runs_of(connection, batch_id)
        )
        if batch.status is not BatchStatus.OPEN or held:
            return False
        abandon_batch(connection, batch, Verdict(Decision.ABANDON, reason))
        return True

    return database.transact(work)


def release(database: Database, batch_id: int) -> Settlement:
    """Let a batch on hold settle although too many of its records failed.

    Raises NotReadyError unless it is on hold. What else put it there, does so again.
    """

    def work(connection: Connection) -> None:
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        if not batches.release_batch(connection, batch_id):
            raise NotReadyError(
                f"batch {batch_id} is {batch.status.words}: only a batch on hold is released"
            )

    database.transact(work)
    settlement = settle_once(database, batch_id)
    assert settlement is not None
    return settlement
