"""Run the combines of a batch, and publish their sinks."""

from typing import TYPE_CHECKING

from ledger.batch import combine_runs
from ledger.batch.publishing import Published, publish
from ledger.batch.step_runs import Attempt
from ledger.execution.steps import execute, living
from ledger.spark.failures import Failures

if TYPE_CHECKING:
    from ledger.spark.job import Job


def combine(job: "Job", batch_id: int, attempt: Attempt | None = None) -> list[Published]:
    """Run the combines of a batch that are due, and their sinks; what these publish. It starts
    nothing where nothing is due. One that fails keeps no other waiting, and is raised at the end.

    ``attempt``: of a task of Airflow.
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
