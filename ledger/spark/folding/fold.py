"""Fold a run's deltas, where and how it costs least."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ledger.batch.step_runs import OpenedRun, note_root_files
from ledger.core.paths import is_local
from ledger.core.text import quantity
from ledger.deltas.fold_files import TaskReport
from ledger.deltas.footers import Footer, memory_of, read_footers
from ledger.deltas.portions import Output, Portion
from ledger.deltas.root_files import RootFile, write_listing
from ledger.deltas.spans import Spans
from ledger.spark.folding import ahead
from ledger.spark.folding.outcome import FoldOutcome, Frame
from ledger.spark.folding.runners import Executors, FoldRunner, Threads
from ledger.spark.job import Job
from ledger.storage.folders import private_output
from ledger.storage.manifest import DataFile

_log = logging.getLogger(__name__)
Check = Callable[[FoldOutcome], None]


class UnprovedError(Exception):
    """Raised by a fold's check if cheap evidence is not enough. The caller then folds other
    portions instead.
    """


def fold(
    job: Job,
    run: OpenedRun,
    portions: Sequence[Portion | Frame],
    check: Check,
    spans: Spans | None = None,
    more: Callable[[FoldOutcome], Sequence[Portion]] = lambda outcome: (),
) -> FoldOutcome:
    """Fold the portions of a run, and post the deltas or leave them to the commit. Return the
    outcome.

    ``check``: called with the outcome before anything is posted; raises an error if it is wrong.
    ``spans``: the spans of the batch's roots. None: the spans of the sources that had emitted when
    the run was opened.
    ``more``: called with the outcome. Returns further portions to fold, whose inputs have no row in
    the first ones.

    Raises the errors of ``check``, and UnavailableError if the ledger does not answer.
    """
    if spans is None:
        emitted = [read.emitted for read in run.sources.values() if read.emitted]
        spans = Spans(emitted if portions else ())
    first = _Fold(job, run, spans, [_plan(job, portion) for portion in portions])
    reports = first.reports()
    outcome = FoldOutcome.of_reports(run, reports)
    rest = replace(first, plans=[_plan(job, portion) for portion in more(outcome)])
    if rest.plans:
        outcome = FoldOutcome.of_reports(run, [*reports, *rest.reports()])
    leaves_files = first.leaves_files or rest.leaves_files

    def list_files(files: Sequence[RootFile]) -> None:
        """Note which files by root count, if the run has noted a folder of them."""
        if leaves_files:
            folder = job.root_files(run)
            with private_output(folder):
                write_listing(folder, files)

    try:
        check(outcome)
    except UnprovedError:
        list_files([])
        raise
    done = ahead.posted(job, outcome, job.few_rows * max(1, len(spans.ranges)))
    list_files(outcome.root_files)
    return done


@dataclass(frozen=True)
class _Plan:
    """A portion, and how to fold it.

    ``near``: whether the driver may read it, whatever its size.
    ``footers``: the footers of the portion's files. Empty: the portion is a frame.
    """

    portion: Portion | Frame
    near: bool
    footers: Sequence[Footer] = ()

    @property
    def bytes(self) -> int:
        """Estimated memory of the fold in bytes, from the footers."""
        return memory_of(self.footers, by_input=isinstance(self.portion, Output))


def _plan(job: Job, portion: Portion | Frame) -> _Plan:
    few = portion.size <= job.few_rows
    if isinstance(portion, Frame):
        return _Plan(portion, near=few)
    near = few or all(is_local(file.path) for file in portion.files)
    return _Plan(portion, near, read_footers(portion.files))


@dataclass(frozen=True)
class _Fold:
    """Portions of a run that are folded together, by the spans of the batch's roots."""

    job: Job
    run: OpenedRun
    spans: Spans
    plans: Sequence[_Plan]

    @property
    def fits_here(self) -> bool:
        """Whether all portions together are folded in the driver."""
        sizes = [plan.bytes for plan in self.plans if plan.footers]
        near = all(plan.near for plan in self.plans)
        return near and (not sizes or sum(sizes) <= self.job.driver_bytes)

    @property
    def leaves_files(self) -> bool:
        """Whether it writes files to the folder that the run has recorded."""
        return not (self.spans.by_root and self.fits_here)

    def reports(self) -> list[TaskReport]:
        """Fold the portions one by one, log how each was folded and how fast, and return the
        reports of the tasks. Posts nothing.
        """
        reports: list[TaskReport] = []
        with self._runner() as runner:
            for plan in self.plans:
                began, portion = time.perf_counter(), plan.portion
                if isinstance(portion, Frame):
                    own, way = runner.frame(portion), f"a frame {runner.where}"
                else:
                    own, way = fold_files(runner, portion, plan.footers)
                reports += own
                seconds = time.perf_counter() - began
                _log.info(
                    "run %s of %s: folded %s rows in %.3f s: %s",
                    self.run.run_id, self.run.step, f"{portion.size:,}", seconds, way,
                    extra={"fold_rows": portion.size, "fold_seconds": seconds, "fold_way": way},
                )  # fmt: skip
        return reports

    @contextmanager
    def _runner(self) -> Iterator[FoldRunner]:
        """Yield the runner of the fold's tasks: threads of the driver if all portions fit there,
        else Spark's executors. If the tasks write files, the ledger records their folder first, and
        only this user can read it.
        """
        folder = self.job.root_files(self.run)
        if not self.leaves_files:
            yield Threads(self.spans, folder)  # nothing is written
            return
        note_root_files(self.job.database, self.run, folder)
        with private_output(folder):
            if self.fits_here:
                yield Threads(self.spans, folder)
            else:
                yield Executors(self.job.spark, self.spans, folder)


def fold_files(
    runner: FoldRunner, portion: Portion, footers: Sequence[Footer]
) -> tuple[list[TaskReport], str]:
    """Fold the files of a portion. Return the reports of the tasks, and a description of how the
    files were folded.

    Each file is folded without the others if possible. Files of an output are folded together if
    they may have rows of the same input, or if all threads of the driver can take part.
    """
    apart, together = list(portion.files), list[DataFile]()
    if isinstance(portion, Output):
        apart = runner.apart(portion, footers)
        alone = frozenset(apart)
        together = [file for file in portion.files if file not in alone]
    reports = runner.one_by_one(portion, apart) if apart else []
    if isinstance(portion, Output) and together:
        shared = frozenset(together)
        pairs = zip(portion.files, footers, strict=True)
        size = sum(footer.bytes for file, footer in pairs if file in shared)
        reports += runner.together(portion, together, size)
    ways = ((len(apart), "one by one"), (len(together), "together"))
    in_words = [f"{quantity(count, 'file')} {way}" for count, way in ways if count]
    return reports, f"{'; '.join(in_words) or 'no file'}, {runner.where}"
