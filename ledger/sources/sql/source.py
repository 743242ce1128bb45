"""A table that is read by a cursor: its declaration, and the kind of source that it is."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ledger.core.declarations import Fault, check, seconds
from ledger.core.run_request import Interval
from ledger.databases import addresses
from ledger.errors import ConfigurationError, DeclarationError
from ledger.sources.base import Claim, Scope, Source, SourceReader
from ledger.types import ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy.engine import URL

    from ledger.settings import Settings


@dataclass(frozen=True)
class SqlSource:
    """A table of a database, read incrementally: each run takes the rows that came since the last.

    ``url``: an SQLAlchemy URL, or ``env:NAME``, the environment variable that holds it wherever
    it is used. ``table``: its name, or ``schema.table``. ``cursor``: a column of the schema
    whose value the database sets and that grows with every insert: a sequence, or the time of
    the insert. Rows with a time of no zone are read 12 hours late, because a session in any zone
    may have set it. ``schema``: a StructType or a DDL string, the columns to read; a record that
    does not fit fails, it is never dropped. PostgreSQL itself writes the text of a column that is
    declared STRING. ``lag``: how far the reading stays before now, in seconds, as text such as
    ``"10m"`` or a timedelta; only for a cursor that is a timestamp. It is needed where running
    transactions cannot be seen, and where clients set the timestamp. ``partitions``: the slices
    that are read in parallel.

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
        """The database's URL, with its password; never to be published.

        Raises ConfigurationError when the environment variable is not set or holds no URL.
        """
        return addresses.resolved(self.url, f"table {self.table!r}")

    @property
    def shown(self) -> str:
        """The URL, less password and options, and the table: for messages and the ledger."""
        from sqlalchemy.engine import URL

        try:
            bare = URL.create(*self._place()).render_as_string(hide_password=False)
        except ConfigurationError:
            bare = self.url
        return f"{bare}#{self.table}"

    def _place(self) -> tuple[str, str | None, None, str | None, int | None, str | None]:
        url = self.address
        return (url.drivername, url.username, None, url.host, url.port, url.database)

    @property
    def lag_seconds(self) -> float | None:
        """``lag`` in seconds. Raises DeclarationError when it is no duration."""
        return None if self.lag is None else seconds(self.lag)

    @property
    def schema_name(self) -> str | None:
        """The database schema before the table's name; None: the connection's default."""
        before, dot, _ = self.table.rpartition(".")
        return before if dot else None

    @property
    def table_name(self) -> str:
        """The table's name alone."""
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


class Table(Source):
    """The ``Source`` of a SqlSource."""

    incremental = True
    by_offset = True
    layout: Mapping[str, Any] = {"closed": True}

    def __init__(self, declared: SqlSource):
        self._declared = declared
        self.schema = declared.schema
        self.place = f"table {declared.table}"

    def path(self, settings: "Settings", interval: Interval) -> str:
        """The table's database, less its password, and its name."""
        return self._declared.shown

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Return the table's columns that are read, in words.

        Raises InputError unless the table is there and has the schema's columns, and a cursor of a
        type that can be one.
        """
        from ledger.sources.sql import cursor, queries

        names = ddl.columns(self.schema) or {self._declared.cursor: ""}
        self._declared.require_cursor(list(names))
        table = queries.require_columns(self._declared, [*names, self._declared.cursor])
        form = cursor.timestamp_form(table)
        delay = "; its rows are read 12 hours late, because the cursor has no time zone"
        is_late = form is not None and form.west
        return f"{self._declared.shown} has columns {', '.join(names)}{delay if is_late else ''}"

    def latest(self, scope: Scope, start: Any, room: int | None) -> Claim:
        """The rows above ``start``, up to where no row can appear any more."""
        from ledger.sources.sql import cursor, queries

        bound = queries.safe_bound(self._declared, scope.now)
        after = None if start is None else cursor.from_text(start)
        upto = queries.reach(self._declared, after, bound, room)
        return scope.claim(end=None if upto is None else cursor.to_text(upto), records=room)

    def reader(self, spark: "SparkSession") -> SourceReader:
        """Return the reader of ranges of the table, with one Spark task for each range."""
        from ledger.sources.sql.reader import TableReader

        return TableReader(spark, self._declared)
