"""Refinement: before a settlement decides, find the changes of its runs to single roots if a span
is not even or one of its roots failed, and name where each of these roots broke.

The ledger has the rows of a root that has a span of its own. Other roots are read from the files of
the runs, part by part, outside of the settlement's transaction, in a process that can read the
storage. The result holds for the runs that were committed: if other runs count by now, the
settlement inspects the batch again.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import IO, Any, Self

import numpy as np
from sqlalchemy import Connection

from ledger.core.breaks import BreakFinder, hops
from ledger.core.text import quantity
from ledger.deltas.binary_copy import HEADER, TRAILER, encode, field
from ledger.deltas.kernel import Deltas
from ledger.deltas.root_files import RootFile, read_listing, read_roots
from ledger.deltas.rows import Flags, Longs, Places
from ledger.deltas.single_roots import (
    COLUMNS,
    NOTHING,
    Alike,
    SingleRoots,
    add,
    alike,
    minus,
)
from ledger.deltas.spans import RootRange, Spans
from ledger.errors import (
    ConfigurationError,
    IntegrityError,
    LostFileError,
    UnavailableError,
    UnseenFilesError,
)
from ledger.storage.folders import reachable
from ledger.storage.parquet import stored_file
from ledger.storage.stores import LASTING
from ledger.store.queries import refining as queries
from ledger.store.queries import runs as run_queries
from ledger.store.queries.batches import Batch
from ledger.store.queries.refining import CommittedRun

Transact = Callable[[Callable[[Connection], Any]], Any]  # runs something in a transaction

IN_MEMORY = 1 << 24  # bytes of a temporary file
MOST_BYTES = 1 << 28  # of what runs add to single roots that memory holds
MOST_ROWS = 1 << 20  # of all runs that are looked at at once
READERS = 2  # runs whose files are read at once
LOST = "Run {step} again: batch {batch} is open, and what reads {step} runs again with it"

_ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class UnbalancedSpans:
    """Spans of a batch that a settlement has to read root by root, because they are not even or a
    root of them failed.

    ``runs``: the committed runs, whose changes to each root are needed.
    ``ranges``: the roots of the batch.
    ``spans``: the spans, by their first roots.
    ``finder``: finds the step where a root broke.
    """

    batch_id: int
    runs: tuple[CommittedRun, ...]
    ranges: tuple[RootRange, ...]
    spans: Longs
    finder: BreakFinder

    @property
    def run_ids(self) -> tuple[int, ...]:
        """Numbers of the committed runs."""
        return tuple(run.step_run_id for run in self.runs)

    @property
    def needs_files(self) -> bool:
        """Whether some of the roots share a span. Then the ledger lacks their rows, and the runs'
        files are needed.
        """
        return bool(Spans(self.ranges).shares(self.spans).any())


class Refinement:
    """The roots of a batch that are unbalanced or failed, each with the step where it broke, in a
    temporary file.

    ``reached``: the steps that acked a row of one of the roots.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.reached: set[str] = set()
        with _writing():
            self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed with it
            self._file.write(HEADER)

    def add(self, some: Alike, finder: BreakFinder) -> None:
        """Add a group of roots that broke alike."""
        self.rows += len(some.root)
        self.reached.update(some.reached)
        named, missed_by = finder.first_break(some.edges), finder.missed_by(some.edges) or None
        # It is even, or its rows fit no step: it has to have failed by a run's word.
        values = (None,) * 6 + (False,) * 3 if named is None else vars(named).values()
        rows = encode([some.root, some.residue], [*map(field, (*values, missed_by))])
        with _writing():
            self._file.write(rows)

    def end(self) -> None:
        """Write the end of the file. Nothing can be added afterwards."""
        with _writing():
            self._file.write(TRAILER)
            self._file.flush()

    @property
    def file(self) -> IO[bytes]:
        """The rows for the table ``settling``, in the format of COPY."""
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()


@contextmanager
def _writing() -> Iterator[None]:
    """Raise UnavailableError, with what to do, if the block cannot write its temporary file."""
    try:
        yield
    except OSError as exc:
        raise UnavailableError(
            f"the temporary file of a settlement could not be written to {tempfile.gettempdir()}:"
            f" {exc}. Free some space there, or set TMPDIR, then run this again"
        ) from exc


