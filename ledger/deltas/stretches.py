"""In which stretches of a file the rows lie in the order of their roots.

A task writes its rows as it reads them, and Spark has a task read parts of several files: then each
of these is a stretch, or goes on the one before after a gap. Where no root is in two stretches each
is folded by itself, window by window.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ledger.deltas.rows import Flags, Longs
from ledger.storage.manifest import DataFile

MOST_STRETCHES = 100  # of a file; rows in more of them are gathered
GAPS = 64  # of a window that are told apart

Range = tuple[int, int]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Stretches:
    """``ranges``: the least and the greatest root of each stretch of a file, no root in two of
    them; of one with wide gaps, in which roots of other files may lie, those of what is between.
    Not ``in_order``: there are too many, or they overlap; the one range is that of all rows.
    """

    ranges: tuple[Range, ...] = ()
    in_order: bool = True

    @classmethod
    def of(cls, windows: Iterable[Longs]) -> "Stretches":
        """Those of a file whose roots are these, window by window."""
        ranges, many = list[Range](), 1
        for root in windows:
            if not len(root):
                continue
            down = root[1:] < root[:-1]
            is_below = bool(ranges) and bool(root[0] < ranges[-1][1])
            many += int(np.count_nonzero(down)) + is_below
            if many > MOST_STRETCHES:
                ranges = [_whole([*ranges, (int(root.min()), int(root.max()))])]
            else:
                new = _ranges(root, down)
                if ranges and ranges[-1][1] == root[0]:  # the window before ends within it
                    new[0] = ranges.pop()[0], new[0][1]
                ranges += new
        overlap = any(after[0] <= before[1] for before, after in pairwise(sorted(ranges)))
        if ranges and (many > MOST_STRETCHES or overlap):
            return cls((_whole(ranges),), in_order=False)
        return cls(tuple(ranges))


def _ranges(root: Longs, down: Flags) -> list[Range]:
    """Those of one window. A gap is wide that is more than a part of all of its roots' range."""
    wide = np.uint64((int(root.max()) - int(root.min())) // GAPS + 1)
    bits = root.view(np.uint64)  # a difference of longs may be too much for one
    cuts = down | (bits[1:] - bits[:-1] > wide)
    starts = np.array([0, *(np.flatnonzero(cuts) + 1)])
    ends = np.append(starts[1:], len(root)) - 1
    return list(zip(root[starts].tolist(), root[ends].tolist(), strict=True))


def descents(root: Longs) -> Places:
    """The places of the roots that are less than the one before."""
    places: Places = np.flatnonzero(root[1:] < root[:-1]) + 1
    return places


def sorted_out(
    files: Sequence[DataFile], stretches: Sequence[Stretches], *, by_input: bool
) -> tuple[list[DataFile], list[DataFile], list[DataFile]]:
    """The files that can be folded by themselves; those that may have a root in common with
    another, which matters where rows are folded ``by_input``; and the others, out of order.
    """
    shared = _sharing(stretches) if by_input else set()
    ordered, together, unordered = list[DataFile](), list[DataFile](), list[DataFile]()
    for number, (file, some) in enumerate(zip(files, stretches, strict=True)):
        kind = together if number in shared else ordered if some.in_order else unordered
        kind.append(file)
    return ordered, together, unordered


def _sharing(stretches: Sequence[Stretches]) -> set[int]:
    """The numbers of those that may have a root in common with others."""
    shared: set[int] = set()
    spans = sorted((*span, number) for number, some in enumerate(stretches) for span in some.ranges)
    greatest = None
    for first, last, number in spans:
        if greatest is not None and first <= greatest[0]:
            shared |= {number, greatest[1]}
        greatest = (last, number) if greatest is None else max(greatest, (last, number))
    return shared


def _whole(ranges: Sequence[Range]) -> Range:
    return min(first for first, _ in ranges), max(last for _, last in ranges)
