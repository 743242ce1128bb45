"""What a driver reports, and what it means to whom: one translator, three databases."""

import sqlite3

import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ledger import SqlSource
from ledger.databases.driver_errors import Trouble, translated, trouble_of
from ledger.errors import (
    ConfigurationError,
    InputError,
    LedgerError,
    StageError,
    UnavailableError,
    WaitedError,
    redacted,
)
from ledger.sinks.postgres.connection import Target
from ledger.sources.sql.connection import ReadFrom
from ledger.store.connection import Database

URL = "postgresql+psycopg2://me:secret@127.0.0.1:9/shop"
LEDGER = Database(URL)
SINK = Target(sa.make_url(URL))
SOURCE = ReadFrom(SqlSource(URL, table="orders", cursor="id", schema="id BIGINT"))


def raised(kind, message, code=None, base=psycopg2.Error, statement="SELECT 1"):
    """An error of a driver, as SQLAlchemy has it."""
    result = type(kind.__name__, (kind,), {"pgcode": code})(message)
    return DBAPIError.instance(statement, None, result, base)


QUOTING = {
    "value": ('invalid input syntax for type integer: "ann@x.org"', "22P02"),
    "statement": ('could not convert "ann@x.org"', "P0001"),
    "lost": ('terminating connection at "ann@x.org"', "57P01"),
}


@pytest.mark.parametrize("what", QUOTING)
def test_what_a_source_s_database_says_is_a_quote(what):
    """Reading a view may fail at a value, which the server quotes: for a pipeline that redacts its
    words are left out, and the rest of the error stays."""
    message, code = QUOTING[what]
    with pytest.raises(LedgerError) as caught, translated(SOURCE):
        raise raised(psycopg2.OperationalError, message, code)
    assert message in str(caught.value)
    shown = str(redacted(caught.value))
    assert "ann" not in shown
    assert "***" in shown
    assert shown.startswith("postgresql+psycopg2://me@127.0.0.1:9/shop#orders ")


REPORTS = {
    "refused": raised(psycopg2.OperationalError, 'FATAL: role "me" does not exist'),
    "rights": raised(psycopg2.ProgrammingError, "permission denied for table orders", "42501"),
    "read only": raised(psycopg2.InternalError, "cannot execute INSERT", "25006"),
    "schema": raised(psycopg2.ProgrammingError, 'relation "orders" does not exist', "42P01"),
    "value": raised(psycopg2.DataError, "value too long", "22001"),
    "constraint": raised(psycopg2.IntegrityError, "violates check constraint", "23514"),
    "locked": raised(psycopg2.OperationalError, "canceling statement", "55P03"),
    "lost": raised(psycopg2.OperationalError, "Connection refused"),
    "shut down": raised(psycopg2.OperationalError, "terminating connection", "57P01"),
    "deadlock": raised(psycopg2.errors.DeadlockDetected, "deadlock detected", "40P01"),
    "statement": raised(psycopg2.ProgrammingError, "syntax error", "42601"),
    "sqlite": raised(sqlite3.OperationalError, "no such table: orders", None, sqlite3.Error),
    "sqlite busy": raised(sqlite3.OperationalError, "database is locked", None, sqlite3.Error),
}
# The trouble, and the error of the ledger, of a sink, of a source.
MEANINGS = {
    "refused": (Trouble.REFUSED, ConfigurationError, ConfigurationError, InputError),
    "rights": (Trouble.RIGHTS, ConfigurationError, ConfigurationError, InputError),
    "read only": (Trouble.READ_ONLY, UnavailableError, ConfigurationError, InputError),
    "schema": (Trouble.SCHEMA, ConfigurationError, LedgerError, InputError),
    "value": (Trouble.VALUE, LedgerError, StageError, InputError),
    "constraint": (Trouble.VALUE, LedgerError, StageError, InputError),
    "locked": (Trouble.LOCKED, WaitedError, WaitedError, UnavailableError),
    "lost": (Trouble.LOST, UnavailableError, UnavailableError, UnavailableError),
    "shut down": (Trouble.LOST, UnavailableError, UnavailableError, UnavailableError),
    "deadlock": (Trouble.LOST, UnavailableError, UnavailableError, UnavailableError),
    "statement": (Trouble.STATEMENT, LedgerError, LedgerError, InputError),
    "sqlite": (Trouble.REFUSED, ConfigurationError, ConfigurationError, InputError),
    "sqlite busy": (Trouble.LOST, UnavailableError, UnavailableError, UnavailableError),
}


@pytest.mark.parametrize("name", REPORTS)
def test_each_report_has_one_meaning_for_each_database(name):
    """Its trouble, the error's own class, and the driver's first line within it."""
    trouble, *kinds = MEANINGS[name]
    error = REPORTS[name]
    assert trouble_of(error) is trouble
    for database, kind in zip((LEDGER, SINK, SOURCE), kinds, strict=True):
        with pytest.raises(LedgerError) as caught, translated(database):
            raise error
        assert type(caught.value) is kind
        assert str(error.orig) in str(caught.value) or kind is WaitedError
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("database", [LEDGER, SINK, SOURCE])
def test_a_driver_that_quotes_the_password_is_not_quoted(database):
    """Neither in the message nor as its cause, be it in the first line or in a detail."""
    for message in ("bad conninfo: password=secret", "bad conninfo\nDETAIL: password=secret"):
        with pytest.raises(LedgerError, match="bad conninfo") as error, translated(database):
            raise raised(psycopg2.OperationalError, message)
        assert "secret" not in str(error.value)
        assert error.value.__cause__ is None


def test_a_password_that_is_a_common_word_hides_nothing():
    """What the server says, and the statement, are in the error and kept as the cause."""
    message = 'relation "secret_table" is broken'
    error = raised(psycopg2.ProgrammingError, message, "42601", statement="SELECT 'secret'")
    with pytest.raises(LedgerError, match=message) as caught, translated(LEDGER):
        raise error
    assert caught.value.__cause__ is error


def test_a_connection_that_was_lost_is_no_refusal():
    """Whatever words the driver has for it: what is lost may come back."""
    driver = type("Lost", (psycopg2.OperationalError,), {"pgcode": None})("socket does not exist")
    error = DBAPIError.instance("SELECT 1", None, driver, psycopg2.Error, True, True)
    assert trouble_of(error) is Trouble.LOST


def test_errors_of_its_own_pass():
    """What is no driver's error is left as it is."""
    with pytest.raises(InputError, match="mine"), translated(LEDGER):
        raise InputError("mine")
