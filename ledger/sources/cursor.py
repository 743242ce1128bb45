"""Values of a cursor, as the ledger keeps them."""

from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from ledger.errors import IntegrityError

Value = int | Decimal | date | str  # a datetime is a date
Range = tuple[Value | None, Value]


def to_text(value: Value) -> str:
    """A cursor value as the ledger keeps it: its kind and the value, as in ``int:42``."""
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
    """The value of ``to_text``. Raises IntegrityError when the text is none of those."""
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
