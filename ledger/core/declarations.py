"""Checks of the values that users declare and their functions return: faults, durations, JSON."""

import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from ledger.errors import DeclarationError, StageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHORTEST_KEEP_SECONDS = 86400.0  # so long after a run has ended its driver may still write
_LONGEST = timedelta(days=36500)  # so long from now on there still are dates

# A function that returns the fault of a declaration, or a false value, and its message, which may
# contain {it}, the declaration, and {culprit}, the fault.
Fault = tuple[Callable[[Any], Any], str]


def check(it: object, faults: Iterable[Fault]) -> None:
    """Raise DeclarationError for the first of ``faults`` that applies to a declaration."""
    for culprit_of, message in faults:
        culprit = culprit_of(it)
        if culprit:
            raise DeclarationError(message.format(it=it, culprit=culprit))


def seconds(duration: str | float | timedelta) -> float:
    """Return the seconds of ``90``, ``"90s"``, ``"1.5m"``, ``"1h"``, ``"2d"`` or a timedelta.

    Raises DeclarationError for any other text, and for more than a century.
    """
    if isinstance(duration, timedelta):
        length = duration.total_seconds()
    elif isinstance(duration, int | float):
        length = float(duration)
    else:
        match = _DURATION.fullmatch(duration.strip())
        length = float(match[1]) * _SECONDS[match[2]] if match else float("nan")
    if not length <= _LONGEST.total_seconds():  # or NaN, for another text
        raise DeclarationError(
            f"duration {duration!r}: expected for example 30s, 90m, 1h or 2d, at most"
            f" {_LONGEST.days}d"
        )
    return length


def keep_seconds(whose: str, keep: str | float | timedelta) -> float:
    """Return the seconds for which files are kept. Raises DeclarationError, which begins with
    ``whose`` they are, for less than a day.
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


def as_json(what: str, value: Any, expected: str) -> Any:
    """Return a value as it is after a round trip through JSON.

    ``what``: the function that returned the value, for messages.
    ``expected``: the expected value in words, for messages.

    Raises StageError if the value is not JSON.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as exc:
        raise StageError(f"{what} returned what is no JSON ({exc}): expected {expected}") from exc
