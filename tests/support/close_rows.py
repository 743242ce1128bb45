"""Rows that two engines or two plans computed, which differ in the last digits of numbers."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

Values = tuple[Any, ...]


def pairs(rows: Sequence[Values], others: Iterable[Values]) -> list[tuple[Values, Values]]:
    """Return each of the rows with an equal row of the others; no row is in two pairs.

    A row that has no equal is left out. Numbers are equal up to a relative and an absolute
    difference of 1e-6 and 1e-5.
    """
    others = list(others)
    inexact = {at for row in (*rows, *others) for at, value in enumerate(row) if _is_inexact(value)}
    free: dict[Values, list[Values]] = defaultdict(list)
    for other in others:
        free[_key(other, inexact)].append(other)
    result = []
    for row in rows:
        candidates = free[_key(row, inexact)]
        for at, other in enumerate(candidates):
            if all(_equal(row[column], other[column]) for column in inexact):
                result.append((row, candidates.pop(at)))
                break
    return result


def _is_inexact(value: object) -> bool:
    return isinstance(value, float | Decimal)


def _key(row: Values, inexact: set[int]) -> Values:
    return tuple(value is None if column in inexact else value for column, value in enumerate(row))


def _equal(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return value is other
    return math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-5)
