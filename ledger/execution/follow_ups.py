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
from ledger.execution.steps import execute, holding_lease
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
    """Settle the batch if it can be decided at ``now``, and do its follow-ups in the order of
    ``FOLLOW_UPS``. If the batch is put on hold, copy the content of the records in its preview
    instead.

    A follow-up that fails does not stop the next ones; the first error is raised at the end.
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
    """Do one follow-up, and return a list of what was done. If the pipeline redacts columns, errors
    are raised redacted.

    ``batch_id``: the batch; None for a follow-up that handles all batches of a pipeline at once.
    """
    with masking(job.pipeline):
        if isinstance(follow_up, WithoutSpark):
            assert batch_id is not None
            return follow_up.run(job, batch_id)
        return RUNNERS[type(follow_up)](job, batch_id, attempt)


def withhold(job: "Job", batch_id: int) -> list[str]:
    """Stage a batch's rows again without the rows of failed records, if there are such rows. Return
    the names of the sinks concerned.
    """
    if not needs_withholding(job.database, batch_id):
        return []
    from ledger.spark.steps import withhold as withholding

    return withholding.withhold(job, batch_id)


def combine(job: "Job", batch_id: int, attempt: Attempt | None = None) -> list[Published]:
    """Run the due combines of a batch, and their sinks. Return what the sinks published.

    A combine that fails does not stop the next ones; the first error is raised at the end.

    ``attempt``: the attempt of an Airflow task; None: a new attempt for each run.
    """
    failures, published = Failures(job.pipeline), []
    for step in job.pipeline.combined():
        with failures.collect():
            run = combine_runs.open_due(job.database, batch_id, step, attempt or Attempt())
            if run is not None:
                with holding_lease(job, run):
                    execute(job, run, step)
    sinks = [step.name for step in job.pipeline.combined()]
    with failures.collect():
        published = publish(job, batch_id, sinks)
    failures.raise_first()
    return published


def notify(job: "Job", batch_id: int) -> list[str]:
    """Call the callbacks of a batch's sources, if any source declares one. Return the names of the
    sources that were notified.
    """
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
