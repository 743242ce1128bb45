"""Addresses of databases, in the forms that people have them in."""

from urllib.parse import unquote

from sqlalchemy.engine import URL, make_url

# What libpq and hosting services write; SQLAlchemy would take another driver, or none.
_PLAIN = ("postgresql", "postgres")


def shown(url: URL) -> str:
    """The address for people: without its password, and not encoded, as a socket's folder is."""
    return unquote(url.render_as_string(hide_password=True))


def parsed(url: str | URL) -> URL:
    """The address as an SQLAlchemy URL; ``postgresql://`` and ``postgres://`` go through psycopg2.

    Raises what SQLAlchemy's ``make_url`` does; its words may quote a password.
    """
    made = make_url(url)
    return made.set(drivername="postgresql+psycopg2") if made.drivername in _PLAIN else made
