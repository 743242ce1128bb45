"""Names of PostgreSQL in statements and messages."""

from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.base import PGDialect

# Of no driver: without a parameter style with percent signs it does not double those of a name.
PLAIN: Dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]


def quoted(name: str) -> str:
    """Return an identifier for use in SQL, quoted only if it needs quotes."""
    return str(PLAIN.identifier_preparer.quote(name))


def literal_name(name: str) -> str:
    """Return an identifier for use in SQL, always quoted."""
    return str(PLAIN.identifier_preparer.quote_identifier(name))
