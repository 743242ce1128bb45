"""What a pipeline can read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from ledger import addresses, templates
from ledger.durations import seconds
from ledger.errors import ConfigurationError, DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json", "parquet")
COLUMNS = ("in_order", "by_name")

_MOMENTS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
# Options of Spark's readers that neither lose records nor change values.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "csv": ("sep", "quote", "escape", "emptyValue", *_MOMENTS),
    "json": (
        "allowBackslashEscapingAnyCharacter",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        *_MOMENTS,
    ),
    "parquet": (),
}
_UTF8 = "files are read as UTF-8, so convert others, for example with iconv"
_INSTEAD = {
    "multiline": "declare the source with multiline=True",
    "header": "declare the source with header=True or header=False",
    "nullvalue": "declare the source with null_value=...",
    "delimiter": "it is called 'sep'",
    "encoding": _UTF8,
    "charset": _UTF8,
    "linesep": "records end with a line break",
    "comment": "a comment is a record: drop it in a stage, with dropped(frame, reason)",
    "maxcolumns": "a record of more fields than the schema has fails by name",
    "maxcharspercolumn": "values are read whole",
    "mode": "what does not parse fails by name",
}
_ONE_CHARACTER = ("sep", "quote", "escape")
_FROM_ENVIRONMENT = "env:"


@dataclass(frozen=True, kw_only=True)
class _FileOptions:
    format: str = "csv"
    schema: "StructType | str"
    header: bool = True
    null_value: str | None = None
    allow_missing: bool = False
    incremental: bool = False
    columns: str = "in_order"
    multiline: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSource(_FileOptions):
    """Files of one format, read by interval or, with ``incremental``, each once.

    ``path``: glob, a template over ``interval_start``, ``interval_end`` and ``params``; relative
    paths start from ``ACKLEDGER_DATA``. ``format``: ``csv``, ``json`` (one object a line) or
    ``parquet``. ``schema``: a StructType or a DDL string; a record that does not fit fails, it is
    never dropped. ``header``: csv files begin with names. ``columns``: these are the schema's,
    ``in_order``, or are looked up ``by_name``: others are noted and ignored, and a column that a
    file lacks is null if it may be. ``multiline``: values of csv in quotes may hold line breaks; a
    file is then read by one task. ``null_value``: text that means null, for example ``NA``. ``allow_missing``: no matching file means no records
    instead of an error. ``incremental``: a batch takes the files that no batch has taken yet, whatever
    its interval; a file is another one once its size or modification time differ, but for a small one
    that has the same content. ``options``: further options of the reader, for example ``sep``: those in ``OPTIONS``.

    Raises DeclarationError on an unknown format or option, or a path that is no template.
    """

    path: str

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DeclarationError(
                f"format {self.format!r} of {self.path!r}: expected one of {', '.join(FORMATS)}"
            )
        if self.columns not in COLUMNS:
            raise DeclarationError(
                f"columns={self.columns!r} of {self.path!r}: expected one of {', '.join(COLUMNS)}"
            )
        if self.columns == "by_name" and not (self.format == "csv" and self.header):
            found = "header=False" if self.format == "csv" else f"format {self.format}"
            raise DeclarationError(
                f"columns='by_name' of {self.path!r}: expected csv with a header, found {found}; "
                "leave it out: columns of json and parquet always go by name"
            )
        if self.multiline and self.format != "csv":
            raise DeclarationError(
                f"multiline of {self.path!r}: expected format csv, found {self.format}, of which "
                "a record has no line breaks"
            )
        _check_options(self.path, self.format, self.options)
        templates.check(self.path)


def _check_options(path: str, format: str, options: Mapping[str, str]) -> None:
    """Raise DeclarationError for an option that is not supported: some of Spark's lose records."""
    known = OPTIONS[format]
    for name, value in options.items():
        if name not in known:
            instead = _INSTEAD.get(name.lower())
            close = get_close_matches(name, known, n=1)
            hint = instead or (f"did you mean {close[0]!r}?" if close else "leave it out")
            listed = f"the options of {format} are {', '.join(known)}" if known else "it has none"
            raise DeclarationError(
                f"option {name!r} of {path!r} is not supported with {format}: {hint}; {listed}"
            )
        if not isinstance(value, str):
            raise DeclarationError(f"option {name!r} of {path!r}: expected a text, found {value!r}")
        if name in _ONE_CHARACTER and len(value) > 1:
            raise DeclarationError(
                f"option {name!r} of {path!r}: expected one character, found {value!r}"
            )
    if options.get("sep") == "":
        raise DeclarationError(f"option 'sep' of {path!r}: expected one character, found ''")


