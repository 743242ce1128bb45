"""Durations as a user writes them."""

import re
from datetime import timedelta

from ledger.errors import DeclarationError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHORTEST_KEEP_SECONDS = 86400.0  # so long after a run has ended its driver may still write


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


def keep_seconds(whose: str, keep: str | float | timedelta) -> float:
    """Seconds for which files are kept. Raises DeclarationError, which names ``whose`` they are,
    unless that is a day at least.
    """
    try:
        duration = seconds(keep)
    except DeclarationError as exc:
        raise DeclarationError(f"{whose}, keep: {exc}") from exc
    if not SHORTEST_KEEP_SECONDS <= duration < float("inf"):
        raise DeclarationError(
            f"{whose}: keep={keep!r}: expected a day at least, for example 30d: so long after a run"
            " has ended its driver may still write. None keeps files permanently"
        )
    return duration
