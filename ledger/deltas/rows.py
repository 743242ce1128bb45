"""Input of the kernel: rows of a step's files as numpy columns, one for each anchor of a row."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]  # numbers of rows
Selector = Places | Flags | slice  # numbers of rows, whether each is one, or a stretch

NONE = -1  # the code of no text


@dataclass(frozen=True)
class Texts:
    """A column of texts. ``codes``: for each row an index into ``words``, which are sorted, or
    ``NONE``.
    """

    codes: Codes
    words: tuple[str, ...]

    @classmethod
    def of(cls, codes: Codes, words: list[str]) -> "Texts":
        """Return the column with ``words`` sorted, so that the order of codes is the order of
        texts.
        """
        order = sorted(range(len(words)), key=words.__getitem__)
        places = np.full(len(words) + 1, NONE, np.int32)
        places[order] = np.arange(len(words), dtype=np.int32)
        return cls(places[codes], tuple(words[place] for place in order))  # NONE is the last place

    def __getitem__(self, places: "Selector") -> "Texts":
        """Return the texts of these rows. A slice has only the words of its own rows, so that each
        word of a column is in few of the column's slices.
        """
        codes = self.codes[places]
        if not isinstance(places, slice):
            return Texts(codes, self.words)
        occurs = np.zeros(len(self.words) + 1, bool)
        occurs[codes] = True  # NONE is the last place
        used = np.flatnonzero(occurs[:-1])
        own = np.full(len(occurs), NONE, np.int32)
        own[used] = np.arange(len(used), dtype=np.int32)
        return Texts(own[codes], tuple(self.words[word] for word in used.tolist()))


@dataclass(frozen=True)
class Rows:
    """Anchors of rows, as columns of equal length. A row has an anchor for each input row that it
    comes from.

    ``root``, ``parent``: the record, and the position of the input row.
    ``position``: the row's own position in its run, 64 bits.
    ``input``: the number of the input. None: the run has one input.
    ``first``: whether the anchor is its row's first of that root. None: each row has one anchor.
    ``shared``: whether the row has other roots as well.
    ``failed``, ``dropped``: the reason why the row goes no further.
    """

    root: Longs
    parent: Longs
    position: Longs
    input: Codes | None = None
    first: Flags | None = None
    shared: Flags | None = None
    failed: Texts | None = None
    dropped: Texts | None = None

    def __len__(self) -> int:
        return len(self.root)

    @property
    def goes_on(self) -> Flags | None:
        """Flags of the anchors that stand for an edge to each consumer: the first of their root in
        a row, unless the row is marked as failed or dropped. None: all anchors do.
        """
        flags = [mark.codes == NONE for mark in (self.failed, self.dropped) if mark is not None]
        flags += [] if self.first is None else [self.first]
        return np.logical_and.reduce(flags) if flags else None

    def take(self, places: "Selector") -> "Rows":
        """Return the rows at these indexes."""
        columns = [getattr(self, field.name) for field in fields(self)]
        taken: list[Any] = [None if column is None else column[places] for column in columns]
        return Rows(*taken)

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Concatenate parts of one run's rows. A column that a part lacks is null in its rows."""
        if len(parts) == 1:
            return parts[0]
        joined: list[Any] = []
        for field in fields(cls):
            columns = [getattr(part, field.name) for part in parts]
            if any(isinstance(column, Texts) for column in columns):
                joined.append(_joined_texts(columns, [len(part) for part in parts]))
            elif all(column is None for column in columns):
                joined.append(None)
            else:
                joined.append(np.concatenate(columns))
        return cls(*joined)


def _joined_texts(columns: Sequence[Texts | None], lengths: Sequence[int]) -> Texts:
    # Sorting sorted sequences one after the other merges them, which is faster than sorting a set.
    words = sorted(word for column in columns if column is not None for word in column.words)
    place = {word: number for number, word in enumerate(dict.fromkeys(words))}
    codes = []
    for column, length in zip(columns, lengths, strict=True):
        if column is None:
            codes.append(np.full(length, NONE, np.int32))
        else:
            places = np.array([*map(place.__getitem__, column.words), NONE], np.int32)
            codes.append(places[column.codes])
    return Texts(np.concatenate(codes), tuple(place))
