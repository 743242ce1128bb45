"""Footers of a run's Parquet files: which files may share an input, and how much memory the
ledger's columns need, and the deltas that are folded from them.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ledger.core.column_names import INPUT, PARENT, ROOT, is_own
from ledger.deltas.stored import is_of_anchor
from ledger.deltas.stretches import Input, Range, meeting, merge_ranges
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
DELTA_BYTES = 40  # of a root's delta, which is in memory until it is posted: five longs
READERS = 8  # footers that are read at a time: of a store each is a request


@dataclass(frozen=True)
class Footer:
    """Sizes and ranges of a file, as its footer has them.

    ``bytes``: size of the ledger's own columns in memory.
    ``deltas``: greatest possible number of deltas that are folded from the file.
    ``roots``: the least and the greatest root; None: not known, or there is none.
    ``inputs``: disjoint ranges that have the inputs of all rows; None: not known.
    """

    bytes: int
    deltas: int
    roots: Range | None
    inputs: Sequence[tuple[Input, Input]] | None


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """Return the footer of each file, in the order of the files."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def related(footers: Sequence[Footer]) -> list[list[int]]:
    """The files, by number, in groups that share no input."""
    anything = [(("", -(1 << 63)), (chr(sys.maxunicode), (1 << 63) - 1))]
    return meeting([anything if some.inputs is None else some.inputs for some in footers])


def memory_of(footers: Sequence[Footer], *, by_input: bool) -> int:
    """Bytes of the ledger's columns of files, and of the deltas that are folded from them: one for
    each root of files that may share inputs, if their rows are folded ``by_input``; else for each
    root of each file.
    """
    groups = related(footers) if by_input else [[number] for number in range(len(footers))]
    deltas = sum(_most_deltas([footers[number] for number in group]) for group in groups)
    return sum(footer.bytes for footer in footers) + deltas * DELTA_BYTES


def _most_deltas(group: Sequence[Footer]) -> int:
    """Return the greatest possible number of roots in a group of files: no more than the range of
    its roots, which are dense, has numbers.
    """
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
    """Return the footer of a file from its Parquet metadata."""
    groups = [_Group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]
    roots = [group.roots for group in groups]
    inputs = [group.inputs() for group in groups if group.rows]
    ends = [root for some in roots for root in some or ()]
    return Footer(
        sum(group.bytes for group in groups),
        sum(group.deltas for group in groups),
        (min(ends), max(ends)) if ends and None not in roots else None,
        None if None in inputs else merge_ranges(some for some in inputs if some),
    )


class _Group:
    """A row group. ``roots``: the least and the greatest; none if all are null; None: not known, or
    of a snapshot.
    """

    def __init__(self, group: Any):
        self.rows = int(group.num_rows)
        columns = [group.column(number) for number in range(group.num_columns)]
        self._own = [
            column for column in columns if is_own(str(column.path_in_schema).split(".", 1)[0])
        ]
        self._root = self._column(ROOT)
        # Eight bytes for each long; of texts their uncompressed size.
        self.bytes = sum(
            max(VALUE_BYTES * int(column.num_values), int(column.total_uncompressed_size))
            for column in self._own
        )
        self.roots = _range(self._root)

    def inputs(self) -> tuple[Input, Input] | tuple[()] | None:
        """Return its least and its greatest input; empty: no row has one; None: not known."""
        parents, column = _range(self._column(PARENT)), self._column(INPUT)
        names = ("", "") if column is None else _range(column)
        if not parents or not names:
            return () if parents == () else None
        return (names[0], parents[0]), (names[1], parents[1])

    def _column(self, name: str) -> Any:
        return next((some for some in self._own if is_of_anchor(some.path_in_schema, name)), None)

    @property
    def deltas(self) -> int:
        """Greatest possible number of its roots: one for each row or anchor, and no more than their
        range has numbers.
        """
        anchors = self.rows if self._root is None else int(self._root.num_values)
        if self.roots is None:
            return anchors
        return min(anchors, self.roots[1] - self.roots[0] + 1) if self.roots else 0


def _range(column: Any) -> tuple[Any, ...] | None:
    """The least and the greatest value of a column; none if all are null; None: not known."""
    noted = None if column is None else column.statistics
    if column is None or noted is None:
        return None
    if noted.has_min_max:
        return noted.min, noted.max
    return () if noted.null_count == column.num_values else None
