"""Settle a batch, and do what follows: ``ledger.batch.follow_ups`` in a driver."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ledger.batch import follow_ups
from ledger.batch.following.base import FollowUp, WithoutSpark
from ledger.batch.following.combines import Combine
from ledger.batch.following.notices import Notify
from ledger.batch.following.publications import Withhold
from ledger.batch.following.states import State
from ledger.batch.publishing import needs_withholding
from ledger.batch.records.payloads import try_to_keep
from ledger.batch.settlement import Settlement, settle_once
from ledger.batch.step_runs import Attempt
from ledger.core.probes import reached
from ledger.core.states import BatchStatus
from ledger.execution.combines import combine
from ledger.execution.states import advance_states
from ledger.spark.failures import Failures, masking

if TYPE_CHECKING:
    from ledger.spark.job import Job


def settle_and_follow(
    job: "Job",
    batch_id: int,
    *,
    now: datetime | None = None,
    attempt: Attempt | None = None,
) -> Settlement:
    """Settle the batch if it can be decided at ``now``, then do what follows, in the order of
    ``FOLLOW_UPS``. What fails of it is raised once the rest is done. Of a batch on hold, what the
    records contain that its preview has is copied."""
    reached("before settlement")
    settlement = settle_once(job.database, batch_id, now=now)
    reached("settled")
    assert settlement is not None
    if settlement.status is BatchStatus.HELD:
        try_to_keep(job.database, batch_id)
    if settlement.status is BatchStatus.SETTLED:
        _follow(job, batch_id, attempt)
    return settlement


def _follow(job: "Job", batch_id: int, attempt: Attempt | None) -> None:
    """Do what follows a settlement, in order: none of it waits for what fails before it."""
    failures = Failures(job.pipeline)
    for each in follow_ups.of_driver(job.pipeline):
        with failures.collect():
            follow(job, each, batch_id, attempt)
    failures.raise_first()


def follow(
    job: "Job", follow_up: FollowUp, batch_id: int | None, attempt: Attempt | None = None
) -> Sequence[object]:
    """Do one follow-up of a batch; what it has done. ``batch_id``: None: of one that is done for
    all batches of a pipeline."""
    with masking(job.pipeline):
        if isinstance(follow_up, WithoutSpark):
            assert batch_id is not None
            return follow_up.run(job, batch_id)
        return RUNNERS[type(follow_up)](job, batch_id, attempt)


def withhold(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.steps.withhold``; starts nothing where nothing failed."""
    if not needs_withholding(job.database, batch_id):
        return []
    from ledger.spark.steps import withhold as withholding

    return withholding.withhold(job, batch_id)


def notify(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.steps.notify``; starts nothing where no source wants a notice."""
    if not job.pipeline.wants_notice:
        return []
    from ledger.spark.steps import notify as notices

    return notices.notify(job, batch_id)


# How a driver does what needs Spark.
RUNNERS: dict[type[FollowUp], Callable[["Job", Any, Attempt | None], Sequence[object]]] = {
    Withhold: lambda job, batch_id, attempt: withhold(job, batch_id),
    Combine: combine,
    Notify: lambda job, batch_id, attempt: notify(job, batch_id),
    State: lambda job, batch_id, attempt: advance_states(job, batch_id),
}
