"""Addresses of databases, in the forms that users declare."""

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ledger.errors import ConfigurationError, DeclarationError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_DRIVER = "postgresql+psycopg2"
_EXAMPLE = f"{_DRIVER}://user@host/database"
_FROM_ENVIRONMENT = "env:"
# What libpq and hosting services write; SQLAlchemy would take another driver, or none.
_PLAIN = ("postgresql", "postgres")
_SECRETS = ("password", "sslpassword", "oauth_client_secret")  # options of libpq


def shown(url: "URL") -> str:
    """Return the address for display: without its password and the secrets among its options, and
    with its escapes decoded.
    """
    return unquote(url.difference_update_query(_SECRETS).render_as_string(hide_password=True))


def parsed(
    url: str, what: str, error: type[ConfigurationError | DeclarationError] = ConfigurationError
) -> "URL":
    """Parse a URL into an SQLAlchemy URL. ``postgresql://`` and ``postgres://`` select psycopg2.

    Raises ``error`` if the text is no URL. Its message names ``what``, and does not quote the text,
    which may have a password.
    """
    # A process that declares no address, such as one of Airflow or a worker, needs no SQLAlchemy.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise error(f"{what} is not a URL such as {_EXAMPLE}") from None
    return address.set(drivername=_DRIVER) if address.drivername in _PLAIN else address


def variable_of(url: str) -> str | None:
    """Return the name of the environment variable in an address ``env:NAME``; None for any other
    address.
    """
    return url.removeprefix(_FROM_ENVIRONMENT) if url.startswith(_FROM_ENVIRONMENT) else None


def resolved(url: str, what: str) -> "URL":
    """Return the address of ``what`` as a URL, read from the environment variable if it is
    ``env:NAME``.

    Raises ConfigurationError if the variable is not set, or does not hold a URL.
    """
    name = variable_of(url)
    if name is None:
        return parsed(url, f"the url of {what}")
    if not os.environ.get(name):
        raise ConfigurationError(
            f"environment variable {name} is not set: expected the URL of {what}, such as"
            f" {_EXAMPLE}, wherever its tasks run"
        )
    return parsed(os.environ[name], f"environment variable {name}")


def postgresql(url: "URL", what: str) -> "URL":
    """Return the URL with the driver psycopg2. Raises ConfigurationError if it is not a PostgreSQL
    URL.
    """
    if url.get_backend_name() != "postgresql":
        raise ConfigurationError(
            f"{what} is not a URL such as {_EXAMPLE}, found {url.drivername}://"
        )
    return url.set(drivername=_DRIVER)
