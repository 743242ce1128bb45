"""The real PgBouncer in transaction mode before a server that takes TLS alone: its clients use
TLS, too.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port
from tests.support.tls import SecureServer, server_user

MISSING = "PgBouncer is not installed: apt-get install pgbouncer"
START_SECONDS = 10.0
# A login of queries has sessions of its own: a query may take a lock of its session. Everybody
# else has a session for a transaction.
_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}

[users]
ledger_sql = pool_mode=session

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
server_login_retry = 1
client_tls_sslmode = require
client_tls_cert_file = {certificates}/server.pem
client_tls_key_file = {certificates}/server.key
server_tls_sslmode = verify-full
server_tls_ca_file = {certificates}/ca.pem
logfile = {folder}/log
"""


def program() -> str | None:
    """The program; None: it is not installed."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))


class Bouncer:
    """A running PgBouncer. ``server``: as its clients reach it; ``behind``: the real one's port."""

    def __init__(self, server: SecureServer, users: Mapping[str, str], sessions: int):
        self._folder = Path(tempfile.mkdtemp(prefix="ackledger-bouncer-"))
        self._user = server_user()
        self.port, self.behind = free_port(), server.port
        self.server = server.through(self.port)
        names = {"server": server.port, "port": self.port, "folder": self._folder}
        names |= {"certificates": server.folder, "sessions": sessions}
        (self._folder / "settings.ini").write_text(_SETTINGS.format(**names))
        listed = "".join(f'"{name}" "{password}"\n' for name, password in users.items())
        (self._folder / "users.txt").write_text(listed)
        for path in (self._folder, *self._folder.iterdir()):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if self._user is not None:
                entry = pwd.getpwnam(self._user)
                os.chown(path, entry.pw_uid, entry.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it listens."""
        command = [str(program()), "-q", str(self._folder / "settings.ini")]
        self._process = subprocess.Popen(command, user=self._user, cwd="/", stderr=subprocess.PIPE)
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self.port):
            assert self._process.poll() is None, self._process.communicate()[1]
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    @property
    def log(self) -> str:
        """What it has logged."""
        path = self._folder / "log"
        return path.read_text() if path.exists() else ""

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, by default at once in good order."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.communicate()
            self._process = None

    def remove(self) -> None:
        """End it, and remove its folder."""
        self.end()
        shutil.rmtree(self._folder)


@contextmanager
def bouncer(server: SecureServer, users: Mapping[str, str], sessions: int = 3) -> Iterator[Bouncer]:
    """A PgBouncer for the block. ``users``: passwords by login; ``sessions``: of the server, at
    most, for each user and database.
    """
    own = Bouncer(server, users, sessions)
    try:
        own.start()
        yield own
    finally:
        own.remove()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
