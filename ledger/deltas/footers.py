"""What footers report of a run's files: what the ledger's columns, and the deltas that are folded
from them, take in memory.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from ledger.core.column_names import ANCHORS, ROOT, is_own
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
DELTA_BYTES = 40  # of a root's delta, which is in memory until it is posted: five longs
READERS = 8  # footers that are read at a time: of a store each is a request


@dataclass(frozen=True)
class Footer:
    """``bytes``: of the ledger's own columns in memory. ``deltas``: how many there are of the file
    at most. ``roots``: the least and the greatest root; None: not known, or there is none.
    """

    bytes: int
    deltas: int = 0
    roots: tuple[int, int] | None = None


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """The footer of each file."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def memory_of(footers: Sequence[Footer], *, by_input: bool) -> int:
    """Bytes of the ledger's columns of files, and of the deltas that are folded from them: one for
    each root if their rows are folded ``by_input``; else for each root of each file.
    """
    groups = [footers] if by_input else [[footer] for footer in footers]
    deltas = sum(map(_most_deltas, groups))
    return sum(footer.bytes for footer in footers) + deltas * DELTA_BYTES


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
        return footer_of(stored.metadata)


def footer_of(metadata: Any) -> Footer:
    """What Parquet's metadata report of a file."""
    groups = [_Group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
    ranges = [group.roots for group in groups]
    ends = [root for some in ranges for root in some or ()]
    return Footer(
        sum(group.bytes for group in groups),
        sum(group.deltas for group in groups),
        (min(ends), max(ends)) if ends and None not in ranges else None,
    )


class _Group:
    """A row group."""

    def __init__(self, group: Any):
        self.rows = int(group.num_rows)
        columns = [group.column(number) for number in range(group.num_columns)]
        # Of a list the path between depends on who wrote the file, and how.
        self._own = {column.path_in_schema: column for column in columns if _is_own(column)}
        self.bytes = sum(map(_bytes, self._own.values()))
        # The least and the greatest; none if all are null; None: not known, or of a snapshot.
        self.roots = self._range()

    @property
    def deltas(self) -> int:
        """How many roots its rows have at most: one a row or anchor, and those of the range."""
        column = self._root()
        anchors = self.rows if column is None else int(column.num_values)
        if self.roots is None:
            return anchors
        return min(anchors, self.roots[1] - self.roots[0] + 1) if self.roots else 0

    def _root(self) -> pq.ColumnChunkMetaData | None:
        for path, column in self._own.items():
            if path == ROOT or (path.startswith(f"{ANCHORS}.") and path.endswith(".root")):
                return column
        return None

    def _range(self) -> tuple[Any, ...] | None:
        column = self._root()
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
