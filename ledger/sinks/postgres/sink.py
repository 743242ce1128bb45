"""The declaration of a table in PostgreSQL."""

from dataclasses import dataclass
from typing import Literal, get_args

from ledger.errors import DeclarationError
from ledger.sinks.options import SinkOptions, names_of, require_different

LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest

Mode = Literal["append", "upsert", "replace_interval"]


@dataclass(frozen=True, kw_only=True)
class _TableOptions(SinkOptions):
    key: tuple[str, ...] = ()
    mode: Mode = "append"


@dataclass(frozen=True)
class PostgresSink(_TableOptions):
    """A table in PostgreSQL, on whichever server: ``PostgresSink(url, "reporting.departures")``.

    Each batch is one transaction there, with a record of its own. ``url``: of SQLAlchemy, or the name of
    an environment variable that holds it, as ``env:REPORTING_URL``. ``mode``: ``append``; ``upsert`` by ``key``,
    where an older row never overwrites a newer one; ``replace_interval``: what other batches brought of
    the same interval goes.
    """

    url: str
    table: str

    @property
    def place(self) -> str:
        return self.table

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", names_of(self.key))
        self.check_dedup()
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
                f"sink of {self.table!r}: a key goes with mode='upsert' and upsert with a key; found mode={self.mode!r}, "
                f"key={self.key!r}"
            )
