"""Publish what is decided of a batch, once the rows of failed records are withheld."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ledger.batch.publishing import Published, lost, needs_withholding, publish, unpublished_note
from ledger.spark.failures import failures_of

if TYPE_CHECKING:
    from ledger.spark.job import Job


def withhold(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.steps.withhold``; starts nothing where nothing failed and no staged file
    is lost."""
    failures, done = failures_of(job.pipeline), []
    if needs_withholding(job.database, batch_id):
        from ledger.spark.steps import withhold as withholding

        with failures.kept():
            done += withholding.withhold(job, batch_id)
    with failures.kept():
        done += stage_lost(job, batch_id)
    failures.raise_first()
    return done


def stage_lost(job: "Job", batch_id: int, sinks: Collection[str] | None = None) -> list[str]:
    """Stage anew what these sinks, or all, are to publish of a batch's family and is lost; the
    sinks. What is wrong with one keeps no other waiting; it is raised at the end."""
    failures = failures_of(job.pipeline)
    missing = lost(job.database, job.settings, job.pipeline, batch_id, failures, sinks)
    if missing:
        from ledger.spark.steps.withhold import stage_anew

        for row in missing:
            with failures.kept(unpublished_note(job.pipeline, row)):
                stage_anew(job, row)
    failures.raise_first()
    return [row.sink for row in missing]


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
