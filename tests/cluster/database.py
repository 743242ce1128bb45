"""The ledger's PostgreSQL as a managed one is: TCP with TLS and scram, an administrator who is no
superuser, a pooler in transaction mode in front.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.store.connection import Database
from tests.support import bouncer as pgbouncer
from tests.support import tls
from tests.support.bouncer import Bouncer, bouncer
from tests.support.line import Line, line
from tests.support.tls import SecureServer, secure_server

ADMINISTRATOR, DRIVER, READER, AIRFLOW = "dba", "etl", "ledger_sql", "airflow"
LEDGER, CHAOS = "ledger", "chaos"
_HBA = """
hostssl all all 127.0.0.1/32 scram-sha-256
local all postgres trust
"""
_SETUP = f"""
CREATE ROLE {ADMINISTRATOR} LOGIN CREATEROLE CREATEDB PASSWORD '{tls.PASSWORD}';
CREATE ROLE {AIRFLOW} LOGIN PASSWORD '{tls.PASSWORD}';
CREATE DATABASE {AIRFLOW} OWNER {AIRFLOW};
"""
GRANT = (
    f"GRANT ledger_owner, ledger_writer, ledger_reader, ledger_payload_reader TO {DRIVER}",
    f"ALTER ROLE {READER} PASSWORD '{tls.PASSWORD}'",
)


@dataclass(frozen=True)
class LedgerServer:
    """``direct``: the server itself; ``pooled``: as drivers reach it, over a ``wire`` that can be
    cut to the ``pooler``.
    """

    direct: SecureServer
    pooler: Bouncer
    wire: Line

    @property
    def pooled(self) -> SecureServer:
        return self.direct.through(self.wire.port)

    @property
    def certificate(self) -> Path:
        """Of the authority that signed the server's."""
        return self.direct.folder / "ca.pem"

    def address(self, database: str, user: str, at: SecureServer | None = None) -> str:
        """An address without its password, which a passfile has."""
        return (at or self.pooled).verified(database, user).replace(f":{tls.PASSWORD}@", "@")

    def passfile(self, path: Path) -> None:
        """Write the passwords where the pooler asks for them, for all who may read this file."""
        names = (DRIVER, READER)
        ports = (self.wire.port, self.pooler.port)
        lines = [f"127.0.0.1:{port}:*:{name}:{tls.PASSWORD}\n" for port in ports for name in names]
        path.write_text("".join(lines))
        path.chmod(0o600)

    def run_script(self, database: str, script: str) -> None:
        """Run a script with psql, as an administrator does who has no ackledger."""
        programs = tls.programs()
        assert programs is not None
        address = self.address(database, ADMINISTRATOR, self.direct)
        subprocess.run(
            [programs / "psql", "-X", "-q", "--set", "ON_ERROR_STOP=1", address],
            input=script, env={"PGPASSWORD": tls.PASSWORD}, check=True, text=True,
        )  # fmt: skip

    def administer(self, database: str, *statements: str) -> None:
        """What the administrator does, without the pooler."""
        own = Database(self.direct.verified(database, ADMINISTRATOR))
        with own.autocommit.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        own.dispose()


@contextmanager
def ledger_server() -> Iterator[LedgerServer]:
    """A server, a pooler and a wire for the block. Raises SystemExit where one is not installed."""
    programs = tls.programs()
    if programs is None:
        raise SystemExit("no PostgreSQL server with TLS is installed: apt-get install postgresql")
    if pgbouncer.program() is None:
        raise SystemExit(pgbouncer.MISSING)
    passwords = dict.fromkeys((ADMINISTRATOR, DRIVER, READER), tls.PASSWORD)
    with ExitStack() as stack:
        server = stack.enter_context(secure_server(programs, _HBA, _SETUP))
        pooler = stack.enter_context(bouncer(server, passwords, sessions=8))
        wire = stack.enter_context(line(pooler.port))
        yield LedgerServer(server, pooler, wire)
