"""Values of a cursor: as the ledger stores them, and the times that its column can hold.

Differences of time zone and precision are rounded so that no row is missed.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Literal

import sqlalchemy as sa

from ledger.errors import InputError, IntegrityError
from ledger.sources.sql.connection import SourceTable

Value = int | Decimal | date | str  # a datetime is a date
Range = tuple[Value | None, Value]

_DAY = timedelta(days=1)
_AHEAD = 2 * _DAY  # more than the easternmost zone, or a clock that is a little fast
_WESTERNMOST = timedelta(hours=12)
_NONE = timedelta(0)


@dataclass(frozen=True)
class TimestampForm:
    """The form in which a column of a cursor holds timestamps.

    ``step``: the column's precision, the least distance of two values.
    ``west``: how far behind UTC the clock of a session may be that sets a date, or a time without a
    zone.
    """

    kind: Literal["aware", "naive", "date"]
    step: timedelta
    west: timedelta = _NONE

    def at(self, instant: datetime) -> date:
        """Return a time as the column holds it; of dates, the last that is over everywhere."""
        earliest = instant.astimezone(UTC) - self.west
        if self.kind == "date":
            return earliest.date() - _DAY
        return earliest if self.kind == "aware" else earliest.replace(tzinfo=None)

    def before(self, instant: datetime) -> date:
        """Return a value below all that a transaction writes that began at ``instant``."""
        return self.at(instant) - (_NONE if self.kind == "date" else self.step)

    def last(self, now: datetime) -> date:
        """Return the greatest value that a row may have at ``now``."""
        end = now.astimezone(UTC) + _AHEAD
        if self.kind == "date":
            return end.date()
        return end if self.kind == "aware" else end.replace(tzinfo=None)


def timestamp_form(table: SourceTable) -> TimestampForm | None:
    """Return the form of the cursor's timestamps.

    None: the cursor holds whole or decimal numbers or text. Raises InputError when a column of its
    type cannot be a cursor.
    """
    kind = table.declared[table.source.cursor]
    west = _WESTERNMOST if table.typed else _NONE  # SQLite's clock gives UTC
    if isinstance(kind, sa.DateTime | sa.TIMESTAMP):
        digits = getattr(kind, "precision", None)
        step = timedelta(microseconds=10 ** (6 - (6 if digits is None else digits)))
        if kind.timezone:
            return TimestampForm("aware", step)
        return TimestampForm("naive", step, west)
    if isinstance(kind, sa.Date):
        return TimestampForm("date", _DAY, west)
    numeric = isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float)
    if numeric or isinstance(kind, sa.Integer | sa.String):
        return None
    raise InputError(
        f"{table.source.shown}: cursor {table.source.cursor!r} is of type {kind}: expected an "
        "integer, a numeric, a date, a timestamp or text that grows with every insert: choose such "
        "a column"
    )


def to_text(value: Value) -> str:
    """Return a cursor value as the ledger stores it: its kind and the value, as in ``int:42``.
    Raises TypeError for a value of any other type.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"datetime:{value.isoformat()}"
        return f"datetime:{value.astimezone(UTC).isoformat()}"
    if isinstance(value, date):
        return f"date:{value.isoformat()}"
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return f"{'int' if isinstance(value, int) else 'decimal'}:{value}"
    if isinstance(value, str):
        return f"str:{value}"
    raise TypeError(f"{type(value).__name__} is no type of a cursor's value")


def from_text(text: str) -> Value:
    """Return the value that ``to_text`` was given. Raises IntegrityError for any other text."""
    kinds = {
        "int": int,
        "decimal": Decimal,
        "date": date.fromisoformat,
        "datetime": datetime.fromisoformat,
        "str": str,
    }
    kind, colon, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    try:
        if not colon:
            raise KeyError(kind)
        value: Value = kinds[kind](rest)  # type: ignore[operator]
        return value
    except (KeyError, ValueError, InvalidOperation) as exc:
        raise IntegrityError(
            f"cursor value {text!r} in the ledger: expected one such as int:42 or "
            "datetime:2026-01-31T00:00:00+00:00"
        ) from exc
