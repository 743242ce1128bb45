"""Records of CSV whose quoted values may hold line breaks, cut line by line."""

import re
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from tempfile import TemporaryFile
from typing import IO

from ledger.sources.files import layouts as files
from ledger.sources.files.format import Format

MOST_LINES = 10_000  # of one record: one of more fails, and only so many of its lines are kept
TOO_LONG = (
    f"malformed csv: a quote is open for more than {MOST_LINES:,} lines, of which the first "
    f"{MOST_LINES:,} are kept"
)


class _Taken:
    """Lines that were read to find the end of a record.

    Lines past ``MOST_LINES`` are kept in a file, because they may be the rest of the source.
    """

    def __init__(self) -> None:
        self.first: list[str] = []
        self._further: IO[bytes] | None = None

    @property
    def is_long(self) -> bool:
        """Return whether these and the line before them are more than ``MOST_LINES``."""
        return self._further is not None

    def add(self, line: str) -> None:
        """Take one more line."""
        if self._further is None and len(self.first) < MOST_LINES - 1:
            self.first.append(line)
            return
        if self._further is None:
            self._further = TemporaryFile()  # noqa: SIM115 - it goes with this object
        self._further.write(files.encoded(line))

    def __iter__(self) -> Iterator[str]:
        yield from self.first
        if self._further is not None:
            self._further.seek(0)
            text = TextIOWrapper(self._further, "utf-8", "surrogateescape", newline="")
            yield from text


class _Lines:
    """Lines of a file that can be put back."""

    def __init__(self, lines: Iterator[str]):
        self._parts = [lines]

    def __iter__(self) -> Iterator[str]:
        while self._parts:
            line = next(self._parts[-1], None)
            if line is None:
                self._parts.pop()
            else:
                yield line

    def put_back(self, lines: Iterable[str]) -> None:
        """Return ``lines`` once more, before those that follow."""
        self._parts.append(iter(lines))


class Splitter:
    """Cuts lines into records.

    A line whose quote is never closed is a record of its own, which does not parse. The lines after
    it are read as if it were not there.
    """

    def __init__(self, form: Format):
        dialect = form.dialect
        self._quote = dialect.quote
        if not dialect.quote:  # nothing encloses a line break: each line is a record
            return
        field, opened = dialect.patterns
        separator, quote = re.escape(dialect.separator), re.escape(dialect.quote)
        begun = f"(?:{field}{separator})*+{opened}"
        within = opened.removeprefix(quote)  # the rest of a line that begins within quotes
        ended = f"{within}{quote}(?:{separator}{field})*+"
        still = f"{within}(?:{quote}{separator}{begun})?+"
        self._begun, self._ended, self._still = (
            re.compile(pattern, re.DOTALL) for pattern in (begun, ended, still)
        )

    def begins(self, line: str) -> bool:
        """Return whether a quote of a line, without its line break, is open at its end."""
        return bool(self._quote and self._quote in line and self._begun.fullmatch(line))

    def records(self, lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
        """Yield the records of ``lines`` without their last line break, and whether each has too
        many lines.

        A record of more than ``MOST_LINES`` lines has lost the rest. Empty lines between records
        are skipped.
        """
        source = _Lines(lines)
        for line in source:
            record = line.rstrip("\r\n")
            if self.begins(record):
                taken = _Taken()
                if self._closes(source, taken):
                    yield "".join([line, *taken.first]).rstrip("\r\n"), taken.is_long
                    continue
                source.put_back(taken)
            if record:
                yield record, False

    def _closes(self, source: Iterable[str], taken: _Taken) -> bool:
        """Take lines until the open quote closes or cannot close; return whether it closed."""
        for line in source:
            taken.add(line)
            if self._quote not in line:
                continue
            if self._ended.fullmatch(line.rstrip("\r\n")):
                return True
            if not self._still.fullmatch(line):
                break
        return False
