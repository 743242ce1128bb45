"""Driver errors as the ledger's own, and transactions that are retried."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from ledger.errors import InputError, LedgerError, UnavailableError, WaitedError, quote

Result = TypeVar("Result")

_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "permission denied",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "unable to open database file",
    "no such table",
    "no such column",
)
# Of a connection that was to be encrypted: certificates, keys and options that do not fit.
_TLS = (
    "certificate verify failed",
    "does not match host name",
    "server does not support SSL",
    "root certificate file",
    "client certificate",
    "certificate file",
    "private key file",
    "invalid sslmode value",
    "alert unknown ca",
    "no encryption",
)
_TLS_ADVICE = (
    ". Check sslmode, sslrootcert, sslcert and sslkey of the address, and that the files are on"
    " each machine that connects"
)


class Trouble(Enum):
    """Kind of a driver's error.

    - ``REFUSED``: the login failed, or SQLite has no such file, table or column.
    - ``RIGHTS``: a permission is missing.
    - ``READ_ONLY``: the server is a standby, or accepts no writes now.
    - ``SCHEMA``: a table, function or type is missing.
    - ``VALUE``: a value or a constraint is violated.
    - ``LOCKED``: a lock was not granted in time.
    - ``STOPPED``: the statement exceeded its timeout, or a user cancelled it.
    - ``LOST``: the server did not answer.
    - ``STATEMENT``: any other error.
    """

    REFUSED = auto()
    RIGHTS = auto()
    READ_ONLY = auto()
    SCHEMA = auto()
    VALUE = auto()
    LOCKED = auto()
    STOPPED = auto()
    LOST = auto()
    STATEMENT = auto()


_BY_CODE = {
    "42501": Trouble.RIGHTS,
    "25006": Trouble.READ_ONLY,
    "42P01": Trouble.SCHEMA,
    "42883": Trouble.SCHEMA,
    "3F000": Trouble.SCHEMA,
    "42704": Trouble.SCHEMA,
    "55P03": Trouble.LOCKED,
    "57014": Trouble.STOPPED,
    "22": Trouble.VALUE,
    "23": Trouble.VALUE,
}


@dataclass(frozen=True)
class Report:
    """An error of a driver.

    ``message``: its first line, without hints.
    ``code``: PostgreSQL's SQLSTATE.
    ``about``: psycopg2's details of the error. None: there are none, or they may quote the
    password.
    """

    trouble: Trouble
    message: str
    code: str
    about: Any

    @property
    def advice(self) -> str:
        """Advice on what to check, if the error is about TLS; otherwise empty."""
        return _TLS_ADVICE if any(phrase in self.message for phrase in _TLS) else ""

    @property
    def context(self) -> str:
        """Place in a statement where the error occurred, as the server reports it; otherwise
        empty.
        """
        return getattr(self.about, "context", None) or ""


class Endpoint(Protocol):
    """A database whose driver errors are translated.

    ``password``: a text that no message may quote.
    ``error``: returns the ledger's error for a driver's error, with advice for the user.
    """

    @property
    def password(self) -> str | None: ...

    def error(self, report: Report) -> LedgerError: ...


# A server of which one process was killed recovers within seconds.
RETRYING = Retrying(
    retry=retry_if_exception_type(UnavailableError) & retry_if_not_exception_type(WaitedError),
    wait=wait_exponential(multiplier=0.5, max=8),
    stop=stop_after_attempt(6),
    reraise=True,
)


def persist(attempt: Callable[[], Result]) -> Result:
    """Call ``attempt``, which is one whole transaction, and return its result. While the database
    is unavailable, retry up to 6 times in 15 seconds. A WaitedError is not retried, because its
    cause was already waited for.
    """
    return RETRYING(attempt)


@contextmanager
def translated(database: Endpoint) -> Iterator[None]:
    """Translate errors of the driver in the block with ``database.error``; the message never has
    the password. Raises WaitedError if no connection of the pool became free, and InputError for
    text that is not UTF-8. Other errors pass unchanged.
    """
    try:
        yield
    except DBAPIError as exc:
        message, about = first_line(exc), getattr(exc.orig, "diag", None)
        # A driver that quotes the password must not be quoted, nor be the cause. A server does not
        # know it: its message with a code only has the same word.
        secret, code = str(database.password or ""), code_of(exc)
        quotes = bool(secret) and not code and secret in str(exc.orig)
        if quotes:
            message, about = message.replace(secret, "***"), None
        report = Report(trouble_of(exc), message, code, about)
        raise database.error(report) from (None if quotes else exc)
    except PoolTimeoutError as exc:
        raise WaitedError(
            "all connections that this process may have to the database are in use, and none was"
            " given back in time. Run this again when it has less to do at once"
        ) from exc
    except UnicodeEncodeError as exc:
        text = exc.object.encode("utf-8", "backslashreplace").decode()
        raise InputError(f"expected text that is UTF-8, found {quote(text[:200])}") from exc


@contextmanager
def raw_cursor(connection: Connection) -> Iterator[Any]:
    """Yield the driver's own cursor in the connection's transaction. Its errors are raised as
    SQLAlchemy's.
    """
    driver, dialect = connection.connection, connection.dialect
    base = dialect.loaded_dbapi.Error
    cursor = driver.cursor()
    try:
        yield cursor
    except base as exc:
        lost = dialect.is_disconnect(exc, driver.dbapi_connection, cursor)
        if lost:
            connection.invalidate(exc)
        error: Any = DBAPIError.instance(None, None, exc, base, True, lost, dialect)
        raise error from exc
    finally:
        cursor.close()


def trouble_of(exc: DBAPIError) -> Trouble:
    """Return the kind of an error: by the server's code, else by the driver's message."""
    code = code_of(exc)
    trouble = _BY_CODE.get(code, _BY_CODE.get(code[:2]))
    if trouble is not None:
        return trouble
    if exc.connection_invalidated or isinstance(exc, OperationalError):
        refused = not code and not exc.connection_invalidated and is_refusal(str(exc.orig))
        return Trouble.REFUSED if refused else Trouble.LOST
    return Trouble.STATEMENT


def is_refusal(message: str) -> bool:
    """Return whether an error message means that the server answered and refused the connection:
    its login or its TLS options are wrong, or SQLite lacks the file, table or column.
    """
    return any(phrase in message for phrase in (*_REFUSALS, *_TLS))


def code_of(exc: DBAPIError) -> str:
    """Return PostgreSQL's SQLSTATE; empty if there is none, as when the connection was lost."""
    return getattr(exc.orig, "pgcode", None) or ""


def first_line(exc: DBAPIError) -> str:
    """Return the driver's message, without its hints."""
    lines = str(exc.orig).strip().splitlines()
    return lines[0] if lines else type(exc.orig).__name__
