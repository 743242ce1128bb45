"""In which stretches of a file the rows lie in the order of their roots.

A task writes its rows as it reads them, and Spark has a task read parts of several files: then each
of these is a stretch, or goes on the one before after a gap. Where no root is in two stretches each
is folded by itself, window by window.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ledger.deltas.rows import Longs
from ledger.storage.manifest import DataFile

MOST_STRETCHES = 100  # of a file; rows in more of them are gathered
MOST_GAPS = 64  # of a window's, the widest ones

Range = tuple[int, int]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Stretches:
    """``ranges``: in which the roots of a file lie, the least and the greatest of each; a range
    ends where roots descend, and at a wide gap: roots of other files may lie in it. ``in_order``:
    no root is in two of the file's stretches, and these are not too many.
    """

    ranges: tuple[Range, ...] = ()
    in_order: bool = True

    @classmethod
    def of(cls, windows: Iterable[Longs]) -> "Stretches":
        """Those of a file whose roots are these, window by window."""
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
        united = _united(ranges)
        return cls(united, many <= MOST_STRETCHES and len(united) == len(ranges))


def descents(root: Longs) -> Places:
    """The places of the roots that are less than the one before."""
    places: Places = np.flatnonzero(root[1:] < root[:-1]) + 1
    return places


def sort_out(
    files: Sequence[DataFile], stretches: Sequence[Stretches], related: Collection[int]
) -> tuple[list[DataFile], list[DataFile], list[DataFile]]:
    """The files that can be folded by themselves; those that have to be folded with others; and
    the rest, out of order. ``related``: which may share an input with another, by what else is
    known of them; those do so that may have a root in common, too.
    """
    shared = meeting([some.ranges for some in stretches]).intersection(related)
    ordered, together, unordered = list[DataFile](), list[DataFile](), list[DataFile]()
    for number, (file, some) in enumerate(zip(files, stretches, strict=True)):
        kind = together if number in shared else ordered if some.in_order else unordered
        kind.append(file)
    return ordered, together, unordered


def meeting(files: Sequence[Sequence[Range]]) -> set[int]:
    """The numbers of the files whose ranges meet those of another. Those of one do not meet."""
    numbers: set[int] = set()
    greatest: tuple[int, int] | None = None
    for first, last, number in sorted(
        (*some, number) for number, ranges in enumerate(files) for some in ranges
    ):
        if greatest is not None and first <= greatest[0]:
            numbers |= {number, greatest[1]}
        greatest = (last, number) if greatest is None else max(greatest, (last, number))
    return numbers


def _gaps(root: Longs) -> Places:
    """The places after the widest gaps between ascending roots."""
    bits = root.view(np.uint64)  # a difference of longs may be too much for one
    jumps = bits[1:] - bits[:-1]
    places = np.flatnonzero((jumps > 1) & (root[1:] > root[:-1]))
    if len(places) > MOST_GAPS:
        places = places[np.argpartition(jumps[places], -MOST_GAPS)[-MOST_GAPS:]]
    return places + 1


def _united(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges in their order, those that meet as one."""
    united: list[Range] = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1]:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return tuple(united)
