"""Two batches of ``tests.support.accounts`` and a replay, stop by stop, kept so that every crash
begins at its own.
"""

from datetime import UTC, datetime

from deltalake import DeltaTable

from ledger.batch import state_runs
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.publishing import publish
from ledger.batch.state_runs import StateRun
from ledger.batch.step_runs import Attempt
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.execution import advance_states, settle_and_follow
from ledger.spark.job import Job
from ledger.spark.steps.state import run_state
from ledger.store.queries.batches import Batch
from tests.support import accounts
from tests.support.crashing import run_open_steps
from tests.support.publishing import publish_settled
from tests.support.stop_lab import NOTHING, Site, StopLab

# What was done before the crash: the first batch is in the state; the second is settled, its state
# is committed, is published; the second is done; what was lost of it is settled, is in a state that
# is published.
STOPS = (
    NOTHING,
    "first done",
    "settled",
    "committed",
    "published",
    "done",
    "replay settled",
    "replay published",
)


class StateLab(StopLab):
    """The life of a state, in one of its forms."""

    def __init__(self, site: Site, form: str):
        self.form = form
        super().__init__(site)

    def write(self) -> None:
        """Write two days of entries."""
        accounts.write(self.folder)

    def before(self, stop: str) -> str:
        """One stop earlier."""
        return STOPS[STOPS.index(stop) - 1]

    def job(self, *, fixed: bool = False) -> Job:
        """The surroundings of the pipeline in this process."""
        return self.job_of(accounts.pipeline(str(self.folder), self.form, fixed=fixed))

    def advance(self, stop: str) -> None:
        """From the stop before to this one, warm and without a crash."""
        job = self.job(fixed=stop.startswith("replay "))
        if stop == "first done":
            settle_and_follow(job, self._run(job, _opened(job, 1)))
        elif stop == "settled":
            self._settle(job, _opened(job, 2))
        elif stop == "committed":
            _commit_state(job)
        elif stop == "published":
            publish(job, 2, ["balances"])
        elif stop == "done":
            advance_states(job, 2)
        elif stop == "replay settled":
            self._settle(job, _replay(job))
        else:
            _commit_state(job)
            publish(job, 3, ["balances"])

    def replay(self) -> int:
        """Bring what was lost of the second batch, fixed; the replay's number."""
        job = self.job(fixed=True)
        batch_id = self._run(job, _replay(job))
        settle_and_follow(job, batch_id)
        return batch_id

    def shown(self) -> accounts.State:
        """What a reader of the state's sink sees."""
        table = DeltaTable(str(self.folder / "balances")).to_pyarrow_table().to_pylist()
        results = [(row["account"], row["cents"], row["days"]) for row in table]
        assert len(results) == len(set(results)), "a row is there twice"
        return set(results)

    def entered(self) -> list[int]:
        """How many rows of each batch the sink of records shows."""
        published = self.ledger.rows(
            "SELECT rows FROM publication WHERE sink = 'entered' AND published_at IS NOT NULL ORDER"
            " BY batch_id",
        )
        return [row.rows for row in published]

    def _settle(self, job: Job, batch: Batch) -> None:
        self._run(job, batch)
        self.ledger.settle(batch.batch_id)
        publish_settled(job, batch.batch_id)

    def _run(self, job: Job, batch: Batch) -> int:
        run_open_steps(job, batch)
        return batch.batch_id


def _opened(job: Job, day: int) -> Batch:
    interval = Interval(datetime(2013, 1, day, tzinfo=UTC), datetime(2013, 1, day + 1, tzinfo=UTC))
    return open_batch(
        job.database, job.settings, job.pipeline, RunKey("dag", f"day{day}"), interval
    )


def _replay(job: Job) -> Batch:
    key = RunKey("dag", "replay")
    return open_replay(job.database, job.settings, job.pipeline, key, 2, Selection())


def _commit_state(job: Job) -> None:
    (step,) = job.pipeline.states()
    run = state_runs.open_next(job.database, job.pipeline, step, Attempt())
    assert isinstance(run, StateRun)
    run_state(job, run, step)
