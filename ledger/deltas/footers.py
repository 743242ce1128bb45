"""Statistics of a run's Parquet footers: which files may share an input, and how much memory the
ledger's columns and their deltas need.
"""

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ledger.core.column_names import INPUT, PARENT, ROOT, is_own
from ledger.deltas.stored import is_of_anchor
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
DELTA_BYTES = 40  # of a root's delta, which is in memory until it is posted: five longs
READERS = 8  # footers that are read at a time: of a store each is a request

Range = tuple[int, int]
Input = tuple[str, int]
"""A step that was read, and the position of one of its rows."""

Bound = TypeVar("Bound", int, Input)  # of a range


@dataclass(frozen=True)
class Footer:
    """Sizes and ranges of one file, from its Parquet footer.

    ``bytes``: the size of the ledger's own columns in memory.
    ``deltas``: the greatest possible number of deltas that are folded from the file.
    ``roots``: the least and the greatest root. None: unknown, or the file has no root.
    ``inputs``: disjoint ranges that contain the inputs of all rows. None: unknown.
    """

    bytes: int
    deltas: int
    roots: Range | None
    inputs: Sequence[tuple[Input, Input]] | None


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """Return the footer of each file, in the order of the files."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def groups_by_input(footers: Sequence[Footer]) -> list[list[int]]:
    """Group files that may have rows of the same input. Return the groups as lists of indexes into
    ``footers``; files of different groups share no input.
    """
    anything = [(("", -(1 << 63)), (chr(sys.maxunicode), (1 << 63) - 1))]
    return overlapping_groups(
        [anything if some.inputs is None else some.inputs for some in footers]
    )


def memory_of(footers: Sequence[Footer], *, by_input: bool) -> int:
    """Return the bytes of memory that a fold needs for the ledger's columns of files, and for their
    deltas.

    ``by_input``: count one delta per root of each group of files that may share inputs. Otherwise,
    count one delta per root of each file.
    """
    groups = groups_by_input(footers) if by_input else [[number] for number in range(len(footers))]
    deltas = sum(_most_deltas([footers[number] for number in group]) for group in groups)
    return sum(footer.bytes for footer in footers) + deltas * DELTA_BYTES


def _most_deltas(group: Sequence[Footer]) -> int:
    """Return an upper bound of the number of distinct roots in a group of files. Roots are dense,
    so it is at most the length of their range.
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
    """Return the ``Footer`` of a file from its Parquet metadata."""
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
    """Statistics of one Parquet row group.

    ``roots``: the least and the greatest root. Empty: all roots are null. None: unknown, or the
    file is a snapshot, which has no roots.
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
        """Return the least and the greatest input of its rows. Empty: no row has an input. None:
        unknown.
        """
        parents, column = _range(self._column(PARENT)), self._column(INPUT)
        names = ("", "") if column is None else _range(column)
        if not parents or not names:
            return () if parents == () else None
        return (names[0], parents[0]), (names[1], parents[1])

    def _column(self, name: str) -> Any:
        return next((some for some in self._own if is_of_anchor(some.path_in_schema, name)), None)

    @property
    def deltas(self) -> int:
        """Upper bound of the number of distinct roots: the number of anchors, or the length of the
        range of roots if that is less.
        """
        anchors = self.rows if self._root is None else int(self._root.num_values)
        if self.roots is None:
            return anchors
        return min(anchors, self.roots[1] - self.roots[0] + 1) if self.roots else 0


def _range(column: Any) -> tuple[Any, ...] | None:
    """Return the least and the greatest value of a column chunk. Empty: all values are null. None:
    unknown.
    """
    noted = None if column is None else column.statistics
    if column is None or noted is None:
        return None
    if noted.has_min_max:
        return noted.min, noted.max
    return () if noted.null_count == column.num_values else None


def overlapping_groups(files: Sequence[Sequence[tuple[Bound, Bound]]]) -> list[list[int]]:
    """Group files whose ranges overlap, directly or through other files. Return the groups as lists
    of indexes into ``files``.

    ``files``: the ranges of each file, inclusive; those of one file do not overlap.
    """
    groups = {number: [number] for number in range(len(files))}
    last: Any = None
    holder = -1
    for first, end, number in sorted(
        (first, end, number) for number, ranges in enumerate(files) for first, end in ranges
    ):
        if holder >= 0 and first <= last and groups[number] is not groups[holder]:
            group = groups[holder]
            group += groups[number]
            groups.update(dict.fromkeys(groups[number], group))
        if holder < 0 or end > last:
            last, holder = end, number
    return list({id(group): group for group in groups.values()}.values())


def merge_ranges(ranges: Iterable[tuple[Bound, Bound]]) -> tuple[tuple[Bound, Bound], ...]:
    """Return the ranges sorted, with overlapping ones merged."""
    apart: list[tuple[Bound, Bound]] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(last, apart[-1][1])
        else:
            apart.append((first, last))
    return tuple(apart)
