"""Connections by role, transactions that are asked for again, and all translation of driver errors."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from ledger import addresses
from ledger.errors import ConfigurationError, LedgerError, UnavailableError, WaitedError
from ledger.settings import Settings

Result = TypeVar("Result")

OWNER = "ledger_owner"
WRITER = "ledger_writer"
READER = "ledger_reader"
PAYLOAD_READER = "ledger_payload_reader"
SQL_LOGIN = "ledger_sql"
READ_ONLY = "-c default_transaction_read_only=on"
QUERY_TIMEOUT = "5min"  # of a query that a user writes
OLDEST_SERVER = 140000  # bit_xor() is an aggregate since PostgreSQL 14
LOCK_TIMEOUT = "180s"  # a publish may hold a row so long; it is not waited for twice
# Between the tries of a transaction: a server of which one process was killed recovers within seconds.
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
# A publisher holds a row while its sink takes the rows: were its host gone, the server would keep that for hours.
KEEPALIVES: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_SERVER_KEEPALIVES = (
    "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)

REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "permission denied",
    "no pg_hba.conf entry",
    "not permitted to log in",
)


class Database:
    """The ledger's database, reached as one of its roles.

    ``reader_url``: the login of queries that users write; by default ``ledger_sql`` at ``url``.
    """

    def __init__(self, url: str, reader_url: str | None = None):
        self.url = _url("ACKLEDGER_DATABASE_URL", url)
        # The password of one login is not another's: that of ledger_sql comes from a passfile.
        self.reader_url = (
            self.url._replace(username=SQL_LOGIN, password=None).difference_update_query(
                ("user", "password")
            )
            if reader_url is None
            else _url("ACKLEDGER_READER_URL", reader_url)
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> "Database":
        """The database of ``ACKLEDGER_DATABASE_URL``, else the embedded one, started if need be."""
        if settings.database_url is not None:
            return cls(settings.database_url, settings.reader_url)
        from ledger.database import embedded

        return cls(embedded.start(settings.home), settings.reader_url)

    @property
    def dsn(self) -> str:
        """The address in libpq's form, for executors: they post as the writer role."""
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    @cached_property
    def plain(self) -> Engine:
        """As the URL's own user: for migrations, which create the roles."""
        return self._engine(None)

    @cached_property
    def owner(self) -> Engine:
        """For maintenance."""
        return self._engine(OWNER)

    @cached_property
    def writer(self) -> Engine:
        """For jobs and services."""
        return self._engine(WRITER)

    @cached_property
    def reader(self) -> Engine:
        """For our own queries: every transaction is read-only."""
        return self._engine(READER, READ_ONLY)

    @cached_property
    def payload_reader(self) -> Engine:
        """For our own queries that need the raw text of records; read-only too."""
        return self._engine(PAYLOAD_READER, READ_ONLY)

    @cached_property
    def guest(self) -> Engine:
        """For queries that users write: a login that only reads, and a new session for each."""
        options = f"{READ_ONLY} -c statement_timeout={QUERY_TIMEOUT} -c cursor_tuple_fraction=1"
        return self._engine(None, options, url=self.reader_url, poolclass=NullPool)

    def _engine(
        self, role: str | None, options: str = "", *, url: URL | None = None, **pool: Any
    ) -> Engine:
        address = url or self.url
        as_role = f"-c role={role} " if role else ""
        given = f"{as_role}-c timezone=UTC -c lock_timeout={LOCK_TIMEOUT} {_SERVER_KEEPALIVES} {options}"
        alive = {name: value for name, value in KEEPALIVES.items() if name not in address.query}
        return create_engine(
            address,
            connect_args={"options": given, "connect_timeout": 10, **alive},
            **(pool or {"pool_size": 2, "pool_pre_ping": True}),
        )

    def transact(
        self, work: Callable[[Connection], Result], *, engine: Engine | None = None
    ) -> Result:
        """Run ``work`` in one transaction and commit.

        A lost connection runs the whole of it again, up to 6 times in 15 seconds: ``work`` must first ask
        whether it has happened already. Raises UnavailableError when the database stays away.
        """

        def attempt() -> Result:
            with translated(self), (engine or self.writer).begin() as connection:
                return work(connection)

        return persist(attempt)

    def revision(self) -> str | None:
        """The schema's revision; None: there is no schema yet.

        Raises ConfigurationError unless the server is recent enough, UnavailableError without an answer.
        """
        with translated(self), self.plain.connect() as connection:
            require_server(connection)
            there = text("SELECT to_regclass('alembic_version') IS NOT NULL")
            if not connection.execute(there).scalar_one():
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    def check(self) -> None:
        """Raise ConfigurationError unless the server is recent enough and the schema is migrated."""
        from ledger.database.upgrade import head, is_known

        revision = self.revision()
        if revision is not None and not is_known(revision):
            raise ConfigurationError(
                f"the ledger's schema in {self.shown} is at revision {revision}, which this ackledger does "
                f"not know (its newest is {head()}): install the newer ackledger that made it"
            )
        if revision != head():
            raise ConfigurationError(
                f"the ledger's schema in {self.shown} is at revision {revision or 'none'}, expected {head()}: run 'ackledger db upgrade'"
            )

    @property
    def shown(self) -> str:
        """The address without its password, for messages."""
        return self.url.render_as_string(hide_password=True)

    def dispose(self) -> None:
        """Close every pooled connection."""
        for name in ("plain", "owner", "writer", "reader", "payload_reader"):
            if name in self.__dict__:
                self.__dict__[name].dispose()


