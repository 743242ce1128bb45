"""What is declared of a table in PostgreSQL, and which database it is in."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from ledger.errors import DeclarationError
from ledger.settings import Settings
from ledger.sinks.options import SinkOptions, names_of, require_dedup, require_different

LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest

Mode = Literal["append", "upsert", "replace_interval"]


@dataclass(frozen=True, kw_only=True)
class _TableSinkOptions(SinkOptions):
    key: tuple[str, ...] = ()
    mode: Mode = "append"


@dataclass(frozen=True)
class TableSink(_TableSinkOptions):
    """A sink whose place is a table; see ``PostgresSink``."""

    url: str = field(repr=False)  # it may hold a password
    table: str
    partition_by = ()
    in_place = False

    @property
    def place(self) -> str:
        """See ``Sink``."""
        return f"table {self.table!r}"

    @property
    def identity(self) -> str:
        """See ``Sink``: the table and its database, as they are declared."""
        return f"{self.url} {self.table}"

    @property
    def replaces_intervals(self) -> bool:
        """See ``Sink``."""
        return self.mode == "replace_interval"

    def location(self, settings: Settings) -> str:
        """The URL, less user, password and options, and the table: what lineage names it by."""
        from sqlalchemy.engine import URL

        from ledger.databases.addresses import resolved

        url = resolved(self.url, f"the sink of table {self.table!r}")
        bare = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
        return f"{bare}#{self.table}"

    def check(self, settings: Settings) -> str:
        """See ``Sink``: the publisher has looked at the table itself."""
        return f"{self.table} can be written to"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", names_of(self.key))
        require_dedup(self.table, self.dedup)
        require_different(f"key of {self.table!r}", self.key)
        for part in self.table.rpartition(".")[::2]:
            if len(part.encode()) > LONGEST_NAME:
                raise DeclarationError(
                    f"table {self.table!r}: {part!r} has {len(part.encode())} bytes, and "
                    f"PostgreSQL cuts names off after {LONGEST_NAME}: choose a shorter one"
                )
        if not self.table.rpartition(".")[2]:
            raise DeclarationError(
                f"table {self.table!r}: expected a name, or schema.name: name the table"
            )
        if self.mode not in get_args(Mode):
            raise DeclarationError(
                f"mode of {self.table!r}: expected {', '.join(get_args(Mode))}, found {self.mode!r}"
            )
        if (self.mode == "upsert") != bool(self.key):
            raise DeclarationError(
                f"sink of {self.table!r}: a key goes with mode='upsert' and upsert with a key; "
                f"found mode={self.mode!r}, key={self.key!r}"
            )
