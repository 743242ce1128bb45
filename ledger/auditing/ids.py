"""Ids of records: the number of the source, of its occurrence in a plan, and of the row.

A source that is joined with itself occurs twice in a plan. A record that was lost on the way that
its row takes could arrive by its twin, so each occurrence has ids of its own.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ROW_BITS, OCCURRENCE_BITS, SOURCE_BITS = 49, 6, 8
MAX_OCCURRENCES, MAX_SOURCES = 1 << OCCURRENCE_BITS, 1 << SOURCE_BITS
OCCURRENCE_MASK = (MAX_OCCURRENCES - 1) << ROW_BITS

Ids: TypeAlias = npt.NDArray[np.int64]
NO_IDS: Ids = np.empty(0, dtype=np.int64)


def first_id(source: int) -> int:
    """Return the smallest id of a source."""
    return source << (ROW_BITS + OCCURRENCE_BITS)


def tag(source: int, occurrence: int) -> int:
    """Return the number that identifies one occurrence of a source."""
    return (source << OCCURRENCE_BITS) + occurrence


def tags_of(ids: Ids) -> Ids:
    """Return the ``tag`` of each id."""
    return ids >> ROW_BITS


def sources_of(ids: Ids) -> Ids:
    """Return the number of each id's source."""
    return ids >> (ROW_BITS + OCCURRENCE_BITS)


def occurrences_of(ids: Ids) -> Ids:
    """Return the number of each id's occurrence."""
    return (ids & OCCURRENCE_MASK) >> ROW_BITS


def records_of(ids: Ids) -> Ids:
    """Return the distinct ids with their occurrence removed, sorted."""
    return distinct(ids & ~np.int64(OCCURRENCE_MASK))


def at_occurrence(records: Ids, occurrence: int) -> Ids:
    """Return the ids of records for one occurrence of their source."""
    return records | np.int64(occurrence << ROW_BITS)


def by_source(ids: Ids) -> Iterator[tuple[int, Ids]]:
    """Yield each source and its ids, in the given order."""
    sources = sources_of(ids)
    for source in distinct(sources):
        yield int(source), ids[sources == source]


def distinct(ids: Ids) -> Ids:
    """Return the distinct ids, sorted. ``np.unique`` is slow for consecutive ids, because it
    hashes.
    """
    if not (ids[1:] > ids[:-1]).all():
        ids = np.sort(ids)
        ids = ids[np.concatenate([[True], ids[1:] != ids[:-1]])]
    return ids


def union(arrays: Iterable[Ids]) -> Ids:
    """Return the distinct ids of several arrays, sorted."""
    return distinct(np.concatenate([NO_IDS, *arrays]))


def difference(ids: Ids, others: Ids) -> Ids:
    """Return the distinct ids that are not among others, sorted."""
    ids = distinct(ids)
    return ids[~np.isin(ids, distinct(others), assume_unique=True)]


def intersection(ids: Ids, others: Ids) -> Ids:
    """Return the distinct ids that are among others, sorted."""
    ids = distinct(ids)
    return ids[np.isin(ids, distinct(others), assume_unique=True)]
