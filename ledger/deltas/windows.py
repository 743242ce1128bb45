"""Which rows are folded together: all that come from one input, however a run wrote them.

Where the rows of a file lie in the order of their roots, which is how a stage writes them that
shuffles nothing, a file is folded window by window, and needs the memory of one. Rows in any other
order, and those of files that share an input, are gathered in memory by root first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ledger.deltas import stored
from ledger.deltas.stored import Part, joined
from ledger.storage.manifest import DataFile

Apply = Callable[..., Iterable[Any]]  # a function to each of several values: map, or a pool's


class UnorderedError(Exception):
    """The rows of a file do not lie in the order of their roots."""


class Windowed(ABC):
    """Files whose rows are folded by what they come from."""

    @abstractmethod
    def parts(self, file: DataFile) -> Iterator[Part]:
        """The rows of a file as they lie, window by window."""

    @abstractmethod
    def fold(self, part: Part) -> Any:
        """What rows add, all of each of their inputs."""

    def in_order(self, file: DataFile) -> Iterator[Any]:
        """What a file adds, window by window; the rows of the last root of one wait for the next.

        Raises UnorderedError at the first row that does not lie in the order of the roots.
        """
        waiting: list[Part] = []  # rows of one root, the greatest so far
        for part in self.parts(file):
            root = part.rows.root
            if np.any(root[1:] < root[:-1]):
                raise UnorderedError(file.path)
            if waiting and len(root):
                last = waiting[0].rows.root[0]
                if root[0] < last:
                    raise UnorderedError(file.path)
                rest, part = part.cut(int(np.searchsorted(root, last, "right")))
                waiting.append(rest)
                if not len(part.rows):
                    continue
                yield self.fold(joined(waiting))
                waiting, root = [], part.rows.root
            if len(root):
                part, rest = part.cut(int(np.searchsorted(root, root[-1], "left")))
                waiting = [rest]
            if len(part.rows) or part.seen.rows:
                yield self.fold(part)
        if waiting:
            yield self.fold(joined(waiting))

    def as_they_lie(self, file: DataFile) -> Iterator[Any]:
        """What a file adds, window by window, where each row is folded by itself: a root may
        recur.
        """
        return map(self.fold, self.parts(file))

    def gathered(self, files: Sequence[DataFile], each: Apply = map) -> Iterator[Any]:
        """What files add together: their rows are scattered by root into parts of about a window,
        each of which is folded by itself. ``each``: how the files, and then the parts, are gone
        through.
        """
        rows = sum(file.rows for file in files)
        buckets = 1 << max(0, (rows - 1) // stored.WINDOW_ROWS).bit_length()

        def scattered(file: DataFile) -> list[list[Part]]:
            return [part.scattered(buckets) for part in self.parts(file)]

        pieces = [part for parts in each(scattered, files) for part in parts]
        if pieces:
            yield from each(lambda bucket: self.fold(joined(bucket)), zip(*pieces, strict=True))
