"""What footers report of a run's files: what the ledger's columns, and the deltas that are folded
from them, take in memory.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ledger.core.column_names import is_own
from ledger.deltas.stored import is_parent, is_root
from ledger.deltas.stretches import Range, meeting
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import stored_file

VALUE_BYTES = 8  # of a long in memory: in a file, sorted ones take next to nothing
DELTA_BYTES = 40  # of a root's delta, which is in memory until it is posted: five longs
READERS = 8  # footers that are read at a time: of a store each is a request


@dataclass(frozen=True)
class Footer:
    """``bytes``: of the ledger's own columns in memory. ``deltas``: how many there are of the file
    at most. ``roots``, ``parents``: the least and the greatest; None: not known, or there is none.
    """

    bytes: int
    deltas: int = 0
    roots: Range | None = None
    parents: Range | None = None


def read_footers(files: Sequence[DataFile]) -> list[Footer]:
    """The footer of each file."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read, files))


def related(footers: Sequence[Footer], *, by_input: bool) -> set[int]:
    """The numbers of the files that may share an input with another, if rows are folded
    ``by_input``: they have rows of the same range of positions.
    """
    return meeting([[footer.parents or _ANY] for footer in footers]) if by_input else set()


_ANY = (-(1 << 63), (1 << 63) - 1)


def memory_of(footers: Sequence[Footer], *, by_input: bool) -> int:
    """Bytes of the ledger's columns of files, and of the deltas that are folded from them: one for
    each root of those files that may share inputs, if their rows are folded ``by_input``; else
    for each root of each file.
    """
    numbers = related(footers, by_input=by_input)
    alone = [footer for number, footer in enumerate(footers) if number not in numbers]
    groups = [[footers[number] for number in numbers], *([footer] for footer in alone)]
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
    return Footer(
        sum(group.bytes for group in groups),
        sum(group.deltas for group in groups),
        _ends([group.roots for group in groups]),
        _ends([group.parents for group in groups if group.rows]),
    )


def _ends(ranges: Sequence[tuple[int, ...] | None]) -> Range | None:
    ends = [end for some in ranges for end in some or ()]
    return (min(ends), max(ends)) if ends and None not in ranges else None


class _Group:
    """A row group. ``roots``, ``parents``: the least and the greatest; none if all are null; None:
    not known, or of a snapshot.
    """

    def __init__(self, group: Any):
        self.rows = int(group.num_rows)
        columns = [group.column(number) for number in range(group.num_columns)]
        own = [column for column in columns if _is_own(column)]
        self.bytes = sum(map(_bytes, own))
        self._root = next((some for some in own if is_root(some.path_in_schema)), None)
        parent = next((some for some in own if is_parent(some.path_in_schema)), None)
        self.roots, self.parents = _range(self._root), _range(parent)

    @property
    def deltas(self) -> int:
        """How many roots its rows have at most: one a row or anchor, and those of the range."""
        anchors = self.rows if self._root is None else int(self._root.num_values)
        if self.roots is None:
            return anchors
        return min(anchors, self.roots[1] - self.roots[0] + 1) if self.roots else 0


def _range(column: Any) -> tuple[int, ...] | None:
    noted = None if column is None else column.statistics
    if column is None or noted is None:
        return None
    if noted.has_min_max:
        return int(noted.min), int(noted.max)
    return () if noted.null_count == column.num_values else None


def _bytes(column: Any) -> int:
    """Of a column in memory: of longs eight a value, of texts as many as they have."""
    return max(VALUE_BYTES * int(column.num_values), int(column.total_uncompressed_size))


def _is_own(column: Any) -> bool:
    return is_own(str(column.path_in_schema).split(".", 1)[0])
