"""Faults of declarations, as a table of checks and messages."""

from collections.abc import Callable, Iterable
from typing import Any

from ledger.errors import DeclarationError

# What is wrong with a declaration, false if nothing is; and the message, with {it}, the
# declaration, and {culprit}, what is wrong.
Fault = tuple[Callable[[Any], Any], str]


def check(it: object, faults: Iterable[Fault]) -> None:
    """Raise DeclarationError for the first fault that a declaration has."""
    for culprit_of, message in faults:
        culprit = culprit_of(it)
        if culprit:
            raise DeclarationError(message.format(it=it, culprit=culprit))
