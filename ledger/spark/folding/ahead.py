"""Posts what was folded: a few rows with the commit, more of them ahead of it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ledger.batch.step_runs import posting_ahead
from ledger.core.probes import reached
from ledger.deltas import posting
from ledger.deltas.fold_files import remove_posted
from ledger.deltas.kernel import Deltas, DeltaTotals, compacted
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.job import Job, require_equal

MOST_ROWS = 1 << 20  # deltas that are posted in one transaction ahead of the commit


def posted(job: Job, outcome: FoldOutcome, most: int) -> FoldOutcome:
    """Post the outcome of a fold ahead of the commit, and delete the files of tasks. An outcome of
    at most ``most`` rows stays ``pending`` instead, for the commit to post.

    Raises FencedError if the run no longer counts, and IntegrityError if the files differ from what
    the tasks folded. Raises UnavailableError if the ledger does not answer; it may have taken the
    rows, so the run does not retry.
    """
    unposted = (deltas for files in outcome.files for deltas in files.read_rows())
    parts = compacted(chain(outcome.pending, unposted), MOST_ROWS)
    ends = [next(parts, None), next(parts, None)]
    head = [part for part in ends if part is not None]
    pending = head if _fits(outcome, head, most) else []
    if pending:
        counted = sum(map(DeltaTotals.of, pending), DeltaTotals())
    else:
        counted = _post(job, outcome, chain(head, parts))
    run = outcome.run
    expected = replace(outcome.posted, rows=counted.rows)
    require_equal(f"deltas of {run.step} in run {run.run_id}", expected, counted)
    remove_posted(outcome.files)
    return replace(outcome, posted=counted, pending=pending, files=())


def _fits(outcome: FoldOutcome, parts: list[Deltas], most: int) -> bool:
    """Return whether the commit can post the outcome itself: one part with at most ``most`` deltas,
    fails and messages each, and no fails or messages in files.
    """
    if len(parts) != 1 or any(files.fails or files.messages for files in outcome.files):
        return False
    (part,) = parts
    beside = [sum(len(some.root) for some in rows) for rows in (part.fails, part.messages)]
    return max(len(part.root), *beside) <= most


def _post(job: Job, outcome: FoldOutcome, parts: Iterable[Deltas]) -> DeltaTotals:
    """Post the parts, each in its own transaction, and then fails and messages in files."""
    run, counted = outcome.run, DeltaTotals()

    def transact(work: Callable[..., Any], rows: Any) -> Any:
        reached("posting deltas", run.step)
        with posting_ahead(job.database, run) as cursor:
            return work(cursor, run.batch.batch_id, run.run_id, rows)

    post_fails = partial(posting.post_fails, masks=run.masks)
    for part in parts:
        transact(partial(posting.post, masks=run.masks), part)
        counted += DeltaTotals.of(part)
    for files in outcome.files:
        if files.fails is not None:
            roots = transact(post_fails, files.read_fails())
            counted += DeltaTotals(failed_roots=roots)
        if files.messages is not None:
            transact(posting.post_messages, files.read_messages())
    if counted != DeltaTotals():
        reached("deltas posted", run.step)
    return counted
