"""Options that sinks may declare: how rows that were delivered already are recognized, and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ledger.core.declarations import Fault, check
from ledger.errors import DeclarationError

LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest


@dataclass(frozen=True, kw_only=True)
class Bloom:
    """Recognize duplicates by a Bloom filter; every "maybe" is verified exactly.

    ``key``: columns that identify a row over batches; without them the identity is the message,
    the row and its ordinal among equal rows of that message. ``capacity``: entries over all
    batches compared with; more is an error, a fuller filter would answer "maybe" to everything.
    ``error_rate``: share of false maybes, each costs a look-up and never a row.
    ``window_batches``: with a key, how many of the sink's latest batches to compare with; None:
    all. Only settled batches are compared with: two that run side by side do not see each other.
    """

    capacity: int
    error_rate: float = 0.001
    key: tuple[str, ...] = ()
    window_batches: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", names_of(self.key))
        check(self, _OF_BLOOM)


_OF_BLOOM: tuple[Fault, ...] = (
    (
        lambda it: it.capacity < 1 or not 0 < it.error_rate < 1,
        "Bloom needs capacity >= 1 and 0 < error_rate < 1, found {it.capacity} and {it.error_rate}",
    ),
    (
        lambda it: it.window_batches is not None and (it.window_batches < 1 or not it.key),
        "Bloom's window_batches is at least 1 and needs a key, found {it.window_batches} and the"
        " key {it.key!r}",
    ),
)


Dedup = Literal["none", "exact"] | Bloom


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options of every sink.

    ``dedup``: ``none``, ``exact`` or ``Bloom(...)``: how to recognize rows that other batches
    delivered. In a pipeline that runs exactly once, only a Bloom with a key has an effect.
    """

    dedup: Dedup = "none"


@dataclass(frozen=True, init=False)
class Upsert:
    """A row replaces the one with an equal ``key``, a column or several; an older row never
    overwrites a newer one.
    """

    key: tuple[str, ...]

    def __init__(self, key: str | Sequence[str]):
        object.__setattr__(self, "key", names_of(key))


def is_keyed(dedup: Dedup) -> bool:
    """Return whether duplicates are recognized by key columns."""
    return isinstance(dedup, Bloom) and bool(dedup.key)


def require_dedup(name: str, dedup: object) -> None:
    """Raise DeclarationError for a ``dedup`` that is no ``Dedup``. ``name``: the sink's place, for
    the message.
    """
    if not isinstance(dedup, Bloom) and dedup not in ("none", "exact"):
        raise DeclarationError(
            f'dedup of {name!r}: expected "none", "exact" or Bloom(...), found {dedup!r}'
        )


def require_different(what: str, names: tuple[str, ...]) -> None:
    """Raise DeclarationError if two names differ only in case. ``what``: the option, for the
    message.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name or names.count(name) > 1:
            raise DeclarationError(
                f"{what}: {other!r} and {name!r} are one column, for Spark ignores case: name it "
                "once"
            )


def names_of(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return columns, declared as one name or several, as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)
