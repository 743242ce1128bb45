"""Driver errors as the ledger's own, and transactions that are asked for again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from ledger.errors import ConfigurationError, LedgerError, UnavailableError, WaitedError

Result = TypeVar("Result")

WRITER = "ledger_writer"
REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "permission denied",
    "no pg_hba.conf entry",
    "not permitted to log in",
)


class Reached(Protocol):
    """The database that an error is told of. ``shown``: its address without password; ``plain``:
    the URL's own user.
    """

    @property
    def shown(self) -> str: ...

    @property
    def plain(self) -> Engine: ...


def _may_pass(exc: BaseException) -> bool:
    return isinstance(exc, UnavailableError) and not isinstance(exc, WaitedError)


# A server of which one process was killed recovers within seconds.
RETRYING = Retrying(
    retry=retry_if_exception(_may_pass),
    wait=wait_exponential(multiplier=0.5, max=8),
    stop=stop_after_attempt(6),
    reraise=True,
)


def persist(attempt: Callable[[], Result]) -> Result:
    """Call ``attempt``, one whole transaction, up to 6 times in 15 seconds while the database is
    unavailable. What was waited for already, a lock or another database within it, is not waited
    for again.
    """
    return RETRYING(attempt)


@contextmanager
def translated(database: Reached) -> Iterator[None]:
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


def _operational(database: Reached, exc: OperationalError) -> LedgerError:
    found = first_line(exc)
    if any(phrase in str(exc.orig) for phrase in REFUSED):
        return ConfigurationError(
            f"the ledger database {database.shown} refused the connection: {found}. Check"
            " ACKLEDGER_DATABASE_URL, PGPASSFILE and the server's roles"
        )
    if getattr(exc.orig, "pgcode", None) == "55P03":
        return WaitedError(
            f"the ledger database {database.shown}: waited in vain for what another process"
            f" holds{_where(exc)}. A settlement or a state waits so for the publish of what it"
            " replaces, if that takes long. Nothing was changed: let that one end, then run this"
            " again"
        )
    return UnavailableError(
        f"the ledger database {database.shown} did not answer: {found}. Check that the server runs,"
        " then run this again"
    )


def _where(exc: DBAPIError) -> str:
    """Which row was waited for, as the server tells it."""
    about = getattr(exc.orig, "diag", None)
    context = (getattr(about, "context", None) or "").splitlines()
    return f", {context[0]}" if context else ""


def _programming(database: Reached, exc: ProgrammingError) -> LedgerError:
    code = getattr(exc.orig, "pgcode", None)
    if code in ("42P01", "42883", "3F000", "42704", "22023"):
        return ConfigurationError(
            f"the ledger's schema in {database.shown} lacks something: {first_line(exc)}. Run"
            " 'ackledger db upgrade'"
        )
    if code == "42501":
        advice = f". Grant it the role {WRITER}" if _lacks_writer(database) else ""
        return ConfigurationError(f"the database user may not do this: {first_line(exc)}{advice}")
    return LedgerError(f"the ledger database refused a statement: {first_line(exc)}")


def _lacks_writer(database: Reached) -> bool:
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
