"""Connections by role, transactions that are retried, and ackledger's errors for those of the
ledger's database.
"""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ledger.databases import addresses
from ledger.databases.connections import LOCK_TIMEOUT, arguments
from ledger.databases.driver_errors import Report, Result, Trouble, persist, translated
from ledger.errors import (
    MASK,
    ConfigurationError,
    LedgerError,
    UnavailableError,
    WaitedError,
    quote,
)
from ledger.settings import Settings
from ledger.store.revisions import SCHEMA, head, is_known

OWNER = "ledger_owner"
WRITER = "ledger_writer"
READER = "ledger_reader"
PAYLOAD_READER = "ledger_payload_reader"
SQL_LOGIN = "ledger_sql"
QUERY_TIMEOUT = "5min"  # of a query that a user writes
OLDEST_SERVER = 140000  # bit_xor() is an aggregate since PostgreSQL 14
# Of each transaction, and of no session: behind a pooler the next transaction is another's.
_SETTINGS = {
    "search_path": SCHEMA,
    "TimeZone": "UTC",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_READ_ONLY = {"transaction_read_only": "on"}
_OWN_SETTINGS = "ackledger_settings"  # an execution option: what a transaction sets beside these
# Connections of a process: those that it keeps, and how many more it may open at once.
KEPT_OPEN, OPENED_MORE = 2, 8
TURN_SECONDS = 30  # that a transaction waits for one of them
_INVALID = "22023"  # the code of a parameter, among them a role that is not there
_NO_COLUMN = "42703"  # of a statement of ours: the schema is of another release


class Database:
    """The ledger's database, reached as one of its roles.

    ``reader_url``: the login of queries that users write; by default ``ledger_sql`` at ``url``.
    ``role``: the role of transactions that name no other.
    """

    def __init__(self, url: str, reader_url: str | None = None, *, role: str = WRITER):
        self.role = role
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
    def from_settings(cls, settings: Settings, *, role: str = WRITER) -> "Database":
        """Return the database of ``ACKLEDGER_DATABASE_URL``, else the embedded one, started if need
        be.
        """
        if settings.database_url is not None:
            return cls(settings.database_url, settings.reader_url, role=role)
        from ledger.store import embedded

        return cls(embedded.start(settings.home), settings.reader_url, role=role)

    def acting_as(self, role: str) -> "Database":
        """Return the same database, with the same connections, as another role."""
        pool, other = self.plain, copy(self)
        assert other.plain is pool
        other.role = role
        return other

    @cached_property
    def plain(self) -> Engine:
        """Connections as the URL's own user, for migrations, which create the roles. The other
        roles use these connections too.
        """
        limits = {"pool_size": KEPT_OPEN, "max_overflow": OPENED_MORE, "pool_timeout": TURN_SECONDS}
        return _engine(self.url, pool_pre_ping=True, **limits)

    @cached_property
    def owner(self) -> Engine:
        """Connections for maintenance."""
        return self._as(OWNER)

    @cached_property
    def writer(self) -> Engine:
        """Connections for jobs and services."""
        return self._as(WRITER)

    @cached_property
    def reader(self) -> Engine:
        """Connections for our own queries: every transaction is read-only."""
        return self._as(READER)

    @cached_property
    def payload_reader(self) -> Engine:
        """Connections for our own queries that need the raw text of records; read-only too."""
        return self._as(PAYLOAD_READER)

    @cached_property
    def autocommit(self) -> Engine:
        """Connections as the URL's own user, outside of transactions, each with a new session."""
        return create_engine(
            self.url,
            connect_args=arguments(self.url),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
        )

    @cached_property
    def guest(self) -> Engine:
        """Connections for queries that users write: a login that can only read, each with a new
        session.
        """
        limits = {"statement_timeout": QUERY_TIMEOUT, "cursor_tuple_fraction": "1"}
        engine = _engine(self.reader_url, poolclass=NullPool)
        return engine.execution_options(**{_OWN_SETTINGS: {**_READ_ONLY, **limits}})

    def _as(self, role: str) -> Engine:
        reads = _READ_ONLY if role in (READER, PAYLOAD_READER) else {}
        return self.plain.execution_options(**{_OWN_SETTINGS: {**reads, "role": role}})

    @property
    def _own(self) -> Engine:
        names = {WRITER: "writer", READER: "reader", PAYLOAD_READER: "payload_reader"}
        engine: Engine = getattr(self, names[self.role])
        return engine

    def transact(
        self, work: Callable[[Connection], Result], *, engine: Engine | None = None
    ) -> Result:
        """Run ``work`` in one transaction and commit.

        After a lost connection all of it is retried, up to 6 times in 15 seconds: ``work`` must
        first ask whether it has happened already. Raises UnavailableError if the database stays
        unreachable.
        """

        def attempt() -> Result:
            with translated(self), (engine or self._own).begin() as connection:
                return work(connection)

        return persist(attempt)

    def revision(self) -> str | None:
        """Return the schema's revision; None: there is no schema yet.

        Raises ConfigurationError unless the server is recent enough, UnavailableError if it does
        not answer.
        """
        with translated(self), self.plain.connect() as connection:
            require_server(connection)
            there = text(f"SELECT to_regclass('{SCHEMA}.alembic_version') IS NOT NULL")
            if not connection.execute(there).scalar_one():
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    def check(self) -> None:
        """Raise ConfigurationError unless the server is recent enough and the schema is
        migrated.
        """
        revision = self.revision()
        if revision is not None and not is_known(revision):
            raise ConfigurationError(
                f"the ledger's schema in {self.shown} is at revision {revision}, which this"
                f" ackledger does not know (its newest is {head()}): install the newer ackledger"
                " that made it"
            )
        if revision != head():
            raise ConfigurationError(
                f"the ledger's schema in {self.shown} is at revision {revision or 'none'}, expected"
                f" {head()}: run 'ackledger db upgrade'"
            )

    @property
    def shown(self) -> str:
        """The address without its password, for messages."""
        return addresses.shown(self.url)

    @property
    def password(self) -> str | None:
        """The password in the URL, which no message may quote; None: it has none."""
        return self.url.password

    def error(self, report: Report) -> LedgerError:
        """Return the error of ackledger for an error that the driver reports, with what to do."""
        is_role = report.code == _INVALID and report.message.startswith('role "')
        trouble = Trouble.REFUSED if is_role else report.trouble
        if report.code == _NO_COLUMN:
            trouble = Trouble.SCHEMA
        # Within a transaction of the ledger a sink of one's own may raise a driver's error.
        message = quote(report.message, f"[{report.code}]" if report.code else MASK)
        match trouble:
            case Trouble.REFUSED:
                return ConfigurationError(
                    f"the ledger database {self.shown} refused the connection: {message}."
                    f" Check ACKLEDGER_DATABASE_URL, PGPASSFILE and the server's"
                    f" roles{report.advice}"
                )
            case Trouble.RIGHTS:
                advice = f". Grant it the role {WRITER}" if self._lacks_writer() else ""
                return ConfigurationError(f"the database user may not do this: {message}{advice}")
            case Trouble.SCHEMA:
                return ConfigurationError(
                    f"the ledger's schema in {self.shown} lacks something: {message}."
                    f" {self._way_to_whole_schema()}"
                )
            case Trouble.LOCKED:
                where = "".join(f", {quote(line)}" for line in report.context.splitlines()[:1])
                return WaitedError(
                    f"the ledger database {self.shown}: waited in vain for what another process"
                    f" holds{where}. A settlement or a state waits so for the publish of what it"
                    " replaces, if that takes long. Nothing was changed: let that one end, then run"
                    " this again"
                )
            case Trouble.STOPPED:
                return WaitedError(
                    f"the ledger database {self.shown} stopped a statement: {message}. Ask"
                    " for less at once, or run this again when the server has less to do"
                )
            case Trouble.LOST:
                return UnavailableError(
                    f"the ledger database {self.shown} did not answer: {message}. Check that"
                    " the server runs, then run this again"
                )
            case Trouble.READ_ONLY:
                return UnavailableError(
                    f"the ledger database {self.shown} takes no writes: {message}. It may be"
                    " a standby while its primary changes; then run this again"
                )
        return LedgerError(f"the ledger database refused a statement: {message}")

    def _lacks_writer(self) -> bool:
        """Return whether the URL's own user lacks the role that jobs and services work as."""
        statement = text("SELECT pg_has_role(session_user, :role, 'MEMBER')")
        try:
            with self.plain.connect() as connection:
                return not connection.execute(statement, {"role": WRITER}).scalar_one()
        except DBAPIError:  # there is no such role, or no answer any more
            return False

    def _way_to_whole_schema(self) -> str:
        """Return what to do if something is missing in the schema, in a sentence.

        An upgrade helps only if the schema is older than this release: at the newest revision it
        would change nothing, and a newer release's schema needs that release.
        """
        try:
            revision = self.revision()
        except LedgerError:
            revision = None
        if revision == head():
            return f"It is at revision {head()}, which has it: restore the ledger from a backup"
        if revision is not None and not is_known(revision):
            return (
                f"It is at revision {revision}, which this ackledger does not know: install the"
                " newer ackledger that made it, and run this again"
            )
        return "Run 'ackledger db upgrade'"

    def dispose(self) -> None:
        """Close every pooled connection."""
        if "plain" in self.__dict__:
            self.plain.dispose()


def _engine(url: URL, **pool: Any) -> Engine:
    """Return connections to a server, or to a pooler with a new session for each transaction."""
    engine = create_engine(url, connect_args=arguments(url), **pool)
    event.listen(engine, "begin", _set_up)
    return engine


def _set_up(connection: Connection) -> None:
    """Set the role of the transaction that begins, how long it waits, and what it may do."""
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        assert _OWN_SETTINGS not in options, "a role's settings are those of a transaction"
        return
    # Who has waited for a lock sees what was committed meanwhile, whatever the server's default is.
    level = options.get("isolation_level", "READ COMMITTED")
    settings = {**_SETTINGS, "lock_timeout": LOCK_TIMEOUT, **options.get(_OWN_SETTINGS, {})}
    local = [f"SET LOCAL {name} = '{value}'" for name, value in settings.items()]
    statements = [f"SET TRANSACTION ISOLATION LEVEL {level}", *local]
    connection.exec_driver_sql("; ".join(statements))


def _url(setting: str, address: str) -> URL:
    return addresses.postgresql(addresses.parsed(address, setting), setting)


def require_server(connection: Connection) -> None:
    """Raise ConfigurationError if the server lacks bit_xor()."""
    version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    if version < OLDEST_SERVER:
        raise ConfigurationError(
            f"PostgreSQL 14 or later is needed (bit_xor), found {version // 10000}: use a newer"
            " server"
        )
