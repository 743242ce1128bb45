"""Connect to the databases that pipelines read, look up tables, and translate errors."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql import DOMAIN, OID
from sqlalchemy.exc import NoSuchTableError

from ledger.databases.connections import engine_of
from ledger.databases.driver_errors import Report, Trouble, translated
from ledger.errors import InputError, LedgerError, UnavailableError, quote
from ledger.sources.sql.source import SqlSource

# Sessions of this name only read, and need not be waited for.
APPLICATION = "ackledger table source"
LOCK_SECONDS = 30
# How PostgreSQL writes values in one transaction, whatever the role or the database has set.
_SETTINGS = sa.text(
    "SELECT set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'postgres', true),"
    " set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true),"
    " set_config('extra_float_digits', '1', true)"
)
# Types of PostgreSQL whose values every driver holds exactly.
_HELD = (sa.Integer, sa.Numeric, sa.Float, sa.Boolean, sa.LargeBinary, sa.String, OID)


@dataclass(frozen=True)
class SourceTable:
    """A table as its database describes it.

    ``declared``: the columns' types.
    ``required``: the columns that are NOT NULL.
    ``dialect``: the kind of database.
    """

    source: SqlSource
    declared: dict[str, sa.types.TypeEngine[Any]]
    required: frozenset[str]
    dialect: str

    @property
    def typed(self) -> bool:
        """Return whether the database enforces the columns' types, which SQLite does not."""
        return self.dialect != "sqlite"

    @cached_property
    def clause(self) -> sa.TableClause:
        """Return the table for use in statements."""
        columns = [
            sa.column(name, kind if self.typed else sa.types.NULLTYPE)
            for name, kind in self.declared.items()
        ]
        return sa.table(self.source.table_name, *columns, schema=self.source.schema_name)

    @cached_property
    def cursor(self) -> sa.ColumnElement[Any]:
        """Return the cursor's column. SQLite compares its text by code point, as Python does."""
        column: sa.ColumnClause[Any] = self.clause.c[self.source.cursor]
        is_text = isinstance(self.declared[self.source.cursor], sa.String)
        return column if self.typed or not is_text else column.collate("BINARY")

    def read_as(self, name: str, *, is_text: bool) -> sa.ColumnElement[Any]:
        """Return a column's expression in rows. ``is_text``: whether the column is declared STRING.

        PostgreSQL writes such a column as text, and any other that a driver's class cannot hold,
        such as dates and intervals; lists as JSON.
        """
        column: sa.ColumnElement[Any] = sa.column(name)
        kind = self.declared[name]
        while isinstance(kind, DOMAIN):
            kind = kind.data_type
        if self.dialect != "postgresql" or (isinstance(kind, _HELD) and not is_text):
            return column
        text = sa.func.to_json(column) if isinstance(kind, sa.ARRAY) else column
        return sa.case((column.is_distinct_from(sa.null()), sa.func.format("%s", text)))


@contextmanager
def connected(source: SqlSource, *, stream: bool = False) -> Iterator[Connection]:
    """Connect to the source's database, with an engine that is disposed of afterwards.

    Raises InputError if the database refuses the source, or has text in another encoding, and
    UnavailableError if it does not answer.

    ``stream``: read rows, in one read-only transaction.
    """
    with translated(ReadFrom(source)):
        _require_file(source)
        with engine_of(source.address, APPLICATION) as engine:
            if stream and engine.dialect.name == "sqlite":
                event.listen(engine, "connect", _keep_bytes)
            with engine.connect() as connection:
                if stream and engine.dialect.name == "postgresql":
                    connection = connection.execution_options(postgresql_readonly=True)
                    connection.execute(_SETTINGS)
                try:
                    yield connection
                except UnicodeDecodeError as exc:
                    raise InputError(
                        f"{source.shown} has text that is not in {exc.encoding}, the encoding of"
                        " the connection: correct the text, or add the encoding that it has to the"
                        " query of the url, such as client_encoding=utf8"
                    ) from exc


@contextmanager
def asking(connection: Connection) -> Iterator[None]:
    """Open one short transaction, so that no lock of ours lasts between two questions."""
    with connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(_SETTINGS)
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        yield


def find_table(connection: Connection, source: SqlSource, columns: Collection[str]) -> SourceTable:
    """Return the source's table. Raises InputError unless it is there and has ``columns``."""
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
        connection.dialect.name,
    )


def _require_file(source: SqlSource) -> None:
    """Raise InputError if a file of SQLite is not there; connecting would create an empty one."""
    url = source.address
    path = url.database
    if url.get_backend_name() != "sqlite" or not path or path.startswith((":", "file:")):
        return
    if not Path(path).exists():
        raise InputError(f"{source.shown}: there is no file {path}: check the url")


def _keep_bytes(connection: Any, _record: object) -> None:
    """Keep the bytes of text in SQLite that is not UTF-8, so that only its record fails."""
    connection.text_factory = lambda value: value.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class ReadFrom:
    """The database of a source, for the translation of its errors."""

    source: SqlSource

    @property
    def password(self) -> str | None:
        return self.source.address.password

    def error(self, report: Report) -> LedgerError:
        """Return the ledger's error for an error of the driver, with advice for the owner of the
        source.
        """
        message = quote(report.message)
        if report.trouble in (Trouble.LOST, Trouble.LOCKED):
            return UnavailableError(
                f"{self.source.shown} did not answer: {message}. Check that the database runs"
                " and is not locked, then run this again"
            )
        is_denial = report.trouble in (Trouble.REFUSED, Trouble.RIGHTS)
        what = (
            "url, the password and the rights of its user"
            if is_denial
            else "declaration, and table"
        )
        return InputError(
            f"{self.source.shown} refused the reading: {message}. Check the {what}{report.advice}"
        )
