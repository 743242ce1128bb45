"""The files of the Pollock benchmark: how each is declared, and what a right loader reads of it."""

import csv
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql.types import StringType, StructField, StructType

from ledger import FileSource
from tests.polluted.comparison import Row

MOST_FILES = 250  # of one batch
_MADE_UP = re.compile(r"\s*col_\d+")  # what clean files call the columns of files without header
_ONE_ROW = "one row"
# What was done to a made file, by how its name begins.
KINDS = {
    "row_more_sep": f"{_ONE_ROW} has a separator more",
    "row_less_sep": f"{_ONE_ROW} has a separator less",
    "row_extra_quote": f"{_ONE_ROW} has a quote more",
    "row_field_delimiter": f"{_ONE_ROW} has other separators",
    "file_field_delimiter": "other separators",
    "file_quotation": "another quote",
    "file_escape": "another escape, or none",
    "file_record_delimiter": "other line ends",
    "file_multitable": "a second table below the first",
    "file_preamble": "lines before the header",
    "file_header_multirow": "a header of several lines",
    "file_no_header": "no header",
    "file": "other sizes and ends of the file",
    "source": "unpolluted",
}
AS_IT_IS = "as it is on the web"
# Rows of clean files, from 1, that have not what the file has, for no reason.
_MISTAKEN = {"O18_air.csv": [19]}


@contextmanager
def _any_length() -> Iterator[None]:
    """Python's module reads values of any length meanwhile: a stray quote may take in a file."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@dataclass(frozen=True)
class Dialect:
    """What is declared of a file: from its parameters, and ``multiline`` where a clean value has
    line breaks.
    """

    names: tuple[str, ...]
    header: bool
    separator: str
    quote: str
    escape: str
    multiline: bool

    def source(self, path: str) -> FileSource:
        """The source of such files; all columns are texts."""
        options = {"sep": self.separator, "quote": self.quote, "escape": self.escape}
        schema = StructType([StructField(name, StringType()) for name in self.names])
        return FileSource(
            path, schema=schema, header=self.header, multiline=self.multiline, options=options
        )


@dataclass(frozen=True)
class Polluted:
    """One file of the corpus."""

    path: Path
    parameters: Mapping[str, object]

    @cached_property
    def kind(self) -> str:
        """What was done to it."""
        stem = self.path.stem
        artificial = self.path.parents[1].name != "survey_sample"
        return next(
            (KINDS[kind] for kind in KINDS if artificial and stem.startswith(kind)), AS_IT_IS
        )

    @cached_property
    def rows(self) -> list[Row]:
        """What a right loader reads: the rows of the clean file, without header and blank lines."""
        clean = self._clean
        named = bool(clean) and [name.strip() for name in clean[0]] == list(self.dialect.names)
        made_up = bool(clean) and all(_MADE_UP.fullmatch(name) for name in clean[0])
        return clean[1:] if self.dialect.header or named or made_up else clean

    @property
    def mistaken(self) -> list[Row]:
        """Rows that are wrong in the clean file."""
        numbers = _MISTAKEN.get(self.path.name, [])
        return [self.rows[number - 1] for number in numbers if number <= len(self.rows)]

    @cached_property
    def dialect(self) -> Dialect:
        """Its parameters as the benchmark's own loaders take them: what is empty is the usual."""
        parameters = self.parameters
        names = parameters["column_names"] or [
            f"col_{n}" for n in range(int(parameters["n_columns"] or 1))
        ]
        separator, quote, escape = (
            str(parameters[name]) for name in ("delimiter", "quotechar", "escapechar")
        )
        return Dialect(
            tuple(names),
            header=int(parameters["header_lines"]) > 0,
            separator=separator or ",",
            quote=quote or '"',
            escape=escape or '"',
            multiline=any("\n" in value or "\r" in value for row in self._clean for value in row),
        )

    @cached_property
    def _clean(self) -> list[Row]:
        path = self.path.parents[1] / "clean" / self.path.name
        with _any_length(), path.open(encoding="utf-8-sig", newline="") as text:
            return [tuple(row) for row in csv.reader(text) if row]

    @property
    def contents(self) -> Counter[Row]:
        """Its records as Python's own module reads them, whatever they are."""
        dialect = self.dialect
        doubled = dialect.escape == dialect.quote
        with (
            _any_length(),
            self.path.open(encoding="utf-8", errors="surrogateescape", newline="") as text,
        ):
            reader = csv.reader(
                text,
                delimiter=dialect.separator,
                quotechar=dialect.quote,
                doublequote=doubled,
                escapechar=None if doubled else dialect.escape,
            )
            return Counter(tuple(row) for row in reader)

    @cached_property
    def header(self) -> tuple[bytes, bool]:
        """The line that has to be the header, if one is declared, and whether it comes again: such
        a line is a record that the ledger keeps without its file.
        """
        lines = self.path.read_bytes().splitlines() if self.dialect.header else []
        first = next((line for line in lines if line.strip()), b"")
        return first, lines.count(first) > 1


def files(folder: Path) -> list[Polluted]:
    """The files of a copy of the corpus: of all its data sets, or of one.

    Raises FileNotFoundError if it has none.
    """
    sets = [path for path in (folder, *sorted(folder.glob("*"))) if (path / "parameters").is_dir()]
    corpus = [
        Polluted(path, json.loads(_parameters(path).read_text()))
        for set_ in sets
        for path in sorted((set_ / "csv").glob("*"))
        if _parameters(path).exists() and (set_ / "clean" / path.name).exists()
    ]
    if not corpus:
        raise FileNotFoundError(
            f"{folder}: expected the folders csv, clean and parameters, or folders that have them, "
            "such as polluted_files and survey_sample of the benchmark; found none"
        )
    return corpus


def _parameters(path: Path) -> Path:
    return path.parents[1] / "parameters" / f"{path.name}_parameters.json"


def groups(corpus: Iterable[Polluted]) -> Iterator[list[Polluted]]:
    """Files that one source can read: of one kind, dialect and header."""
    alike = defaultdict(list)
    for file in corpus:
        first, again = file.header
        alike[file.kind, file.dialect, first, file.path if again else None].append(file)
    for own in alike.values():
        for start in range(0, len(own), MOST_FILES):
            yield own[start : start + MOST_FILES]
