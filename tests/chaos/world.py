"""The world of a run: two PostgreSQL servers, Airflow, the sweeper; everything on this machine
alone.

All that it starts carries the run's own ACKLEDGER_HOME in its environment, and so does what those
start: by that its processes are found, orphans too, and no others.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from scripts import airflow_services as services
from scripts.airflow_api import AirflowApi
from scripts.airflow_env import ROOT, airflow_environment, clean_environment
from tests.chaos.killer import lives
from tests.chaos.pipeline import NAME, SUBMIT, TARGET_URL
from tests.chaos.schedule import Kind

MASTER = (  # one executor for each driver: killed, it takes all that it holds along
    "local-cluster[1,2,1024]"
)
SCHEDULER_AWAY_SECONDS = 3.0
DAG_SECONDS = 300.0
IDLE_SECONDS = 30
# What Airflow needs to notice the death of a task or a scheduler within seconds instead of minutes.
ATTENTIVE = {
    "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "10",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "300",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
}


BACKENDS = text("""
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
""")


@dataclass(frozen=True)
class Elsewhere:
    """A ledger and a cluster that others have started on this machine, instead of a run's own.

    ``database_url``: of a migrated ledger without batches. ``environment``: what drivers need
    beside it. ``executors``: lists those that run.
    """

    database_url: str
    master: str
    environment: Mapping[str, str] = field(default_factory=dict)
    executors: Callable[[], list[psutil.Process]] = list


class World:
    """Started by ``start``; ``stop`` ends all of it, whatever it is in the middle of."""

    def __init__(self, folder: Path, submit: str = "stage", elsewhere: Elsewhere | None = None):
        self.folder = folder
        self._submit = submit
        self._elsewhere = elsewhere
        self.data = folder / "data"
        self.logs = folder / "airflow" / "logs"
        self._ledger_home, self._other_home = folder / "ledger", folder / "other"
        self._airflow = folder / "airflow"
        self._sweeper: subprocess.Popen[bytes] | None = None
        self._scheduler_missed: float | None = None
        self.environment: dict[str, str] = {}
        self.target_url = ""

    def start(self) -> None:
        """Servers, schema, services, sweeper; returns once Airflow knows the DAGs."""
        self.data.mkdir(parents=True, exist_ok=True)
        if self._elsewhere is None:
            self.ledger = Database(embedded.start(self._ledger_home))
            upgrade(self.ledger)
        else:
            self.ledger = Database(self._elsewhere.database_url)
        other = embedded.start(self._other_home)
        airflow_url = embedded.ensure_database(other, "airflow")
        _let_go_of_the_dead(airflow_url)
        target = make_url(embedded.ensure_database(other, "target"))
        self.target_url = target.set(drivername="postgresql").render_as_string(hide_password=False)
        dags = ROOT / "tests" / "chaos" / "dags"
        port = _free_port()
        password = services.configure(self._airflow, port, airflow_url, dags)
        self.environment = self._environment(
            airflow_url, dags, target.render_as_string(hide_password=False)
        )
        migrate = ["airflow", "db", "migrate"]
        with (self.folder / "migrate.log").open("w") as log:
            subprocess.run(migrate, env=self.environment, check=True, stdout=log, stderr=log)
        for _ in services.start(self._airflow, port, self.environment):
            pass
        self.airflow = AirflowApi(port, password)
        self._await_dags()
        self._start_sweeper()

    def _environment(self, airflow_url: str, dags: Path, target_url: str) -> dict[str, str]:
        own = {
            "ACKLEDGER_HOME": str(self._ledger_home),
            "ACKLEDGER_STORAGE": str(self.folder / "storage"),
            "ACKLEDGER_DATA": str(self.data),
            TARGET_URL: target_url,
            SUBMIT: self._submit,
        }
        environment = {
            k: v for k, v in clean_environment().items() if not k.startswith("ACKLEDGER_")
        }
        there, master = {}, MASTER
        if self._elsewhere is not None:
            there = {"ACKLEDGER_DATABASE_URL": self._elsewhere.database_url}
            there |= self._elsewhere.environment
            master = self._elsewhere.master
        return {
            **environment,
            **own,
            **airflow_environment(self._airflow, airflow_url, dags_folder=dags),
            **ATTENTIVE,
            "AIRFLOW_CONN_SPARK_DEFAULT": f'{{"conn_type": "spark", "host": "{master}"}}',
            "SPARK_HOME": str(_spark_home(self.folder / "spark")),
            "PYSPARK_PYTHON": sys.executable,
            **there,
        }

    def _await_dags(self) -> None:
        deadline = time.monotonic() + DAG_SECONDS
        while not {NAME, "ledger_replay"} <= set(self.airflow.known_dags()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Airflow does not know the DAGs: see {self.logs}")
            time.sleep(1)

    def tend(self) -> None:
        """Start again what has died and starts nowhere else: the sweeper, and the scheduler
        after a while.
        """
        if self._sweeper is None or self._sweeper.poll() is not None:
            self._start_sweeper()
        if self._scheduler() is not None:
            self._scheduler_missed = None
        elif self._scheduler_missed is None:
            self._scheduler_missed = time.monotonic()
        elif time.monotonic() - self._scheduler_missed > SCHEDULER_AWAY_SECONDS:
            services.start_one(self._airflow, "scheduler", self.environment)

    def victims(self, kind: Kind) -> list[psutil.Process]:
        """The live processes of a kind, oldest first."""
        if kind is Kind.SWEEPER:
            processes = [psutil.Process(self._sweeper.pid)] if self._sweeper else []
        elif kind is Kind.SCHEDULER:
            pid = self._scheduler()
            processes = [] if pid is None else [psutil.Process(pid)]
        elif kind is Kind.BACKEND:
            processes = self._backends()
        elif kind is Kind.EXECUTOR and self._elsewhere is not None:
            processes = self._elsewhere.executors()
        else:
            processes = [process for process in self._own() if _spark_part(process) is kind]
        alive = [process for process in processes if lives(process)]
        return sorted(alive, key=lambda process: (process.create_time(), process.pid))

    def stop(self) -> None:
        """End every process of the run; the servers in good order."""
        if self._sweeper is not None:
            self._sweeper.kill()
            self._sweeper.wait()
        services.stop(self._airflow)
        for process in self._own():
            _kill(process)
        if hasattr(self, "ledger"):
            self.ledger.dispose()
        for home in (self._ledger_home, self._other_home):
            embedded.stop(home)

    def _start_sweeper(self) -> None:
        with (self.folder / "sweeper.log").open("a") as log:
            self._sweeper = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.sweeper"],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _scheduler(self) -> int | None:
        for service in services.running(self._airflow):
            if service.name == "scheduler":
                return service.pid
        return None

    def _backends(self) -> list[psutil.Process]:
        """The processes of the ledger's server that serve a client of the ledger; none while it
        starts again.
        """
        try:
            with self.ledger.plain.connect() as connection:
                pids = connection.execute(BACKENDS).scalars().all()
        except DBAPIError:
            return []
        processes = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
        return processes

    def _own(self) -> list[psutil.Process]:
        """Every process with this run's mark; the servers are ended in their own way."""
        processes = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("ACKLEDGER_HOME") == str(self._ledger_home)
                if marked and process.name() != "postgres" and process.pid != os.getpid():
                    processes.append(process)
            except psutil.Error:
                continue  # it has ended, or is not ours
        return processes


def _let_go_of_the_dead(airflow_url: str) -> None:
    """End transactions that no process continues. The workers of a killed scheduler were forked
    from it: they keep its connection open, and with it the lock on its row, for which the next
    scheduler waits.
    """
    engine = create_engine(airflow_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"ALTER DATABASE airflow SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
        )
    engine.dispose()


def _spark_part(process: psutil.Process) -> Kind | None:
    """Whether a process is an executor, or a driver: the JVM or its Python, either may die."""
    command = _command(process)
    if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
        return Kind.EXECUTOR
    submitted = "org.apache.spark.deploy.SparkSubmit" in command
    in_python = len(command) > 1 and command[1].endswith("run_step.py")
    return Kind.DRIVER if submitted or in_python else None


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return  # it has ended


def _spark_home(folder: Path) -> Path:
    """pyspark's own files under another name: a worker writes below the home of its Spark."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
