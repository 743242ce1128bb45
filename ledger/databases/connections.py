"""Connections to databases: how long they wait, and engines for one connection at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.pool import NullPool

from ledger.errors import ConfigurationError

CONNECT_SECONDS = 10
LOCK_TIMEOUT = "180s"  # a publish may hold a row so long; it is not waited for twice
# A half-open connection holds its locks: were its host gone, the server would keep them for hours.
_KEEPALIVES: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_LIBPQ = ("postgresql+psycopg2", "postgresql+psycopg")
_WAITS = {"connect_timeout": CONNECT_SECONDS, **_KEEPALIVES}


def arguments(url: URL, **options: str) -> dict[str, Any]:
    """Return libpq's connection arguments: ``options``, and timeouts that the address does not set.
    Empty for other drivers.
    """
    if url.drivername not in _LIBPQ:
        return {}
    waits = {name: value for name, value in _WAITS.items() if name not in url.query}
    return {**waits, **options}


@contextmanager
def engine_of(url: URL, application: str, **options: Any) -> Iterator[Engine]:
    """Yield an engine that opens a new connection each time, and dispose of it after the block.
    Raises ConfigurationError if the driver is not installed.

    ``application``: the name of the connection in the server's statistics.
    """
    connect_args = arguments(url, application_name=application)
    try:
        engine = create_engine(
            url, poolclass=NullPool, hide_parameters=True, connect_args=connect_args, **options
        )
    except (NoSuchModuleError, ImportError) as exc:
        raise ConfigurationError(
            f"there is no driver for {url.drivername}://: install its package"
        ) from exc
    try:
        yield engine
    finally:
        engine.dispose()
