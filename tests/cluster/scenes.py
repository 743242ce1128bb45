"""What is played on the cluster: batches, a replay, the loss of a machine and of the network."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
from deltalake import DeltaTable
from sqlalchemy import text

from demo import data, oracle
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.cluster.accounts import Account, share
from tests.cluster.airflow import Airflow
from tests.cluster.database import ADMINISTRATOR, DRIVER, LedgerServer
from tests.cluster.spark import SparkCluster
from tests.support import cores

MONTHS = (1, 2, 3, 4)
BRIEF_SECONDS = 6.0  # less than a transaction is retried for
LONG_SECONDS = 40.0  # more than that
AWAY_SECONDS = 8.0
STEP_SECONDS = 180.0
_RUNNING = """
    SELECT r.step FROM step_run r JOIN batch b USING (batch_id)
    WHERE r.state = 'running' AND b.interval_start = :start
"""
_COUNTS = """
    SELECT sum(acked) AS acked, sum(failed) AS failed, sum(pending) AS pending FROM batch_status
"""
_FAILED = """
    SELECT f.step, count(*) AS number FROM failed_root f JOIN batch b USING (batch_id)
    JOIN pipeline p USING (pipeline_id) WHERE p.name = 'wordcount' GROUP BY f.step
"""
MODULES = {  # of the shipped environment: whether it has each
    "numpy": True, "pyarrow": True, "ledger": True,
    "psycopg2": False, "sqlalchemy": False, "airflow": False,
}  # fmt: skip
PASSED = {"success", "skipped"}


class SceneError(Exception):
    """What a scene expected and did not see."""


def require(holds: bool, otherwise: object) -> None:
    """Raise SceneError unless something holds."""
    if not holds:
        raise SceneError(str(otherwise))


@dataclass
class Stage:
    """Where scenes are played. ``folder``: what drivers and executors share."""

    folder: Path
    spark: SparkCluster
    server: LedgerServer
    airflow: Airflow
    ledger: Database
    users: dict[str, Account]
    say: Callable[[str], None]

    def rows(self, query: str, **values: Any) -> list[Any]:
        """What a query of the ledger gives."""
        return self.ledger.transact(
            lambda c: list(c.execute(text(query), values).all()), engine=self.ledger.reader
        )

    def await_step(self, month: int, *steps: str) -> str:
        """Wait until an executor works on one of these steps of a month; its name."""
        deadline = time.monotonic() + STEP_SECONDS
        while time.monotonic() < deadline:
            running = {row.step for row in self.rows(_RUNNING, start=f"2013-{month:02d}-01 00:00Z")}
            both = sorted(running & set(steps))
            if both and self.spark.executors():
                return both[0]
            time.sleep(0.1)
        raise SceneError(f"no run of {steps} of month {month} began: {self.rows(_RUNNING)}")

    def require_right(self, *months: int) -> None:
        """Compare the warehouse with what pandas computes: nothing lost, nothing twice."""
        names = [f"2013-{month:02d}-01" for month in months]
        wanted = oracle.expected_rows(self.folder, names)
        shown = oracle.sink_rows(self.folder / "warehouse" / "departures")
        lost, extra = (wanted - shown).total(), (shown - wanted).total()
        require(lost == extra == 0, f"{lost} flights are lost, {extra} too many of {names}")
        self.say(f"{shown.total():,} flights in the sink, as pandas has them")

    def require_complete(self, run: str, dag: str = "flights") -> None:
        """A run with failed records that no user has accepted ends red, at ``complete``."""
        self.airflow.ended(run, dag)
        tasks = self.airflow.api.tasks(dag, run)
        others = {state for name, state in tasks.items() if name != "complete"}
        require(others <= PASSED, f"tasks of {run}: {tasks}")


SPECULATION = {  # a task is tried a second time after a second, also if it is its stage's only one
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "1s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
SLOW_SECONDS = 20.0
SPAN = 4  # records that share a row of the ledger


def slow_tasks_run_twice(stage: Stage) -> None:
    """Speculation tries a slow task, which reads the source, a second time on the other machine;
    one of the tries counts.
    """
    folder, events = stage.folder / "cores", stage.users["driver"].folder / "events"
    share(folder)
    cores.write(folder)
    events.mkdir()
    stage.users["driver"].own(events)
    stage.server.administer("postgres", "CREATE DATABASE cores")
    administrator = Database(stage.server.direct.verified("cores", ADMINISTRATOR))
    upgrade(administrator)
    administrator.dispose()
    place = (stage.spark.master, stage.server.address("cores", DRIVER), str(folder), SPAN)
    conf = {**SPECULATION, "spark.eventLog.dir": events.as_uri()}
    options = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    environment = {
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
    }
    command = [*stage.users["driver"].prefix, sys.executable, "-m", "tests.support.cores"]
    command += [json.dumps([place]), str(SLOW_SECONDS)]
    printed = stage.airflow.run(*command, **environment)
    (line,) = (line for line in printed.splitlines() if line.startswith("{"))
    require(json.loads(line) == cores.expected(), f"the batch came out otherwise: {line[:400]}")
    second = cores.tried_twice(events)
    require(second > 0, "no task was tried a second time")
    stage.say(f"{second} tasks were tried twice; positions, verdicts and rows are right")


def month_and_replay(stage: Stage) -> None:
    """January with half of the planes; the rest arrives, the failed are replayed and accepted."""
    data.write_planes(stage.folder, every=2)
    first = stage.airflow.flights(1)
    stage.await_step(1, "with_plane", "with_weather")
    require_bare(stage)
    stage.require_complete(first)
    stage.require_right(1)
    (failed,) = stage.rows("SELECT failed FROM batch_status")
    require(failed.failed > 0, "no flight failed for want of its plane")
    stage.say(f"{failed.failed:,} flights are failed: their planes are in no list")
    data.write_planes(stage.folder)
    stage.airflow.api.trigger("ledger_replay", pipeline="flights")
    stage.require_complete(_replay_of(stage))
    stage.require_right(1)
    stage.airflow.run("ackledger", "accept", "1", "--reason", "no list knows their plane")
    (counts,) = stage.rows(_COUNTS)
    require(counts.failed == counts.pending == 0, counts)


def _replay_of(stage: Stage) -> str:
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline:
        for run in stage.airflow.api.runs("flights"):
            if str(run["dag_run_id"]).startswith("replay_"):
                return str(run["dag_run_id"])
        time.sleep(1)
    raise SceneError("ledger_replay has started no run")


def require_bare(stage: Stage) -> None:
    """What executors have: a shipped Python that knows neither the ledger's driver nor
    SQLAlchemy, and no address of the ledger in any process.
    """
    address = f":{stage.server.wire.port}"
    seen = []
    for name, worker in stage.spark.workers.items():
        for process in worker.family():
            with suppress(psutil.NoSuchProcess):
                texts = [*process.cmdline(), *(f"{k}={v}" for k, v in process.environ().items())]
                wrong = [part for part in texts if address in part or "ACKLEDGER_" in part]
                require(not wrong, f"process {process.pid} of {name} has {wrong}")
                seen.append(process)
        python = next((worker.log.parent / "work").glob("*/*/environment/bin/python"), None)
        if python is not None:
            require_lean(stage.users[name], python)
    require(len(seen) > len(stage.spark.workers), f"no executor ran: {seen}")
    stage.say(f"{len(seen)} processes of the workers have no address of the ledger")


def require_lean(user: Account, python: Path) -> None:
    """The shipped environment has what executors need, and not what the ledger does."""
    for module, there in MODULES.items():
        done = subprocess.run(
            [*user.prefix, str(python), "-c", f"import {module}"],
            env={}, cwd=user.folder, capture_output=True, text=True,
        )  # fmt: skip
        require((done.returncode == 0) is there, f"import {module}: {done.stderr or 'it is there'}")


def a_machine_is_lost(stage: Stage) -> None:
    """A worker and its executor are killed within a batch, and come back."""
    run = stage.airflow.flights(2)
    step = stage.await_step(2, "with_plane", "with_weather", "parse")
    name = next(name for name in stage.spark.workers if stage.spark.executors_of(name))
    worker = stage.spark.workers[name]
    stage.say(f"{worker.kill()} processes of {name} killed while {step} ran")
    time.sleep(AWAY_SECONDS)
    worker.start()
    stage.require_complete(run)
    stage.spark.await_workers(len(stage.spark.workers))
    stage.require_right(1, 2)
    stage.say(f"the run went on, its task was tried {len(stage.airflow.tries(run, 'run'))} times")


def the_line_breaks(stage: Stage) -> None:
    """The line between drivers and ledger is cut for some seconds: the run goes on."""
    run = stage.airflow.flights(3)
    step = stage.await_step(3, "parse", "with_plane", "with_weather")
    with _cut(stage):
        time.sleep(BRIEF_SECONDS)
    cuts = stage.server.wire.cuts
    stage.say(f"cut for {BRIEF_SECONDS:.0f} s while {step} ran, {cuts} connections")
    stage.require_complete(run)
    stage.require_right(1, 2, 3)
    stage.say(f"the run went on, its task was tried {len(stage.airflow.tries(run, 'run'))} times")


def the_line_stays_cut(stage: Stage) -> None:
    """It is cut for longer than a transaction waits: the driver says what is wrong, and the task's
    next try goes on.
    """
    run = stage.airflow.flights(4)
    step = stage.await_step(4, "parse", "with_plane", "with_weather")
    with _cut(stage):
        time.sleep(LONG_SECONDS)
    stage.say(f"cut for {LONG_SECONDS:.0f} s while {step} ran")
    stage.require_complete(run)
    stage.require_right(1, 2, 3, 4)
    tries = stage.airflow.tries(run, "run")
    wanted = "did not answer"
    lines = [line for log in tries[:-1] for line in log.splitlines() if wanted in line]
    require(lines, f"no try of {len(tries)} says that the ledger {wanted}")
    event = next(filter(None, map(_error_of, lines)), None)
    require(event is not None, f"no driver said that the ledger {wanted}: {lines[0]}")
    stage.say(f"its task was tried {len(tries)} times, the first said: {event}")


def _error_of(line: str) -> str | None:
    """What a driver said last, if a line of its task's log has that."""
    event = str(json.loads(line).get("event", ""))
    return event if " ackledger ERROR " in event else None


