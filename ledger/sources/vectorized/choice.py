"""Choose the reader of a text by columns."""

from collections.abc import Callable

from ledger.sources.files.lines import Format
from ledger.sources.vectorized import csv, json_lines
from ledger.sources.vectorized.lines import Lines, Read

_READERS = {"csv": csv, "json": json_lines}


def reader_of(form: Format) -> Callable[[Lines, Format], Read] | None:
    """Return the function that reads records of a form by columns; None: they cannot be."""
    reader = _READERS[form.format]
    return reader.read if reader.reads(form) else None
