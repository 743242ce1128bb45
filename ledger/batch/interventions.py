"""Actions of people on a batch: abandon, restart, release."""

from sqlalchemy import Connection

from ledger.batch.advice.actions import Advice
from ledger.batch.recovery import stands_at
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


def restart(database: Database, batch_id: int) -> Advice:
    """Put an open batch on hold, so that its next run runs all of its steps again. Return how to
    go on.

    Raises NotReadyError unless it is open, or on hold, or while one of its steps runs.
    """

    def work(connection: Connection) -> Advice:
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        if batch.status is BatchStatus.OPEN:
            _require_idle(connection, batch_id)
            batches.move_batch(
                connection, batch_id, BatchStatus.OPEN, BatchStatus.HELD, "All its steps run again"
            )
            batches.set_released(connection, batch_id, released=False)
        elif batch.status is not BatchStatus.HELD:
            raise NotReadyError(
                f"batch {batch_id} is {batch.status.words}: expected one that is open or on hold."
                " To process its interval again, run it with --reprocess"
            )
        return stands_at(connection, batches.get_batch(connection, batch_id))

    return database.transact(work)


def can_restart(database: Database, batch_id: int) -> bool:
    """Whether a batch is open, and some of its steps are committed, which do not run again."""

    def look(connection: Connection) -> bool:
        status = batches.get_batch(connection, batch_id).status
        states = {run.state for run in runs.runs_of(connection, batch_id)}
        return status is BatchStatus.OPEN and RunState.COMMITTED in states

    return database.transact(look)


def _require_idle(connection: Connection, batch_id: int) -> None:
    now = batches.database_now(connection)
    for run in runs.runs_of(connection, batch_id):
        if run.state is RunState.RUNNING and run.lease_until > now:
            raise NotReadyError(
                f"step {run.step!r} of batch {batch_id} is running: wait until it has ended, or"
                " stop it"
            )


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
