"""Publish a settled batch as a driver does."""

from ledger.batch.publishing import Published, publish
from ledger.execution import withhold
from ledger.spark.failures import Failures
from ledger.spark.job import Job


def publish_settled(job: Job, batch_id: int) -> list[Published]:
    """Withhold what failed, then publish; what was published. What fails of the first is raised
    after the last.
    """
    failures, published = Failures(job.pipeline), list[Published]()
    with failures.collect():
        withhold(job, batch_id)
    with failures.collect():
        published = publish(job, batch_id)
    failures.raise_first()
    return published
