"""Transactions in the databases that sinks write to, and their errors."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from ledger.databases.addresses import shown
from ledger.databases.connections import LOCK_TIMEOUT, engine_of
from ledger.databases.driver_errors import Report, Trouble, persist, translated
from ledger.errors import (
    ConfigurationError,
    LedgerError,
    StageError,
    UnavailableError,
    WaitedError,
    marked_text,
    quote,
)

Result = TypeVar("Result")

APPLICATION = "ackledger publisher"
# Set in the transaction, not when connecting: a pooler such as PgBouncer refuses options.
_SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "lock_timeout": LOCK_TIMEOUT,
    "idle_in_transaction_session_timeout": "10min",
    "synchronous_commit": "on",  # the ledger will state that the rows are there
}
# Where a COPY was. What comes after it is a value, or the whole line.
_COPY = re.compile(r"^COPY .+?, line \d+(?:, column [^:]+)?", re.MULTILINE)


def transact(url: sa.URL, work: Callable[[Connection], Result]) -> Result:
    """Run ``work`` in one transaction on a new connection, commit, and return its result.

    While the database does not answer, ``work`` is retried up to 6 times in 15 seconds, so it must
    first check whether it has already been done. Raises WaitedError if the database never answers,
    so that a surrounding transaction of the ledger does not retry again.
    """

    def attempt() -> Result:
        with transaction(url) as connection:
            return work(connection)

    try:
        return persist(attempt)
    except UnavailableError as exc:
        raise WaitedError(marked_text(exc)) from exc


@contextmanager
def transaction(url: sa.URL) -> Iterator[Connection]:
    """Run the block in one transaction on a new connection, and commit. Every statement sees what
    was committed before it, whatever the database's default isolation is.
    """
    with (
        translated(Target(url)),
        engine_of(url, APPLICATION, isolation_level="READ COMMITTED") as engine,
        engine.begin() as connection,
    ):
        settings = [f"SET LOCAL {name} = '{value}'" for name, value in _SETTINGS.items()]
        connection.exec_driver_sql("; ".join(settings))
        yield connection


@dataclass(frozen=True)
class Target:
    """The database at ``url``, for the translation of its errors."""

    url: sa.URL

    @property
    def password(self) -> str | None:
        return self.url.password

    def error(self, report: Report) -> LedgerError:
        """Return the ledger's error for an error of the driver, with advice for the owner of the
        sink.
        """
        message = quote(report.message + _where(report))
        match report.trouble:
            case Trouble.VALUE:
                return StageError(
                    f"{shown(self.url)} refused a row: {message}. Nothing of the batch was"
                    " published. What it was staged against has changed since, or a trigger, a"
                    " missing partition, or a row of another batch is in the way: change the table"
                    " so that it takes the row, then publish it again"
                )
            case Trouble.REFUSED | Trouble.RIGHTS | Trouble.READ_ONLY:
                return ConfigurationError(
                    f"{shown(self.url)} refused the sink: {message}. Check the url, the password"
                    f" and the rights of its user{report.advice}"
                )
            case Trouble.LOCKED | Trouble.LOST:
                kind = WaitedError if report.trouble is Trouble.LOCKED else UnavailableError
                return kind(
                    f"{shown(self.url)} did not answer: {message}. Check that the database runs and"
                    " is not locked, then run this again"
                )
        return LedgerError(f"{shown(self.url)} refused a statement: {message}")


def _where(report: Report) -> str:
    """Return the constraint, the column and the line of an error, each in brackets, as far as the
    server reports them. The server's detail is included only for an incorrect statement, because
    other details quote the row.
    """
    names = {kind: getattr(report.about, f"{kind}_name", None) for kind in ("constraint", "column")}
    parts = [
        f"{kind} {name}" for kind, name in names.items() if name and name not in report.message
    ]
    if report.code.startswith("42"):
        parts.append(getattr(report.about, "message_detail", None) or "")
    line = _COPY.search(report.context)
    parts.append(line[0] if line else "")
    return "".join(f" ({part.rstrip('.')})" for part in parts if part)
