"""A query that a user writes: one statement, run by a login that can only read.

See docs/decisions/017-one-statement-as-the-reader.md for what protects the ledger from a query.
"""

from collections.abc import Iterable
from itertools import count
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ledger.databases.driver_errors import Trouble, code_of, first_line, translated, trouble_of
from ledger.errors import ConfigurationError, InputError, LedgerError, UnavailableError
from ledger.store.connection import (
    OWNER,
    PAYLOAD_READER,
    QUERY_TIMEOUT,
    READER,
    SQL_LOGIN,
    Database,
)

_LOGIN = (
    f"Give {SQL_LOGIN} a password (ALTER ROLE {SQL_LOGIN} PASSWORD '...') and a line in the"
    f" passfile, or set ACKLEDGER_READER_URL to a login whose only role is {READER}. With"
    " PGPASSWORD set the passfile is not read: give ACKLEDGER_READER_URL with a password"
)
# The server parses what EXECUTE is given by itself, and a cursor opens for exactly one statement,
# one that returns rows. The query travels as digits, so no quoting stands between it and this text.
_OPEN = """
DO $open$
DECLARE answer refcursor := 'answer';
BEGIN
  OPEN answer FOR EXECUTE convert_from(decode('{digits}', 'hex'), 'UTF8');
END $open$
"""
# What a login may do beyond reading, if anything.
_POWERS = text("""
    SELECT session_user || ' ' || power FROM (
    SELECT 'is a superuser' AS power FROM pg_roles WHERE rolname = session_user AND rolsuper
    UNION ALL
    SELECT 'may create roles, databases or replicas, or see past row security' FROM pg_roles
    WHERE rolname = session_user
      AND (rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
    UNION ALL
    SELECT 'has the role ' || rolname FROM pg_roles
    WHERE pg_has_role(session_user, oid, 'MEMBER')
      AND rolname <> session_user AND rolname <> ALL (cast(:readers AS text[]))
    UNION ALL
    SELECT 'may change ' || oid::regclass FROM pg_class
    WHERE relowner = to_regrole(:owner) AND relkind IN ('r', 'p', 'v')
      AND (has_table_privilege(session_user, oid, 'DELETE, TRUNCATE')
           OR has_any_column_privilege(session_user, oid, 'INSERT, UPDATE'))
    UNION ALL
    SELECT 'may call ' || oid::regprocedure FROM pg_proc
    WHERE proowner = to_regrole(:owner) AND prosecdef
      AND has_function_privilege(session_user, oid, 'EXECUTE')
    ) AS found
""")


def answer(database: Database, query: str) -> list[dict[str, Any]]:
    """Return the rows of one query, by the names of its columns. Nothing that the query does is
    kept: the transaction is rolled back.

    Raises InputError if PostgreSQL refuses the query, or it is not one that returns rows;
    ConfigurationError if there is no login that can only read.
    """
    try:
        digits = query.encode().hex()
    except UnicodeEncodeError as exc:
        raise InputError(f"the query is not valid UTF-8 at character {exc.start + 1}") from exc
    with translated(database), _connected(database) as connection:
        keys = {"readers": [READER, PAYLOAD_READER], "owner": OWNER}
        power = connection.execute(_POWERS, keys).scalar()
        if power is not None:
            raise ConfigurationError(
                f"queries need a login that can only read, and {power}. {_LOGIN}"
            )
        try:
            connection.exec_driver_sql(_OPEN.format(digits=digits))
            result = connection.exec_driver_sql("FETCH ALL FROM answer")
            names, rows = _numbered(result.keys()), result.all()
        except DBAPIError as exc:
            raise _refused(exc) from exc
        except (ValueError, OverflowError) as exc:  # the driver's, as of a date before the year 1
            raise InputError(
                f"a value of the answer cannot be read: {exc}. Cast its column to text"
            ) from exc
    return [dict(zip(names, row, strict=True)) for row in rows]


def _numbered(columns: Iterable[str]) -> list[str]:
    """Return the names of columns, with a number behind a repeated one: count, count_2."""
    names: list[str] = []
    for name in columns:
        numbered = (f"{name}_{number}" for number in count(2))
        names.append(name if name not in names else next(n for n in numbered if n not in names))
    return names


def _connected(database: Database) -> Connection:
    try:
        return database.guest.connect()
    except DBAPIError as exc:
        if trouble_of(exc) is Trouble.REFUSED:
            raise ConfigurationError(
                f"queries log in as {database.reader_url.username}, which the server refused: "
                f"{first_line(exc)}. {_LOGIN}"
            ) from exc
        raise


def _refused(exc: DBAPIError) -> LedgerError:
    code = code_of(exc) or "08000"  # without one the connection was lost
    if code == "57014":
        return InputError(f"the query was stopped after {QUERY_TIMEOUT}: ask for less at once")
    if code.startswith(("08", "57")):
        return UnavailableError(f"the session of the query ended: {first_line(exc)}")
    if code == "42P11":
        message = first_line(exc)
        if "multi-query" in message:
            return InputError("expected one query, found several or none: ask them one at a time")
        return InputError(
            "expected a query that returns rows, for example SELECT * FROM batch_status. "
            f"PostgreSQL: {message}"
        )
    return InputError(
        f"PostgreSQL refused the query: {first_line(exc)}. "
        "docs/sql.md lists the views and their columns"
    )
