"""A process that runs a batch as ``ackledger run`` does, and kills itself at a named place.

``python -m tests.support.crashing [--spark]`` gets ready, prints ``ready``, and waits for an order,
one line of JSON on its standard input. The places are those of ``ledger.core.probes``.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.step_runs import Attempt, begin
from ledger.core.probes import PLACES, Listener, listening
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import RunState
from ledger.deltas import stored
from ledger.execution import advance_states, run_step, run_steps, settle_and_follow
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.spark.job import Job, PostingTask
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.queries.batches import Batch
from tests.support import accounts, feeds, orders

INTERVAL = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
KEY, REPROCESS_KEY = RunKey("dag", "run"), RunKey("dag", "reprocess")

STAGE, BATCH = "stage", "batch"  # what a task of the DAG runs
# Two places that only executors reach: they kill the driver.
HALF_POSTED, IN_A_RECORD = "half of the deltas posted", "in a record"
# Between two buckets that the driver posts.
HALF_POSTED_BY_DRIVER = "half of the deltas posted by the driver"
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
    """What is left of a batch, and what follows, as the tasks of that form do; ``whole``: all of
    it, where they are tasks of a step each.
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
    variant = order.variant
    if order.place == IN_A_RECORD:
        values = {**asdict(variant), "deadly": os.getpid(), "marker": order.marker}
        variant = orders.Variant(**values)
    job = _job(spark, order, orders.pipeline(order.folder, order.warehouse, variant))
    batch = opened(job, replay_of=order.replay_of, reprocess=order.reprocess)
    if order.place == HALF_POSTED_BY_DRIVER:
        stored.WINDOW_ROWS = 50  # several parts, so several buckets
    if order.place == HALF_POSTED:
        # In two buckets: the join's rows are exchanged, and lie in two files.
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    run_whole(job, batch, order.form)


def _job(spark: Any, order: Order, pipeline: Pipeline) -> Job:
    """The surroundings; where the deltas matter they are posted before the commit."""
    settings = settings_of(order.home, order.folder)
    job = Job(spark, Database(order.database), settings, pipeline)
    if order.place == HALF_POSTED:
        killer = partial(partial, _post_one, os.getpid(), order.marker, job.database.dsn)
        return replace(job, few_rows=-1, driver_bytes=-1, on_task=killer)
    return replace(job, few_rows=-1) if order.place in AHEAD_OF_COMMIT else job


def _deadly(order: Order) -> Listener:
    """Kills this process where the order says."""
    assert order.place in {*PLACES, HALF_POSTED, HALF_POSTED_BY_DRIVER, IN_A_RECORD}, order.place
    times, bucket = 0, defaultdict[str, Iterator[int]](lambda: count(1))

    def listen(place: str, of: str) -> None:
        nonlocal times
        here = place == "posting bucket" and order.place == HALF_POSTED_BY_DRIVER
        if here and next(bucket[of]) == 2:  # in one of two threads
            dsn = Database(order.database).dsn
            _die_once_one_is_posted(os.getpid(), order.marker, dsn)
        if place == order.place and order.of in ("", of):
            times += 1
            if times == order.nth:
                orders.die(os.getpid(), order.marker)

    return listen


def _post_one(
    driver: int, marker: str, dsn: str, task: PostingTask, rows: Iterator[Any]
) -> Iterator[Any]:
    """In an executor: post the first bucket; kill the driver from the second once that is there."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.partitionId() == 0:
        yield from task(rows)
        return
    for _ in rows:
        pass
    _die_once_one_is_posted(driver, marker, dsn)


def _die_once_one_is_posted(driver: int, marker: str, dsn: str) -> None:
    """Kill the driver once the ledger has a bucket of its newest run."""
    import psycopg2

    newest = (
        "SELECT 1 FROM step_run_bucket WHERE step_run_id = (SELECT max(step_run_id) FROM step_run)"
    )
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for _ in range(600):
            cursor.execute(newest)
            if cursor.fetchone():
                orders.die(driver, marker)
            connection.rollback()
            time.sleep(0.05)


if __name__ == "__main__":
    main()
