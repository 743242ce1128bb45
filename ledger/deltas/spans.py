"""Spans: aligned ranges of roots, of which a run has one row in the ledger.

XOR by span detects what XOR by root does: a span is 0, with equal counts, once all its roots are.
A span that is not is looked at root by root (``ledger.deltas.root_files``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ledger.deltas.kernel import Deltas, merge_deltas
from ledger.deltas.rows import Flags, Longs, Selector

MOST_SPANS = 1 << 16  # of a source's range, where the span is chosen


def span_of(roots: int) -> int:
    """Return the least power of two that divides the roots into at most ``MOST_SPANS`` spans."""
    return 1 << max(0, -(-roots // MOST_SPANS) - 1).bit_length()


@dataclass(frozen=True)
class RootRange:
    """The roots of one source of a batch, numbered from ``first_root``.

    ``span``: the number of roots of a span, a power of two; ``first_root`` is a multiple of it.
    """

    first_root: int
    roots: int
    span: int = 1

    @property
    def numbers(self) -> range:
        """The roots, as a range."""
        return range(self.first_root, self.first_root + self.roots)


class Spans:
    """The spans of a batch's roots. Each source has its own span length."""

    def __init__(self, ranges: Sequence[RootRange] = ()):
        self.ranges = tuple(sorted((some for some in ranges if some.roots), key=_first))
        self._first = np.array([some.first_root for some in self.ranges], np.int64)
        self._end = self._first + np.array([some.roots for some in self.ranges], np.int64)
        self._mask = ~np.array([some.span - 1 for some in self.ranges], np.int64)

    @property
    def by_root(self) -> bool:
        """Whether each root is a span of its own."""
        return all(some.span == 1 for some in self.ranges)

    def of(self, root: Longs) -> Longs:
        """Return the first root of each root's span. A root of no source is a span of its own."""
        if self.by_root or not len(root):
            return root
        inside, place = self._places(root)
        spans: Longs = np.where(inside, root & self._mask[place], root)
        return spans

    def shares(self, root: Longs) -> Flags:
        """Return a flag for each root, whether it is in a range with several roots per span."""
        if self.by_root:
            return np.zeros(len(root), bool)
        inside, place = self._places(root)
        flags: Flags = inside & (self._mask[place] != ~0)
        return flags

    def _places(self, root: Longs) -> tuple[Flags, Selector]:
        """Return a flag for each root, whether it is in a range, and the index of that range."""
        place = np.searchsorted(self._first, root, "right") - 1
        return (place >= 0) & (root < self._end[place]), place

    def to_spans(self, deltas: Deltas) -> Deltas:
        """Merge deltas by root into one delta per span. Fails and messages stay by root."""
        return merge_deltas([replace(deltas, root=self.of(deltas.root))])


def _first(some: RootRange) -> int:
    return some.first_root
