"""Find the line of a source file that a record came from, if the file still says so."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import fsspec

MOST_BYTES = 64 << 20  # of a file that are looked at: a person waits for the answer
_PARQUET = b"PAR1"
_OTHER_FORMS = re.compile(r"\d{4}-\d\d-\d\d|[+-]?\d+\.\d+$")  # of dates, moments, decimals


@dataclass(frozen=True)
class Sought:
    """A record: its number in the file, from 1, and its content: if ``parsed``, JSON."""

    row: int
    content: str
    parsed: bool


def lines_of(path: str, sought: Sequence[Sought]) -> dict[int, int]:
    """The line of each record, from 1, by its number; those are left out whose line is not certain.

    A record is the line of its number, or with a header the next one, blank lines not counted; and
    only if that line holds what the record holds.
    """
    wanted = {one.row for one in sought} | {one.row + 1 for one in sought}
    try:
        found = dict(_lines(path, wanted))
    except (OSError, ValueError, EOFError):
        return {}
    places = {one.row: _places(one, found) for one in sought}
    return {row: place[0] for row, place in places.items() if len(place) == 1}


def _lines(path: str, wanted: set[int]) -> Iterator[tuple[int, tuple[int, str]]]:
    """The wanted lines that are not blank: their number among these, their line and text."""
    read = number = 0
    with fsspec.open(path, "rb", compression="infer") as stream:
        for line, raw in enumerate(stream, 1):
            read += len(raw)
            if read > MOST_BYTES or number >= max(wanted) or (line == 1 and raw[:4] == _PARQUET):
                return
            if raw.strip():
                number += 1
                if number in wanted:
                    yield number, (line, raw.rstrip(b"\r\n").decode(errors="replace"))


def _places(one: Sought, found: Mapping[int, tuple[int, str]]) -> list[int]:
    candidates = [found[number] for number in (one.row, one.row + 1) if number in found]
    return [line for line, text in candidates if _holds(text, one)]


def _holds(text: str, one: Sought) -> bool:
    """Whether a line is the text of a record, or has its texts and whole numbers."""
    if not one.parsed:
        return text.removeprefix("\ufeff") == one.content
    values = [value for value in json.loads(one.content).values() if _is_plain(value)]
    return bool(values) and all(_shown(value) in text for value in values)


def _is_plain(value: object) -> bool:
    """Whether a value stands in its line as it is here: dates, moments and fractions have other
    forms."""
    if isinstance(value, str):
        return _OTHER_FORMS.match(value) is None
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    # A quote is doubled in CSV and escaped in JSON: what stands before the first one is the same.
    return str(value).partition('"')[0].partition("\\")[0]
