"""Durations as a user writes them."""

import re
from datetime import timedelta

from ledger.errors import DeclarationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration: str | float | timedelta) -> float:
    """Seconds of ``90``, ``"90s"``, ``"1.5m"``, ``"1h"``, ``"2d"`` or a timedelta."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float):
        return float(duration)
    match = _DURATION.fullmatch(duration.strip())
    if match is None:
        raise DeclarationError(f"duration {duration!r}: expected for example 30s, 90m, 1h or 2d")
    return float(match[1]) * _SECONDS[match[2]]
