"""Options of a pipeline, checked when it is declared."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from ledger.errors import DeclarationError, suggestion

# What is expected of an option: whether a value is it, and in words.
_LIMITS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("max_replays", lambda value: value >= 0, "0 or more"),
    ("tracking", lambda value: type(value) is bool, "True or False"),
    ("one_plan", lambda value: type(value) is bool, "True or False"),
    ("hold_above", lambda value: value is None or 0 <= value <= 1, "0 to 1, or None"),
    (
        "allow_failed",
        lambda value: 0 <= value < 1,
        "a share of the records, from 0 to less than 1, for example 0.01",
    ),
    ("max_anchors", lambda value: value >= 1, "1 or more"),
    ("max_pending", lambda value: value is None or value >= 1, "1 or more, or None"),
    ("replay_limit", lambda value: value is None or value >= 1, "1 or more, or None"),
)

Choice = TypeVar("Choice", bound=StrEnum)


def option(pipeline: str, name: str, choices: type[Choice], value: str) -> Choice:
    """Return the member of ``choices`` that an option names. Raises DeclarationError for any other
    value.
    """
    try:
        return choices(value)
    except ValueError as exc:
        raise DeclarationError(
            f"pipeline {pipeline!r}:"
            f" {name}={value!r}{suggestion(value, [choice.value for choice in choices])}"
        ) from exc


def check_limits(pipeline: str, options: Mapping[str, Any]) -> None:
    """Raise DeclarationError for an option outside of its limits."""
    for name, holds, expected in _LIMITS:
        if not holds(options[name]):
            raise DeclarationError(
                f"pipeline {pipeline!r}: {name}={options[name]!r}: expected {expected}"
            )
