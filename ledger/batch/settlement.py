"""Settle: decide every root of a batch, acked or failed, in one transaction under the batch's
lock.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import where_seen
from ledger.batch.holds import OverLimitError, Preview, check_limit, keep
from ledger.batch.recovery import stands_at
from ledger.batch.refining import Refinement, Uneven, is_of, is_past, refine, uneven
from ledger.batch.root_files import remove_root_files
from ledger.core.probes import reached
from ledger.core.states import BatchKind, BatchStatus, HoldCause, RunState, SettlePolicy
from ledger.core.text import quantity
from ledger.core.verdict import Decision, Limits, StepFacts, Verdict, decide
from ledger.errors import (
    IntegrityError,
    LedgerError,
    LostFileError,
    NotReadyError,
    UnseenFilesError,
)
from ledger.store.connection import Database
from ledger.store.queries import (
    batches,
    claims,
    following,
    publications,
    refining,
    replays,
    runs,
)
from ledger.store.queries import settlement as queries
from ledger.store.queries.batches import Batch


@dataclass(frozen=True)
class Settlement:
    """Result of a settlement.

    ``decided``: whether this call made the decision.
    ``roots``, ``failed``: counts of the batch, whichever call decided it; 0 while it is open.
    """

    batch_id: int
    status: BatchStatus
    reason: str
    decided: bool = False
    roots: int = 0
    failed: int = 0

    def __str__(self) -> str:
        """Return the decision, with its reason or time, in one line."""
        acked = self.roots - self.failed
        return (
            f"batch {self.batch_id} is {self.status.words} ({self.reason}): "
            f"{quantity(self.roots, 'record')}, {acked} acked, {self.failed} failed"
        )


def settle_once(
    database: Database, batch_id: int, *, now: datetime | None = None, skip_locked: bool = False
) -> Settlement | None:
    """Settle the batch if it can be decided at ``now`` (default: the database's clock).

    Return None if another settlement holds it and ``skip_locked``. A failed check, or too many
    failures, put the batch on hold: nothing else of the settlement takes effect. If roots that are
    not even share a span, the files of its runs are read first; if this process cannot read them,
    the batch stays open.
    """
    settlement = _settled(database, batch_id, now, skip_locked)
    if settlement is not None and settlement.decided and settlement.status is not BatchStatus.HELD:
        reached("root files pending")
        remove_root_files(database, batch_id)
    return settlement


def _settled(
    database: Database, batch_id: int, now: datetime | None, skip_locked: bool
) -> Settlement | None:
    """Settle from the ledger, and refine and settle again as long as the settlement needs single
    roots.
    """
    outcome = _settled_with(database, batch_id, now, skip_locked, None)
    while isinstance(outcome, Uneven):
        try:
            refinement = refine(database.transact, outcome)
            reached("refined")
        except LedgerError as exc:
            ended = database.transact(partial(_unsettled, asked=outcome, exc=exc))
            if isinstance(ended, LedgerError):
                raise  # out here, where it is not taken for the ledger's: that is tried again
            if ended is not None:
                return ended
            outcome = _settled_with(database, batch_id, now, skip_locked, None)
        else:
            with refinement:
                outcome = _settled_with(database, batch_id, now, skip_locked, refinement)
    return outcome


def _unsettled(
    connection: Connection, asked: Uneven, exc: LedgerError
) -> Settlement | LedgerError | None:
    """Return the result for a batch whose files could not be refined.

    A machine that cannot read the files leaves the batch open, and contradictions between files and
    ledger put it on hold. ``exc`` itself is returned if a later try may succeed. None: other runs
    of the batch count by now.
    """
    batch_id = asked.batch_id
    batches.lock_batch(connection, batch_id)
    if is_past(connection, asked):
        return None
    if isinstance(exc, UnseenFilesError):
        ways = sentences(where_seen(batch_id))
        reason = f"needs refinement, and this machine cannot read what that takes: {exc}. {ways}"
        return Settlement(batch_id, BatchStatus.OPEN, reason)
    if isinstance(exc, IntegrityError) and not isinstance(exc, LostFileError):
        return _hold(connection, batch_id, str(exc))
    return exc


def _settled_with(
    database: Database,
    batch_id: int,
    now: datetime | None,
    skip_locked: bool,
    refinement: Refinement | None,
) -> Settlement | Uneven | None:
    """Settle in one transaction. After a failed check or too many failures, put the batch on hold
    instead. It stays locked, so that no run is opened after the runs that were checked.
    """

    def work(connection: Connection) -> Settlement | Uneven | None:
        batch = batches.lock_family(connection, batch_id, skip_locked=skip_locked)
        if batch is None:
            return None
        try:
            with connection.begin_nested():
                return _settle(connection, batch, now, refinement)
        except OverLimitError as exc:
            reached("before hold")
            return _hold(connection, batch_id, str(exc), exc.preview)
        except IntegrityError as exc:
            return _hold(connection, batch_id, str(exc))

    return database.transact(work)


def _settle(
    connection: Connection, batch: Batch, now: datetime | None, refinement: Refinement | None
) -> Settlement | Uneven:
    batch_id = batch.batch_id
    if batch.status is not BatchStatus.OPEN:
        return _settled_before(connection, batch)
    instant = now or batches.database_now(connection)
    limits = Limits(
        batch.message_timeout,
        batch.opened_at + batch.max_batch_age,
    )
    verdict = decide(step_facts(connection, batch), instant, limits)
    if verdict.action is Decision.WAIT:
        return Settlement(batch_id, BatchStatus.OPEN, verdict.reason)
    replaces = batch.replaces_batch_id is not None or _replays_whole(batch)
    unfinished = verdict.action is Decision.EXPIRE and replaces
    if verdict.action is Decision.ABANDON or unfinished:  # what it was to replace is still in place
        return abandon_batch(connection, batch, verdict)
    if verdict.action is Decision.EXPIRE and not batch.tracking:
        raise IntegrityError(
            f"batch {batch_id}: {verdict.reason}, and with tracking=False the ledger does not know"
            f" what is missing after it: run {verdict.missing[0]} again"
        )
    _check_read(connection, batch)
    queries.tune(connection)
    if not batch.tracking:
        return _decide_roots(connection, batch, verdict, instant, None)
    _check_posted(connection, batch)
    if refinement is not None and is_of(connection, batch, refinement):
        return _decide_roots(connection, batch, verdict, instant, refinement)
    asked = uneven(connection, batch)
    if asked is None:
        return _decide_roots(connection, batch, verdict, instant, None)
    if asked.needs_files:
        return asked
    with refine(lambda work: work(connection), asked) as refinement:
        return _decide_roots(connection, batch, verdict, instant, refinement)


def _settled_before(connection: Connection, batch: Batch) -> Settlement:
    """Return the result that another settlement, or the sweeper, has left of a batch."""
    if batch.status is BatchStatus.HELD:
        return Settlement(batch.batch_id, batch.status, str(stands_at(connection, batch)))
    reason = f"already {batch.status.words}"
    if batch.settled_at is not None:
        reason += f", {batch.settled_at:%Y-%m-%d %H:%M:%S %Z}"
    roots, failed = batch.roots or 0, batch.failed_roots or 0
    return Settlement(batch.batch_id, batch.status, reason, roots=roots, failed=failed)


def step_facts(connection: Connection, batch: Batch) -> list[StepFacts]:
    """Return the steps of a batch with their newest runs. Runs that died before the batch was
    opened again do not count.
    """
    all_runs = runs.runs_of(connection, batch.batch_id)
    newest = {run.step: run for run in all_runs if run.opened_at >= batch.opened_at}
    committed = {run.step for run in all_runs if run.state is RunState.COMMITTED}
    facts = []
    for step in batch.steps:
        run = newest.get(step.name)
        ended = () if run is None else (run.state, run.lease_until, run.closed_at)
        facts.append(StepFacts(step.name, step.kind, step.name in committed, *ended))
    return facts


def _decide_roots(
    connection: Connection,
    batch: Batch,
    verdict: Verdict,
    instant: datetime,
    refinement: Refinement | None,
) -> Settlement:
    roots, failed = queries.total_roots(connection, batch.batch_id), 0
    if refinement is not None:
        failed = _fail_roots(connection, batch, instant, refinement)
    if batch.tracking:
        check_limit(connection, batch)
    if batch.kind is BatchKind.REPLAY:
        queries.recover_rest_of_replay(connection, batch.batch_id)
    queries.plan_as_usual(connection)
    runs.fence_running(connection, batch.batch_id)
    if not queries.mark_settled(connection, batch.batch_id, roots, failed):
        raise AssertionError("the batch is locked and was open")
    if batch.replaces_batch_id is not None:
        batches.lock_batch(connection, batch.replaces_batch_id)
        others = [*batches.undecided_of(connection, batch.replaces_batch_id, batch.batch_id)]
        if others:
            raise NotReadyError(
                f"batch {batch.batch_id} replaces batch {batch.replaces_batch_id}, of which batch"
                f" {others[0]} is not decided yet: let that one settle first"
            )
        batches.supersede_family(connection, batch.replaces_batch_id, batch.batch_id)
    if batch.replaces_batch_id is not None or _replays_whole(batch):
        publications.supersede(connection, batch.batch_id)
    decide_publications(connection, batch, None if refinement is None else refinement.reached)
    reached("settling")
    runs.forget_fails(connection, batch.batch_id)
    return Settlement(batch.batch_id, BatchStatus.SETTLED, verdict.reason, True, roots, failed)


def decide_publications(
    connection: Connection, batch: Batch, reached_steps: Collection[str] | None = None
) -> None:
    """Decide the publications of a batch whose records have changed, and of batches of its family
    that waited for it.

    ``reached_steps``: the steps that acked a row of a root that fails in this settlement; None: no
    root fails.
    """
    following.look_again(connection, batch.original_id)
    if batch.settle is SettlePolicy.HOLD and publications.open_failures(
        connection, batch.original_id
    ):
        return
    if reached_steps is not None:
        publications.decide_untouched(connection, batch.batch_id, reached_steps)
    publications.decide(connection, batch.original_id)


def _fail_roots(
    connection: Connection, batch: Batch, instant: datetime, refinement: Refinement
) -> int:
    """Record the roots that failed, each with where and why. A run's word about a single root comes
    first, then what was lost, then a run's word about several roots.
    """
    refining.fill(connection, refinement.file)
    for shared in (False, True):
        queries.add_explicit_fails(connection, batch.batch_id, shared=shared)
    _check_refined(connection, batch)
    failed = refinement.rows
    failures = _record_failures(connection, batch)
    if batch.replay_backoff:
        replays.delay_replays(connection, batch, instant)
    attempts = queries.record_attempts(connection, batch.batch_id)
    if not failed == failures == attempts:
        raise IntegrityError(
            f"batch {batch.batch_id}: {failed} records failed, but it read {failures} of these and"
            f" kept {attempts}: rows were posted of records that it never read"
        )
    return failed


def _check_refined(connection: Connection, batch: Batch) -> None:
    """Raise IntegrityError unless every failed root is in ``settling``, and has its step."""
    without = refining.failed_without_rows(connection, batch.batch_id)
    if without:
        raise IntegrityError(
            f"batch {batch.batch_id}: {quantity(without, 'record')} failed explicitly, and nothing"
            " that its runs posted has what they add to them: run its sources again"
        )
    unnamed = refining.unnamed_roots(connection)
    if unnamed:
        raise IntegrityError(
            f"batch {batch.batch_id}: the rows of {unnamed} records do not add up at any step"
        )


def _record_failures(connection: Connection, batch: Batch) -> int:
    """Record the messages whose roots failed, and return how many."""
    limit, whole = batch.max_replays, batch.is_whole
    if batch.kind is BatchKind.ORIGINAL:
        return queries.record_failures_of_original(connection, batch.batch_id, limit, whole=whole)
    return queries.record_failures_of_replay(
        connection, batch.batch_id, batch.original_id, limit, whole=whole
    )


def _replays_whole(batch: Batch) -> bool:
    """Whether a batch replays a whole batch, whose rows its own replace."""
    return batch.kind is BatchKind.REPLAY and batch.is_whole


def _check_read(connection: Connection, batch: Batch) -> None:
    """Raise IntegrityError unless each run read runs that count, and a replay emitted the messages
    that it claimed.
    """
    for reader, producer in queries.stale_readers(connection, batch.batch_id):
        raise IntegrityError(
            f"batch {batch.batch_id}: {reader} read a run of {producer} that is superseded:"
            f" run {reader} again"
        )
    if batch.kind is not BatchKind.REPLAY:
        return
    if batch.is_whole:
        wrong = replays.wrongly_emitted(connection, batch.batch_id)
        if wrong:
            raise IntegrityError(
                f"replay batch {batch.batch_id}: its sources left out {quantity(wrong, 'record')}"
                " that it claimed, or emitted some that it leaves out: run its sources again"
            )
        return
    claimed = replays.claimed_count(connection, batch.batch_id)
    emitted = queries.total_roots(connection, batch.batch_id)
    if claimed != emitted:  # one that was never emitted must not pass for one that was acked
        raise IntegrityError(
            f"replay batch {batch.batch_id} claimed {claimed} records and emitted {emitted}: run"
            " its sources again"
        )


def _check_posted(connection: Connection, batch: Batch) -> None:
    """Raise IntegrityError unless all that was recorded is in the ledger: absence is never
    evidence.
    """
    for step, run_id, recorded, posted in queries.uneven_runs(connection, batch.batch_id):
        raise IntegrityError(
            f"batch {batch.batch_id}: run {run_id} of {step} recorded (rows, XOR,"
            f" emitted, acked; of a source spans, first, last) = {recorded}, the ledger has"
            f" {posted}: run {step} again"
        )


def abandon_batch(connection: Connection, batch: Batch, verdict: Verdict) -> Settlement:
    """Abandon a batch with all its claims. Without an emit there are no verdicts."""
    batches.move_batch(connection, batch.batch_id, BatchStatus.OPEN, BatchStatus.ABANDONED)
    claims.release(connection, batch.batch_id)
    runs.supersede_all(connection, batch.batch_id)
    queries.release_messages(connection, batch.batch_id)
    if batch.kind is BatchKind.REPLAY:  # what was held for its sake may be published now
        decide_publications(connection, batch)
    runs.fence_running(connection, batch.batch_id)
    runs.forget_fails(connection, batch.batch_id)
    return Settlement(batch.batch_id, BatchStatus.ABANDONED, verdict.reason, True)


def _hold(
    connection: Connection, batch_id: int, reason: str, preview: Preview | None = None
) -> Settlement:
    """Put the batch on hold, if it is still open: for too many failures, which have a preview, or
    for a check that failed.
    """
    batch = batches.lock_batch(connection, batch_id)
    assert batch is not None
    if batch.status is not BatchStatus.OPEN:
        return _settled_before(connection, batch)
    cause = HoldCause.CHECK if preview is None else HoldCause.FAILURES
    batches.hold(connection, batch_id, cause, reason)
    if preview is None:  # a release was meant for another reason than this one
        batches.set_released(connection, batch_id, released=False)
    else:
        keep(connection, batch_id, preview)
    reached("holding")
    on_hold = batches.get_batch(connection, batch_id)
    return Settlement(batch_id, BatchStatus.HELD, str(stands_at(connection, on_hold)), True)
