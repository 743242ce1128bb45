"""Settle a batch in a driver, and do its follow-ups."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ledger.batch import combine_runs, follow_ups
from ledger.batch.follow_ups import Combine, FollowUp, Notify, State, Withhold, WithoutSpark
from ledger.batch.publishing import Published, needs_withholding, publish
from ledger.batch.records.payloads import try_to_keep
from ledger.batch.settlement import Settlement, settle_once
from ledger.batch.step_runs import Attempt
from ledger.core.probes import reached
from ledger.core.states import BatchStatus
from ledger.execution.states import advance_states
from ledger.execution.steps import execute, living
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
    """Settle the batch if it can be decided at ``now``, then do its follow-ups, in the order of
    ``FOLLOW_UPS``. None of them waits for one that fails before it; the first error is raised at
    the end. For a batch on hold, copy the content of the records in its preview.
    """
    reached("before settlement")
    settlement = settle_once(job.database, batch_id, now=now)
    reached("settled")
    assert settlement is not None
    if settlement.status is BatchStatus.HELD:
        try_to_keep(job.database, batch_id)
    if settlement.status is BatchStatus.SETTLED:
        failures = Failures(job.pipeline)
        for each in follow_ups.of_driver(job.pipeline):
            with failures.collect():
                follow(job, each, batch_id, attempt)
        failures.raise_first()
    return settlement


def follow(
    job: "Job", follow_up: FollowUp, batch_id: int | None, attempt: Attempt | None = None
) -> Sequence[object]:
    """Do one follow-up of a batch, and return what was done. ``batch_id``: None for a follow-up
    that is done for all batches of a pipeline.
    """
    with masking(job.pipeline):
        if isinstance(follow_up, WithoutSpark):
            assert batch_id is not None
            return follow_up.run(job, batch_id)
        return RUNNERS[type(follow_up)](job, batch_id, attempt)


def withhold(job: "Job", batch_id: int) -> list[str]:
    """Run ``ledger.spark.steps.withhold``, unless nothing is to be withheld."""
    if not needs_withholding(job.database, batch_id):
        return []
    from ledger.spark.steps import withhold as withholding

    return withholding.withhold(job, batch_id)


def combine(job: "Job", batch_id: int, attempt: Attempt | None = None) -> list[Published]:
    """Run the combines of a batch that are due, and their sinks. Return what the sinks published.

    None waits for one that fails before it; the first error is raised at the end.

    ``attempt``: attempt of an Airflow task; None: a new one for each run.
    """
    failures, published = Failures(job.pipeline), []
    for step in job.pipeline.combined():
        with failures.collect():
            run = combine_runs.open_due(job.database, batch_id, step, attempt or Attempt())
            if run is not None:
                with living(job, run):
                    execute(job, run, step)
    sinks = [step.name for step in job.pipeline.combined()]
    with failures.collect():
        published = publish(job, batch_id, sinks)
    failures.raise_first()
    return published


def notify(job: "Job", batch_id: int) -> list[str]:
    """Run ``ledger.spark.steps.notify``, unless no source wants a notice."""
    if not job.pipeline.wants_notice:
        return []
    from ledger.spark.steps import notify as notices

    return notices.notify(job, batch_id)


# The functions with which a driver does the follow-ups that need Spark.
RUNNERS: dict[type[FollowUp], Callable[["Job", Any, Attempt | None], Sequence[object]]] = {
    Withhold: lambda job, batch_id, attempt: withhold(job, batch_id),
    Combine: combine,
    Notify: lambda job, batch_id, attempt: notify(job, batch_id),
    State: lambda job, batch_id, attempt: advance_states(job, batch_id),
}
