"""The declaration of a table in PostgreSQL."""

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal

from ledger.core.declarations import Fault, check
from ledger.sinks.base import Publisher
from ledger.sinks.options import (
    LONGEST_NAME,
    SinkOptions,
    Upsert,
    require_dedup,
    require_different,
)

if TYPE_CHECKING:
    from ledger.settings import Settings


@dataclass(frozen=True)
class PostgresSink(SinkOptions):
    """A table in PostgreSQL, on whichever server: ``PostgresSink(url, "reporting.departures")``.

    Each batch is one transaction there, with a record of its own. ``url``: of SQLAlchemy, or the
    name of an environment variable that holds it, as ``env:REPORTING_URL``. ``mode``: ``append``;
    ``Upsert(key)``; ``replace_interval``: what other batches published of the same interval is
    removed.
    """

    url: str = field(repr=False)  # it may hold a password
    table: str
    _: KW_ONLY
    mode: Literal["append", "replace_interval"] | Upsert = "append"
    partition_by = ()
    in_place = False

    @property
    def place(self) -> str:
        return f"table {self.table!r}"

    @property
    def identity(self) -> str:
        """The table and its database as declared. See ``Sink``."""
        return f"{self.url} {self.table}"

    @property
    def key(self) -> tuple[str, ...]:
        """See ``Sink``."""
        return self.mode.key if isinstance(self.mode, Upsert) else ()

    @property
    def replaces_intervals(self) -> bool:
        return self.mode == "replace_interval"

    def location(self, settings: "Settings") -> str:
        """Return the table and its URL without user, password and options, their name in
        lineage.
        """
        from sqlalchemy.engine import URL

        from ledger.databases.addresses import resolved

        url = resolved(self.url, f"the sink of table {self.table!r}")
        bare = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
        return f"{bare}#{self.table}"

    def publisher(self, settings: "Settings", pipeline: str, name: str) -> Publisher:
        """See ``Sink``. Raises ConfigurationError if the variable that holds the URL is not set."""
        from ledger.sinks.postgres.publisher import PostgresPublisher

        return PostgresPublisher(
            self.url,
            self.table,
            key=self.key,
            mode="upsert" if isinstance(self.mode, Upsert) else self.mode,
            staging_root=f"{settings.storage_root()}/{pipeline}/{name}",
        )

    def __post_init__(self) -> None:
        require_dedup(self.table, self.dedup)
        require_different(f"key of {self.table!r}", self.key)
        check(self, _FAULTS)


def _too_long(sink: PostgresSink) -> tuple[str, int] | None:
    """Return the first of the table's schema and name that exceeds PostgreSQL's limit, with its
    length in bytes; None if neither does.
    """
    lengths = ((part, len(part.encode())) for part in sink.table.rpartition(".")[::2])
    return next((pair for pair in lengths if pair[1] > LONGEST_NAME), None)


_FAULTS: tuple[Fault, ...] = (
    (
        _too_long,
        "table {it.table!r}: {culprit[0]!r} has {culprit[1]} bytes, and PostgreSQL cuts names off"
        f" after {LONGEST_NAME}: choose a shorter one",
    ),
    (
        lambda it: not it.table.rpartition(".")[2],
        "table {it.table!r}: expected a name, or schema.name: name the table",
    ),
    (
        lambda it: it.mode not in ("append", "replace_interval") and not it.key,
        "mode of {it.table!r}: expected append, replace_interval or Upsert(key), found {it.mode!r}",
    ),
)
