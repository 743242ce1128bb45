"""Fold a run's deltas, where and how it costs least."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from ledger.batch.step_runs import OpenedRun
from ledger.core.probes import reached
from ledger.deltas.footers import Footer, read_footers
from ledger.deltas.portions import Folded, Portion, fold_rows_read
from ledger.spark.folding import driver, executors
from ledger.spark.folding.outcome import Frame, Outcome
from ledger.spark.job import Job

_log = logging.getLogger(__name__)
Check = Callable[[Outcome], None]


def fold(job: Job, run: OpenedRun, portions: Sequence[Portion | Frame], check: Check) -> Outcome:
    """Fold the portions of a run. ``check``: what has to hold of the outcome; in the driver it is
    asked before anything is posted.

    Raises what ``check`` raises, UnavailableError when the ledger does not answer, FencedError
    when the batch was decided and its partition is gone.
    """
    plans = [_plan(job, portion) for portion in portions]
    if all(plan.here for plan in plans):
        folded = _folded_here(job, run, plans)
        check(Outcome.of(run, folded))
        return _posted_here(job, run, folded)
    outcome = reduce(Outcome.__add__, _folded_there(job, run, plans), Outcome(run))
    reached("deltas posted", run.step)
    check(outcome)
    return outcome


def fold_here(
    job: Job,
    run: OpenedRun,
    portions: Sequence[Portion],
    is_proved: Callable[[Outcome], bool],
) -> Outcome | None:
    """As ``fold``, in the driver and if that is proved to be right. None: they do not fit, or it
    is not, and nothing was posted.
    """
    plans = [_plan(job, portion) for portion in portions]
    if not all(plan.here for plan in plans):
        return None
    folded = _folded_here(job, run, plans)
    return _posted_here(job, run, folded) if is_proved(Outcome.of(run, folded)) else None


@dataclass(frozen=True)
class _Plan:
    """A portion, and whether it is folded in this process. ``footers``: None where it is so small
    that a look at its files is worth nothing.
    """

    portion: Portion | Frame
    here: bool
    footers: Sequence[Footer] | None = None


def _plan(job: Job, portion: Portion | Frame) -> _Plan:
    if portion.size <= job.few_rows:
        return _Plan(portion, here=True)
    if isinstance(portion, Frame):
        return _Plan(portion, here=False)
    footers = read_footers(portion.files)
    size = sum(footer.bytes for footer in footers)
    here = size <= job.driver_bytes and all(_is_local(file.path) for file in portion.files)
    return _Plan(portion, here, footers)


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


def _posted_here(job: Job, run: OpenedRun, folded: Sequence[Folded]) -> Outcome:
    """Post what was folded: few deltas with the commit, more of them now."""
    outcome = Outcome.of(run, folded)
    if outcome.posted.rows <= max(0, job.few_rows):
        return replace(outcome, pending=[part.deltas for part in folded])
    driver.post_buckets(job, run, [part.deltas for part in folded if len(part.deltas.root)])
    reached("deltas posted", run.step)
    return outcome


def _folded_there(job: Job, run: OpenedRun, plans: Sequence[_Plan]) -> Iterator[Outcome]:
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
