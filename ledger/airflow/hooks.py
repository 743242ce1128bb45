"""The hook of connections of type ``ackledger``, by which one Airflow serves several ledgers."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from ledger.airflow.provider import CONN_TYPE
from ledger.airflow.versions import AirflowNotFoundException, mask_secret
from ledger.errors import ConfigurationError, LedgerError
from ledger.settings import CONN_ID, Settings

if TYPE_CHECKING:
    from ledger.store.connection import Database

_STORAGE = "storage"
_NOT_OF_ENVIRONMENT: dict[str, Any] = {"reader_url": None}  # which is of another ledger
# Options of libpq that are fields of a connection: in its extra, they would override the fields,
# and a password would be shown.
_FIELDS = {"user": "Login", "password": "Password", "dbname": "Database"}


class LedgerHook(BaseHook):
    """Connects to the ledger of a connection of type ``ackledger``.

    The connection's host, port, database, login and password are those of the ledger's PostgreSQL.
    In its extra, ``storage`` is the ledger's storage, and any other key is an option of libpq such
    as ``sslmode``.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "ackledger_default"
    conn_type = CONN_TYPE
    hook_name = "ackledger"

    def __init__(self, conn_id: str = default_conn_name):
        super().__init__()
        self.conn_id = conn_id

    def settings(self) -> Settings:
        """Return the settings of this process with the ledger of the connection. Raises
        ConfigurationError for a connection that describes none, and LedgerError if Airflow knows no
        such connection.
        """
        return Settings(**self.overrides(), **_NOT_OF_ENVIRONMENT)

    def overrides(self) -> dict[str, Any]:
        """Return the settings that the connection has, by their field in ``Settings``."""
        try:
            return overrides_of(self.get_connection(self.conn_id))
        except AirflowNotFoundException:
            raise unknown_connection(self.conn_id) from None

    async def asettings(self) -> Settings:
        """Return what ``settings`` does. For triggers, which may not block."""
        try:
            connection = await self.aget_connection(self.conn_id)
            return Settings(**overrides_of(connection), **_NOT_OF_ENVIRONMENT)
        except AirflowNotFoundException:
            raise unknown_connection(self.conn_id) from None

    def get_conn(self) -> "Database":
        """Return the ledger's database, ready for use."""
        from ledger.store.upgrade import connect

        return connect(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the ledger answers and has this release's schema, and a sentence. The
        button of a connection's form calls this.
        """
        from ledger.store.upgrade import state_of

        try:
            state = state_of(self.settings())
        except LedgerError as exc:
            return False, str(exc)
        if state.problem is not None:
            return False, state.problem
        return True, f"The ledger {state.database} is at revision {state.revision}."


def overrides_of(connection: Any) -> dict[str, Any]:
    """Return the settings that a connection has, by their field in ``Settings``: the address of the
    ledger, and its storage unless that is left to the environment.

    Raises ConfigurationError for a connection of another type, without a host or database, with a
    password but no login, or with an extra that is no JSON object of plain values or has an option
    that is a field.
    """
    from sqlalchemy.engine import URL

    what = f"connection {connection.conn_id!r}"
    if connection.conn_type != CONN_TYPE:
        raise ConfigurationError(
            f"{what} is of type {connection.conn_type!r}: expected {CONN_TYPE!r}. Change its type,"
            " or name another connection"
        )
    login = connection.login or not connection.password  # SQLAlchemy drops a password without one
    needed = {"host": connection.host, "database": connection.schema, "login": login}
    missing = [label for label, value in needed.items() if not value]
    if missing:
        raise ConfigurationError(
            f"{what} has no {' and no '.join(missing)}: expected those of the ledger's PostgreSQL."
            " Fill them in under Admin > Connections"
        )
    options = _extra(what, connection.extra)
    for option, field in _FIELDS.items():
        if option in options:
            raise ConfigurationError(
                f"the extra of {what} has {option!r}: expected only other options of libpq. Fill in"
                f" the field {field} of the connection"
            )
    storage = options.pop(_STORAGE, None)
    host = connection.host
    if host.startswith("/"):  # the folder of a socket, which a URL cannot have as its host
        options["host"], host = host, None
    url = URL.create(
        "postgresql+psycopg2",
        connection.login or None,
        connection.password or None,
        host,
        connection.port,
        connection.schema,
        options,
    )
    address = {"database_url": url.render_as_string(hide_password=False)}
    return address if storage is None else {**address, _STORAGE: storage}


def _extra(what: str, text: str | None) -> dict[str, str]:
    """Return the extra of a connection, without empty values. It is parsed here because Airflow's
    ``extra_dejson`` masks its values in a way that a trigger may not wait for.
    """
    try:
        values = json.loads(text or "{}")
    except json.JSONDecodeError:
        values = None
    plain = str | int | float | None
    if not isinstance(values, dict) or not all(isinstance(v, plain) for v in values.values()):
        raise ConfigurationError(
            f'the extra of {what}: expected a JSON object of plain values, such as {{"storage":'
            ' "/shared/ledger", "sslmode": "verify-full"}'
        )
    return {name: _option(value) for name, value in values.items() if value not in (None, "")}


def _option(value: Any) -> str:
    """Return a value as libpq reads it, which has 0 and 1 for booleans."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def unknown_connection(conn_id: str) -> LedgerError:
    """Return the error for a connection that Airflow does not know. A retry may help, because
    Airflow says the same if its API server did not answer.
    """
    return LedgerError(
        f"Airflow knows no connection {conn_id!r}: expected one of type {CONN_TYPE!r}. Add it under"
        f" Admin > Connections, or set AIRFLOW_CONN_{conn_id.upper()}"
    )


def settings_of(conn_id: str | None) -> Settings:
    """Return the settings of this process, with the ledger of a connection if one is named."""
    return Settings() if conn_id is None else LedgerHook(conn_id).settings()


@contextmanager
def driver_environment(conn_id: str | None) -> Iterator[None]:
    """Set the variables in the block from which a driver that starts there reads its ledger. No
    argument may have them, because the address has the password.
    """
    overrides = {} if conn_id is None else LedgerHook(conn_id).overrides()
    variables = {f"ACKLEDGER_{name.upper()}": value for name, value in overrides.items()}
    if conn_id is not None:
        variables[CONN_ID] = conn_id
        _mask(overrides["database_url"])
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _mask(address: str) -> None:
    """Mask an address and its password in logs, which may quote them. Airflow masks the password of
    a connection, but not its escapes.
    """
    password = re.search(r"^[^/]*//[^/@:]*:([^@]*)@", address)
    if password is not None:
        mask_secret(address)
        mask_secret(password[1])
