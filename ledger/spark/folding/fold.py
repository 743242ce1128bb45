"""Fold a run's deltas, where and how it costs least."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ledger.batch.step_runs import OpenedRun, note_root_files
from ledger.core.paths import is_local
from ledger.deltas.fold_files import DriverFiles
from ledger.deltas.footers import Footer, memory_of, read_footers
from ledger.deltas.portions import Folded, Portion, fold_rows_read
from ledger.deltas.root_files import RootFile, write_listing
from ledger.deltas.spans import Spans
from ledger.spark.folding import ahead, driver
from ledger.spark.folding.executors import Executors
from ledger.spark.folding.outcome import FoldOutcome, Frame
from ledger.spark.job import Job
from ledger.storage.folders import private_output

_log = logging.getLogger(__name__)
Check = Callable[[FoldOutcome], None]
# A few rows in files of so many bytes need no look at footers: texts that take 500 times as much in
# memory would be one character over and over.
FEW_BYTES = 1 << 20


class UnprovedError(Exception):
    """Raised by a check after which the run folds something else, in place of this."""


def fold(
    job: Job,
    run: OpenedRun,
    portions: Sequence[Portion | Frame],
    check: Check,
    spans: Spans | None = None,
) -> FoldOutcome:
    """Fold the portions of a run. ``check``: what has to hold of the outcome, asked before anything
    is posted. ``spans``: of the batch's roots; None: those of what its sources had emitted when
    the run was opened.

    Raises what ``check`` raises, UnavailableError when the ledger does not answer, FencedError
    when the batch was decided and its partition is gone.
    """
    if spans is None:
        emitted = [read.emitted for read in run.sources.values() if read.emitted]
        spans = Spans(emitted if portions else ())
    fold_ = _Fold(job, run, spans, [_plan(job, portion) for portion in portions])
    outcome = fold_.outcome()
    try:
        check(outcome)
    except UnprovedError:
        fold_.list_files([])
        raise
    return fold_.posted(outcome)


@dataclass(frozen=True)
class _Plan:
    """A portion. ``near``: whether the driver may read it, whatever its size. ``footers``: None
    where it is so small that a look at its files is worth nothing.
    """

    portion: Portion | Frame
    near: bool
    footers: Sequence[Footer] | None = None

    @property
    def bytes(self) -> int:
        """Bytes that the fold has in memory, estimated from the footers; 0 without footers."""
        if self.footers is None or isinstance(self.portion, Frame):
            return 0
        return memory_of(self.footers, by_input=self.portion.by_input)


def _plan(job: Job, portion: Portion | Frame) -> _Plan:
    few = portion.size <= job.few_rows
    if isinstance(portion, Frame):
        return _Plan(portion, near=few)
    if few and sum(file.bytes for file in portion.files) <= FEW_BYTES:
        return _Plan(portion, near=True)
    near = few or all(is_local(file.path) for file in portion.files)
    return _Plan(portion, near, read_footers(portion.files))


def _fit_here(job: Job, plans: Sequence[_Plan]) -> bool:
    """Whether all portions together are folded in the driver."""
    sizes = [plan.bytes for plan in plans if plan.footers]
    return all(plan.near for plan in plans) and (not sizes or sum(sizes) <= job.driver_bytes)


@dataclass(frozen=True)
class _Fold:
    """Portions of a run that are folded together, by the spans of the batch's roots."""

    job: Job
    run: OpenedRun
    spans: Spans
    plans: Sequence[_Plan]

    def outcome(self) -> FoldOutcome:
        """Fold the portions, and return the outcome. Nothing is posted."""
        if not _fit_here(self.job, self.plans):
            return self._there()
        if self.spans.by_root:
            return self._here(list)
        with self._folder() as folder:
            of_roots = DriverFiles(folder, self.spans)
            return replace(self._here(of_roots.spanned), root_files=of_roots.files)

    def posted(self, outcome: FoldOutcome) -> FoldOutcome:
        """Post what was folded; then the files by root count."""
        most = self.job.few_rows * max(1, len(self.spans.ranges))
        done = ahead.posted(self.job, outcome, most)
        self.list_files(outcome.root_files)
        return done

    def list_files(self, files: Sequence[RootFile]) -> None:
        """Note which files by root count, if the run has noted a folder of them."""
        if self.spans.by_root and _fit_here(self.job, self.plans):
            return
        folder = self.job.root_files(self.run)
        with private_output(folder):
            write_listing(folder, files)

    def _here(self, spanned: driver.Spanned) -> FoldOutcome:
        """Fold in the driver."""
        folded: list[Folded] = []
        for plan in self.plans:
            with _timed(self.run, plan) as line:
                if isinstance(plan.portion, Frame):
                    rows = plan.portion.rows.toArrow()
                    folded += spanned([fold_rows_read(rows, plan.portion.edges)])
                    line.way = "a frame in the driver"
                else:
                    parts, line.way = driver.fold_files(plan.portion, plan.footers, spanned)
                    folded += parts
        return FoldOutcome.of(self.run, folded)

    def _there(self) -> FoldOutcome:
        """Fold in executors, each portion after the other."""
        outcome = FoldOutcome(self.run)
        with self._folder() as folder:
            there = Executors(self.job, self.run, self.spans, folder)
            for plan in self.plans:
                with _timed(self.run, plan) as line:
                    if isinstance(plan.portion, Frame):
                        outcome += there.fold_frame(plan.portion)
                        line.way = "a frame by executors"
                    else:
                        footers = plan.footers or read_footers(plan.portion.files)
                        part, line.way = there.fold_files(plan.portion, footers)
                        outcome += part
        return outcome

    @contextmanager
    def _folder(self) -> Iterator[str]:
        """Yield the folder that files of the fold are written to, which is for this user alone.

        The ledger notes the folder before the first file is written.
        """
        folder = self.job.root_files(self.run)
        note_root_files(self.job.database, self.run, folder)
        with private_output(folder):
            yield folder


@dataclass
class _Line:
    """The log's line of a fold. ``way``: in which way, set while it is timed."""

    way: str = ""


@contextmanager
def _timed(run: OpenedRun, plan: _Plan) -> Iterator[_Line]:
    """Log how many rows were folded, in which way, and how long that took."""
    line, began = _Line(), time.perf_counter()
    yield line
    seconds = time.perf_counter() - began
    _log.info(
        "run %s of %s: folded %s rows in %.3f s: %s",
        run.run_id, run.step, f"{plan.portion.size:,}", seconds, line.way,
        extra={"fold_rows": plan.portion.size, "fold_seconds": seconds, "fold_way": line.way},
    )  # fmt: skip
