"""A running Airflow on a database of its own, driven as a person drives it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from ledger.settings import Settings
from ledger.store import embedded
from scripts import airflow_services as services
from scripts.airflow_env import READ_AGAIN, ROOT
from scripts.up import service_environment, up
from tests.support.airflow import SECRET, Airflow, wait
from tests.support.browser import chromium, signed_in, window
from tests.support.flights import write_slice
from tests.support.ledgers import Ledger
from tests.support.ports import free_port

_NEXT = pytest.StashKey[pytest.Item | None]()


@dataclass
class Shared:
    """An Airflow that runs, and what ends it."""

    stack: ExitStack
    airflow: Airflow | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let fixtures know which test is the next one."""
    item.session.stash[_NEXT] = nextitem


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    """What files of tests that follow each other hand on."""
    with ExitStack() as stack:
        yield Shared(stack)


@pytest.fixture(scope="module")
def airflow(request: pytest.FixtureRequest, shared: Shared) -> Iterator[Airflow]:
    """A running Airflow whose ledger is empty, over a slice of the flights; it ends with the last
    of the files that need it.
    """
    if shared.airflow is None:
        shared.airflow = shared.stack.enter_context(_running())
    else:
        wait(lambda: shared.airflow.is_idle() or None, "pending runs of the file before")
        shared.airflow.ledger.empty()
        for folder in (shared.airflow.data, shared.airflow.home / "storage"):
            if folder.exists():
                shutil.rmtree(folder)
        write_slice(shared.airflow.data)
    yield shared.airflow
    following = request.session.stash[_NEXT]
    if "airflow" not in getattr(following, "fixturenames", ()):
        shared.airflow = None
        shared.stack.close()


@contextmanager
def _running() -> Iterator[Airflow]:
    """Airflow as `make up` starts it; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ackledger-"))
    folder.chmod(0o755)
    home, data = folder / "home", folder / "data"
    write_slice(data)
    with pytest.MonkeyPatch.context() as patch:
        url = embedded.start(home)
        # The embedded server trusts its folder; the password is there to be looked for.
        patch.setenv("ACKLEDGER_DATABASE_URL", url.replace("postgres:@", f"postgres:{SECRET}@"))
        patch.setenv("ACKLEDGER_DATA", str(data))
        patch.setenv(READ_AGAIN, "300")
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
            started.ledger.database.dispose()
        finally:
            services.stop(home / "airflow")
            embedded.stop(home)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium without a signed-in user."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def admin(browser: Browser, airflow: Airflow) -> Iterator[BrowserContext]:
    """The windows of somebody who has signed in by the form."""
    with signed_in(browser, airflow) as context:
        yield context


@pytest.fixture
def page(admin: BrowserContext, airflow: Airflow) -> Iterator[Page]:
    """A new one of them."""
    with window(admin, airflow) as opened:
        yield opened


@pytest.fixture
def ledger(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The empty ledger, where tasks find it."""
    url = ledger.database.url.render_as_string(hide_password=False)
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", url)
    return ledger


def _dags(folder: Path) -> Path:
    """The project's DAG files, with the tests' own instead of those of the same name."""
    own = Path(__file__).parent / "dags"
    files = {path.name: path for path in [*(ROOT / "dags").glob("*.py"), *own.glob("*.py")]}
    folder.mkdir()
    for name, path in files.items():
        os.symlink(path, folder / name)
    return folder
