"""Trace a record: the rows derived from it in one attempt, step by step, read from the files of its
batch, without Spark.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from sqlalchemy import Connection

from ledger.batch.records.record_rows import Row, rows_of
from ledger.batch.records.snapshots import read_rows, row_at
from ledger.core.column_names import ANCHORS, ERROR, ROOT, is_own
from ledger.core.commands import ackledger
from ledger.core.declared_steps import DeclaredStep
from ledger.core.redaction import Redaction
from ledger.core.states import RunState
from ledger.errors import InputError, LostFileError, shown
from ledger.storage import parquet
from ledger.storage.manifest import DataFile, Manifest, check_files
from ledger.store.connection import Database
from ledger.store.queries import batches, publications, records, redactions, runs
from ledger.store.queries.batches import Batch


class Fate(StrEnum):
    """Fate of a row at a step that reads it."""

    PASSED_ON = "passed on"  # to the steps that read this one
    ACKED = "acked"  # no row is expected: a sink has it, or reading it was enough
    DROPPED = "dropped"  # on purpose
    FAILED = "failed"  # explicitly, or it did not parse
    LOST = "lost"  # the step ran, and nothing came out
    NOT_COMMITTED = "not committed"  # the step did not run, or not to its end
    UNTRACKED = "untracked"  # the step's rows come from no record in particular
    UNREADABLE = "unreadable"  # the step's files are not as they were


@dataclass(frozen=True)
class Branch:
    """A row of a step, or its fate if there is no row.

    ``reason``: details of its fate.
    ``content``: JSON of its fields, or raw text.
    ``repeated``: whether it came out of several rows; its branches are shown at the first of them.
    """

    step: str
    fate: Fate
    reason: str | None = None
    content: str | None = None
    repeated: bool = False
    branches: tuple["Branch", ...] = ()


@dataclass(frozen=True)
class TracedAttempt:
    """One attempt of a record.

    ``attempt``, ``attempts``: its number, and the number of all attempts.
    ``failed_at``, ``reason``: where and why the ledger failed it, if it did.
    ``verdict``: the verdict on the record by now.
    """

    record: int
    root: int
    batch_id: int
    verdict: str
    attempt: int = 1
    attempts: int = 1
    failed_at: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trace(TracedAttempt):
    """An attempt of a record as a tree of rows."""

    pipeline: str
    tree: Branch


def trace(database: Database, number: int, attempt: int | None = None) -> Trace:
    """Return the rows of a record, which is identified by its number or by the root of an attempt.

    ``attempt``: number of a decided attempt, from 1; None: the attempt of the root, or the last
    one.

    Raises InputError if there is no such record or attempt, or if retention has removed its files,
    and LostFileError if the files of its source are not as they were.
    """
    subject = database.transact(lambda c: _attempt(c, number, attempt))
    batch = database.transact(lambda c: batches.get_batch(c, subject.batch_id))
    steps = database.transact(lambda c: _steps(c, batch))
    if batch.files_expired_at is not None:
        raise InputError(
            f"the files of batch {batch.batch_id} of pipeline {batch.pipeline!r}, which have the"
            f" rows of record {subject.record}, were removed by retention on"
            f" {batch.files_expired_at:%Y-%m-%d}. What the ledger knows of it:"
            f" {ackledger('explain', subject.record)}"
        )
    redact = database.transact(lambda c: redactions.columns_of(c, batch.pipeline))
    lost_at = database.transact(lambda c: records.lost_at(c, batch.batch_id, subject.root))
    tree = _Tree(batch, steps, subject, redact, lost_at).record()
    return Trace(**vars(subject), pipeline=batch.pipeline, tree=tree)


def _attempt(connection: Connection, number: int, attempt: int | None) -> TracedAttempt:
    failed = records.failed_record(connection, number)
    if failed is None:
        if attempt not in (None, 1):
            raise InputError(f"record {number} never failed: expected --attempt 1 or none")
        root = records.emitted_root(connection, number)
        return TracedAttempt(root.message_id, number, root.batch_id, root.status)
    tried = {row.attempt: row for row in records.attempts(connection, failed.message_id)}
    of_root = (ordinal for ordinal, row in tried.items() if number == row.root_id)
    last = max(tried)
    if attempt is None:
        attempt = last if number == failed.message_id else next(of_root, None)
    if attempt is None:  # it is a root of an open replay
        root = records.emitted_root(connection, number)
        return TracedAttempt(
            failed.message_id, number, root.batch_id, failed.status, last + 1, last + 1
        )
    row = tried.get(attempt)
    if row is None:
        raise InputError(
            f"record {failed.message_id} has {len(tried)} decided attempts: expected --attempt 1"
            f" to {last}, found {attempt}"
        )
    return TracedAttempt(
        failed.message_id,
        row.root_id,
        row.batch_id,
        failed.status,
        row.attempt,
        len(tried),
        row.step,
        row.reason,
    )


@dataclass(frozen=True)
class _Step:
    """A step of the batch up to its settlement, with the files of its committed run; None: it has
    no committed run.

    ``publication``: state of a sink's publication.
    ``roots``: roots of a source.
    ``written_by``: the last step of its plan, if its files have only what did not arrive there.
    """

    declared: DeclaredStep
    files: tuple[DataFile, ...] | None = None
    publication: str | None = None
    roots: range = range(0)
    written_by: str | None = None

    @property
    def name(self) -> str:
        return self.declared.name


def _steps(connection: Connection, batch: Batch) -> list[_Step]:
    all_runs = runs.runs_of(connection, batch.batch_id)
    committed = {run.step: run for run in all_runs if run.state is RunState.COMMITTED}
    published = publications.states(connection, batch.batch_id)
    steps = []
    for declared in batch.steps:
        run = committed.get(declared.name)
        if run is None:
            steps.append(_Step(declared))
            continue
        number, roots = run.step_run_id, run.emitted.numbers if run.emitted else range(0)
        files = runs.files(connection, number)
        steps.append(_Step(declared, files, published.get(number), roots, run.written_by))
    return steps


# A record's rows of one step, by the rows that they come from.
_Rows = Mapping[tuple[str, int], Sequence[Row]]


class _Tree:
    """The tree of rows of one attempt.

    ``lost_at``: the stages that lost the record, of an open batch.
    """

    def __init__(
        self,
        batch: Batch,
        steps: Sequence[_Step],
        attempt: TracedAttempt,
        redact: Redaction,
        lost_at: Collection[str],
    ):
        self._lost_at = {*lost_at, attempt.failed_at}
        self._redact, self._columns = redact, frozenset[str]()  # of the record, as it was read
        self._steps, self._attempt, self._exactly_once = steps, attempt, batch.exactly_once
        self._rows: dict[str, _Rows | Branch] = {}
        self._shown: set[tuple[str, int]] = set()

    def record(self) -> Branch:
        """Return the record itself, with all rows derived from it."""
        root = self._attempt.root
        source = next((step for step in self._steps if root in step.roots), None)
        if source is None or not source.files:
            raise InputError(
                f"the rows of record {self._attempt.record} cannot be shown: its source has no"
                f" committed run in batch {self._attempt.batch_id} now. If it is being run again,"
                " ask once it has. What the ledger knows:"
                f" {ackledger('explain', self._attempt.record)}"
            )
        position = root - source.roots.start
        manifest = Manifest(tuple(source.files))
        check_files(manifest, "Without it the ledger does not know what came of the record")
        table = row_at(manifest, position)
        _, content, _, _ = next(read_rows(table, source.declared, self._redact))
        self._columns = frozenset(name.lower() for name in table.column_names if not is_own(name))
        error = table[ERROR][0].as_py() if ERROR in table.column_names else None
        if error is not None:
            masks = self._redact.hides_text(table.column_names, source.declared.layout)
            return Branch(source.name, Fate.FAILED, shown(error, masks=masks), content)
        branches = self._branches(source.name, position)
        return Branch(source.name, Fate.PASSED_ON, None, content, branches=branches)

    def _shows(self, name: str) -> bool:
        """Return whether the values of a stage's column are shown. If the pipeline redacts, only
        columns that the record had when it was read are shown, because a stage may have renamed a
        column.
        """
        redacted = self._redact.columns
        return not redacted or name.lower() in self._columns - redacted

    def _branches(self, name: str, position: int) -> tuple[Branch, ...]:
        """Return the branches of a row: its fate at each step that reads it, with the rows derived
        from it.
        """
        readers = [step for step in self._steps if name in step.declared.reads]
        return tuple(chain(*(self._at(step, name, position) for step in readers)))

    def _at(self, step: _Step, name: str, position: int) -> Iterator[Branch]:
        if step.files is None:
            yield Branch(step.name, Fate.NOT_COMMITTED)
            return
        if step.declared.kind == "sink":
            yield self._at_sink(step)
            return
        rows = self._rows_of(step)
        if isinstance(rows, Branch):
            yield rows
            return
        matches = rows.get((name, position), ())
        for row in matches:
            # A row of a plan keeps its position within the plan's input.
            yield self._branch(step, replace(row, position=position) if step.written_by else row)
        if not matches and step.written_by and self._arrived(step, position):
            branches = self._branches(step.name, position)
            why = f"in one plan with {step.written_by}, which wrote the row"
            yield Branch(step.name, Fate.PASSED_ON, why, branches=branches)
        elif not matches:
            read = step.declared.acks in ("on_read", "untracked")
            yield Branch(step.name, Fate.ACKED if read else Fate.LOST)

    def _arrived(self, step: _Step, position: int) -> bool:
        """Return whether the last step of a stage's plan has a row of this one of the plan's
        input.
        """
        last = next(each for each in self._steps if each.name == step.written_by)
        if last.declared.kind == "sink":  # its files do not say so, but a record has one row there
            return step.name not in self._lost_at
        rows = self._rows_of(last)
        return isinstance(rows, Branch) or (last.declared.reads[0], position) in rows

    def _at_sink(self, step: _Step) -> Branch:
        if self._attempt.failed_at == step.name:
            reason = f"one of the record's rows: {self._attempt.reason}"
            return Branch(step.name, Fate.FAILED, reason)
        if self._attempt.failed_at is not None and self._exactly_once:
            return Branch(step.name, Fate.ACKED, "withheld, for the record failed elsewhere")
        return Branch(step.name, Fate.ACKED, step.publication or "staged")

    def _branch(self, step: _Step, row: Row) -> Branch:
        """Return the branch of a row, with all rows derived from it."""
        masks = bool(self._redact.columns)
        if row.failed is not None:
            return Branch(step.name, Fate.FAILED, shown(row.failed, masks=masks), row.content)
        if row.dropped is not None:  # an explicit ack has no reason
            fate = Fate.DROPPED if row.dropped else Fate.ACKED
            why = shown(row.dropped, masks=masks)
            return Branch(step.name, fate, why or None, row.content)
        if (step.name, row.position) in self._shown:
            return Branch(step.name, Fate.PASSED_ON, None, row.content, repeated=True)
        self._shown.add((step.name, row.position))
        branches = self._branches(step.name, row.position)
        return Branch(step.name, Fate.PASSED_ON, None, row.content, branches=branches)

    def _rows_of(self, step: _Step) -> _Rows | Branch:
        """Return the record's rows in a stage's output, which is read once; or why there are none
        to read.
        """
        if step.name not in self._rows:
            try:
                self._rows[step.name] = self._read(step)
            except LostFileError as exc:
                self._rows[step.name] = Branch(step.name, Fate.UNREADABLE, str(exc))
        return self._rows[step.name]

    def _read(self, step: _Step) -> _Rows | Branch:
        assert step.files is not None
        check_files(Manifest(step.files), "What came of the record here is not known")
        by_parent = defaultdict(list)
        for file in step.files:
            with parquet.stored_file(file.path) as stored:
                if not {ROOT, ANCHORS} & set(stored.schema_arrow.names):
                    return Branch(step.name, Fate.UNTRACKED)
                keys = (step.declared.reads, self._attempt.root, self._shows)
                for row in rows_of(stored, file.first_position, *keys):
                    for parent in row.parents:
                        by_parent[parent].append(row)
        return by_parent
