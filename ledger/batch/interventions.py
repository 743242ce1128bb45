"""Actions of people on a batch: abandon, restart, release."""

from sqlalchemy import Connection

from ledger.batch.advice.actions import Advice
from ledger.batch.recovery import stands_at
from ledger.batch.root_files import remove_root_files
from ledger.batch.settlement import Settlement, abandon_batch, settle_once
from ledger.core.states import BatchStatus, HoldCause, RunState
from ledger.core.verdict import Decision, Verdict
from ledger.errors import NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import batches, runs


def abandon(database: Database, batch_id: int, reason: str) -> bool:
    """Abandon an open batch with all its claims, and return whether it is abandoned.

    A batch with a committed run, or with a run in another process, stays as it is.
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
    """Hold a batch until its next run, which runs all of its steps; return how to go on.

    Its committed runs are superseded, and attempts that began before are fenced: none of them
    opens another run of it. Raises NotReadyError unless the batch is open or on hold, or while one
    of its steps runs.
    """

    def work(connection: Connection) -> Advice:
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        if batch.status not in (BatchStatus.OPEN, BatchStatus.HELD):
            raise NotReadyError(
                f"batch {batch_id} is {batch.status.words}: expected one that is open or on hold."
                " To process its interval again, run it with --reprocess"
            )
        _require_idle(connection, batch_id)
        if batch.status is BatchStatus.HELD:  # that hold is over, and its preview with it
            batches.move_batch(connection, batch_id, BatchStatus.HELD, BatchStatus.OPEN)
        runs.supersede_all(connection, batch_id)
        runs.fence_running(connection, batch_id)
        batches.set_first_attempt(connection, batch_id, runs.draw_number(connection))
        batches.set_released(connection, batch_id, released=False)
        batches.hold(connection, batch_id, HoldCause.RESTART, "All its steps run again")
        return stands_at(connection, batches.get_batch(connection, batch_id))

    return database.transact(work)


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

    A hold for another reason comes back. Raises NotReadyError unless the batch is on hold, or if
    it was restarted.
    """

    def work(connection: Connection) -> None:
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        if batch.held_for is HoldCause.RESTART:
            raise NotReadyError(
                f"batch {batch_id} was restarted and has no results to settle."
                f" {stands_at(connection, batch)}"
            )
        if not batches.release_batch(connection, batch_id):
            raise NotReadyError(
                f"batch {batch_id} is {batch.status.words}: only a batch on hold is released"
            )

    database.transact(work)
    settlement = settle_once(database, batch_id)
    assert settlement is not None
    return settlement
