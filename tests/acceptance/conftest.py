"""A running Airflow on a database of its own, driven as a person drives it."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.settings import Settings
from ledger.store import embedded
from ledger.store.connection import Database
from scripts import airflow_services as services
from scripts.airflow_api import AirflowApi
from scripts.airflow_env import ROOT
from scripts.up import service_environment, up
from tests.support.flights import write_slice
from tests.support.ports import free_port

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


def wait(found: Callable[[], Any], what: str, seconds: float = 1800) -> Any:
    """Ask every second until something is found."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
        time.sleep(1)
    raise AssertionError(f"{what}: nothing after {seconds:.0f} s")


@pytest.fixture(scope="module")
def airflow() -> Iterator[Airflow]:
    """Airflow as `make up` starts it, over a slice of the flights; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ackledger-"))
    folder.chmod(0o755)
    home, data = folder / "home", folder / "data"
    write_slice(data)
    with pytest.MonkeyPatch.context() as patch:
        url = embedded.start(home)
        # The embedded server trusts its folder; the password is there to be looked for.
        patch.setenv("ACKLEDGER_DATABASE_URL", url.replace("postgres:@", f"postgres:{SECRET}@"))
        patch.setenv("ACKLEDGER_DATA", str(data))
        settings, port, dags = Settings(home=home), free_port(), _dags(folder / "dags")
        try:
            password = up(settings, port, dags)
            environment = service_environment(
                settings, embedded.ensure_database(url, "airflow"), dags
            )
            started = Airflow(home, port, password, environment)
            for dag in ("flights", "letters", "inbox", "mail"):
                wait(lambda name=dag: name in started.known_dags(), f"DAG {dag}", 60)
                started.api("PATCH", f"/dags/{dag}", {"is_paused": False})
            yield started
            started.ledger.dispose()
        finally:
            services.stop(home / "airflow")
            embedded.stop(home)
            shutil.rmtree(folder, ignore_errors=True)


def _dags(folder: Path) -> Path:
    """The project's DAG files, with the tests' own instead of those of the same name."""
    own = Path(__file__).parent / "dags"
    files = {path.name: path for path in [*(ROOT / "dags").glob("*.py"), *own.glob("*.py")]}
    folder.mkdir()
    for name, path in files.items():
        os.symlink(path, folder / name)
    return folder
