"""The commit protocol of a step run: open with a fence, renew a lease, commit under the batch's
lock.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from ledger.core.commands import ackledger
from ledger.core.declared_steps import DeclaredStep
from ledger.core.probes import reached
from ledger.core.states import BatchStatus, RunState
from ledger.core.text import storable
from ledger.databases.driver_errors import raw_cursor, translated
from ledger.deltas.kernel import DeltaTotals
from ledger.deltas.spans import RootRange
from ledger.errors import (
    ConfigurationError,
    FencedError,
    IntegrityError,
    LedgerError,
    NotReadyError,
    shown,
)
from ledger.storage.folders import runs_beside
from ledger.storage.manifest import DataFile
from ledger.store.connection import Database
from ledger.store.queries import batches, runs, upkeep
from ledger.store.queries.batches import Batch
from ledger.store.queries.runs import Run

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0
MOST_FAILURE = 10_000  # characters of why a run failed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """One try of one task, or one call of a command; it may run several steps.

    ``attempt_id``: id by which the attempt finds the run that it opened.
    ``number``: drawn from the ledger when the attempt began; None: drawn when it opens a run.
    ``try_number``: try of a task of Airflow, only shown.
    """

    attempt_id: UUID = field(default_factory=uuid4)
    try_number: int | None = None
    number: int | None = None


@dataclass(frozen=True)
class OpenedRun:
    """A running step run.

    ``inputs``: the committed run of each step that it reads, by the step's name.
    ``sources``: the committed run of each source of its batch that had emitted when it was opened.
    ``status``: the only status of its batch in which it may commit.
    ``masks``: whether it masks quoted values in the reasons that it records, as in a pipeline with
    ``redact``.
    """

    run_id: int
    batch: Batch
    step: str
    inputs: Mapping[str, Run]
    sources: Mapping[str, Run]
    status: BatchStatus = BatchStatus.OPEN
    masks: bool = True

    @property
    def input_run(self) -> Run:
        """The run that it reads, if it reads one."""
        (run,) = self.inputs.values()
        return run


@dataclass(frozen=True)
class Record:
    """Counts of a run, recorded when it commits and checked when its batch settles."""

    input_rows: int = 0
    output_rows: int = 0
    failed_rows: int = 0
    duplicate_rows: int = 0
    null_columns: list[str] = field(default_factory=list)
    posted: DeltaTotals = field(default_factory=DeltaTotals)
    acks_proved: bool | None = None


@dataclass(frozen=True)
class OperationLoss:
    """Input rows that an operation of a stage lost, or dropped on purpose, for one reason.

    ``text``: the operation, its line and the reason. ``operation``, ``place``: None: not known.
    ``records``: the number of rows.
    """

    text: str
    operation: str | None
    place: str | None
    records: int
    is_drop: bool = False


@dataclass(frozen=True)
class StepOutput:
    """Output of a run.

    ``files``: the files of its manifest.
    ``post``: posts the pending deltas.
    ``drops``: number of inputs that were acked without an output, by reason.
    ``emitted``: the roots of a source.
    ``losses``: what operations of a stage lost or dropped; the latter are among the ``drops``.
    """

    record: Record
    files: Sequence[DataFile] = ()
    post: Callable[[Connection], None] = lambda connection: None
    drops: Mapping[str, int] = field(default_factory=dict)
    emitted: RootRange | None = None
    losses: Sequence[OperationLoss] = ()


def begin(database: Database) -> Attempt:
    """Begin an attempt, newer than every one that began before."""
    return Attempt(number=draw_number(database))


def draw_number(database: Database) -> int:
    """Return the number of an attempt that begins now."""
    return database.transact(runs.draw_number)


def open_run(database: Database, batch_id: int, step: str, attempt: Attempt) -> OpenedRun | None:
    """Open a run of ``step`` and fence the older ones; None if the batch is settled already.

    Raises FencedError if a newer attempt exists or the batch was restarted since this one began,
    NotReadyError if the input is not committed or the batch is abandoned.
    """
    reached("before run", step)

    def work(connection: Connection) -> OpenedRun | None:
        batch = batches.lock_batch(connection, batch_id)
        assert batch is not None
        if batch.status.decided:
            return None
        if batch.status is BatchStatus.ABANDONED:
            raise NotReadyError(
                f"batch {batch_id} was abandoned: run it again from its first task, which opens it"
                " again"
            )
        if attempt.number is not None and attempt.number < batch.first_attempt:
            raise FencedError(
                f"batch {batch_id} was restarted after this attempt began: this one stops. Run it"
                " again"
            )
        inputs = partial(_input_runs, batch, step)
        run = begin_run(connection, batch, step, attempt, inputs, BatchStatus.OPEN)
        if batch.status is BatchStatus.HELD:
            batches.move_batch(connection, batch_id, BatchStatus.HELD, BatchStatus.OPEN)
        return run

    return database.transact(work)


def begin_run(
    connection: Connection,
    batch: Batch,
    step: str,
    attempt: Attempt,
    inputs: Callable[[list[Run]], dict[str, Run]],
    status: BatchStatus = BatchStatus.SETTLED,
) -> OpenedRun:
    """Return the run of a step that this attempt has already begun, or a new one, which fences
    older ones.

    ``inputs``: returns the runs to read, by step, from the batch's runs.
    ``status``: status in which the commit has to find the batch.

    Raises FencedError if a newer attempt exists, and the errors of ``inputs``.
    """
    all_runs = runs.runs_of(connection, batch.batch_id)
    own = own_run(connection, all_runs, step, attempt)
    read = inputs(all_runs)
    sources = {run.step: run for run in all_runs if run.emitted is not None}
    if own is not None:
        return OpenedRun(own.step_run_id, batch, step, read, sources, status)
    runs.fence_running(connection, batch.batch_id, step)
    run_id = runs.insert_run(connection, batch.batch_id, step, asdict(attempt), LEASE_SECONDS)
    runs.insert_inputs(connection, run_id, [run.step_run_id for run in read.values()])
    return OpenedRun(run_id, batch, step, read, sources, status)


def own_run(connection: Connection, all_runs: list[Run], step: str, attempt: Attempt) -> Run | None:
    """Return the running run of this attempt, which exists if a lost connection hid that it was
    opened.

    Raises FencedError if it has ended, or if a newer attempt has done the step or is running it. A
    newer attempt that failed, or whose driver is dead, does not stop this one.
    """
    of_step = [run for run in all_runs if run.step == step]
    for run in of_step:
        if run.attempt_id == attempt.attempt_id:
            if run.state is RunState.RUNNING:
                return run
            raise FencedError(
                f"this attempt of {step} in batch {run.batch_id} has ended: {run.state}"
            )
    now = batches.database_now(connection)
    for run in of_step:
        is_newer = attempt.number is not None and run.attempt_number > attempt.number
        if is_newer and run.holds_its_step(now):
            raise FencedError(
                f"a newer attempt of {step} in batch {run.batch_id} has started "
                f"(run {run.step_run_id}, {run.state}): this one stops"
            )
    return None


def _input_runs(batch: Batch, step: str, all_runs: list[Run]) -> dict[str, Run]:
    """Return the committed runs that a step reads. Raises NotReadyError if one is missing."""
    reads = require_step(batch, step).reads
    committed = committed_runs(all_runs, reads)
    for name in reads:
        if name not in committed:
            raise NotReadyError(
                f"{step} of batch {batch.batch_id} reads {name}, which has no committed run: run"
                f" {name} first"
            )
        if last := committed[name].written_by:
            raise NotReadyError(
                f"{step} of batch {batch.batch_id} reads {name}, whose rows were only written by"
                f" {last}, in one plan with it: run {committed[name].begins_with} first"
            )
    return committed


def committed_runs(all_runs: list[Run], steps: Sequence[str]) -> dict[str, Run]:
    """Return the committed runs of these steps, in the order of ``steps``. ``all_runs``: the runs
    of a batch.
    """
    committed = {run.step: run for run in all_runs if run.state is RunState.COMMITTED}
    return {step: committed[step] for step in steps if step in committed}


def require_step(batch: Batch, step: str) -> DeclaredStep:
    """Return a step as the batch was opened with it. Raises NotReadyError if it has no step of this
    name.
    """
    steps = {declared.name: declared for declared in batch.topology}
    if step not in steps:
        raise NotReadyError(
            f"batch {batch.batch_id} was opened without a step {step!r}; it has"
            f" {', '.join(steps)}. The pipeline has changed since: open a new run, or reprocess"
            " its interval"
        )
    return steps[step]


@contextmanager
def heartbeat(
    database: Database, run_id: int, on_fenced: Callable[[], None], every: float = HEARTBEAT_SECONDS
) -> Iterator[None]:
    """Renew the run's lease every 10 seconds while the block runs, until the run has committed.
    Call ``on_fenced`` if the run was fenced.
    """
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(every):
            try:
                state = database.transact(lambda c: runs.renew_lease(c, run_id, LEASE_SECONDS))
            except LedgerError as exc:
                _log.warning("lease of run %s not renewed: %s", run_id, exc)
                continue
            if state is not RunState.RUNNING:
                if state is not RunState.COMMITTED and not stopped.is_set():
                    on_fenced()
                return

    logged_as = copy_context()
    thread = threading.Thread(
        target=logged_as.run, args=(beat,), name=f"lease-{run_id}", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def posting_ahead(database: Database, run: OpenedRun) -> Iterator[Any]:
    """Yield a cursor that posts in a transaction of its own, ahead of the run's commit. It is not
    tried again: after a lost connection the driver does not know whether the ledger took the rows.

    Raises FencedError if the run has ended meanwhile. A settlement that ends the run waits for this
    transaction, so that nothing is posted for a decided batch.
    """
    batch_id = run.batch.batch_id
    with translated(database), database.writer.begin() as connection:
        with raw_cursor(connection) as cursor:
            yield cursor
        state = runs.lock_run(connection, run.run_id)
        if state is not RunState.RUNNING:
            raise FencedError(
                f"run {run.run_id} of {run.step} in batch {batch_id} is {state} and posts nothing"
                " more: a newer attempt owns the step, or the batch is decided. See what became of"
                f" it: {ackledger('status', batch=batch_id)}"
            )


def commit(
    database: Database,
    run: OpenedRun,
    output: StepOutput,
    before_commit: Callable[[Connection], None] = lambda connection: None,
) -> None:
    """Make the run count, in one short transaction under the batch's lock.

    ``before_commit``: the last act of the transaction. Raises FencedError if the batch is decided,
    a newer attempt began or an input was run again.
    """

    def work(connection: Connection) -> None:
        if commit_in(connection, run, output):
            before_commit(connection)

    database.transact(work)
    reached("run committed", run.step)


def commit_in(connection: Connection, run: OpenedRun, output: StepOutput) -> bool:
    """Commit a run within a transaction; return False if an earlier try committed it and its answer
    was lost.
    """
    # What follows a settlement looks at the whole family.
    lock = batches.lock_batch if run.status is BatchStatus.OPEN else batches.lock_family
    batch = lock(connection, run.batch.batch_id)
    assert batch is not None
    state = runs.get_run(connection, run.run_id).state
    if state is RunState.COMMITTED:
        return False
    stale = runs.stale_inputs(connection, run.run_id)
    _guard(batch, run, state, stale)
    output.post(connection)
    _check_posted(connection, run, output.record)
    runs.supersede(connection, batch.batch_id, run.step)
    files = [asdict(file) for file in output.files]
    if not runs.commit_run(connection, run.run_id, asdict(output.record), files):
        raise AssertionError("the batch is locked and the run was running")
    drops = Counter[str]()
    by_operation = {each.text: each.records for each in output.losses if each.is_drop}
    for reason, records in {**output.drops, **by_operation}.items():
        drops[storable(shown(reason, masks=run.masks))] += records
    operations = [
        {**asdict(each), "text": storable(shown(each.text, masks=run.masks))}
        for each in output.losses
    ]
    dropped_at = {each["text"]: each for each in operations if each["is_drop"]}
    runs.insert_drops(connection, run.run_id, drops, dropped_at)
    losses = [each for each in operations if not each["is_drop"]]
    runs.insert_losses(connection, run.run_id, losses)
    if output.emitted is not None:
        runs.set_emitted(connection, batch.batch_id, run.step, run.run_id, output.emitted)
    reached("committing run", run.step)
    return True


def _guard(batch: Batch, run: OpenedRun, state: RunState, stale: Sequence[int]) -> None:
    """Raise FencedError unless the batch is as the run expects it, and the run owns its step.
    ``stale``: runs that the run read and that no longer count.
    """
    if batch.status is not run.status:
        raise FencedError(
            f"batch {batch.batch_id} is {batch.status.words}: run {run.run_id} of {run.step} comes"
            " too late"
        )
    if state is not RunState.RUNNING:
        raise FencedError(
            f"run {run.run_id} of {run.step} in batch {batch.batch_id} is {state}: a newer attempt"
            " owns the step"
        )
    if stale:
        raise FencedError(
            f"run {run.run_id} of {run.step} read run {stale[0]}, which was superseded meanwhile:"
            f" run {run.step} again"
        )


def _check_posted(connection: Connection, run: OpenedRun, record: Record) -> None:
    """Raise IntegrityError unless the ledger has the deltas that were folded, each once."""
    posted = runs.posted_deltas(connection, run.batch.batch_id, run.run_id)
    folded = record.posted.sums
    if posted != folded:
        here, there = (
            "{} deltas with XOR {}, {} emitted and {} acked".format(*values)
            for values in (folded, posted)
        )
        raise IntegrityError(
            f"run {run.run_id} of {run.step} folded {here}; the ledger has {there}: run it again"
        )


def note_folder(database: Database, run: OpenedRun, folder: str | None) -> None:
    """Note the folder to which a run is about to write, so that retention finds its files in any
    case. None: the files have to stay.

    Raises ConfigurationError if runs that the ledger does not know have written for its batch.
    """
    if folder is None:
        return
    stored = runs_beside(folder)  # before the ledger is asked: who writes there has noted it

    def work(connection: Connection) -> None:
        if unknown := upkeep.unknown_runs(connection, run.batch.batch_id, list(stored)):
            others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise ConfigurationError(
                f"{stored[unknown[0]]}{others}: expected folders of runs that the ledger knows of"
                f" batch {run.batch.batch_id}, found others. Either the ledger was restored from an"
                " older backup and gives numbers again that it gave before, or another ledger"
                " writes to this storage. Nothing was written. After a restore run 'ackledger db"
                " restored', remove from the sinks what this ledger does not know"
                " (docs/how-to/backup.md), then run this again. For another ledger choose another"
                " ACKLEDGER_STORAGE"
            )
        runs.set_folder(connection, run.run_id, folder)

    database.transact(work)


def note_root_files(database: Database, run: OpenedRun, folder: str) -> None:
    """Note the folder to which a run is about to write its folded root files, as ``note_folder``
    does. The commit finds a listing of the files that count there.
    """
    database.transact(lambda c: runs.set_root_files(c, run.run_id, folder))


def fail(database: Database, run: OpenedRun, failure: str, unread: Sequence[int] = ()) -> None:
    """Mark the run as failed, if it is still running; the message timeout counts from now.

    ``failure``: any text; characters that PostgreSQL cannot keep are replaced.
    ``unread``: runs of which it could not read a file.
    """
    text = storable(failure[:MOST_FAILURE])
    database.transact(lambda c: runs.end_run(c, run.run_id, RunState.FAILED, text, unread))


def interrupt(database: Database, run: OpenedRun, reason: str | None = None) -> None:
    """End a run that was interrupted through no fault of its step, if it is still running, so that
    the next attempt does not have to repeat an earlier step. ``reason``: as for ``fail``; None: a
    person stopped it.
    """
    text = None if reason is None else storable(reason[:MOST_FAILURE])
    database.transact(lambda c: runs.end_run(c, run.run_id, RunState.FENCED, text, ()))