def unbalanced_spans(connection: Connection, batch: Batch) -> UnbalancedSpans | None:
    """Return the spans that a settlement has to read root by root; None if all spans are balanced
    and no root failed.
    """
    spans = queries.uneven_spans(connection, batch.batch_id)
    if not len(spans):
        return None
    runs = queries.committed(connection, batch.batch_id)
    ranges = run_queries.emits(connection, batch.batch_id)
    sinks = {step.name for step in batch.steps if step.kind == "sink"}
    unproved = sinks - {run.step for run in runs if run.acks_proved}
    finder = BreakFinder(
        hops(batch.topology),
        uncommitted={step.name for step in batch.steps} - {run.step for run in runs},
        explicit={step.name for step in batch.steps if step.acks == "explicit"},
        merging={step.name for step in batch.steps if step.merges},
        # Exactly once nothing of a failed record is published.
        unproved=set() if batch.exactly_once else unproved,
    )
    return UnbalancedSpans(batch.batch_id, tuple(runs), tuple(ranges), spans, finder)


def of_files(connection: Connection, batch: Batch) -> UnbalancedSpans | None:
    """Return the spans whose roots a settlement has to read from the files of its runs; None if it
    needs no files.
    """
    ranges = run_queries.emits(connection, batch.batch_id)
    if not batch.tracking or Spans(ranges).by_root:
        return None
    unbalanced = unbalanced_spans(connection, batch)
    return unbalanced if unbalanced is not None and unbalanced.needs_files else None


def steps_to_rerun(unbalanced: UnbalancedSpans) -> set[str]:
    """Return the steps whose runs have lost files that the settlement needs. Only the footers of
    files are checked.
    """
    return {run.step for run in unbalanced.runs if not _has_files(unbalanced, run)}


def _has_files(unbalanced: UnbalancedSpans, run: CommittedRun) -> bool:
    if run.root_files is not None and not reachable(run.root_files):
        return False
    try:
        files, advice = _files(unbalanced, run), _advice(unbalanced, run)
        with _reading(run.root_files or "", advice):
            for file in files:
                with stored_file(file.path, advice):
                    pass
    except LostFileError:
        return False
    return True


def refine(transact: Transact, unbalanced: UnbalancedSpans) -> Refinement:
    """Find the changes to the roots of these spans, in the ledger and in the files of the runs.

    Raises UnseenFilesError if this process cannot read the files, LostFileError if one is lost,
    UnavailableError if their storage does not answer, and IntegrityError if they differ from what
    the ledger has by span.
    """
    steps, refinement = [run.step for run in unbalanced.runs], Refinement()
    try:
        for part, columns, has_rows in _parts(unbalanced):
            failed = _add_posted(transact, unbalanced, part, columns, has_rows)
            runs = dict(zip(steps, columns, strict=True))
            for some in alike(runs, part.root, failed, unbalanced.finder.components):
                refinement.add(some, unbalanced.finder)
        refinement.end()
    except BaseException:
        refinement.file.close()
        raise
    return refinement


