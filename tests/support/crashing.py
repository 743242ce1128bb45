"""A process that runs a batch as ``ackledger run`` does, and kills itself at a named point.

``python -m tests.support.crashing [--spark]`` makes ready, prints ``ready``, and waits for an order, one
line of JSON on its standard input. Nothing in the library knows of it: functions are wrapped here.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ledger.batch.opening import open_batch, open_replay
from ledger.batch.step_runs import Attempt, begin
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.core.states import RunState
from ledger.execution import advance_states, run_step, run_steps, settle_and_follow
from ledger.settings import Settings
from ledger.spark import post as folding
from ledger.spark.job import Job
from ledger.store.connection import Database
from ledger.store.queries import runs
from ledger.store.queries.batches import Batch
from tests.support import accounts, feeds, orders

INTERVAL = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
KEY, REPROCESS_KEY = RunKey("dag", "run"), RunKey("dag", "anew")

STAGE, BATCH = "stage", "batch"  # what a task of the DAG runs
# Points inside of what executors do, instead of "module:function".
HALF_POSTED, IN_A_RECORD = "half of the deltas posted", "in a record"


@dataclass(frozen=True)
class Order:
    """What to run, and where to die: before or after the ``nth`` call of ``target``, a ``module:name``.

    ``replay_of``: a replay of that batch; ``reprocess``: a batch in the place of the one that has the
    interval. ``state``: instead, the second batch of ``tests.support.feeds``, or the state task of
    ``tests.support.accounts`` in that form.
    ``marker``: the file that is written just before. ``form``: whether a task runs a step or the batch.
    """

    database: str
    home: str
    folder: str
    warehouse: str
    target: str
    marker: str
    when: str = "after"
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
    """The batch of the run, opened or found again, as a task that runs again finds it. ``number``: of the
    replays of one batch."""
    if replay_of is not None:
        key = RunKey("dag", f"replay-{replay_of}-{number}")
        return open_replay(job.database, job.settings, job.pipeline, key, replay_of, Selection())
    key = REPROCESS_KEY if reprocess else KEY
    return open_batch(job.database, job.settings, job.pipeline, key, INTERVAL, reprocess=reprocess)


def run_open_steps(job: Job, batch: Batch, *, whole: bool = False) -> None:
    """The steps in order that have no committed run, as Airflow's further tasks; ``whole``: every one again, as
    the command does."""
    found = job.database.transact(lambda c: runs.runs_of(c, batch.batch_id))
    committed = {run.stage for run in found if run.state is RunState.COMMITTED}
    for step in job.pipeline.steps():
        if whole or step.name not in committed:
            run_step(job, batch.batch_id, step.name, Attempt())


def run_whole(job: Job, batch: Batch, form: str = STAGE, *, whole: bool = False) -> None:
    """What is left of a batch, and what follows, as the tasks of that form do; ``whole``: all of it, where they are
    tasks of a step each."""
    if form == BATCH:
        attempt = begin(job.database)
        run_steps(job, batch.batch_id, lambda name, result: None, attempt)
        settle_and_follow(job, batch.batch_id, attempt=attempt)
        return
    run_open_steps(job, batch, whole=whole)
    settle_and_follow(job, batch.batch_id)


def main() -> None:
    """Make ready, take an order, carry it out. Ends with 0 only if the point was never reached."""
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
    with _deadly(order):
        _run(spark, order)


def _run(spark: Any, order: Order) -> None:
    settings = settings_of(order.home, order.folder)
    if order.state == feeds.FEED:
        fed = Job(spark, Database(order.database), settings, feeds.of_folder(order.folder))
        run_whole(fed, feeds.opened(fed, 2))
        return
    if order.state:
        accounted = accounts.pipeline(order.folder, order.state)
        advance_states(Job(spark, Database(order.database), settings, accounted))
        return
    variant = order.variant
    if order.target == IN_A_RECORD:
        values = {**asdict(variant), "deadly": os.getpid(), "marker": order.marker}
        variant = orders.Variant(**values)
    made = orders.pipeline(order.folder, order.warehouse, variant)
    job = Job(spark, Database(order.database), settings, made)
    batch = opened(job, replay_of=order.replay_of, reprocess=order.reprocess)
    if (
        order.target == HALF_POSTED
    ):  # in two buckets: the join's rows are exchanged, and lie in two files
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    run_whole(job, batch, order.form)


@contextlib.contextmanager
def _deadly(order: Order) -> Iterator[None]:
    """Wrap the function that the order names, for as long as the block runs."""
    if order.target == IN_A_RECORD:
        yield
        return
    if order.target == HALF_POSTED:
        original = folding._fold_rows
        folding.FEW_ROWS, folding._fold_rows = -1, partial(_post_one, os.getpid(), order.marker)
        try:
            yield
        finally:
            folding._fold_rows = original
        return
    module, _, name = order.target.partition(":")
    if name == "fold":
        folding.FEW_ROWS = -1  # posted by the executors, before the commit
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    setattr(owner, last, _wrapped(original, order))
    try:
        yield
    finally:
        setattr(owner, last, original)


def _wrapped(original: Callable[..., Any], order: Order) -> Callable[..., Any]:
    calls = 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == order.nth and order.when == "before":
            orders.die(os.getpid(), order.marker)
        result = original(*arguments, **options)
        if calls == order.nth:
            orders.die(os.getpid(), order.marker)
        return result

    return wrapped


def _post_one(driver: int, marker: str, *task: Any) -> Iterator[Any]:
    """In an executor: the first bucket is posted; the second kills the driver once the first is there."""
    import psycopg2
    from pyspark import TaskContext

    from ledger.spark import post as real

    dsn, _, run_id, *_, rows = task
    context = TaskContext.get()
    if context is None or context.partitionId() == 0:
        yield from real._fold_rows(*task)
        return
    for _ in rows:
        pass
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for _ in range(600):
            cursor.execute("SELECT 1 FROM step_run_bucket WHERE step_run_id = %s", (run_id,))
            if cursor.fetchone():
                orders.die(driver, marker)
            connection.rollback()
            time.sleep(0.05)


if __name__ == "__main__":
    main()
