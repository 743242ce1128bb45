"""Side inputs, which every batch reads as a whole and does not track."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.run_request import Interval
from ledger.errors import InputError
from ledger.sources.base import Source

if TYPE_CHECKING:
    from ledger.settings import Settings


@dataclass(frozen=True)
class Reference:
    """A declared side input. ``allow_empty``: whether it may have no rows."""

    source: Source
    allow_empty: bool = False

    def check(self, settings: "Settings", name: str, interval: Interval | None) -> str:
        """Check the source as ``Source.check`` does. Raises InputError as well if it is certain to
        have no rows."""
        message = self.source.check(settings, name, interval)
        self.require_rows(name, settings, interval)
        return message

    def require_rows(self, name: str, settings: "Settings", interval: Interval | None) -> None:
        """Raise InputError if the source is certain to have no rows and must have some."""
        if not self.allow_empty and self.source.is_empty(settings, interval):
            raise self.no_rows(name)

    def no_rows(self, name: str) -> InputError:
        """Return the error for a reference without rows that must have some."""
        return InputError(
            f"reference {name!r} ({self.source.place}) has no rows: expected at least one, because"
            " an inner join would lose the records that need them. Bring the whole reference and"
            " run this again, or declare it with allow_empty=True"
        )
