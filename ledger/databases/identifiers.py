"""Names of PostgreSQL in statements and messages."""

from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.base import PGDialect

# Of no driver: without a parameter style with percent signs it does not double those of a name.
PLAIN: Dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]


def quoted(name: str) -> str:
    """Return an identifier as a user writes it, in quotes if it needs them."""
    return str(PLAIN.identifier_preparer.quote(name))


def literal_name(name: str) -> str:
    """Return an identifier in quotes."""
    return str(PLAIN.identifier_preparer.quote_identifier(name))