def _parts(unbalanced: UnbalancedSpans) -> Iterator[tuple[SingleRoots, Longs, Flags]]:
    """Yield the roots part by part, each with the sums in the files of each run, and flags of the
    roots that have rows there.
    """
    roots, runs = SingleRoots.of(unbalanced.spans, unbalanced.ranges), len(unbalanced.runs)
    most = max(1, MOST_ROWS // runs)
    if not unbalanced.needs_files:
        for _, part in roots.parts(most):
            yield part, np.zeros((runs, COLUMNS, len(part)), np.int64), np.zeros(len(part), bool)
        return
    with _table_of_zeros((runs, COLUMNS, len(roots))) as table:
        has_rows = np.zeros(len(roots), bool)
        _read(unbalanced, roots, table, has_rows)
        for places, part in roots.parts(most):
            yield part, table[:, :, places], has_rows[places]


@contextmanager
def _table_of_zeros(shape: tuple[int, ...]) -> Iterator[Longs]:
    """Yield an array of zeros. An array of more than ``MOST_BYTES`` is in a temporary file."""
    size = math.prod(shape) * np.dtype(np.int64).itemsize
    if size <= MOST_BYTES:
        yield np.zeros(shape, np.int64)
        return
    with ExitStack() as stack:
        with _writing():
            file = stack.enter_context(tempfile.TemporaryFile())
            # Take the space first: on a full disk a mapping ends the process with a signal.
            for start in range(0, size, len(_ZEROS)):
                file.write(_ZEROS[: size - start])
            file.flush()
            table = np.memmap(file, np.int64, "r+", shape=shape).view(np.ndarray)
        yield table


def _read(unbalanced: UnbalancedSpans, roots: SingleRoots, table: Longs, has_rows: Flags) -> None:
    """Add the deltas in the files of the runs to ``table``, and flag the roots that have rows. Two
    runs are read at a time.
    """
    ended = Event()  # one has failed, or its reader has stopped

    def read(number: int) -> None:
        try:
            for deltas in _deltas_of(unbalanced, unbalanced.runs[number], roots):
                if ended.is_set():
                    return
                has_rows[add(table[number], roots, deltas)] = True
        except BaseException:
            ended.set()
            raise

    with ThreadPoolExecutor(READERS) as pool:
        try:
            for _ in pool.map(read, range(len(unbalanced.runs))):
                pass
        finally:
            ended.set()


def _deltas_of(
    unbalanced: UnbalancedSpans, run: CommittedRun, roots: SingleRoots
) -> Iterator[Deltas]:
    """Yield the deltas in the files of a run, part by part. Parts without any of the roots are
    skipped.
    """
    files, advice = _files(unbalanced, run), _advice(unbalanced, run)
    with _reading(run.root_files or "", advice):
        yield from read_roots(files, roots.has_some, advice)


def _files(unbalanced: UnbalancedSpans, run: CommittedRun) -> list[RootFile]:
    """Return the files with the changes of a run to each root; none for a run without a folder,
    because the ledger has all of its rows.
    """
    if run.root_files is None:
        return []
    if not reachable(run.root_files):
        raise UnseenFilesError(
            f"{run.root_files}: expected the files of run {run.step_run_id} of {run.step}, which"
            " this machine does not see"
        )
    advice = _advice(unbalanced, run)
    with _reading(run.root_files, advice):
        return read_listing(run.root_files, advice)


def _advice(unbalanced: UnbalancedSpans, run: CommittedRun) -> str:
    return LOST.format(step=run.step, batch=unbalanced.batch_id)


@contextmanager
def _reading(folder: str, advice: str) -> Iterator[None]:
    """Translate errors of the storage in the block: the files cannot be seen from here, are lost,
    or the storage does not answer.
    """
    try:
        yield
    except (ImportError, PermissionError, ConfigurationError) as exc:
        raise UnseenFilesError(f"files in {folder} could not be read: {exc}") from exc
    except LASTING as exc:
        raise LostFileError(f"files in {folder} are gone: {exc}. {advice}") from exc
    except OSError as exc:
        raise UnavailableError(
            f"files in {folder} could not be read: {exc}. Check the storage, then run this again"
        ) from exc
    except (LookupError, TypeError, ValueError) as exc:
        raise LostFileError(
            f"files in {folder} were changed since they were written: {exc}. {advice}"
        ) from exc


def _add_posted(
    transact: Transact,
    unbalanced: UnbalancedSpans,
    part: SingleRoots,
    table: Longs,
    has_rows: Flags,
) -> Places:
    """Add the posted changes of roots that have a span of their own, and check that the rows of
    each run add up, span by span, to what it has posted. Return the places of roots that have rows
    and failed explicitly.

    Raises IntegrityError for a run whose sums differ.
    """
    spans = Spans(unbalanced.ranges)
    shares = spans.shares(part.spans)
    own = part.starts[~shares]
    batch_id, run_ids = unbalanced.batch_id, unbalanced.run_ids
    rows = transact(lambda c: queries.posted(c, batch_id, run_ids, part.spans))
    for run, columns in zip(unbalanced.runs, table, strict=True):
        of_run = rows.get(run.step_run_id, NOTHING)
        of_spans = spans.shares(of_run.root)
        if run.root_files is None and of_spans.any():
            raise LostFileError(
                f"run {run.step_run_id} of {run.step} in batch {batch_id} has posted spans, and"
                f" noted no folder of what it adds to each record. {_advice(unbalanced, run)}"
            )
        posted = part.posted(of_run)
        columns[:, own] = posted[:, ~shares]
        has_rows[part.places(of_run.root[~of_spans])[1]] = True
        wrong = minus(posted, part.by_span(columns))
        differing = np.flatnonzero(wrong.any(axis=0))
        if len(differing):
            raise IntegrityError(
                f"batch {batch_id}: run {run.step_run_id} of {run.step} posted other sums than its"
                f" files in {run.root_files} have: {quantity(len(differing), 'span')}"
                f" differ, the one from root {part.spans[differing[0]]} on by (XOR, acked XOR,"
                f" emitted, acked) = {tuple(wrong[:, differing[0]].tolist())}. Run {run.step} again"
            )
    failed = transact(lambda c: queries.failed_roots(c, batch_id, part.first, part.last))
    places = part.places(failed)[1]
    return places[has_rows[places]]
