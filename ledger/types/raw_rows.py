"""Convert rows of Python values to JSON and back."""

import base64
import json
from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

_BASE64, _DECIMAL = "base64", "decimal"  # what a value is that JSON has no form for
_AS_IS = "json"  # a dict that stands for itself, and not for a value without a form of JSON


def raw(names: Sequence[str], row: Sequence[Any]) -> bytes:
    """Encode a row as JSON. ``from_raw`` decodes it."""
    values = [{_AS_IS: value} if isinstance(value, dict) else value for value in row]
    return json.dumps(dict(zip(names, values, strict=True)), default=as_json).encode()


def from_raw(names: Sequence[str], stored: bytes) -> Sequence[Any]:
    """Decode a row that ``raw`` encoded, and return the values of ``names``. A name that the row
    lacks is None.
    """
    record = json.loads(stored)
    return [_unwrapped(record.get(name)) for name in names]


def as_json(value: Any) -> Any:
    """Return a value that JSON cannot encode in a form that it can."""
    if is_bytes(value):
        return {_BASE64: base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {_DECIMAL: str(value)}
    return value.isoformat() if isinstance(value, date | time) else str(value)


def is_bytes(value: object) -> bool:
    """Return whether a value is bytes, a bytearray or a memoryview."""
    return isinstance(value, bytes | bytearray | memoryview)


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((form, content),) = value.items()
    if form == _BASE64:
        return base64.b64decode(content)
    return Decimal(content) if form == _DECIMAL else content
