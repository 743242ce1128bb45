"""Options that a sink of a table in PostgreSQL may declare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ledger.sinks.options import names_of

LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL, which cuts off the rest

Mode = Literal["append", "upsert", "replace_interval"]


@dataclass(frozen=True, init=False)
class Upsert:
    """A row replaces the one with an equal ``key``, a column or several; an older row never
    overwrites a newer one.
    """

    key: tuple[str, ...]

    def __init__(self, key: str | Sequence[str]):
        object.__setattr__(self, "key", names_of(key))
