"""What footers report of a run's files: which of them share an input, and what the ledger's
columns, and the deltas that are folded from them, take in memory.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from ledger.core.column_names import ANCHORS, INPUT, PARENT, ROOT, is_own
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

Input = tuple[str, int]
"""A step that was read, and the position of one of its rows."""

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
DELTA_BYTES = 40  # of a root's delta, which is in memory until it is posted: five longs
READERS = 8  # footers that are read at a time: of a store each is a request


@dataclass(frozen=True)
class Footer:
    """``first``, ``last``: the least and the greatest input of a file's rows; both None where no
    row has one. ``has_range``: whether its writer noted these. ``bytes``: of the ledger's own
    columns in memory. ``deltas``: how many there are of it at most. ``roots``: the least and the
    greatest root; None: not known, or there is none.
    """

    file: DataFile
    bytes: int
    first: Input | None = None
    last: Input | None = None
    has_range: bool = True
    deltas: int = 0
    roots: tuple[int, int] | None = None


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """The footer of each file."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def sharing(footers: Sequence[Footer]) -> tuple[list[DataFile], list[list[DataFile]]]:
    """The files that share no input with another, and groups of those that may: the ranges of
    their inputs touch. A file whose range is not known may share one with any.
    """
    groups = _groups(footers)
    alone = [group[0].file for group in groups if len(group) == 1]
    return alone, [[footer.file for footer in group] for group in groups if len(group) > 1]


def memory_of(footers: Sequence[Footer], *, by_input: bool) -> int:
    """Bytes of the ledger's columns of files, and of the deltas that are folded from them: one for
    each root of a group of files that share inputs, if their rows are folded ``by_input``; else
    for each root of each file.
    """
    groups = _groups(footers) if by_input else [[footer] for footer in footers]
    deltas = sum(map(_most_deltas, groups))
    return sum(footer.bytes for footer in footers) + deltas * DELTA_BYTES


def _groups(footers: Sequence[Footer]) -> list[list[Footer]]:
    """The files by what they may share inputs with; one that shares none is by itself."""
    if any(not footer.has_range for footer in footers):
        return [list(footers)]
    groups = [[footer] for footer in footers if footer.first is None]
    last: Input | None = None
    ranged = [footer for footer in footers if footer.first is not None]
    for footer in sorted(ranged, key=lambda footer: (footer.first, footer.last)):
        assert footer.first is not None
        assert footer.last is not None
        if last is None or footer.first > last:
            groups.append([])
        groups[-1].append(footer)
        last = footer.last if last is None else max(last, footer.last)
    return groups


def _most_deltas(group: Sequence[Footer]) -> int:
    """How many roots files have together at most: roots are dense."""
    deltas = sum(footer.deltas for footer in group)
    ranges = [footer.roots for footer in group if footer.deltas]
    bounds = [roots for roots in ranges if roots is not None]
    if not bounds or len(bounds) < len(ranges):
        return deltas
    return min(deltas, max(last for _, last in bounds) - min(first for first, _ in bounds) + 1)


def _read(file: DataFile) -> Footer:
    with stored_file(file.path) as stored:
        return footer_of(file, stored.metadata)


def footer_of(file: DataFile, metadata: Any) -> Footer:
    """What Parquet's metadata report of a file."""
    groups = [_Group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
    roots = [ends for group in groups for ends in group.roots or ()]
    footer = Footer(
        file,
        sum(group.bytes for group in groups),
        deltas=sum(group.deltas for group in groups),
        roots=(min(roots), max(roots))
        if roots and all(group.roots is not None for group in groups)
        else None,
    )
    inputs: list[Input] = []
    for group in groups:
        ends = group.inputs()
        if ends is None:
            return replace(footer, has_range=False)
        inputs += ends
    return replace(footer, first=min(inputs), last=max(inputs)) if inputs else footer


class _Group:
    """A row group."""

    def __init__(self, group: Any):
        self.rows = int(group.num_rows)
        columns = [group.column(number) for number in range(group.num_columns)]
        # Of a list the path between depends on who wrote the file, and how.
        self._own = {column.path_in_schema: column for column in columns if _is_own(column)}
        self.bytes = sum(map(_bytes, self._own.values()))
        self.roots = self._range(ROOT, "root")  # as of ``_range``; None of a source's snapshot

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

    @property
    def deltas(self) -> int:
        """How many roots its rows have at most: one a row or anchor, and those of the range."""
        column = self._column(ROOT, "root")
        anchors = self.rows if column is None else int(column.num_values)
        if self.roots is None:
            return anchors
        return min(anchors, self.roots[1] - self.roots[0] + 1) if self.roots else 0

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


def _bytes(column: Any) -> int:
    """Of a column in memory: of longs eight a value, of texts as many as they have."""
    return max(VALUE_BYTES * int(column.num_values), int(column.total_uncompressed_size))


def _is_own(column: Any) -> bool:
    return is_own(str(column.path_in_schema).split(".", 1)[0])
