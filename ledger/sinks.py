"""Where a pipeline can write, and how it recognizes what it has delivered already."""

from dataclasses import dataclass
from typing import Literal, get_args

from ledger.errors import DeclarationError


@dataclass(frozen=True, kw_only=True)
class Bloom:
    """Recognize duplicates by a Bloom filter; every "maybe" is verified exactly.

    ``key``: columns that identify a row over batches; without them the identity is the message,
    the row and its ordinal among equal rows of that message. ``capacity``: entries over all
    batches compared with; more is an error, a fuller filter would say "maybe" to everything.
    ``error_rate``: share of false maybes, each costs a look-up and never a row.
    ``window_batches``: with a key, how many of the sink's latest batches to compare with; None: all.
    Only settled batches are compared with: two that run side by side do not see each other.
    """

    capacity: int
    error_rate: float = 0.001
    key: tuple[str, ...] = ()
    window_batches: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))
        else:
            object.__setattr__(self, "key", tuple(self.key))
        if self.capacity < 1 or not 0 < self.error_rate < 1:
            raise DeclarationError(
                f"Bloom needs capacity >= 1 and 0 < error_rate < 1, found {self.capacity} and {self.error_rate}"
            )
        if self.window_batches is not None and (self.window_batches < 1 or not self.key):
            raise DeclarationError("Bloom's window_batches is at least 1 and needs a key")


BATCH_FOLDER = "batch"  # in a folder of Parquet files: batch=<id>
STAGING_FOLDER = "_staging"  # beside those of batches: what is not shown yet
LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest

Dedup = Literal["none", "exact"] | Bloom


Mode = Literal["append", "upsert", "replace_interval"]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What every sink takes. ``dedup``: ``none``, ``exact`` or ``Bloom(...)``: compare with what other batches
    delivered. Of a pipeline that runs exactly once only a Bloom with a key has anything to do."""

    dedup: Dedup = "none"

    @property
    def keyed(self) -> bool:
        """Whether duplicates are recognized by columns of the row."""
        return isinstance(self.dedup, Bloom) and bool(self.dedup.key)

    @property
    def place(self) -> str:
        """What it writes to, in words."""
        raise NotImplementedError

    def _check_dedup(self) -> None:
        if not isinstance(self.dedup, Bloom) and self.dedup not in ("none", "exact"):
            raise DeclarationError(
                f'dedup of {self.place!r}: expected "none", "exact" or Bloom(...), found {self.dedup!r}'
            )


@dataclass(frozen=True, kw_only=True)
class _FileOptions(_Options):
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FileSink(_FileOptions):
    path: str

    @property
    def place(self) -> str:
        return self.path

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_by", _names(self.partition_by))
        self._check_dedup()
        _require_different(f"partition_by of {self.path!r}", self.partition_by)
        for name in self.partition_by:
            if not name or name.startswith(("_", ".")) or "`" in name:
                raise DeclarationError(
                    f"partition_by of {self.path!r}: {name!r} cannot name folders, for readers "
                    "skip those that begin with _ or a dot, and SQL quotes names by backticks: "
                    "rename the column in the stage before the sink"
                )


@dataclass(frozen=True)
class ParquetSink(_FileSink):
    """A folder of Parquet files: ``<path>/batch=<id>/<partition columns>/``.

    Each batch is staged under ``<path>/_staging/`` and shown by one rename, so a reader sees a
    batch whole or not at all; on an object store a rename is a copy, file by file. It holds the
    user's columns only, none of which may be ``batch``. Relative paths start from
    ``ACKLEDGER_OUTPUT``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.partition_by:
            if name.lower() == BATCH_FOLDER:
                raise DeclarationError(
                    f"partition_by of {self.path!r}: {name!r} is taken by the folder of each "
                    f"batch, {BATCH_FOLDER}=<id>: rename the column in the stage before the sink"
                )


@dataclass(frozen=True)
class DeltaSink(_FileSink):
    """A Delta Lake table; made by the first batch.

    Each batch is staged under ``<path>/_ackledger/`` and committed in place by one entry of the table's
    log, so every reader of Delta sees it whole or not at all. Relative paths start from
    ``ACKLEDGER_OUTPUT``.
    """


@dataclass(frozen=True, kw_only=True)
class _TableOptions(_Options):
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
        object.__setattr__(self, "key", _names(self.key))
        self._check_dedup()
        _require_different(f"key of {self.table!r}", self.key)
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


Sink = ParquetSink | DeltaSink | PostgresSink


def _require_different(what: str, names: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name or names.count(name) > 1:
            raise DeclarationError(
                f"{what}: {other!r} and {name!r} are one column, for Spark ignores case: name it "
                "once"
            )


def _names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
