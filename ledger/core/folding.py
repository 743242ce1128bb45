"""Find texts whatever their case and Unicode form, and cover them where they stand."""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from unicodedata import combining, normalize

_WORD = re.compile(r"\w")


def fold(text: str) -> str:
    """A text as it is compared. Equal for all its cases, also where these differ in length
    (``Straße`` and ``STRASSE``), with or without the dot of a Turkish i, and for both forms of an
    accent.
    """
    cased = normalize("NFD", text).upper().casefold()
    return normalize("NFD", cased).replace("i\u0307", "i")


class FoldedText:
    """A text that is searched by its folded form. A character is covered together with the accents
    that follow it, and as a whole where only a part of what it folds to is found (a ligature).
    """

    def __init__(self, text: str):
        self._text = text
        starts = [place for place, sign in enumerate(text) if place == 0 or _begins(sign)]
        self._bounds = [*starts, len(text)]
        if text.isascii():
            self.folded = fold(text)
            self._owners: Sequence[int] = range(len(text))
            return
        pieces = [fold(text[a:b]) for a, b in zip(starts, self._bounds[1:], strict=True)]
        self.folded = "".join(pieces)
        owners = (repeat(number, len(piece)) for number, piece in enumerate(pieces))
        self._owners = list(chain.from_iterable(owners))

    def covered(self, values: Collection[str], long: int, mask: str) -> str:
        """The text with ``mask`` for each of these folded values; those of fewer than ``long``
        characters are found as whole words alone."""
        parts, place = [], 0
        for start, end in sorted(span for value in values for span in self._spans(value, long)):
            if start >= place:
                parts += [self._text[place:start], mask]
            place = max(place, end)
        return "".join([*parts, self._text[place:]])

    def without_beginning(self, values: Collection[str], mask: str) -> str:
        """The text with ``mask`` for the beginning of a folded value at its end."""
        most = max(_begun(self.folded, value) for value in values)
        if not most:
            return self._text
        return f"{self._text[: self._span(len(self.folded) - most, len(self.folded))[0]]}{mask}"

    def _spans(self, value: str, long: int) -> Iterator[tuple[int, int]]:
        """Where a folded value stands, by the text's own places."""
        start = self.folded.find(value)
        while start >= 0:
            end = start + len(value)
            around = self.folded[max(start - 1, 0) : start], self.folded[end : end + 1]
            if len(value) >= long or not any(map(_WORD.match, around)):
                yield self._span(start, end)
            start = self.folded.find(value, start + 1)

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self._bounds[self._owners[start]], self._bounds[self._owners[end - 1] + 1]


@lru_cache(maxsize=4096)
def _begins(sign: str) -> bool:
    """Whether a character stands by itself: no accent of the one before it."""
    return combining(normalize("NFD", sign)[0]) == 0


def _begun(text: str, value: str) -> int:
    """How many characters at the end of a text are the beginning of a value."""
    most = min(len(text), len(value))
    return next((n for n in range(most, 0, -1) if text.endswith(value[:n])), 0)
