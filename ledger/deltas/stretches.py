"""Stretches of a file in which the rows are in the order of their roots.

A task writes its rows as it reads them, and Spark has a task read parts of several files: then each
of these is a stretch, or continues the one before after a gap. Where no root is in two stretches,
each stretch is folded by itself, window by window.
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
    """``ranges``: the roots of a file lie in these, each with its least and its greatest root. A
    range ends where roots descend, and at a wide gap, in which roots of other files may lie.
    ``in_order``: the file has few stretches, and their ranges do not meet.
    """

    ranges: tuple[Range, ...] = ()
    in_order: bool = True

    @classmethod
    def of(cls, windows: Iterable[Longs]) -> "Stretches":
        """Return the stretches of a file with these roots, window by window."""
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
    """The places of the roots that are less than the one before."""
    places: Places = np.flatnonzero(root[1:] < root[:-1]) + 1
    return places


def sort_out(
    files: Sequence[DataFile], stretches: Sequence[Stretches], related: Sequence[Sequence[int]]
) -> tuple[list[DataFile], list[DataFile], list[DataFile]]:
    """The files that are folded by themselves, those that are folded together, and the rest, out of
    order. ``related``: the files, by number, in groups that share no input, by what else is known
    of them. A file is folded with others if it is not alone in its group, and its roots meet those
    of another file.
    """
    by_root, by_input = (
        {number for group in groups if len(group) > 1 for number in group}
        for groups in (meeting([some.ranges for some in stretches]), related)
    )
    alone, together, unordered = list[DataFile](), list[DataFile](), list[DataFile]()
    for number, (file, some) in enumerate(zip(files, stretches, strict=True)):
        if number in by_root and number in by_input:
            together.append(file)
        else:
            (alone if some.in_order else unordered).append(file)
    return alone, together, unordered


def meeting(files: Sequence[Sequence[tuple[Bound, Bound]]]) -> list[list[int]]:
    """The numbers of the files in groups: ranges of files of different groups do not meet. The
    ranges of a file do not meet each other.
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
    """The ranges in their order, those that meet as one."""
    apart: list[tuple[Bound, Bound]] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(last, apart[-1][1])
        else:
            apart.append((first, last))
    return tuple(apart)


def _gaps(root: Longs) -> Places:
    """The places after the widest gaps between ascending roots."""
    bits = root.view(np.uint64)  # a difference of longs may be too much for one
    jumps = bits[1:] - bits[:-1]
    places = np.flatnonzero((jumps > 1) & (root[1:] > root[:-1]))
    if len(places) > MOST_GAPS:
        places = places[np.argpartition(jumps[places], -MOST_GAPS)[-MOST_GAPS:]]
    return places + 1
