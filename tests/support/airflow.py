"""A running Airflow, driven as a person drives it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledger.store.connection import Database
from scripts.airflow_api import AirflowApi

SECRET = "a-passphrase-that-must-not-leak"


class Airflow(AirflowApi):
    """A started Airflow: its commands, its API, and the ledger that its jobs write to."""

    def __init__(self, home: Path, port: int, password: str, environment: dict[str, str]):
        super().__init__(port, password)
        self.home = home
        self.data = Path(environment["ACKLEDGER_DATA"])
        self.environment = environment
        self.ledger = Database(environment["ACKLEDGER_DATABASE_URL"])

    def command(self, *arguments: str) -> str:
        """Run Airflow's command; its output."""
        done = subprocess.run(
            ["airflow", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def clear(self, dag: str, run: str, *tasks: str, downstream: bool = True) -> None:
        """Clear tasks of a run, as the button does."""
        body = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": list(tasks),
            "include_downstream": downstream,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.api("POST", f"/dags/{dag}/clearTaskInstances", body)

    def log(self, dag: str, run: str, task: str, until: str = "") -> str:
        """What the last try of a task has logged, once it has ``until``: a run may end before
        the last lines are written.
        """
        folder = self.home / "airflow" / "logs" / f"dag_id={dag}" / f"run_id={run}"

        def written() -> str | None:
            tries = (folder / f"task_id={task}").glob("*.log")
            text = max(tries, key=lambda path: path.stat().st_mtime).read_text()
            return text if until in text else None

        return str(wait(written, f"{until!r} in the log of {task}", 60))

    def ended(self, dag: str, run: str) -> str:
        """Wait until a run has ended; its state."""

        def state() -> str | None:
            found = self.api("GET", f"/dags/{dag}/dagRuns/{run}")["state"]
            return found if found in ("success", "failed") else None

        return wait(state, f"run {run} of {dag}")


@contextmanager
def dags_of(text: str) -> Iterator[dict[str, Any]]:
    """The DAGs of a DAG file by name, which Airflow runs in this process, with a database of its
    own.
    """
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.db import initdb

    initdb()
    known = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    known.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=known))
    try:
        (folder / "all.py").write_text(text)
        bag = DagBag(str(folder))
        assert bag.import_errors == {}
        yield bag.dags
    finally:
        shutil.rmtree(folder)


def wait(found: Callable[[], Any], what: str, seconds: float = 1800) -> Any:
    """Ask every second until something is found."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(1)
    raise AssertionError(f"{what}: nothing after {seconds:.0f} s")
