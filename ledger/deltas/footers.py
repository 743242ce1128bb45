"""What footers say of a run's files: which of them share an input, and what the ledger's columns
take in memory.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from ledger.core.column_names import ANCHORS, INPUT, PARENT, is_own
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

Input = tuple[str, int]
"""A step that was read, and the position of one of its rows."""

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
READERS = 8  # footers that are read at a time: of a store each is a request


@dataclass(frozen=True)
class Footer:
    """``first``, ``last``: the least and the greatest input of a file's rows; both None where no
    row has one. ``known``: whether its writer noted these. ``bytes``: of the ledger's own
    columns in memory.
    """

    file: DataFile
    bytes: int
    first: Input | None = None
    last: Input | None = None
    known: bool = True


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """The footer of each file."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def sharing(footers: Sequence[Footer]) -> tuple[list[DataFile], list[list[DataFile]]]:
    """The files that share no input with another, and groups of those that may: the ranges of
    their inputs touch. A file whose range is not known may share one with any.
    """
    if any(not footer.known for footer in footers):
        files = [footer.file for footer in footers]
        return (files, []) if len(files) == 1 else ([], [files])
    groups: list[list[DataFile]] = []
    last: Input | None = None
    ranged = [footer for footer in footers if footer.first is not None]
    for footer in sorted(ranged, key=lambda footer: (footer.first, footer.last)):
        assert footer.first is not None
        assert footer.last is not None
        if last is None or footer.first > last:
            groups.append([])
        groups[-1].append(footer.file)
        last = footer.last if last is None else max(last, footer.last)
    alone = [footer.file for footer in footers if footer.first is None]
    alone += [group[0] for group in groups if len(group) == 1]
    return alone, [group for group in groups if len(group) > 1]


def _read(file: DataFile) -> Footer:
    with stored_file(file.path) as stored:
        metadata = stored.metadata
    groups = [_Group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
    size = sum(group.bytes for group in groups)
    inputs: list[Input] = []
    for group in groups:
        ends = group.inputs()
        if ends is None:
            return Footer(file, size, known=False)
        inputs += ends
    return Footer(file, size, min(inputs), max(inputs)) if inputs else Footer(file, size)


class _Group:
    """A row group."""

    def __init__(self, group: Any):
        self.rows = int(group.num_rows)
        columns = [group.column(number) for number in range(group.num_columns)]
        # Of a list the path between depends on who wrote the file, and how.
        self._own = {column.path_in_schema: column for column in columns if _is_own(column)}
        self.bytes = sum(int(column.num_values) for column in self._own.values()) * VALUE_BYTES

    def inputs(self) -> tuple[Input, ...] | None:
        """Its least and its greatest input; none, if no row has one; None: not known."""
        if not self.rows:
            return ()
        parents = self._range(PARENT, "parent")
        if parents is None or parents == ():
            return parents
        names: Any = self._range(INPUT, "input") if self._has(INPUT, "input") else ("", "")
        if not names:  # a row has a parent, and its input is not said
            return None
        return (names[0], parents[0]), (names[1], parents[1])

    def _column(self, name: str, field: str) -> pq.ColumnChunkMetaData | None:
        for path, column in self._own.items():
            if path == name or (path.startswith(f"{ANCHORS}.") and path.endswith(f".{field}")):
                return column
        return None

    def _has(self, name: str, field: str) -> bool:
        return self._column(name, field) is not None

    def _range(self, name: str, field: str) -> tuple[Any, ...] | None:
        """The least and the greatest value of a column; none if all are null; None: not known."""
        column = self._column(name, field)
        noted = None if column is None else column.statistics
        if column is None or noted is None:
            return None
        if noted.has_min_max:
            return noted.min, noted.max
        return () if noted.null_count == column.num_values else None


def _is_own(column: Any) -> bool:
    return is_own(str(column.path_in_schema).split(".", 1)[0])
