"""Find the line of a source file that a record came from, if the file still has it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledger.sources.base import Sought
from ledger.sources.files.format import Dialect
from ledger.sources.listing import opened

MOST_BYTES = 64 << 20  # of a file that are looked at: a person waits for the answer
_PARQUET = b"PAR1"
_BLANKS = b" \t\r\f\v\n"  # a line of JSON that holds no more is no record
_OTHER_FORMS = re.compile(r"\d{4}-\d\d-\d\d|[+-]?\d+\.\d+\Z")  # of dates, timestamps, decimals


def lines_of(path: str, sought: Sequence[Sought], layout: Mapping[str, Any]) -> dict[int, int]:
    """Return the line of each record in its file, from 1, by the record's number.

    A record's line is the one with its number or, with a header, the next; lines that are no
    records do not count. Records whose line is gone or has other content are left out.

    ``layout``: the layout of the record's source.
    """
    if layout.get("multiline") or layout.get("format") not in ("csv", "json"):
        return {}  # a record is not a line
    wanted = {record.row for record in sought} | {record.row + 1 for record in sought}
    try:
        lines = dict(_lines(path, wanted, _BLANKS if layout["format"] == "json" else b"\r\n"))
    except (OSError, ValueError, EOFError):
        return {}
    by_row = {}
    for record in sought:
        near = [lines[number] for number in (record.row, record.row + 1) if number in lines]
        places = [line for line, text in near if _holds(text, record, layout)]
        if len(places) == 1:
            by_row[record.row] = places[0]
    return by_row


def _lines(path: str, wanted: set[int], blanks: bytes) -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield the wanted lines that hold more than ``blanks``: their number among these, their line
    in the file, and their text.
    """
    read = number = 0
    with opened(path) as stream:
        for line, raw in enumerate(stream, 1):
            read += len(raw)
            if read > MOST_BYTES or number >= max(wanted) or (line == 1 and raw[:4] == _PARQUET):
                return
            if raw.strip(blanks):
                number += 1
                if number in wanted:
                    text = raw.rstrip(b"\r\n").decode(errors="replace")
                    yield number, (line, text.removeprefix("\ufeff"))


def _holds(text: str, record: Sought, layout: Mapping[str, Any]) -> bool:
    """Return whether a line is the text of a record, or has the record's texts and whole numbers as
    its fields.
    """
    if not record.parsed:
        return text == record.content
    plain = {name: value for name, value in json.loads(record.content).items() if _is_plain(value)}
    try:
        if layout["format"] == "json":
            fields = json.loads(text)
            return bool(plain) and all(fields.get(name) == plain[name] for name in plain)
    except (ValueError, TypeError, AttributeError):
        return False
    fields = Counter(Dialect(layout).texts(text) or ())
    return bool(plain) and Counter(map(str, plain.values())) <= fields


def _is_plain(value: object) -> bool:
    """Return whether a value is written in its line as it is here. Dates, timestamps and fractions
    have other forms.
    """
    if isinstance(value, str):
        return _OTHER_FORMS.match(value) is None
    return isinstance(value, int) and not isinstance(value, bool)
