"""A process that runs a batch as ``ackledger run`` does, and kills itself at a named place.

``python -m tests.support.crashing [--spark]`` gets ready, prints ``ready``, and waits for an order,
one line of JSON on its standard input. The places are those of ``ledger.core.probes``.
"""

import json
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.step_runs import Attempt, begin
from ledger.core.probes import PLACES, Listener, listening
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import RunState
from ledger.deltas import spans, stored
from ledger.execution import advance_states, run_step, run_steps, settle_and_follow
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.spark.folding import ahead, runners
from ledger.spark.job import Job
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.queries.batches import Batch
from tests.support import accounts, feeds, orders

INTERVAL = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
KEY, REPROCESS_KEY = RunKey("dag", "run"), RunKey("dag", "reprocess")

STAGE, BATCH = "stage", "batch"  # what a task of the DAG runs
IN_A_RECORD = "in a record"  # a place that only executors reach: they kill the driver
# Between two transactions that post deltas, which executors have folded, or the driver.
HALF_POSTED, HALF_POSTED_BY_DRIVER = "half of the deltas posted", "the same, folded by the driver"
AHEAD_OF_COMMIT = (HALF_POSTED_BY_DRIVER, "deltas posted")


@dataclass(frozen=True)
class Order:
    """What to run, and where to die: the ``nth`` time that ``place`` is reached, by ``of`` if
    given.

    ``replay_of``: a replay of that batch; ``reprocess``: a batch in the place of the one that
    has the interval. ``state``: instead, the second batch of ``tests.support.feeds``, or the
    state task of ``tests.support.accounts`` in that form. ``marker``: the file that is written
    just before. ``form``: whether a task runs a step or the batch.
    """

    database: str
    home: str
    folder: str
    warehouse: str
    place: str
    marker: str
    of: str = ""
    nth: int = 1
    replay_of: int | None = None
    reprocess: bool = False
    state: str = ""
    form: str = STAGE
    variant: orders.Variant = field(default_factory=orders.Variant)

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Order":
        """What ``as_json`` made."""
        values = json.loads(line)
        variant = values.pop("variant")
        return cls(
            variant=orders.Variant(**{**variant, "sinks": tuple(variant["sinks"])}), **values
        )


def settings_of(home: str, folder: str) -> Settings:
    """Storage and data below ``folder``."""
    return Settings(home=home, storage=f"{folder}/storage", data=folder)


def opened(
    job: Job, *, replay_of: int | None = None, number: int = 1, reprocess: bool = False
) -> Batch:
    """The batch of the run, opened or found again, as a task that runs again finds it.
    ``number``: of the replays of one batch.
    """
    if replay_of is not None:
        key = RunKey("dag", f"replay-{replay_of}-{number}")
        return open_replay(job.database, job.settings, job.pipeline, key, replay_of, Selection())
    key = REPROCESS_KEY if reprocess else KEY
    return open_batch(job.database, job.settings, job.pipeline, key, INTERVAL, reprocess=reprocess)


def run_open_steps(job: Job, batch: Batch, *, whole: bool = False) -> None:
    """The steps in order that have no committed run, as Airflow's further tasks; ``whole``:
    every one again, as the command does.
    """
    result = job.database.transact(lambda c: runs.runs_of(c, batch.batch_id))
    committed = {run.step for run in result if run.state is RunState.COMMITTED}
    for step in job.pipeline.steps():
        if whole or step.name not in committed:
            run_step(job, batch.batch_id, step.name, Attempt())


def run_whole(job: Job, batch: Batch, form: str = STAGE, *, whole: bool = False) -> None:
    """The pending steps of a batch, and what follows, as the tasks of that form do; ``whole``: all
    of it, where they are tasks of a step each.
    """
    if form == BATCH:
        attempt = begin(job.database)
        run_steps(job, batch.batch_id, lambda name, result: None, attempt)
        settle_and_follow(job, batch.batch_id, attempt=attempt)
        return
    run_open_steps(job, batch, whole=whole)
    settle_and_follow(job, batch.batch_id)


def main() -> None:
    """Get ready, take an order, carry it out. Ends with 0 only if the place was never reached."""
    spark = None
    if "--spark" in sys.argv:
        from ledger.spark.session import build_session

        spark = build_session("crashing", "local[2]")
        spark.range(10).selectExpr("sum(id)").collect()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return
    order = Order.from_json(line)
    with listening(_deadly(order)):
        _run(spark, order)


def _run(spark: Any, order: Order) -> None:
    if order.state == feeds.FEED:
        fed = _job(spark, order, feeds.of_folder(order.folder))
        run_whole(fed, feeds.opened(fed, 2), order.form)
        return
    if order.state:
        advance_states(_job(spark, order, accounts.pipeline(order.folder, order.state)))
        return
    spans.MOST_SPANS = orders.MOST_SPANS
    variant = order.variant
    if order.place == IN_A_RECORD:
        values = {**asdict(variant), "deadly": os.getpid(), "marker": order.marker}
        variant = orders.Variant(**values)
    job = _job(spark, order, orders.pipeline(order.folder, order.warehouse, variant))
    batch = opened(job, replay_of=order.replay_of, reprocess=order.reprocess)
    if order.place in (HALF_POSTED, HALF_POSTED_BY_DRIVER):
        ahead.MOST_ROWS = runners.MOST_DELTAS = 1  # in a transaction
        stored.WINDOW_ROWS = 50  # several parts, so several transactions
    if order.place == HALF_POSTED:
        # Of two files: the join's rows are exchanged.
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    run_whole(job, batch, order.form)


def _job(spark: Any, order: Order, pipeline: Pipeline) -> Job:
    """The surroundings; where the deltas matter they are posted before the commit."""
    settings = settings_of(order.home, order.folder)
    job = Job(spark, Database(order.database), settings, pipeline)
    if order.place == HALF_POSTED:
        return replace(job, few_rows=-1, driver_bytes=-1)
    return replace(job, few_rows=-1) if order.place in AHEAD_OF_COMMIT else job


def _deadly(order: Order) -> Listener:
    """Kills this process where the order says."""
    assert order.place in {*PLACES, HALF_POSTED, HALF_POSTED_BY_DRIVER, IN_A_RECORD}, order.place
    times, transactions = 0, Counter[str]()

    def listen(place: str, of: str) -> None:
        nonlocal times
        if place == "posting deltas" and order.place in (HALF_POSTED, HALF_POSTED_BY_DRIVER):
            transactions[of] += 1
            if transactions[of] == 2:
                orders.die(os.getpid(), order.marker)
        if place == order.place and order.of in ("", of):
            times += 1
            if times == order.nth:
                orders.die(os.getpid(), order.marker)

    return listen


if __name__ == "__main__":
    main()
