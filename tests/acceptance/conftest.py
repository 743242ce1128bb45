"""A running Airflow on a database of its own, driven as a person drives it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.database import embedded
from ledger.database.connection import Database
from ledger.settings import Settings
from scripts import airflow_services as services
from scripts.airflow_env import ROOT
from scripts.up import service_environment, up
from tests.support.flights import write_slice

SECRET = "a-passphrase-that-must-not-leak"


class Airflow:
    """A started Airflow: its commands, its API, and the ledger that its jobs write to."""

    def __init__(self, home: Path, port: int, password: str, environment: dict[str, str]):
        self.home = home
        self.data = Path(environment["ACKLEDGER_DATA"])
        self.environment = environment
        self.ledger = Database(environment["ACKLEDGER_DATABASE_URL"])
        self._base = f"http://127.0.0.1:{port}"
        login = {"username": services.USER, "password": password}
        self._token = self._send("POST", "/auth/token", login)["access_token"]

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

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Airflow's API."""
        return self._send(method, f"/api/v2{path}", body)

    def trigger(self, dag: str, **conf: Any) -> str:
        """Start a run by hand; its id."""
        body = {"logical_date": None, "conf": conf}
        return str(self.api("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"])

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

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG, oldest first."""
        return list(
            self.api("GET", f"/dags/{dag}/dagRuns?order_by=run_after&limit=100")["dag_runs"]
        )

    def ended(self, dag: str, run: str) -> str:
        """Wait until a run has ended; its state."""

        def state() -> str | None:
            found = self.api("GET", f"/dags/{dag}/dagRuns/{run}")["state"]
            return found if found in ("success", "failed") else None

        return wait(state, f"run {run} of {dag}")

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """State of each task of a run."""
        found = self.api("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if hasattr(self, "_token"):
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def wait(found: Callable[[], Any], what: str, seconds: float = 600) -> Any:
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
        settings, port, dags = Settings(home=home), _free_port(), _dags(folder / "dags")
        try:
            password = up(settings, port, dags)
            environment = service_environment(
                settings, embedded.ensure_database(url, "airflow"), dags
            )
            started = Airflow(home, port, password, environment)
            for dag in ("flights", "letters", "inbox"):
                wait(lambda name=dag: name in _known(started), f"DAG {dag}", 60)
                started.api("PATCH", f"/dags/{dag}", {"is_paused": False})
            yield started
            started.ledger.dispose()
        finally:
            services.stop(home / "airflow")
            embedded.stop(home)
            shutil.rmtree(folder, ignore_errors=True)


def _known(started: Airflow) -> list[str]:
    return [dag["dag_id"] for dag in started.api("GET", "/dags")["dags"]]


def _dags(folder: Path) -> Path:
    """The project's DAG files, with the tests' own instead of those of the same name."""
    own = Path(__file__).parent / "dags"
    files = {path.name: path for path in [*(ROOT / "dags").glob("*.py"), *own.glob("*.py")]}
    folder.mkdir()
    for name, path in files.items():
        os.symlink(path, folder / name)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
