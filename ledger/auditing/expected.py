"""Losses that a user expects: a JSON file with one entry for each, and the losses it covers."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ledger.errors import InputError

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class ExpectedLoss:
    """A loss that a user expects.

    Attributes:
        file: the file of the operation. Lines are left out, because they move.
        source: the name of the source.
        operation: the operation that loses the records.
        reason: the text of the reason.
        at_most: the greatest number of records.
        why: a text for people.
    """

    file: str
    source: str
    operation: str
    reason: str
    at_most: int
    why: str = ""

    @property
    def key(self) -> Key:
        """The parts that identify the loss in several runs."""
        return self.file, self.source, self.operation, self.reason

    @property
    def text(self) -> str:
        """The entry for a terminal."""
        return f"{self.operation} in {self.file}, {self.source}: {self.reason}"


def read_expected(path: str | Path) -> list[ExpectedLoss]:
    """Read entries. Raises InputError for a file that cannot be read or has another form, and for
    two entries about the same loss.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the expected losses cannot be read: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: expected a list in JSON: {error}. {_ADVICE}") from error
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list, found {_kind(entries)}. {_ADVICE}")
    expected = [_entry(path, at + 1, entry) for at, entry in enumerate(entries)]
    numbers: dict[Key, int] = {}
    for at, entry in enumerate(expected):
        first = numbers.setdefault(entry.key, at + 1)
        if first != at + 1:
            raise InputError(
                f"{path}: entries {first} and {at + 1} are about the same loss, {entry.text}: "
                "remove one of them"
            )
    return expected


def write_expected(path: str | Path, entries: Iterable[ExpectedLoss]) -> None:
    """Write entries in the form that ``read_expected`` reads. Raises InputError if the file cannot
    be written.
    """
    text = json.dumps([asdict(entry) for entry in entries], indent=2, ensure_ascii=False)
    try:
        Path(path).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: the expected losses cannot be written: {error}") from error


_ADVICE = "An audit writes such a file: --write-expected FILE, or report.write_expected(path)"
_KINDS = {bool: "true or false", dict: "an object", list: "a list", str: "a text", int: "a number"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null" if value is None else "a number")


def _entry(path: str | Path, number: int, entry: Any) -> ExpectedLoss:
    where = f"{path}: entry {number}"
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object, found {_kind(entry)}. {_ADVICE}")
    names = [field.name for field in fields(ExpectedLoss)]
    unknown = sorted(set(entry) - set(names))
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}: expected {', '.join(names)}")
    missing = [name for name in names if name not in entry and name != "why"]
    if missing:
        raise InputError(f"{where}: {missing[0]!r} is missing: expected {', '.join(names)}")
    for name, value in entry.items():
        if name != "at_most" and not isinstance(value, str):
            raise InputError(f"{where}: {name!r}: expected a text, found {_kind(value)}")
    at_most = entry["at_most"]
    if type(at_most) is not int or at_most < 0:
        raise InputError(f"{where}: 'at_most': expected a whole number from 0, found {at_most!r}")
    return ExpectedLoss(**entry)
