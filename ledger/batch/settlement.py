"""Settle a batch: inspect it, find where its records broke, decide every root in one transaction
under the batch's lock, remove the root files.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial

from sqlalchemy import Connection

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import where_seen
from ledger.batch.holds import OverLimitError, Preview, check_limit, keep
from ledger.batch.recovery import stands_at
from ledger.batch.refining import Refinement, UnbalancedSpans, refine, unbalanced_spans
from ledger.batch.root_files import remove_root_files
from ledger.core.probes import reached
from ledger.core.states import BatchKind, BatchStatus, HoldCause, PublishPolicy, RunState
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
from ledger.store.queries.refining import CommittedRun


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
        """Return the status and the counts in one line, with the reason or the time of the
        decision.
        """
        acked = self.roots - self.failed
        return (
            f"batch {self.batch_id} is {self.status.words} ({self.reason}): "
            f"{quantity(self.roots, 'record')}, {acked} acked, {self.failed} failed"
        )


def settle_once(
    database: Database, batch_id: int, *, now: datetime | None = None, skip_locked: bool = False
) -> Settlement | None:
    """Settle the batch if it can be decided at ``now`` (default: the database's clock).

    Four calls: inspect the batch, find where its records broke, settle if the inspected runs still
    count, remove the root files. Return None if another settlement holds the batch and
    ``skip_locked``. A failed check, or too many failures, put it on hold: nothing else of the
    settlement takes effect. If this process cannot read the files of the batch's runs, it stays
    open.
    """
    outcome: Settlement | Outdated | LedgerError | None = Outdated.INSPECTION
    while outcome is Outdated.INSPECTION:
        inspection = database.transact(partial(inspect, batch_id=batch_id, now=now))
        if isinstance(inspection, Settlement):
            return inspection
        with refined(database, inspection) as refinement:
            settling = partial(settle, inspection=inspection, refinement=refinement, now=now)
            outcome = database.transact(partial(settling, skip_locked=skip_locked))
    if isinstance(outcome, LedgerError):
        raise outcome  # out here, where it is not taken for the ledger's: that is tried again
    if outcome is not None and outcome.decided and outcome.status is not BatchStatus.HELD:
        remove_root_files(database, batch_id)
    return outcome


class Outdated(Enum):
    """Marks a settlement that found other runs than the inspection: inspect again."""

    INSPECTION = "inspection"


@dataclass(frozen=True)
class Inspection:
    """Evidence about a batch that can be decided, read without a lock.

    ``runs``: its committed runs. What a committed run posted never changes, so all else holds as
    long as these count.
    ``problem``: a check that failed.
    ``unbalanced``: the spans to read root by root; None: every root has arrived.
    """

    batch_id: int
    runs: tuple[CommittedRun, ...]
    problem: IntegrityError | None = None
    unbalanced: UnbalancedSpans | None = None


def inspect(connection: Connection, batch_id: int, now: datetime | None) -> Settlement | Inspection:
    """Read the evidence for a batch's settlement. Return the settlement's result instead if there
    is nothing to decide.
    """
    batch = batches.get_batch(connection, batch_id)
    verdict = _verdict(connection, batch, now)
    if isinstance(verdict, Settlement):
        return verdict
    runs_that_count = tuple(refining.committed(connection, batch_id))
    if _ends_undecided(batch, verdict):
        return Inspection(batch_id, runs_that_count)
    try:
        _check_runs(connection, batch)
    except IntegrityError as exc:
        return Inspection(batch_id, runs_that_count, problem=exc)
    spans = unbalanced_spans(connection, batch) if batch.tracking else None
    return Inspection(batch_id, runs_that_count, unbalanced=spans)


@contextmanager
def refined(
    database: Database, inspection: Inspection
) -> Iterator[Refinement | LedgerError | None]:
    """Yield the failed roots, each with the step where it broke; None if all roots have arrived.
    Yield an error if a check failed, or if the runs' files could not be read.
    """
    if inspection.problem is not None or inspection.unbalanced is None:
        yield inspection.problem
        return
    try:
        refinement = refine(database.transact, inspection.unbalanced)
    except LedgerError as exc:  # to raise once it is certain that these runs still count
        yield exc
        return
    reached("refined")
    with refinement:
        yield refinement


def settle(
    connection: Connection,
    inspection: Inspection,
    refinement: Refinement | LedgerError | None,
    *,
    now: datetime | None,
    skip_locked: bool,
) -> Settlement | Outdated | LedgerError | None:
    """Decide a batch by its inspection, under the batch's lock: settle or abandon it, or put it on
    hold, so that no run is opened after the runs that were checked. The batch stays open if this
    machine cannot read the files of its runs.

    An error is returned if a later try may succeed.
    """
    batch = batches.lock_family(connection, inspection.batch_id, skip_locked=skip_locked)
    if batch is None:
        return None
    verdict = _verdict(connection, batch, now)
    if isinstance(verdict, Settlement):
        return verdict
    if _ends_undecided(batch, verdict):  # what it was to replace is still in place
        return abandon_batch(connection, batch, verdict)
    if tuple(refining.committed(connection, batch.batch_id)) != inspection.runs:
        return Outdated.INSPECTION
    if isinstance(refinement, UnseenFilesError):
        ways = sentences(where_seen(batch.batch_id))
        reason = (
            f"needs refinement, and this machine cannot read what that takes: {refinement}. {ways}"
        )
        return Settlement(batch.batch_id, BatchStatus.OPEN, reason)
    if isinstance(refinement, IntegrityError) and not isinstance(refinement, LostFileError):
        return _hold(connection, batch, str(refinement))
    if isinstance(refinement, LedgerError):
        return refinement
    try:
        with connection.begin_nested():
            return _decide_roots(connection, batch, verdict, now, refinement)
    except OverLimitError as exc:
        reached("before hold")
        return _hold(connection, batch, str(exc), exc.preview)
    except IntegrityError as exc:
        return _hold(connection, batch, str(exc))


def _verdict(connection: Connection, batch: Batch, now: datetime | None) -> Settlement | Verdict:
    """Return the verdict on a batch; the result of a settlement if there is nothing to decide."""
    if batch.status is BatchStatus.HELD:
        return Settlement(batch.batch_id, batch.status, str(stands_at(connection, batch)))
    if batch.status is not BatchStatus.OPEN:
        reason = f"already {batch.status.words}"
        if batch.settled_at is not None:
            reason += f", {batch.settled_at:%Y-%m-%d %H:%M:%S %Z}"
        roots, failed = batch.roots or 0, batch.failed_roots or 0
        return Settlement(batch.batch_id, batch.status, reason, roots=roots, failed=failed)
    limits = Limits(batch.message_timeout, batch.opened_at + batch.max_batch_age)
    instant = now or batches.database_now(connection)
    verdict = decide(step_facts(connection, batch), instant, limits)
    if verdict.action is Decision.WAIT:
        return Settlement(batch.batch_id, BatchStatus.OPEN, verdict.reason)
    return verdict


def _ends_undecided(batch: Batch, verdict: Verdict) -> bool:
    """Return whether a batch is abandoned: it has no emit, or it expired and was to replace what
    other batches published.
    """
    replays_whole = batch.kind is BatchKind.REPLAY and batch.is_whole
    replaces = batch.replaces_batch_id is not None or replays_whole
    return verdict.action is Decision.ABANDON or (verdict.action is Decision.EXPIRE and replaces)


def step_facts(connection: Connection, batch: Batch) -> list[StepFacts]:
    """Return the steps of a batch with their newest runs. Runs that died before the batch was
    opened again do not count, nor do those of a plan whose steps run one by one since.
    """
    all_runs = runs.runs_of(connection, batch.batch_id)
    latest = max((run.opened_at for run in all_runs), default=batch.opened_at)
    newest = {
        run.step: run
        for run in all_runs
        if run.opened_at >= batch.opened_at and not _was_replaced(run, latest)
    }
    committed = {run.step for run in all_runs if run.state is RunState.COMMITTED}
    facts = []
    for step in batch.steps:
        run = newest.get(step.name)
        ended = () if run is None else (run.state, run.lease_until, run.closed_at)
        facts.append(StepFacts(step.name, step.kind, step.name in committed, *ended))
    return facts


def _was_replaced(run: runs.Run, latest: datetime) -> bool:
    """Return whether a run ended with its plan, and a run was opened after it. ``latest``: the time
    at which the newest run was opened.
    """
    ended = run.closed_at if run.state is RunState.FENCED else None
    return run.one_plan_id is not None and ended is not None and ended <= latest


def _decide_roots(
    connection: Connection,
    batch: Batch,
    verdict: Verdict,
    now: datetime | None,
    refinement: Refinement | None,
) -> Settlement:
    """Settle a batch: record the roots that failed, and decide what its sinks publish."""
    if verdict.action is Decision.EXPIRE and not batch.tracking:
        raise IntegrityError(
            f"batch {batch.batch_id}: {verdict.reason}, and with tracking=False the ledger does not"
            f" know what is missing after it: run {verdict.missing[0]} again"
        )
    queries.tune(connection)
    roots, failed = queries.total_roots(connection, batch.batch_id), 0
    if refinement is not None:
        _require_rows_withheld(connection, batch, refinement)
        failed = _fail_roots(connection, batch, now, refinement)
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
    if batch.publish is PublishPolicy.COMPLETE and publications.open_failures(
        connection, batch.original_id
    ):
        return
    if reached_steps is not None:
        publications.decide_untouched(connection, batch.batch_id, reached_steps)
    publications.supersede_outdated(connection, batch.original_id)
    publications.decide(connection, batch.original_id)


def _require_rows_withheld(connection: Connection, batch: Batch, refinement: Refinement) -> None:
    """Raise IntegrityError if a sink acked a row of a record that fails, and its staged files do
    not say which row that is.
    """
    planned = publications.planned_sinks(connection, batch.batch_id, refinement.reached)
    if planned:
        raise IntegrityError(
            f"batch {batch.batch_id}: sink {planned[0]!r} ran in one plan with its stages and acked"
            " rows of records that fail, which its files do not tell apart: run its steps again"
        )


def _fail_roots(
    connection: Connection, batch: Batch, now: datetime | None, refinement: Refinement
) -> int:
    """Record the roots that failed, each with where and why, and return how many. An explicit fail
    of a single root takes precedence over a lost row, and that over a fail of several roots.
    """
    refining.fill(connection, refinement.file)
    for shared in (False, True):
        queries.add_explicit_fails(connection, batch.batch_id, shared=shared)
    queries.name_losses(connection, batch.batch_id)
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
    failed, number = refinement.rows, batch.batch_id
    if batch.kind is BatchKind.ORIGINAL:
        failures = queries.record_failures_of_original(
            connection, number, batch.max_replays, whole=batch.is_whole
        )
    else:
        failures = queries.record_failures_of_replay(
            connection, number, batch.original_id, batch.max_replays, whole=batch.is_whole
        )
    if batch.replay_backoff:
        replays.delay_replays(connection, batch, now or batches.database_now(connection))
    attempts = queries.record_attempts(connection, batch.batch_id)
    if not failed == failures == attempts:
        raise IntegrityError(
            f"batch {batch.batch_id}: {failed} records failed, but it read {failures} of these and"
            f" kept {attempts}: rows were posted of records that it never read"
        )
    return failed


def _check_runs(connection: Connection, batch: Batch) -> None:
    """Raise IntegrityError unless each run read runs that count, a replay emitted the messages that
    it claimed, and the ledger has all that was recorded: absence is never evidence.
    """
    for reader, producer in queries.stale_readers(connection, batch.batch_id):
        raise IntegrityError(
            f"batch {batch.batch_id}: {reader} read a run of {producer} that is superseded:"
            f" run {reader} again"
        )
    if batch.kind is BatchKind.REPLAY and batch.is_whole:
        wrong = replays.wrongly_emitted(connection, batch.batch_id)
        if wrong:
            raise IntegrityError(
                f"replay batch {batch.batch_id}: its sources left out {quantity(wrong, 'record')}"
                " that it claimed, or emitted some that it leaves out: run its sources again"
            )
    elif batch.kind is BatchKind.REPLAY:
        claimed = replays.claimed_count(connection, batch.batch_id)
        emitted = queries.total_roots(connection, batch.batch_id)
        if claimed != emitted:  # one that was never emitted must not pass for one that was acked
            raise IntegrityError(
                f"replay batch {batch.batch_id} claimed {claimed} records and emitted {emitted}:"
                " run its sources again"
            )
    if not batch.tracking:
        return
    queries.tune(connection)
    for step, run_id, recorded, posted in queries.uneven_runs(connection, batch.batch_id):
        raise IntegrityError(
            f"batch {batch.batch_id}: run {run_id} of {step} recorded (rows, XOR,"
            f" emitted, acked; of a source spans, first, last) = {recorded}, the ledger has"
            f" {posted}: run {step} again"
        )


def abandon_batch(connection: Connection, batch: Batch, verdict: Verdict) -> Settlement:
    """Abandon a batch with all its claims. Its records get no verdicts."""
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
    connection: Connection, batch: Batch, reason: str, preview: Preview | None = None
) -> Settlement:
    """Put an open batch on hold: for too many failures, which have a preview, or for a check that
    failed.
    """
    cause = HoldCause.CHECK if preview is None else HoldCause.FAILURES
    batches.hold(connection, batch.batch_id, cause, reason)
    if preview is None:  # a release was meant for another reason than this one
        batches.withdraw_release(connection, batch.batch_id)
    else:
        keep(connection, batch.batch_id, preview)
    reached("holding")
    on_hold = batches.get_batch(connection, batch.batch_id)
    return Settlement(batch.batch_id, BatchStatus.HELD, str(stands_at(connection, on_hold)), True)
