"""Reads what the kernel folds out of a run's Parquet files: the ledger's own columns, never the
user's.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ledger.core.column_names import (
    ANCHORS,
    DROPPED,
    ERROR,
    FAILED,
    INPUT,
    PARENT,
    PREFIX,
    ROOT,
)
from ledger.deltas.hashing import SEED, Hashes, hash_longs, hash_text
from ledger.deltas.kernel import changes, lengths_of, order_of
from ledger.deltas.rows import NONE, Codes, Counts, Flags, Longs, Places, Rows, Selector, Texts
from ledger.storage.manifest import DataFile
from ledger.storage.parquet import iter_batches, stored_file

FIRST, SHARED = "_ackledger_first", "_ackledger_shared"
LOW_BITS = 0x7FFFFFFF  # of a hash that is summed: the sum of four billion fits a long
WINDOW_ROWS = 1 << 20  # of a file that are read and folded at a time
SAMPLED = 1_000  # roots of a window, by which rows are cut into parts
_OWN = (ROOT, PARENT, INPUT, ANCHORS, FAILED, DROPPED, ERROR)


@dataclass(frozen=True)
class Checksum:
    """Checksum of rows, whatever their order.

    ``rows``: their number.
    ``xor``: XOR of the hashes of their anchors, in which two equal rows cancel.
    ``sum``: sum of the ``LOW_BITS`` of these hashes, in which they do not.

    For rows that a sink takes, ``xor`` is that of their edges, and ``sum`` the number of edges.
    """

    rows: int = 0
    xor: int = 0
    sum: int = 0

    @classmethod
    def of(cls, hashes: Hashes, counts: Counts | None = None) -> "Checksum":
        """Return the checksum of rows with these hashes. ``counts``: the number of rows with each;
        None: one.
        """
        low = (hashes & np.uint64(LOW_BITS)).view(np.int64)
        if counts is None:
            rows, summed, odd = len(hashes), low.sum(), hashes
        else:
            rows, summed, odd = counts.sum(), low @ counts, hashes[counts % 2 == 1]
        return cls(int(rows), int(np.bitwise_xor.reduce(odd).view(np.int64)), int(summed))

    def __add__(self, other: "Checksum") -> "Checksum":
        return Checksum(self.rows + other.rows, self.xor ^ other.xor, self.sum + other.sum)

    def __str__(self) -> str:
        return f"{self.rows}, XOR {self.xor}, sum {self.sum}"


@dataclass(frozen=True)
class Part:
    """Anchors of some rows of a file.

    ``checksum``: the checksum of all these rows, tracked or not. If a part is split, only the first
    piece keeps it.
    """

    rows: Rows
    checksum: Checksum

    def ordered(self) -> "Part":
        """Return the anchors sorted by root."""
        root = self.rows.root
        if not np.any(root[1:] < root[:-1]):
            return self
        return self._of(order_of([root]), self.checksum)

    def split(self, roots: Longs) -> list["Part"]:
        """Cut anchors that are sorted by root into parts. Each of ``roots`` begins a new part. The
        first part keeps ``checksum``.
        """
        if not len(roots):
            return [self]
        places = np.searchsorted(self.rows.root, roots).tolist()
        first, *others = itertools.pairwise([0, *places, len(self.rows)])
        return [
            self._of(slice(*first), self.checksum),
            *(self._of(slice(*place), Checksum()) for place in others),
        ]

    def _of(self, places: Selector, checksum: Checksum) -> "Part":
        return Part(self.rows.take(places), checksum)


_NOTHING = np.empty(0, np.intp)


def parts_of(file: DataFile, inputs: Collection[str]) -> Iterator[Part]:
    """Read a file that a run wrote, and yield its anchors window by window. Untracked rows are only
    counted. ``inputs``: the steps that the run read.
    """
    for table, position in read_windows(file, _OWN):
        rows, _ = anchored_rows(table, position, inputs)
        yield Part(rows, checksum(table))


def anchored_rows(
    table: pa.Table, position: Longs, inputs: Collection[str] = ()
) -> tuple[Rows, Places]:
    """Return the anchors of a table, and for each anchor the index of its row. If the table has no
    parents, which rows acked by reading do not need, ``Rows.parent`` has the roots.

    ``inputs``: the steps that the run read; ``Rows.input`` is an index into them.
    """
    anchors, places, first, shared = _anchors(table)
    if FIRST in table.column_names:  # a row for each anchor, on its way from another file
        first, shared = (
            _combined(table[name]).to_numpy(zero_copy_only=False)[places]
            for name in (FIRST, SHARED)
        )
    marks = [_marks(table, name, places) for name in (FAILED, DROPPED)]
    number = _numbers(anchors[INPUT], tuple(inputs)) if len(inputs) > 1 else None
    root = longs_of(anchors[ROOT])
    # Who acks rows because they were read does not ask what they come from.
    parent = longs_of(anchors[PARENT]) if PARENT in anchors else root
    return Rows(root, parent, position[places], number, first, shared, *marks), places


def read_windows(file: DataFile, names: Iterable[str]) -> Iterator[tuple[pa.Table, Longs]]:
    """Yield the columns of ``names`` that a file has, at most ``WINDOW_ROWS`` rows at a time, with
    the rows' positions.
    """
    first = file.first_position
    with stored_file(file.path) as stored:
        has = set(stored.schema_arrow.names)
        columns = [name for name in names if name in has]
        for batch in iter_batches(stored, WINDOW_ROWS, columns):
            table = pa.Table.from_batches([batch])
            yield table, np.arange(first, first + len(table))
            first += len(table)


def is_of_anchor(path: str, name: str) -> bool:
    """Return whether a column path of a file is the anchor's field ``name``. For a list of anchors,
    the path between depends on the writer.
    """
    field = f".{name.removeprefix(PREFIX)}"
    return path == name or (path.startswith(f"{ANCHORS}.") and path.endswith(field))


def joined(parts: Sequence[Part]) -> Part:
    """Concatenate parts, in order."""
    if len(parts) == 1:
        return parts[0]
    checksum = sum((part.checksum for part in parts), Checksum())
    return Part(Rows.joined([part.rows for part in parts]), checksum)


def borders(pieces: Sequence[Part]) -> Longs:
    """Return the roots at which to split ``pieces`` into parts of about a window, without the
    first. The roots may repeat if one root has many rows.

    ``pieces``: anchors, sorted by root in each piece.
    """
    parts = -(-sum(len(piece.rows) for piece in pieces) // WINDOW_ROWS)
    sample = np.concatenate([piece.rows.root[:: WINDOW_ROWS // SAMPLED + 1] for piece in pieces])
    sample.sort()
    return sample[np.arange(1, parts) * len(sample) // max(parts, 1)]


def texts_of(column: pa.ChunkedArray | pa.Array) -> Texts:
    """Return a text column as ``Texts``: the texts, sorted, and the index of each row's text. The
    index of a null is ``NONE``.
    """
    coded = _combined(column)
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    codes = coded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int32)
    return Texts.of(codes, coded.dictionary.to_pylist())


def _anchors(
    table: pa.Table,
) -> tuple[dict[str, pa.Array], Places, Flags | None, Flags | None]:
    """Return the anchors of rows as columns, and for each anchor the index of its row. For rows
    with lists of anchors, also return whether it is the first of its root, and whether its row has
    several roots; else None.
    """
    if ANCHORS in table.column_names:
        lists = _combined(table[ANCHORS])
        starts, lengths = _starts_and_lengths(lists)
        of_row = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(of_row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        elements = lists.values.take(pa.array(np.repeat(starts, lengths) + within))
        kind = elements.type
        columns = {
            f"{PREFIX}{kind.field(n).name}": elements.field(n) for n in range(kind.num_fields)
        }
        root = longs_of(columns[ROOT])
        first = np.ones(len(root), bool)
        first[1:] = (root[1:] != root[:-1]) | (of_row[1:] != of_row[:-1])
        several = np.bincount(of_row[first], minlength=len(table)) > 1
        return columns, of_row, first, several[of_row]
    if ROOT not in table.column_names:
        nothing = pa.array([], pa.int64())
        return {ROOT: nothing, PARENT: nothing, INPUT: nothing}, _NOTHING, None, None
    columns = {n: _combined(table[n]) for n in (ROOT, PARENT, INPUT) if n in table.column_names}
    places = np.arange(len(table))
    if columns[ROOT].null_count:
        places = np.flatnonzero(_valid(columns[ROOT]))
        columns = {name: column.take(pa.array(places)) for name, column in columns.items()}
    return columns, places, None, None


def _starts_and_lengths(lists: pa.ListArray) -> tuple[Longs, Longs]:
    """Return where each list begins among the values of the list column, and its length. A null
    list has length 0.
    """
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.where(_valid(lists), np.diff(offsets), 0)


def _marks(table: pa.Table, name: str, places: Places) -> Texts | None:
    if name not in table.column_names or table[name].null_count == len(table):
        return None
    return texts_of(table[name])[places]


def _numbers(names: pa.Array, inputs: tuple[str, ...]) -> Codes:
    """Return the index among ``inputs`` of each name."""
    texts = texts_of(names)
    places = np.array([inputs.index(word) for word in texts.words], np.int32)
    numbers: Codes = places[texts.codes] if len(places) else texts.codes
    return numbers


def checksum(table: pa.Table) -> Checksum:
    """Return the checksum of the rows of a table over the columns that identify each row's origin;
    without such a column, only their number. The hashes equal those of Spark's ``xxhash64``.
    """
    if ANCHORS in table.column_names:
        return Checksum.of(_hashes_of_lists(_combined(table[ANCHORS])))
    columns = [_combined(table[n]) for n in (ROOT, PARENT, INPUT) if n in table.column_names]
    if not columns:
        return Checksum(len(table))
    columns, counts = _stretches(columns)
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        hashes = _chained(column, hashes)
    return Checksum.of(hashes, counts)


def _hashes_of_lists(lists: pa.ListArray) -> Hashes:
    """Return the hash of each list of structs."""
    hashes = np.full(len(lists), SEED, np.uint64)
    starts, lengths = _starts_and_lengths(lists)
    fields = [lists.values.field(place) for place in range(lists.type.value_type.num_fields)]
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        elements = pa.array(starts[longer] + place)
        mixed = hashes[longer]
        for field in fields:
            mixed = _chained(field.take(elements), mixed)
        hashes[longer] = mixed
    return hashes


def _stretches(columns: list[pa.Array]) -> tuple[list[pa.Array], Counts | None]:
    """Deduplicate consecutive equal rows. Return one row of each series, and the lengths of the
    series; None if no two consecutive rows are equal.
    """
    keys: list[npt.NDArray[Any]] = []
    for column in columns:
        is_text = pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)
        keys.append(texts_of(column).codes if is_text else longs_of(column))
        if column.null_count:
            keys.append(_valid(column))
    starts = changes(*keys)
    if len(starts) == len(columns[0]):
        return columns, None
    distinct = [column.take(pa.array(starts)) for column in columns]
    return distinct, lengths_of(starts, len(columns[0]))


def _chained(column: pa.ChunkedArray | pa.Array, seeds: Hashes) -> Hashes:
    """Chain the hashes of a column to ``seeds``. A null leaves its seed unchanged."""
    column = _combined(column)
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        texts, hashes = texts_of(column), seeds.copy()
        for code, word in enumerate(texts.words):
            rows = texts.codes == code
            hashes[rows] = hash_text(word, seeds[rows])
        return hashes
    hashes = hash_longs(longs_of(column), seeds)
    if column.null_count:
        hashes = np.where(_valid(column), hashes, seeds)
    return hashes


def longs_of(column: pa.ChunkedArray | pa.Array) -> Longs:
    """Return the values of a column of longs, with 0 for null."""
    column = _combined(column)
    filled = column.fill_null(0) if column.null_count else column
    values: Longs = filled.to_numpy(zero_copy_only=False)
    return values


def _valid(column: pa.ChunkedArray | pa.Array) -> Flags:
    flags: Flags = _combined(column).is_valid().to_numpy(zero_copy_only=False)
    return flags


def _combined(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # of no chunks
            column = pa.array([], column.type)
    return column
