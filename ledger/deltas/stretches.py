"""Stretches of a file: series of rows in which the roots ascend.

A task writes its rows as it reads them, and Spark lets a task read parts of several files. Each of
these parts then becomes a stretch, or continues the one before it after a gap. If no root is in two
stretches, each stretch is folded window by window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ledger.deltas.rows import Longs, Places
from ledger.storage.manifest import DataFile

MOST_STRETCHES = 100  # of a file; rows in more of them are gathered
MOST_GAPS = 64  # of a window's, the widest ones

Range = tuple[int, int]
Input = tuple[str, int]
"""A step that was read, and the position of one of its rows."""

Bound = TypeVar("Bound", int, Input)  # of a range


@dataclass(frozen=True)
class Stretches:
    """The stretches of one file: series of rows in which the roots ascend.

    ``ranges``: the least and the greatest root of each stretch, sorted and disjoint. A stretch is
    also cut at the widest gaps, because roots of other files may be in them.
    ``in_order``: the file has few stretches, and no two of them overlap.
    """

    ranges: tuple[Range, ...] = ()
    in_order: bool = True

    @classmethod
    def of(cls, windows: Iterable[Longs]) -> "Stretches":
        """Find the stretches of a file from its roots, which are read window by window."""
        ranges, many, last = list[Range](), 1, None
        for root in windows:
            if not len(root):
                continue
            down = descents(root)
            many += len(down) + (last is not None and int(root[0]) < last)
            parts = [root]
            if many <= MOST_STRETCHES:
                parts = np.split(root, np.union1d(down, _gaps(root)))
                if ranges and int(root[0]) == last:  # the window before ends within a root
                    parts[0] = np.append(parts[0], ranges.pop()[0])
            ranges += [(int(part.min()), int(part.max())) for part in parts]
            last = int(root[-1])
        apart = merge_ranges(ranges)
        return cls(apart, many <= MOST_STRETCHES and len(apart) == len(ranges))


def descents(root: Longs) -> Places:
    """Return the indexes of the roots that are less than the root before."""
    places: Places = np.flatnonzero(root[1:] < root[:-1]) + 1
    return places


def classify_files(
    files: Sequence[DataFile],
    stretches: Sequence[Stretches],
    groups_by_input: Sequence[Sequence[int]],
) -> tuple[list[DataFile], list[DataFile], list[DataFile]]:
    """Decide how to fold each file. Return the files to fold one by one, the files to fold
    together, and the files that are out of order.

    A file is folded together with others if it may share an input with another file, and its range
    of roots overlaps that of another file.

    ``groups_by_input``: groups of indexes of files that may share an input, from
    ``footers.groups_by_input``.
    """
    by_root, by_input = (
        {number for group in groups if len(group) > 1 for number in group}
        for groups in (overlapping_groups([some.ranges for some in stretches]), groups_by_input)
    )
    alone, together, unordered = list[DataFile](), list[DataFile](), list[DataFile]()
    for number, (file, some) in enumerate(zip(files, stretches, strict=True)):
        if number in by_root and number in by_input:
            together.append(file)
        else:
            (alone if some.in_order else unordered).append(file)
    return alone, together, unordered


def overlapping_groups(files: Sequence[Sequence[tuple[Bound, Bound]]]) -> list[list[int]]:
    """Group files whose ranges overlap, directly or through other files. Return the groups as lists
    of indexes into ``files``.

    ``files``: the ranges of each file, inclusive; those of one file do not overlap.
    """
    groups = {number: [number] for number in range(len(files))}
    last: Any = None
    holder = -1
    for first, end, number in sorted(
        (first, end, number) for number, ranges in enumerate(files) for first, end in ranges
    ):
        if holder >= 0 and first <= last and groups[number] is not groups[holder]:
            group = groups[holder]
            group += groups[number]
            groups.update(dict.fromkeys(groups[number], group))
        if holder < 0 or end > last:
            last, holder = end, number
    return list({id(group): group for group in groups.values()}.values())


def merge_ranges(ranges: Iterable[tuple[Bound, Bound]]) -> tuple[tuple[Bound, Bound], ...]:
    """Return the ranges sorted, with overlapping ones merged."""
    apart: list[tuple[Bound, Bound]] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(last, apart[-1][1])
        else:
            apart.append((first, last))
    return tuple(apart)


def _gaps(root: Longs) -> Places:
    """Return the indexes after the widest gaps between ascending roots."""
    bits = root.view(np.uint64)  # a difference of longs may be too much for one
    jumps = bits[1:] - bits[:-1]
    places = np.flatnonzero((jumps > 1) & (root[1:] > root[:-1]))
    if len(places) > MOST_GAPS:
        places = places[np.argpartition(jumps[places], -MOST_GAPS)[-MOST_GAPS:]]
    return places + 1
