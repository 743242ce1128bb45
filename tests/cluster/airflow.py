"""An Airflow whose tasks submit to the cluster, run by the user of the drivers."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scripts import airflow_services as services
from scripts.airflow_api import AirflowApi
from scripts.airflow_env import ROOT, airflow_environment, clean_environment
from tests.cluster.accounts import UMASK, Account
from tests.support.ports import free_port

DAGS = ROOT / "tests" / "cluster" / "dags"
WANTED = {"flights", "wordcount", "ledger_sweeper", "ledger_replay"}
DAG_SECONDS = 300.0
RUN_SECONDS = 600.0
ENDED = ("success", "failed")


class Airflow:
    """Its services, and the commands of its users. ``settings``: the ledger's."""

    def __init__(self, user: Account, master: str, metadata: str, settings: Mapping[str, str]):
        self._user, self._home = user, user.folder / "airflow"
        self._port = free_port()
        connection = f'{{"conn_type": "spark", "host": "{master}"}}'
        airflow = airflow_environment(self._home, metadata, dags_folder=DAGS)
        clean = {k: v for k, v in clean_environment().items() if not k.startswith("ACKLEDGER_")}
        programs = _programs(user)
        self.environment = {
            **clean,
            **airflow,
            **settings,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": _asynchronous(metadata),
            "AIRFLOW_CONN_SPARK_DEFAULT": connection,
            "HOME": str(user.folder),
            "PATH": f"{programs}:{airflow['PATH']}",
        }
        self._metadata = metadata
        self.api: AirflowApi

    @property
    def logs(self) -> Path:
        """Of its tasks and services."""
        return self._home / "logs"

    def start(self) -> None:
        """Start it; returns once it knows the DAGs."""
        password = services.configure(self._home, self._port, self._metadata, DAGS)
        self.logs.mkdir()
        self._user.own(self._home)
        self.run("airflow", "db", "migrate")
        for _ in services.start(self._home, self._port, self.environment):
            pass
        self.api = AirflowApi(self._port, password)
        deadline = time.monotonic() + DAG_SECONDS
        while not set(self.api.known_dags()) >= WANTED:
            if time.monotonic() > deadline:
                raise SystemExit(f"Airflow does not know the DAGs: see {self.logs}")
            time.sleep(1)

    def stop(self) -> None:
        """End its services, and what they started."""
        services.stop(self._home)

    def run(self, *command: str, expect: int = 0, **environment: str) -> str:
        """A command of the driver's user; what it prints."""
        own = {**self.environment, **environment}
        done = subprocess.run(
            command, env=own, cwd=self._user.folder, capture_output=True, text=True
        )
        if done.returncode != expect:
            raise SystemExit(
                f"{' '.join(command)} ended with {done.returncode}, expected {expect}:"
                f" {done.stdout}{done.stderr}"
            )
        return done.stdout

    def flights(self, month: int) -> str:
        """Start the run of a month of 2013; its id."""
        interval = {"interval_start": _first(month), "interval_end": _first(month + 1)}
        return self.api.trigger("flights", **interval)

    def ended(self, run: str, dag: str = "flights") -> str:
        """The state of a run, once it has ended. Raises SystemExit if it does not in time."""
        deadline = time.monotonic() + RUN_SECONDS
        while True:
            states = {item["dag_run_id"]: item["state"] for item in self.api.runs(dag)}
            if states.get(run) in ENDED:
                return str(states[run])
            if time.monotonic() > deadline:
                raise SystemExit(f"run {run} has not ended: {self.api.tasks(dag, run)}")
            time.sleep(1)

    def tries(self, run: str, task: str) -> list[str]:
        """The logs of the tries of a task, oldest first."""
        folder = self.logs / "dag_id=flights" / f"run_id={run}" / f"task_id={task}"
        return [path.read_text() for path in sorted(folder.glob("attempt=*.log"))]


def _programs(user: Account) -> Path:
    """A folder with the commands as that user runs them, whichever user starts them."""
    folder = user.folder / "bin"
    folder.mkdir()
    beside = Path(sys.executable).parent
    for name in ("airflow", "ackledger"):
        prefix = " ".join(["exec", *user.prefix, str(beside / name)])
        path = folder / name
        path.write_text(f'#!/bin/sh\numask {UMASK:03o}\n{prefix} "$@"\n')
        path.chmod(0o755)
    user.own(folder)
    return folder


def _asynchronous(address: str) -> str:
    """The same database for asyncpg, which has other names for the options of TLS."""
    plain, _, _ = address.partition("?")
    return plain.replace("postgresql+psycopg2", "postgresql+asyncpg") + "?ssl=require"


def _first(month: int) -> str:
    return f"2013-{month:02d}-01"
