"""Runs whole pipelines in this process, on the tests' Spark session."""

from datetime import UTC, datetime, timedelta
from typing import Any

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.settlement import Settlement
from ledger.batch.step_runs import Attempt
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.execution import StepResult, run_step, settle_and_follow
from ledger.spark.job import Job
from ledger.store.queries.batches import Batch
from tests.support.ledgers import Ledger
from tests.support.publishing import publish_settled

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)


class Runner:
    """Opens, runs and settles batches of one pipeline."""

    def __init__(self, job: Job):
        self.job = job
        self.ledger = Ledger(job.database)

    def open(
        self,
        run_id: str = "run",
        start: datetime = START,
        end: datetime = END,
        *,
        dag_id: str = "",
        reprocess: bool = False,
    ) -> Batch:
        """The batch of ``run_id`` over the interval."""
        job, key, interval = self.job, RunKey(dag_id, run_id), Interval(start, end)
        return open_batch(
            job.database, job.settings, job.pipeline, key, interval, reprocess=reprocess
        )

    def open_day(self, day: int, run_id: str = "", **options: Any) -> Batch:
        """The batch of a day, by its number after ``START``."""
        start = START + timedelta(days=day)
        return self.open(run_id or f"day{day}", start, start + timedelta(days=1), **options)

    def abandoned_day(self, day: int, source: str) -> Batch:
        """A day's batch that was abandoned before it had read a source."""
        batch = self.open_day(day)
        self.ledger.abandon_dead(batch, source)
        return batch

    def open_replay(self, original: int, run_id: str = "replay", **selection: object) -> Batch:
        """A replay of the original's failed messages."""
        job, records = self.job, Selection(**selection)  # type: ignore[arg-type]
        return open_replay(
            job.database, job.settings, job.pipeline, RunKey("", run_id), original, records
        )

    def step(self, batch: Batch, name: str) -> StepResult:
        """Run one step as a new attempt."""
        return run_step(self.job, batch.batch_id, name, Attempt())

    def steps(self, batch: Batch) -> None:
        """Run all steps in order."""
        for step in self.job.pipeline.steps():
            self.step(batch, step.name)

    def settled_by_others(self) -> Batch:
        """The first day's batch of a DAG, which is run here and settled behind its run's back; its
        sinks of records have published it."""
        batch = self.open_day(1, "run", dag_id="dag")
        self.steps(batch)
        self.ledger.settle(batch.batch_id)
        publish_settled(self.job, batch.batch_id)
        return batch

    def settled(self, batch: Batch) -> Settlement:
        """Run all steps, settle and publish."""
        self.steps(batch)
        return settle_and_follow(self.job, batch.batch_id)
