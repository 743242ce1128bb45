"""Rows of an answer as the frozen dataclass that its statement fills, column by column."""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Result

T = TypeVar("T")


def all_of(kind: Callable[..., T], answer: Result[Any]) -> list[T]:
    """Return every row."""
    return [kind(**row._mapping) for row in answer]


def one_of(kind: Callable[..., T], answer: Result[Any]) -> T:
    """Return the only row."""
    return kind(**answer.one()._mapping)


def first_of(kind: Callable[..., T], answer: Result[Any]) -> T | None:
    """Return the first row; None: there is none."""
    row = answer.first()
    return None if row is None else kind(**row._mapping)
