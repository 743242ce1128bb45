"""Withhold the rows of failed records, if there are any."""

from typing import TYPE_CHECKING

from ledger.batch.publishing import needs_withholding

if TYPE_CHECKING:
    from ledger.spark.job import Job


def withhold(job: "Job", batch_id: int) -> list[str]:
    """See ``ledger.spark.steps.withhold``; starts nothing where nothing failed."""
    if not needs_withholding(job.database, batch_id):
        return []
    from ledger.spark.steps import withhold as withholding

    return withholding.withhold(job, batch_id)
