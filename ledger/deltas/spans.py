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
    """The least power of two by which so many roots have at most ``MOST_SPANS`` spans."""
    return 1 << max(0, -(-roots // MOST_SPANS) - 1).bit_length()


@dataclass(frozen=True)
class RootRange:
    """The roots of one source of a batch, from ``first_root`` on. ``span``: a power of two, to
    which ``first_root`` is aligned.
    """

    first_root: int
    roots: int
    span: int = 1

    @property
    def numbers(self) -> range:
        """The number of each root."""
        return range(self.first_root, self.first_root + self.roots)


class Spans:
    """The spans of a batch's roots, those of each source by that one's own."""

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
        """The first root of the span of each root; of one that is no source's, itself."""
        if self.by_root or not len(root):
            return root
        inside, place = self._places(root)
        spans: Longs = np.where(inside, root & self._mask[place], root)
        return spans

    def shares(self, root: Longs) -> Flags:
        """Whether each root is of a range in which roots share a span."""
        if self.by_root:
            return np.zeros(len(root), bool)
        inside, place = self._places(root)
        flags: Flags = inside & (self._mask[place] != ~0)
        return flags

    def _places(self, root: Longs) -> tuple[Flags, Selector]:
        """Whether each root is in a range, and in which."""
        place = np.searchsorted(self._first, root, "right") - 1
        return (place >= 0) & (root < self._end[place]), place

    def to_spans(self, deltas: Deltas) -> Deltas:
        """Return the deltas with one for each span; fails and messages stay those of roots."""
        return merge_deltas([replace(deltas, root=self.of(deltas.root))])


def _first(some: RootRange) -> int:
    return some.first_root