def _url(setting: str, given: str) -> URL:
    try:
        found = addresses.parsed(given)
    except (ArgumentError, ValueError):
        raise _no_address(setting) from None  # it may quote a password
    if found.drivername != "postgresql+psycopg2":
        raise _no_address(setting, f", found {found.drivername}://")
    return found


def _no_address(setting: str, found: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{setting} is not a URL such as postgresql://user@host/ackledger{found}"
    )


def require_server(connection: Connection) -> None:
    """Raise ConfigurationError if the server lacks bit_xor()."""
    version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    if version < OLDEST_SERVER:
        raise ConfigurationError(
            f"PostgreSQL 14 or later is needed (bit_xor), found {version // 10000}: use a newer server"
        )


def persist(attempt: Callable[[], Result]) -> Result:
    """Call ``attempt``, one whole transaction, up to 6 times in 15 seconds while the database is unavailable. What
    was waited for already, a lock or another database within it, is not waited for again."""
    for pause in PAUSES_SECONDS:
        try:
            return attempt()
        except WaitedError:
            raise
        except UnavailableError:
            time.sleep(pause)
    return attempt()


@contextmanager
def translated(database: Database) -> Iterator[None]:
    """Turn driver errors into the ledger's own; its own pass through."""
    try:
        yield
    except LedgerError:
        raise
    except OperationalError as exc:
        raise _operational(database, exc) from exc
    except ProgrammingError as exc:
        raise _programming(database, exc) from exc
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise UnavailableError(
                f"the connection to {database.shown} was lost: {first_line(exc)}"
            ) from exc
        raise LedgerError(f"the ledger database refused a statement: {first_line(exc)}") from exc


def _operational(database: Database, exc: OperationalError) -> LedgerError:
    found = first_line(exc)
    if any(phrase in str(exc.orig) for phrase in REFUSED):
        return ConfigurationError(
            f"the ledger database {database.shown} refused the connection: {found}. Check ACKLEDGER_DATABASE_URL, PGPASSFILE and the server's roles"
        )
    if getattr(exc.orig, "pgcode", None) == "55P03":
        return WaitedError(
            f"the ledger database {database.shown}: waited in vain for what another process holds{_where(exc)}. A "
            "settlement or a state waits so for the publish of what it replaces, if that takes long. Nothing was changed: "
            "let that one end, then run this again"
        )
    return UnavailableError(
        f"the ledger database {database.shown} did not answer: {found}. Check that the server runs, then run this again"
    )


def _where(exc: DBAPIError) -> str:
    """Which row was waited for, as the server tells it."""
    about = getattr(exc.orig, "diag", None)
    context = (getattr(about, "context", None) or "").splitlines()
    return f", {context[0]}" if context else ""


def _programming(database: Database, exc: ProgrammingError) -> LedgerError:
    code = getattr(exc.orig, "pgcode", None)
    if code in ("42P01", "42883", "3F000", "42704", "22023"):
        return ConfigurationError(
            f"the ledger's schema in {database.shown} lacks something: {first_line(exc)}. Run 'ackledger db upgrade'"
        )
    if code == "42501":
        advice = f". Grant it the role {WRITER}" if _lacks_writer(database) else ""
        return ConfigurationError(f"the database user may not do this: {first_line(exc)}{advice}")
    return LedgerError(f"the ledger database refused a statement: {first_line(exc)}")


def _lacks_writer(database: Database) -> bool:
    """Whether the URL's own user has not the role that jobs and services work as."""
    statement = text("SELECT pg_has_role(session_user, :role, 'MEMBER')")
    try:
        with database.plain.connect() as connection:
            return not connection.execute(statement, {"role": WRITER}).scalar_one()
    except DBAPIError:  # there is no such role, or no answer any more
        return False


def first_line(exc: DBAPIError) -> str:
    """What the driver said, without its hints."""
    lines = str(exc.orig).strip().splitlines()
    return lines[0] if lines else type(exc.orig).__name__
