"""Folds of files in windows of bounded memory.

A file whose rows are sorted by root, in one stretch or in several without a common root, is folded
window by window. Stages that shuffle nothing write such files. Rows in any other order, and rows of
files that may share an input, are first collected in memory and sorted by root.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ledger.deltas import stored, stretches
from ledger.deltas.rows import Longs
from ledger.deltas.stored import Part, joined
from ledger.deltas.stretches import descents
from ledger.errors import IntegrityError
from ledger.storage.folders import RUN_AGAIN
from ledger.storage.manifest import DataFile

MOST_PIECES = 16  # of a window that is gathered
SAMPLED = 1_000  # roots of a window, by which rows are cut into parts
Apply = Callable[..., Iterable[Any]]  # a function to each of several values: map, or a pool's


class Windowed(ABC):
    """Files whose anchors are folded by root, in windows of bounded memory.

    ``by_input``: whether rows that come from one input must be folded together.
    """

    by_input: bool

    @abstractmethod
    def parts(self, file: DataFile) -> Iterator[Part]:
        """Yield the rows of a file in stored order, window by window."""

    @abstractmethod
    def fold(self, part: Part) -> Any:
        """Fold the rows of a part. It has all rows that come from each of its inputs."""

    def fold_by_window(self, file: DataFile) -> Iterator[Any]:
        """Fold a file window by window, and yield the result of each fold. Rows of a window's last
        root are folded with the next window.

        Raises IntegrityError if ``by_input`` and the file is out of order. Without ``by_input``, a
        root may then be folded several times.
        """
        waiting: list[Part] = []  # rows of one root, the greatest so far
        for part in self.parts(file):
            for piece, is_ordered in _pieces(part, stretches.MOST_STRETCHES):
                if self.by_input and not is_ordered:
                    raise IntegrityError(f"{file.path} has changed under its fold. {RUN_AGAIN}")
                root = piece.rows.root
                if waiting and (not is_ordered or (len(root) and root[0] < _root(waiting))):
                    yield self.fold(joined(waiting))
                    waiting = []
                if waiting and len(root):
                    rest, piece = piece.cut(int(np.searchsorted(root, _root(waiting), "right")))
                    waiting.append(rest)
                    if not len(piece.rows):
                        continue
                    yield self.fold(joined(waiting))
                    waiting, root = [], piece.rows.root
                if len(root) and is_ordered:
                    piece, rest = piece.cut(int(np.searchsorted(root, root[-1], "left")))
                    waiting = [rest]
                if len(piece.rows) or piece.checksum.rows:
                    yield self.fold(piece)
        if waiting:
            yield self.fold(joined(waiting))

    def fold_together(self, files: Sequence[DataFile], each: Apply = map) -> Iterator[Any]:
        """Fold several files as one: read all rows, split them by root into parts of about a
        window, and fold each part.

        ``each``: maps a function over the files, then over the parts.
        """
        pieces = [piece for some in each(self._ordered, files) for piece in some]
        if pieces:
            borders = _borders([piece.rows.root for piece in pieces])
            parts = zip(*(piece.split(borders) for piece in pieces), strict=True)
            yield from each(lambda some: self.fold(joined(some)), parts)

    def _ordered(self, file: DataFile) -> list[Part]:
        """Read a file, and return its rows as pieces that are each sorted by root."""
        pieces = (piece for part in self.parts(file) for piece in _pieces(part, MOST_PIECES))
        return [piece if is_ordered else piece.ordered() for piece, is_ordered in pieces]


def _borders(pieces: Sequence[Longs]) -> Longs:
    """Return the roots at which to split ``pieces`` into parts of about a window, without the
    first. The roots may repeat if one root has many rows.

    ``pieces``: the roots of each piece, sorted.
    """
    parts = -(-sum(map(len, pieces)) // stored.WINDOW_ROWS)
    sample = np.concatenate([roots[:: stored.WINDOW_ROWS // SAMPLED + 1] for roots in pieces])
    sample.sort()
    return sample[np.arange(1, parts) * len(sample) // max(parts, 1)]


def _pieces(part: Part, most: int) -> Iterator[tuple[Part, bool]]:
    """Cut a window where its roots descend. Yield each piece with True, or, if there would be more
    than ``most`` pieces, the whole window with False.
    """
    places = descents(part.rows.root)
    if len(places) >= most:
        yield part, False
        return
    before = 0
    for place in places.tolist():
        piece, part = part.cut(place - before)
        yield piece, True
        before = place
    yield part, True


def _root(parts: Sequence[Part]) -> int:
    return int(parts[0].rows.root[0])
