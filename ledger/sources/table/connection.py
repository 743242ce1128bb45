"""Connections to the databases that pipelines read, what their tables are, and their errors."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, event
from sqlalchemy.exc import NoSuchTableError

from ledger.databases.connections import engine_of
from ledger.databases.driver_errors import Report, Trouble, translated
from ledger.errors import InputError, LedgerError, UnavailableError
from ledger.sources.table.source import TableSource

# Sessions of this name only read, and need not be waited for.
APPLICATION = "ackledger table source"
LOCK_SECONDS = 30


@dataclass(frozen=True)
class SourceTable:
    """A table as its database has it. ``declared``: the columns' types; ``required``: those that
    may not be null; ``typed``: whether the database holds its values to the types, as SQLite
    does not.
    """

    source: TableSource
    declared: dict[str, sa.types.TypeEngine[Any]]
    required: frozenset[str]
    typed: bool

    @cached_property
    def clause(self) -> sa.TableClause:
        """The table in statements."""
        columns = [
            sa.column(name, kind if self.typed else sa.types.NULLTYPE)
            for name, kind in self.declared.items()
        ]
        return sa.table(self.source.table_name, *columns, schema=self.source.schema_name)

    @cached_property
    def cursor(self) -> sa.ColumnClause[Any]:
        """The cursor's column."""
        column: sa.ColumnClause[Any] = self.clause.c[self.source.cursor]
        return column


@contextmanager
def connected(source: TableSource, *, stream: bool = False) -> Iterator[Connection]:
    """A connection to the source's database, from an engine of its own that is disposed of.

    ``stream``: to read rows, in one read-only transaction; what Python cannot hold comes as
    text. Raises InputError when the database refuses the source, UnavailableError when it does
    not answer.
    """
    with translated(ReadFrom(source)):
        _require_file(source)
        with engine_of(source.address, APPLICATION) as engine:
            if stream:
                event.listen(engine, "connect", _lenient)
            with engine.connect() as connection:
                if stream and engine.dialect.name == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                yield connection


@contextmanager
def asking(connection: Connection) -> Iterator[None]:
    """One short transaction: between two of them nothing of ours is in the way of the source."""
    with connection.begin():
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        yield


def find_table(
    connection: Connection, source: TableSource, columns: Collection[str]
) -> SourceTable:
    """The source's table. Raises InputError unless it is there and has ``columns``."""
    try:
        table_columns = sa.inspect(connection).get_columns(
            source.table_name, schema=source.schema_name
        )
    except NoSuchTableError as exc:
        raise InputError(
            f"{source.shown}: there is no table {source.table!r}, or this user may not see it: "
            "check the name and its schema"
        ) from exc
    names = [column["name"] for column in table_columns]
    for name in columns:
        if name not in names:
            raise InputError(
                f"{source.shown}: table {source.table!r} has no column {name!r}, it has "
                f"{', '.join(names)}: correct the declaration or the table"
            )
    return SourceTable(
        source,
        {column["name"]: column["type"] for column in table_columns},
        frozenset(column["name"] for column in table_columns if not column.get("nullable", True)),
        typed=connection.dialect.name != "sqlite",
    )


def _require_file(source: TableSource) -> None:
    """SQLite would make an empty database of a file that is not there."""
    url = source.address
    path = url.database
    if url.get_backend_name() != "sqlite" or not path or path.startswith((":", "file:")):
        return
    if not Path(path).exists():
        raise InputError(f"{source.shown}: there is no file {path}: check the url")


def _lenient(connection: Any, _record: object) -> None:
    """Have a value that Python cannot hold fetched as text, so that it fails its record alone."""
    module = type(connection).__module__
    if module.startswith("sqlite3"):
        connection.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
    elif module.startswith("psycopg2"):
        from psycopg2 import extensions as psycopg

        bases = ((1082, psycopg.PYDATE), (1114, psycopg.PYDATETIME), (1184, psycopg.PYDATETIMETZ))
        for oid, base in bases:
            lenient_type = psycopg.new_type((oid,), f"lenient_{oid}", _or_text(base))
            psycopg.register_type(lenient_type, connection)
        for oid in (114, 3802):  # json and jsonb
            as_text = psycopg.new_type((oid,), f"text_{oid}", lambda value, _cursor: value)
            psycopg.register_type(as_text, connection)


def _or_text(base: Any) -> Any:
    def cast(value: str | None, cursor: object) -> object:
        if value is None or value.endswith("infinity"):
            return value
        try:
            return base(value, cursor)
        except Exception:  # ValueError, OverflowError or the driver's DataError
            return value

    return cast


@dataclass(frozen=True)
class ReadFrom:
    """The database of a source, as its errors name it."""

    source: TableSource

    @property
    def password(self) -> str | None:
        return self.source.address.password

    def error(self, report: Report) -> LedgerError:
        """What an error of the driver means to who owns the source."""
        if report.trouble in (Trouble.LOST, Trouble.LOCKED):
            return UnavailableError(
                f"{self.source.shown} did not answer: {report.message}. Check that the database"
                " runs and is not locked, then run this again",
                quotes=[report.message],
            )
        is_denial = report.trouble in (Trouble.REFUSED, Trouble.RIGHTS)
        what = (
            "url, the password and the rights of its user"
            if is_denial
            else "declaration, and table"
        )
        return InputError(
            f"{self.source.shown} refused the reading: {report.message}. Check the {what}"
            f"{report.advice}",
            quotes=[report.message],
        )
