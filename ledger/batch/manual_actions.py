"""Actions of people on batches and records: abandon, restart or release a batch, quarantine failed
records or accept quarantined ones.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from ledger.batch import follow_ups
from ledger.batch.advice.actions import Action, Advice
from ledger.batch.advice.batches import publish, still_failed
from ledger.batch.records.filters import require_names
from ledger.batch.recovery import stands_at, waits_for
from ledger.batch.root_files import remove_root_files
from ledger.batch.settlement import Settlement, abandon_batch, decide_publications, settle_once
from ledger.core.commands import ANY_TARGET, ackledger
from ledger.core.states import BatchStatus, HoldCause, RunState
from ledger.core.text import storable
from ledger.core.verdict import Decision, Verdict
from ledger.errors import InputError, NotReadyError
from ledger.store.connection import Database
from ledger.store.queries import acceptances, batches, records, reports, runs
from ledger.store.queries.batches import Batch


@dataclass(frozen=True)
class Quarantined:
    """Records of an original batch that were moved to quarantine, and accepted.

    ``records``: number of records.
    ``accepted_by``: the person who accepted them.
    ``next``: what follows from that, as sentences and commands.
    """

    batch_id: int
    records: int
    accepted_by: str
    next: tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """Result of accepting the quarantined records of a batch.

    ``batch_id``: the original.
    ``records``: number of records that this call accepted.
    ``accepted``: number of the ``quarantined`` records that are accepted by now.
    ``failed``: number of failed records, which cannot be accepted and need a replay.
    ``next``: what to do about records that are still failed, and why there was nothing to accept,
    if there was nothing.
    """

    batch_id: int
    records: int
    accepted: int
    quarantined: int
    failed: int
    next: tuple[str, ...] = ()


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
        now = batches.database_now(connection)
        for run in runs.runs_of(connection, batch_id):
            if run.state is RunState.RUNNING and run.lease_until > now:
                raise NotReadyError(
                    f"step {run.step!r} of batch {batch_id} is running: wait until it has ended,"
                    " or stop it"
                )
        if batch.status is BatchStatus.HELD:  # that hold is over, and its preview with it
            batches.move_batch(connection, batch_id, BatchStatus.HELD, BatchStatus.OPEN)
        runs.supersede_all(connection, batch_id)
        runs.fence_running(connection, batch_id)
        batches.set_first_attempt(connection, batch_id, runs.draw_number(connection))
        batches.withdraw_release(connection, batch_id)
        batches.hold(connection, batch_id, HoldCause.RESTART, "All its steps run again")
        return stands_at(connection, batches.get_batch(connection, batch_id))

    return database.transact(work)


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


def quarantine(
    database: Database,
    reason: str,
    by: str,
    *,
    record: int | None = None,
    batch_id: int | None = None,
    step: str | None = None,
) -> Quarantined:
    """Quarantine one failed record, or those of a batch (that failed last at ``step``), and accept
    that they stay out of the sinks, so that nothing waits for them.

    Raises InputError without a reason, or for a record that never failed or is of another batch,
    NotReadyError if nothing is failed.
    """
    text = _required_reason(reason)

    def work(connection: Connection) -> Quarantined:
        message, original = _locate(connection, record, batch_id)
        locked = batches.lock_batch(connection, original)
        assert locked is not None
        moved = acceptances.quarantine(
            connection, original, message, step, text, by, whole=locked.is_whole
        )
        if moved == 0:
            raise NotReadyError(_nothing(connection, record, original, step))
        decide_publications(connection, locked)
        return Quarantined(original, moved, by, tuple(_next(connection, locked)))

    return database.transact(work)


def accept(database: Database, batch_id: int, *, by: str, reason: str) -> Acceptance:
    """Accept that the records of a batch, or of a replay's original, that are quarantined now stay
    out of its sinks.

    Safe to repeat: accepted records stay accepted. A record that is quarantined later, or again, is
    not accepted. Raises InputError without a reason, or if there is no such batch.

    ``by``: the person, for the ledger.
    """
    text = _required_reason(reason)

    def work(connection: Connection) -> Acceptance:
        original = batches.get_batch(connection, batch_id).original_id
        batches.lock_batch(connection, original)
        accepted = acceptances.accept(connection, original, by, text)
        row = reports.batch_counts(connection, original)
        lines = []
        if not row.quarantined:
            lines.append(f"batch {original} has nothing in quarantine")
        elif not accepted:
            lines.append(
                f"batch {original} has nothing left to accept: {row.accepted:,} of"
                f" {row.quarantined:,} quarantined are accepted"
            )
        if row.failed:
            lines.append(str(still_failed(original, row.failed)))
        counts = (accepted, row.accepted, row.quarantined, row.failed)
        return Acceptance(original, *counts, tuple(lines))

    return database.transact(work)


def _next(connection: Connection, batch: Batch) -> list[str]:
    """Return what to do next for a batch whose records were accepted: about records that are still
    failed, and about publications that waited for the records.
    """
    number, lines = batch.batch_id, []
    left = reports.batch_counts(connection, number).failed
    if left:
        lines.append(str(still_failed(number, left)))
    if left and batch.is_whole:
        without = Action(
            "Records that are given up are quarantined by a replay, which leaves them out",
            ackledger("replay", batch.target or ANY_TARGET, batch=number),
        )
        lines.append(str(without))
    if follow_ups.waiting(connection, batch.pipeline, number):
        target = batch.target or ANY_TARGET
        lines += map(str, publish(target, number, "What waited for them goes on with", None))
    return lines or waits_for(connection, number)


def _locate(
    connection: Connection, record: int | None, batch_id: int | None
) -> tuple[int | None, int]:
    """Return the message number of a record, if one is named, and the original batch. Raises
    InputError if neither a record nor a batch is named, or if the record never failed.
    """
    if record is None:
        if batch_id is None:
            raise InputError("expected a record, or --batch, found neither")
        return None, batches.get_batch(connection, batch_id).original_id
    row = records.failed_record(connection, record)
    if row is None:
        state = records.emitted_root(connection, record).status
        raise InputError(
            f"record {record} has not failed, it is {state}: 'ackledger failed --records' lists"
            f" those that did, '{ackledger('explain', record)}' says what became of it"
        )
    require_names(connection, {"batch_id": batch_id, "record": record})
    return row.message_id, row.batch_id


def _nothing(connection: Connection, record: int | None, batch_id: int, step: str | None) -> str:
    where = f" at {step}" if step else ""
    if record is not None:
        row = records.failed_record(connection, record)
        assert row is not None
        at = f" at {row.step}" if step else ""
        return f"record {record} is {row.status}{at}: only a failed one{where} is quarantined"
    require_names(connection, {"batch_id": batch_id, "step": step})
    return (
        f"batch {batch_id} has no failed record{where} (those replaying, recovered or quarantined "
        f"do not count): {ackledger('failed', batch=batch_id)}"
    )


def _required_reason(reason: str | None) -> str:
    """Return a person's reason as the ledger keeps it. Raises InputError if it is empty, or only
    dots, which stand for a reason in printed commands.
    """
    text = (reason or "").strip()
    if not text.strip(".…"):
        what = f"is {reason!r}" if text else "is empty"
        raise InputError(
            f"the reason {what}: say why these records may stay out, for those who look at them"
            " later"
        )
    return storable(reason or "")
