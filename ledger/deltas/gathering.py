"""Gathers rows of files in memory, sorted by root, whatever order the files have."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ledger.deltas import stored
from ledger.deltas.rows import Longs
from ledger.deltas.stored import Part, joined
from ledger.storage.manifest import DataFile

SAMPLED = 1_000  # roots of a window, by which rows are cut into parts
Apply = Callable[..., Iterable[Any]]  # a function to each of several values: map, or a pool's


def fold_by_root(
    files: Sequence[DataFile],
    read: Callable[[DataFile], Iterator[Part]],
    fold: Callable[[Part], Any],
    each: Apply,
) -> Iterator[Any]:
    """Fold several files as one: read all rows, split them by root into parts of about a window,
    and fold each part.

    ``read``: yields the rows of a file, window by window.
    ``each``: maps a function over the files, then over the parts.
    """

    def ordered(file: DataFile) -> list[Part]:
        return [part.ordered() for part in read(file)]

    pieces = [piece for some in each(ordered, files) for piece in some]
    if pieces:
        borders = _borders([piece.rows.root for piece in pieces])
        parts = zip(*(piece.split(borders) for piece in pieces), strict=True)
        yield from each(lambda some: fold(joined(some)), parts)


def _borders(pieces: Sequence[Longs]) -> Longs:
    """Return the roots at which to split ``pieces`` into parts of about a window, without the
    first. The roots may repeat if one root has many rows.

    ``pieces``: the roots of each piece, sorted.
    """
    parts = -(-sum(map(len, pieces)) // stored.WINDOW_ROWS)
    sample = np.concatenate([roots[:: stored.WINDOW_ROWS // SAMPLED + 1] for roots in pieces])
    sample.sort()
    return sample[np.arange(1, parts) * len(sample) // max(parts, 1)]
