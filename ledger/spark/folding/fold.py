"""Fold a run's deltas, where and how it costs least."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from ledger.batch.step_runs import OpenedRun
from ledger.core.probes import reached
from ledger.deltas.footers import Footer, memory_of, read_footers
from ledger.deltas.portions import Folded, Portion, fold_rows_read
from ledger.deltas.posting import Posted
from ledger.errors import IntegrityError
from ledger.spark.folding import driver, executors
from ledger.spark.folding.outcome import FoldOutcome, Frame
from ledger.spark.job import Job

_log = logging.getLogger(__name__)
Check = Callable[[FoldOutcome], None]
# A few rows in files of so many bytes need no look at footers: texts that take 500 times as much in
# memory would be one character over and over.
FEW_BYTES = 1 << 20


def fold(
    job: Job, run: OpenedRun, portions: Sequence[Portion | Frame], check: Check
) -> FoldOutcome:
    """Fold the portions of a run. ``check``: what has to hold of the outcome. It is asked before
    anything is posted in the driver, and after all is posted in executors, where what a run posted
    counts only once it commits.

    Raises what ``check`` raises, UnavailableError when the ledger does not answer, FencedError
    when the batch was decided and its partition is gone.
    """
    plans = [_plan(job, portion) for portion in portions]
    if _fit_here(job, plans):
        folded = _folded_here(job, run, plans)
        check(FoldOutcome.of(run, folded))
        return _posted_here(job, run, folded)
    outcome = _posted_there(job, run, plans)
    check(outcome)
    return outcome


def fold_proved(
    job: Job,
    run: OpenedRun,
    portions: Sequence[Portion],
    is_proved: Callable[[Posted], bool],
    scan: Callable[[], Posted],
) -> FoldOutcome | None:
    """As ``fold``, if that is proved to be right; else None, and nothing was posted. ``scan``: what
    the portions ack, by another look at them: executors post as they fold, so there the proof comes
    first.

    Raises also IntegrityError if what executors then fold is something else.
    """
    plans = [_plan(job, portion) for portion in portions]
    if _fit_here(job, plans):
        folded = _folded_here(job, run, plans)
        proved = is_proved(FoldOutcome.of(run, folded).posted)
        return _posted_here(job, run, folded) if proved else None
    if not is_proved(scan()):
        return None
    outcome = _posted_there(job, run, plans)
    if not is_proved(outcome.posted):
        raise IntegrityError(
            f"run {run.run_id} of {run.step} acked other rows than its input has: a file changed"
            " while it was read. The run will not commit; run the step again"
        )
    return outcome


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
        """What the fold has in memory, as far as the footers show."""
        if self.footers is None or isinstance(self.portion, Frame):
            return 0
        return memory_of(self.footers, by_input=self.portion.by_input)


def _plan(job: Job, portion: Portion | Frame) -> _Plan:
    few = portion.size <= job.few_rows
    if isinstance(portion, Frame):
        return _Plan(portion, near=few)
    if few and sum(file.bytes for file in portion.files) <= FEW_BYTES:
        return _Plan(portion, near=True)
    near = few or all(_is_local(file.path) for file in portion.files)
    return _Plan(portion, near, read_footers(portion.files))


def _fit_here(job: Job, plans: Sequence[_Plan]) -> bool:
    """Whether all portions together are folded in the driver."""
    sizes = [plan.bytes for plan in plans if plan.footers]
    return all(plan.near for plan in plans) and (not sizes or sum(sizes) <= job.driver_bytes)


def _is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


def _folded_here(job: Job, run: OpenedRun, plans: Sequence[_Plan]) -> list[Folded]:
    """What the portions add; few deltas are united, one a root."""
    folded: list[Folded] = []
    for plan in plans:
        with _timed(run, plan) as line:
            if isinstance(plan.portion, Frame):
                folded.append(fold_rows_read(plan.portion.rows.toArrow(), plan.portion.edges))
                line.way = "a frame in the driver"
            else:
                parts, line.way = driver.fold_files(plan.portion, plan.footers)
                folded += parts
    deltas = sum(len(part.deltas.root) for part in folded)
    return [Folded.joined(folded)] if folded and deltas <= job.few_rows else folded


def _posted_here(job: Job, run: OpenedRun, folded: Sequence[Folded]) -> FoldOutcome:
    """Post what was folded: few deltas with the commit, more of them now."""
    outcome = FoldOutcome.of(run, folded)
    if outcome.posted.rows <= max(0, job.few_rows):
        return replace(outcome, pending=[part.deltas for part in folded])
    driver.post_buckets(job, run, [part.deltas for part in folded if len(part.deltas.root)])
    reached("deltas posted", run.step)
    return outcome


def _posted_there(job: Job, run: OpenedRun, plans: Sequence[_Plan]) -> FoldOutcome:
    """Fold and post in executors."""
    outcome = reduce(FoldOutcome.__add__, _folded_there(job, run, plans), FoldOutcome(run))
    reached("deltas posted", run.step)
    return outcome


def _folded_there(job: Job, run: OpenedRun, plans: Sequence[_Plan]) -> Iterator[FoldOutcome]:
    """What the portions came to, folded and posted in executors."""
    for place, plan in enumerate(plans):
        first = place * executors.BUCKETS
        with _timed(run, plan) as line:
            if isinstance(plan.portion, Frame):
                outcomes = executors.fold_frame(job, run, plan.portion, first)
                line.way = "a frame by executors"
            else:
                footers = plan.footers or read_footers(plan.portion.files)
                outcomes, line.way = executors.fold_files(job, run, plan.portion, footers, first)
        yield from outcomes


@dataclass
class _Line:
    """The log's line of a fold. ``way``: in which way, set while it is timed."""

    way: str = ""


@contextmanager
def _timed(run: OpenedRun, plan: _Plan) -> Iterator[_Line]:
    """Log how many rows were folded, in which way, and how long that took; in executors the
    posting is part of it.
    """
    line, began = _Line(), time.perf_counter()
    yield line
    seconds = time.perf_counter() - began
    _log.info(
        "run %s of %s: folded %s rows in %.3f s: %s",
        run.run_id, run.step, f"{plan.portion.size:,}", seconds, line.way,
        extra={"fold_rows": plan.portion.size, "fold_seconds": seconds, "fold_way": line.way},
    )  # fmt: skip
