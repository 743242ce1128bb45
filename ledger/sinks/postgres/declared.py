"""What is declared of a table in PostgreSQL, and which database it is in."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from ledger.core.declarations import Fault, check
from ledger.sinks.options import SinkOptions, names_of, require_dedup, require_different

if TYPE_CHECKING:
    from ledger.settings import Settings

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
        return f"table {self.table!r}"

    @property
    def identity(self) -> str:
        """See ``Sink``: the table and its database, as they are declared."""
        return f"{self.url} {self.table}"

    @property
    def replaces_intervals(self) -> bool:
        return self.mode == "replace_interval"

    def location(self, settings: "Settings") -> str:
        """The URL, less user, password and options, and the table: what lineage names it by."""
        from sqlalchemy.engine import URL

        from ledger.databases.addresses import resolved

        url = resolved(self.url, f"the sink of table {self.table!r}")
        bare = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
        return f"{bare}#{self.table}"

    def check(self, settings: "Settings") -> str:
        """See ``Sink``: the publisher has looked at the table itself."""
        return f"{self.table} can be written to"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", names_of(self.key))
        require_dedup(self.table, self.dedup)
        require_different(f"key of {self.table!r}", self.key)
        check(self, _FAULTS)


def _too_long(sink: TableSink) -> tuple[str, int] | None:
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
        lambda it: it.mode not in get_args(Mode),
        f"mode of {{it.table!r}}: expected {', '.join(get_args(Mode))}, found {{it.mode!r}}",
    ),
    (
        lambda it: (it.mode == "upsert") != bool(it.key),
        "sink of {it.table!r}: a key goes with mode='upsert' and upsert with a key; found"
        " mode={it.mode!r}, key={it.key!r}",
    ),
)
