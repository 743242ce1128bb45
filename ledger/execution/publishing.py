"""Publish what is decided of a batch, once the rows of failed records are withheld."""

from typing import TYPE_CHECKING

from ledger.batch.publishing import Published, needs_withholding, publish
from ledger.spark.failures import failures_of

if TYPE_CHECKING:
    from ledger.spark.job import Job


def withhold(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.steps.withhold``; starts nothing where nothing failed."""
    if not needs_withholding(job.database, batch_id):
        return []
    from ledger.spark.steps import withhold as withholding

    return withholding.withhold(job, batch_id)


def publish_settled(job: "Job", batch_id: int) -> list[Published]:
    """Withhold what failed, then publish what is decided of a batch's family in the sinks of
    records; what was published."""
    failures, published = failures_of(job.pipeline), []
    with failures.kept():  # of one sink: the others do not wait for it
        withhold(job, batch_id)
    with failures.kept():
        published = publish(job.database, job.settings, job.pipeline, batch_id)
    failures.raise_first()
    return published
