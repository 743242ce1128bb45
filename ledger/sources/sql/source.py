"""The declaration of a table that is read by a cursor."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from ledger.core.declarations import Fault, check, seconds
from ledger.databases import addresses
from ledger.errors import ConfigurationError, DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from sqlalchemy.engine import URL


@dataclass(frozen=True)
class SqlSource:
    """A table of a database, read incrementally: each run takes the rows that came since the last.

    ``url``: an SQLAlchemy URL, or ``env:NAME``, the environment variable that holds it wherever it
    is used.
    ``table``: its name, or ``schema.table``.
    ``cursor``: a column of the schema whose value the database sets and that grows with every
    insert: a sequence, or the time of the insert. Rows with a time of no zone are read 12 hours
    late, because a session in any zone may have set it.
    ``schema``: the columns to read, a StructType or a DDL string. A record that does not fit fails;
    it is never dropped. PostgreSQL itself writes the text of a column that is declared STRING.
    ``lag``: how far the reading stays before now, in seconds, as text such as ``"10m"`` or a
    timedelta; only for a cursor that is a timestamp. It is needed where running transactions cannot
    be seen, and where clients set the timestamp.
    ``partitions``: the number of slices that are read in parallel.

    Raises DeclarationError on an empty or impossible argument.
    """

    # Not in the repr: it may hold a password, and a repr ends up in logs.
    url: str = field(repr=False)
    table: str
    _: KW_ONLY
    cursor: str
    schema: "StructType | str"
    lag: str | float | timedelta | None = None
    partitions: int = 2

    def __post_init__(self) -> None:
        check(self, _FAULTS)
        if addresses.variable_of(self.url) is None:
            addresses.parsed(self.url, f"the url of table {self.table!r}", DeclarationError)
        if not isinstance(self.schema, str):
            self.require_cursor(self.schema.names)

    def require_cursor(self, columns: list[str]) -> None:
        """Raise DeclarationError unless the cursor is one of the schema's columns."""
        if self.cursor not in columns:
            raise DeclarationError(
                f"cursor {self.cursor!r} of {self.table!r}: expected a column of the schema "
                f"({', '.join(columns)}): add it to the schema"
            )

    @property
    def address(self) -> "URL":
        """Return the database's URL with its password; never publish it.

        Raises ConfigurationError if the environment variable is not set or holds no URL.
        """
        return addresses.resolved(self.url, f"table {self.table!r}")

    @property
    def shown(self) -> str:
        """Return the URL without password and options, and the table, for messages."""
        from sqlalchemy.engine import URL

        try:
            url = self.address
            place = (url.drivername, url.username, None, url.host, url.port, url.database)
            bare = URL.create(*place).render_as_string(hide_password=False)
        except ConfigurationError:
            bare = self.url
        return f"{bare}#{self.table}"

    @property
    def lag_seconds(self) -> float | None:
        """Return ``lag`` in seconds. Raises DeclarationError if it is not a duration."""
        return None if self.lag is None else seconds(self.lag)

    @property
    def schema_name(self) -> str | None:
        """Return the database schema in the table's name; None: the connection's default."""
        before, dot, _ = self.table.rpartition(".")
        return before if dot else None

    @property
    def table_name(self) -> str:
        """Return the table's name without its schema."""
        return self.table.rpartition(".")[2]


def _is_empty(value: object) -> bool:
    return not isinstance(value, str) or not value.strip()


# Of a url no message has what was found: it may hold a password.
_FAULTS: tuple[Fault, ...] = (
    (
        lambda it: _is_empty(it.url),
        "url of a SqlSource: expected an SQLAlchemy URL or env:NAME",
    ),
    (
        lambda it: it.url.startswith("env:") and _is_empty(addresses.variable_of(it.url)),
        "url of a SqlSource: expected a name after env:",
    ),
    (
        lambda it: _is_empty(it.table),
        "table of a SqlSource: expected a name such as orders or shop.orders, found {it.table!r}",
    ),
    (
        lambda it: _is_empty(it.cursor),
        "cursor of a SqlSource: expected a column that grows with every insert, found"
        " {it.cursor!r}",
    ),
    (
        lambda it: not all(it.table.split(".")) or it.table.count(".") > 1,
        "table {it.table!r}: expected a name or schema.table",
    ),
    (
        lambda it: isinstance(it.schema, str) and _is_empty(it.schema),
        "schema of a SqlSource: expected a StructType or a DDL string, found {it.schema!r}",
    ),
    (
        lambda it: it.lag is not None and not 0 < it.lag_seconds < float("inf"),
        "lag {it.lag!r} of {it.table!r}: expected more than 0",
    ),
    (
        lambda it: not isinstance(it.partitions, int) or it.partitions < 1 or it.partitions is True,
        "partitions {it.partitions!r} of {it.table!r}: expected 1 or more",
    ),
)