@dataclass(frozen=True)
class _Table:
    # Not in the repr: it may hold a password, and a repr ends up in logs.
    url: str = field(repr=False)
    table: str


@dataclass(frozen=True, kw_only=True)
class _TableOptions:
    cursor: str
    schema: "StructType | str"
    lag: str | float | timedelta | None = None
    partitions: int = 2


@dataclass(frozen=True)
class TableSource(_TableOptions, _Table):
    """A table of a database, read incrementally: each run takes the rows that came since the last.

    ``url``: an SQLAlchemy URL, or ``env:NAME``, the environment variable that holds it wherever it
    is used. ``table``: its name, or ``schema.table``. ``cursor``: a column of the schema whose value
    the database sets and that grows with every insert: a sequence, or the moment of the insert (one
    without time zone is taken to be UTC). ``schema``: a StructType or a DDL string, the columns to
    read; a record that does not fit fails, it is never dropped. ``lag``: how far the reading stays
    behind now, in seconds, as text such as ``"10m"`` or a timedelta; only for a cursor that is a
    moment. It is needed where running transactions cannot be seen, and where clients set the
    moment. ``partitions``: the slices that are read in parallel.

    Raises DeclarationError on an empty or impossible argument.
    """

    def __post_init__(self) -> None:
        _require_text("url", self.url, "an SQLAlchemy URL or env:NAME")
        _require_text("table", self.table, "a name such as orders or shop.orders")
        _require_text("cursor", self.cursor, "a column that grows with every insert")
        if self.url.startswith(_FROM_ENVIRONMENT):
            _require_text("url", self.url.removeprefix(_FROM_ENVIRONMENT), "a name behind env:")
        else:
            _parsed(self.url, DeclarationError, f"the url of table {self.table!r}")
        if not all(self.table.split(".")) or self.table.count(".") > 1:
            raise DeclarationError(f"table {self.table!r}: expected a name or schema.table")
        if isinstance(self.schema, str):
            _require_text("schema", self.schema, "a StructType or a DDL string")
        else:
            self.require_cursor(self.schema.names)
        if self.lag is not None and not self.lag_seconds:
            raise DeclarationError(f"lag {self.lag!r} of {self.table!r}: expected more than 0")
        whole = isinstance(self.partitions, int) and not isinstance(self.partitions, bool)
        if not whole or self.partitions < 1:
            raise DeclarationError(
                f"partitions {self.partitions!r} of {self.table!r}: expected 1 or more"
            )

    def require_cursor(self, columns: list[str]) -> None:
        """Raise DeclarationError unless the cursor is one of the schema's columns."""
        if self.cursor not in columns:
            raise DeclarationError(
                f"cursor {self.cursor!r} of {self.table!r}: expected a column of the schema "
                f"({', '.join(columns)}): add it to the schema"
            )

    @property
    def address(self) -> URL:
        """The database's URL, with its password; never to be shown.

        Raises ConfigurationError when the environment variable is not set or holds no URL.
        """
        if not self.url.startswith(_FROM_ENVIRONMENT):
            return addresses.parsed(self.url)
        name = self.url.removeprefix(_FROM_ENVIRONMENT)
        if not os.environ.get(name):
            raise ConfigurationError(
                f"environment variable {name} is not set: expected the URL of the database of "
                f"table {self.table!r}"
            )
        return _parsed(os.environ[name], ConfigurationError, f"environment variable {name}")

    @property
    def shown(self) -> str:
        """The URL, less password and options, and the table: for messages and the ledger."""
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
        """``lag`` in seconds. Raises DeclarationError when it is no duration, or below 0."""
        if self.lag is None:
            return None
        lag = seconds(self.lag)
        if not 0 <= lag < float("inf"):
            raise DeclarationError(f"lag {self.lag!r} of {self.table!r}: expected more than 0")
        return lag

    @property
    def schema_name(self) -> str | None:
        """The database schema before the table's name; None: the connection's default."""
        before, dot, _ = self.table.rpartition(".")
        return before if dot else None

    @property
    def table_name(self) -> str:
        """The table's name alone."""
        return self.table.rpartition(".")[2]


def _require_text(name: str, value: object, expected: str) -> None:
    if not isinstance(value, str) or not value.strip():
        # A url is not shown, whatever it is: it may hold a password.
        found = "" if name == "url" else f", found {value!r}"
        raise DeclarationError(f"{name} of a TableSource: expected {expected}{found}")


def _parsed(url: str, error: type[ConfigurationError | DeclarationError], what: str) -> URL:
    """The URL; the driver's own words about a bad one are left out, as they may quote it."""
    try:
        return addresses.parsed(url)
    except (ArgumentError, ValueError):
        raise error(
            f"{what} is not a URL such as postgresql+psycopg2://user@host/database"
        ) from None