def each_step_has_a_driver(stage: Stage) -> None:
    """The word count, with a state, as a DAG whose steps are tasks with drivers of their own. A
    sentence without a word fails.
    """
    sentences = [f"word{n % 7} word{n % 11} again" for n in range(1_000)]
    folder = stage.folder / "sentences" / "2013-01-01"
    folder.mkdir(parents=True)
    lines = "".join(json.dumps({"sentence": line}) + "\n" for line in (*sentences, "..."))
    (folder / "all.jsonl").write_text(lines)
    interval = {"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    run = stage.airflow.api.trigger("wordcount", **interval)
    stage.require_complete(run, "wordcount")
    tasks = stage.airflow.api.tasks("wordcount", run)
    require(tasks.keys() >= {"sentences", "split", "words", "state"}, tasks)
    wanted = Counter(word for line in sentences for word in line.split())
    warehouse = stage.folder / "warehouse"
    words = ds.dataset(warehouse / "words", format="parquet", partitioning="hive").to_table()
    require(Counter(words["word"].to_pylist()) == wanted, f"{words.num_rows} words")
    counts = DeltaTable(warehouse / "counts").to_pyarrow_table().to_pylist()
    totals = {row["word"]: row["n"] for row in counts}
    require(totals == wanted, totals)
    (failed,) = stage.rows(_FAILED)
    require((failed.step, failed.number) == ("split", 1), failed)
    stage.say(f"{wanted.total():,} words in one sink, their totals in the other, one record failed")


@contextmanager
def _cut(stage: Stage) -> Iterator[None]:
    stage.server.wire.cut()
    try:
        yield
    finally:
        stage.server.wire.mend()


def require_clean(stage: Stage) -> None:
    """Others do not get into the storage; its group does, and the driver's user may remove what
    executors have written.
    """
    storage, driver = stage.folder / "storage", stage.users["driver"]
    owners = {path.owner() for path in storage.rglob("*.parquet")}
    stage.say(f"files of the storage belong to {', '.join(sorted(owners))}")
    if driver.name is not None:
        require(len(owners) > 1, owners)
    modes = {path: path.stat().st_mode & 0o7777 for path in storage.iterdir()}
    require(set(modes.values()) == {0o2770}, modes)
    removed = subprocess.run(
        [*driver.prefix, "rm", "-r", *map(str, modes)], capture_output=True, text=True
    )
    require(removed.returncode == 0, removed.stderr)


SCENES = (
    slow_tasks_run_twice,
    month_and_replay,
    a_machine_is_lost,
    the_line_breaks,
    the_line_stays_cut,
    each_step_has_a_driver,
)
