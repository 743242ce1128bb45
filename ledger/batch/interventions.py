"""What people do to a batch: abandon, release."""

from sqlalchemy import Connection

from ledger.batch.root_files import remove_root_files
from ledger.batch.settlement import Settlement, abandon_batch, settle_once
from ledger.core.states import BatchStatus, RunState
from ledger.core.verdict import Decision, Verdict
from ledger.errors import NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import batches, runs


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

    is_abandoned = database.transact(work)
    if is_abandoned:
        remove_root_files(database, batch_id)
    return is_abandoned


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
