"""Instants as a cursor holds them: time zones and precision, always to the safe side."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection, text

from ledger.errors import InputError
from ledger.sources.table.connection import SourceTable

_DAY = timedelta(days=1)
_WESTERNMOST = timedelta(hours=12)  # where a date begins and ends last
_NONE = timedelta(0)


@dataclass(frozen=True)
class TimestampForm:
    """How a column holds timestamps. ``step``: its precision, the distance of two values. ``zone``:
    the distance to UTC of the server's own time zone, in which a timestamp without one may have
    been set.
    """

    kind: Literal["aware", "naive", "date"]
    step: timedelta
    zone: timedelta = _NONE

    def at(self, instant: datetime) -> date:
        """The value of a time; of a date the last that was over everywhere."""
        utc = instant.astimezone(UTC)
        if self.kind == "date":
            return (utc - _WESTERNMOST).date() - _DAY
        return utc if self.kind == "aware" else utc.replace(tzinfo=None) + min(self.zone, _NONE)

    def before(self, instant: datetime) -> date:
        """A value below all that a transaction writes which began at ``instant``."""
        return self.at(instant) - (_NONE if self.kind == "date" else self.step)

    def past(self, clock: datetime) -> date:
        """The greatest value that is not of the future at ``clock``."""
        if self.kind != "naive":
            return self.before(clock)
        return self.before(clock) + max(self.zone, _NONE) - min(self.zone, _NONE)


def timestamp_form(connection: Connection, table: SourceTable) -> TimestampForm | None:
    """How the cursor's column holds timestamps; None if it holds whole or decimal numbers or text.

    Raises InputError when a column of its type cannot be a cursor.
    """
    kind = table.declared[table.source.cursor]
    if isinstance(kind, sa.DateTime | sa.TIMESTAMP):
        digits = getattr(kind, "precision", None)
        step = timedelta(microseconds=10 ** (6 - (6 if digits is None else digits)))
        if kind.timezone:
            return TimestampForm("aware", step)
        return TimestampForm("naive", step, _server_zone(connection))
    if isinstance(kind, sa.Date):
        return TimestampForm("date", _DAY)
    numeric = isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float)
    if numeric or isinstance(kind, sa.Integer | sa.String):
        return None
    raise InputError(
        f"{table.source.shown}: cursor {table.source.cursor!r} is of type {kind}: expected an "
        "integer, a numeric, a date, a timestamp or text that grows with every insert: choose such "
        "a column"
    )


def _server_zone(connection: Connection) -> timedelta:
    if connection.dialect.name != "postgresql":
        return _NONE
    zone = connection.execute(text("SELECT now()::timestamp - timezone('UTC', now())")).scalar_one()
    assert isinstance(zone, timedelta)
    return zone
