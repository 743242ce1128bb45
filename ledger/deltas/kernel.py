"""The kernel: folds a run's rows in numpy, into what they add to each root's ack value.

A delta is the XOR of the edges that a root's rows emit and of those that they ack. The acked edges
are computed from the rows that exist, never from the declared input: otherwise the proof would be
circular. A run may post several deltas for one root, because XOR is associative.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ledger.deltas.edges import Edges
from ledger.deltas.hashing import Hashes
from ledger.deltas.rows import NONE, Codes, Counts, Flags, Longs, Places, Rows, Texts

_HALF = 32  # bits of a count
_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Fails:
    """Roots that fail, as columns of equal length.

    A reason is an index into ``words``, or ``NONE`` if an ``emits="one"`` stage repeated the root.
    ``shared``: whether the failed row has other roots as well. ``details``: raw texts.
    """

    root: Longs
    reason: Codes
    shared: Flags
    words: tuple[str, ...]
    details: Sequence[str | None] | None = None


@dataclass(frozen=True)
class Messages:
    """Roots of a replay, each with the id of the message that it replays."""

    root: Longs
    message: Longs


@dataclass(frozen=True)
class Deltas:
    """Deltas of a run as columns of equal length, and what was counted while folding.

    ``delta``: the XOR of all edges that a root emitted and acked.
    ``acked``: the XOR of only the acked edges.
    ``drops``: the number of inputs that were acked without an output, by reason.
    ``with_rows``: the number of inputs that have an output row.
    ``fails``, ``messages``: always by root, even if the deltas are by span.
    """

    root: Longs
    delta: Longs
    acked: Longs
    emitted_edges: Counts
    acked_edges: Counts
    fails: Sequence[Fails] = ()
    drops: Mapping[str, int] = field(default_factory=dict)
    with_rows: int = 0
    messages: Sequence[Messages] = ()

    @property
    def columns(self) -> tuple[Longs, ...]:
        """The columns root, delta, acked, emitted_edges and acked_edges."""
        return (self.root, self.delta, self.acked, self.emitted_edges, self.acked_edges)


@dataclass(frozen=True)
class DeltaTotals:
    """Totals of deltas and their fails: the number of ``rows``, the XOR of the deltas, the XOR of
    the acked edges, the numbers of emitted and acked edges, and the number of failed roots.
    """

    rows: int = 0
    delta_xor: int = 0
    acked_xor: int = 0
    emitted_edges: int = 0
    acked_edges: int = 0
    failed_roots: int = 0

    @property
    def sums(self) -> tuple[int, ...]:
        """Number of rows, XOR, and numbers of edges: the values that a commit compares."""
        return self.rows, self.delta_xor, self.emitted_edges, self.acked_edges

    def __add__(self, other: "DeltaTotals") -> "DeltaTotals":
        return DeltaTotals(
            self.rows + other.rows,
            self.delta_xor ^ other.delta_xor,
            self.acked_xor ^ other.acked_xor,
            self.emitted_edges + other.emitted_edges,
            self.acked_edges + other.acked_edges,
            self.failed_roots + other.failed_roots,
        )

    def __str__(self) -> str:
        return (
            f"{self.rows} deltas with XOR {self.delta_xor}, {self.emitted_edges} emitted,"
            f" {self.acked_edges} acked and {self.failed_roots} failed"
        )

    @classmethod
    def of(cls, deltas: Deltas) -> "DeltaTotals":
        """Return the totals of ``deltas`` and of their fails."""
        return cls(
            len(deltas.root),
            int(np.bitwise_xor.reduce(deltas.delta)) if len(deltas.root) else 0,
            int(np.bitwise_xor.reduce(deltas.acked)) if len(deltas.root) else 0,
            total(deltas.emitted_edges),
            total(deltas.acked_edges),
            sum(len(fails.root) for fails in deltas.fails),
        )


@dataclass(frozen=True)
class _Ordered:
    """Rows sorted by root, input and parent, with the index at which each root and each input
    begins, and the inputs that are the first of their root.
    """

    rows: Rows
    inputs: Places
    roots: Places
    first_inputs: Places

    @classmethod
    def of(cls, rows: Rows) -> "_Ordered":
        keys = _keys(rows)
        if not _sorted(keys):
            rows = rows.take(order_of(keys))
            keys = _keys(rows)
        new_root = _differs(rows.root)
        new_input = new_root.copy()
        for key in keys[1:]:
            new_input |= _differs(key)
        inputs = np.flatnonzero(new_input)
        return cls(rows, inputs, np.flatnonzero(new_root), np.flatnonzero(new_root[inputs]))

    def deltas(self, emitted: Hashes, emitted_edges: Counts, acked: Hashes, acked_edges: Counts,
               *, with_rows: bool = True, fails: Sequence[Fails] = ()) -> Deltas:  # fmt: skip
        """Return one delta per root, from the edges that each root emitted and acked. The result's
        fails and drops are those of the rows and ``fails``.
        """
        return Deltas(
            self.rows.root[self.roots],
            (emitted ^ acked).view(np.int64),
            acked.view(np.int64),
            emitted_edges,
            acked_edges,
            [*self.fails(), *fails],
            self._drops(),
            len(self.inputs) if with_rows else 0,
        )

    def emitted(self, edges: Edges) -> tuple[Hashes, Counts]:
        """Return XOR and number of the edges that each root emits."""
        goes = self.rows.goes_on
        lengths = lengths_of(self.roots, len(self.rows))
        mixed = edges.emitted(self.rows.root[self.roots], lengths, self.rows.position)
        if goes is None:
            return _xor(mixed, self.roots), lengths * len(edges.consumers)
        mixed[~goes] = 0
        return _xor(mixed, self.roots), _sum(goes, self.roots) * len(edges.consumers)

    def acked(self, edges: Edges) -> tuple[Hashes, Counts]:
        """Return XOR and number of the edges of each root's distinct inputs."""
        return self._acked(edges, self.inputs, self.first_inputs)

    def read(self, edges: Edges) -> tuple[Hashes, Counts]:
        """Return XOR and number of the edges of all rows of each root."""
        return self._acked(edges, slice(None), self.roots)

    def _acked(self, edges: Edges, which: Places | slice, roots: Places) -> tuple[Hashes, Counts]:
        parent = self.rows.parent[which]
        number = None if self.rows.input is None else self.rows.input[which]
        lengths = lengths_of(roots, len(parent))
        mixed = edges.acked(self.rows.root[self.roots], lengths, parent, number)
        return _xor(mixed, roots), lengths

    def fails(self) -> list[Fails]:
        """Return the failed roots, with one reason each. A root's own reason comes before a shared
        one; among several, the first in alphabetical order.
        """
        failed, shared = self.rows.failed, self.rows.shared
        if failed is None:
            return []
        failing = np.flatnonzero(failed.codes != NONE)
        root, keys = self.rows.root[failing], failed.codes[failing]
        if shared is not None:
            keys = keys + shared[failing] * np.int32(len(failed.words))
        starts = changes(root)
        least = np.minimum.reduceat(keys, starts) if len(starts) else keys
        many = max(1, len(failed.words))
        return [Fails(root[starts], least % many, least >= many, failed.words)]

    def repeated(self) -> Fails:
        """Return the roots with an input from which more than one row goes on. They may also fail
        for a reason of their own; that is resolved when the fails of all files are merged.
        """
        goes = self.rows.goes_on
        count = lengths_of(self.inputs, len(self.rows)) if goes is None else _sum(goes, self.inputs)
        roots = np.unique(self.rows.root[self.inputs][count > 1])
        return Fails(roots, np.full(len(roots), NONE, np.int32), np.zeros(len(roots), bool), ())

    def _drops(self) -> dict[str, int]:
        """Return the number of inputs whose rows were all dropped, by reason. An input with several
        reasons counts for the first in alphabetical order; an input without a reason is not
        counted.
        """
        dropped = self.rows.dropped
        if dropped is None or not len(self.rows):
            return {}
        silent = np.minimum.reduceat(dropped.codes, self.inputs)
        counts = np.bincount(silent[silent != NONE], minlength=len(dropped.words))
        return {word: int(n) for word, n in zip(dropped.words, counts, strict=True) if n and word}


def fold_emitted(output: Rows, edges: Edges, *, emits_one: bool = False) -> Deltas:
    """Return the deltas of a stage's output rows, which ack each distinct input, (root, input,
    parent), that they come from.

    ``emits_one``: fail a root if more than one row goes on from one of its inputs.
    """
    rows = _Ordered.of(output)
    fails = [rows.repeated()] if emits_one else []
    return rows.deltas(*rows.emitted(edges), *rows.acked(edges), fails=fails)


def fold_output(output: Rows, edges: Edges, *, emits_one: bool = False) -> Deltas:
    """Return the deltas of a stage's output rows, which ack nothing. See ``fold_emitted``."""
    rows = _Ordered.of(output)
    fails = [rows.repeated()] if emits_one else []
    nothing = np.zeros(len(rows.roots), np.int64)
    return rows.deltas(*rows.emitted(edges), nothing.view(np.uint64), nothing, fails=fails)


def fold_read(read: Rows, edges: Edges) -> Deltas:
    """Return the deltas of input rows that are all acked because they were read."""
    rows = _Ordered.of(read)
    nothing = np.zeros(len(rows.roots), np.int64)
    return rows.deltas(nothing.view(np.uint64), nothing, *rows.read(edges), with_rows=False)


def fold_source(root: Longs, position: Longs, edges: Edges, failed: Texts | None = None) -> Deltas:
    """Return the initial deltas of a source, one per record. A record with a reason in ``failed``
    has no edges, and its root fails.
    """
    return fold_output(Rows(root, position, position, failed=failed), edges)


def merge_deltas(parts: Sequence[Deltas]) -> Deltas:
    """Merge the deltas of several folds of one run into one delta per root."""
    columns = [np.concatenate(some) for some in zip(*(part.columns for part in parts), strict=True)]
    if np.any(columns[0][1:] < columns[0][:-1]):
        order = order_of([columns[0]])
        columns = [column[order] for column in columns]
    root, delta, acked, emitted_edges, acked_edges = columns
    starts = changes(root)
    if len(starts) < len(root):
        root, delta, acked = root[starts], _xor(delta, starts), _xor(acked, starts)
        emitted_edges, acked_edges = _sum(emitted_edges, starts), _sum(acked_edges, starts)
    drops: Counter[str] = Counter()
    for part in parts:
        drops.update(part.drops)
    return Deltas(
        root,
        delta,
        acked,
        emitted_edges,
        acked_edges,
        [fails for part in parts for fails in part.fails],
        drops,
        sum(part.with_rows for part in parts),
        [messages for part in parts for messages in part.messages],
    )


def compacted(parts: Iterable[Deltas], most: int) -> Iterator[Deltas]:
    """Yield the deltas in parts of about ``most`` rows, to bound the memory used. Deltas of one
    root are merged only within a part.
    """
    waiting, rows = list[Deltas](), 0
    for part in parts:
        waiting.append(part)
        rows += len(part.root)
        if rows > most:
            waiting = [merge_deltas(waiting)]
            rows = len(waiting[0].root)
            if rows > most // 2:
                yield waiting.pop()
                rows = 0
    if waiting:
        yield merge_deltas(waiting)


def total(counts: Counts) -> int:
    """Return the exact sum of counts as a Python int, even if it exceeds 64 bits."""
    high, low = counts >> _HALF, counts & ((1 << _HALF) - 1)
    return (int(high.sum()) << _HALF) + int(low.sum())


def _keys(rows: Rows) -> list[npt.NDArray[Any]]:
    """Return the columns that identify the input of each row: root, the input's number if the run
    has several inputs, and parent.
    """
    return [rows.root, *([] if rows.input is None else [rows.input]), rows.parent]


def _sorted(keys: Sequence[npt.NDArray[Any]]) -> bool:
    """Return whether rows are sorted by ``keys``, of which the first is the most significant."""
    first, *others = keys
    if np.any(first[1:] < first[:-1]):
        return False
    equal = first[1:] == first[:-1]
    for key in others:
        if np.any(equal & (key[1:] < key[:-1])):
            return False
        equal &= key[1:] == key[:-1]
    return True


def order_of(keys: Sequence[npt.NDArray[Any]]) -> Places:
    """Return the indexes that sort the rows by ``keys``, of which the first is the most
    significant. The sort is stable.
    """
    order = _stable_order(keys[-1])
    for key in reversed(keys[:-1]):
        sorted_key = key[order]
        if np.any(sorted_key[1:] < sorted_key[:-1]):
            order = order[_stable_order(sorted_key)]
    return order


def _stable_order(key: npt.NDArray[Any]) -> Places:
    """Return the indexes that sort ``key`` stably. Packing the row number into the low bits makes
    every value unique, and numpy sorts unique values several times as fast as it sorts stably.
    """
    if not len(key):
        return np.empty(0, np.intp)
    least, bits = int(key.min()), (len(key) - 1).bit_length()
    if (int(key.max()) - least).bit_length() + bits > 63:
        return np.argsort(key, kind="stable")
    packed = key.astype(np.int64) - least
    packed <<= bits
    packed |= np.arange(len(key))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def changes(*keys: npt.NDArray[Any]) -> Places:
    """Return the indexes of the rows that differ from the row before. The first row is always one
    of them.
    """
    changed = _differs(keys[0])
    for key in keys[1:]:
        changed |= _differs(key)
    return np.flatnonzero(changed)


def _differs(key: npt.NDArray[Any]) -> Flags:
    """Return whether each value differs from the one before; the first one always does."""
    changed = np.empty(len(key), bool)
    changed[:1] = True
    np.not_equal(key[1:], key[:-1], out=changed[1:])
    return changed


def _xor(values: npt.NDArray[Any], starts: Places) -> npt.NDArray[Any]:
    return np.bitwise_xor.reduceat(values, starts) if len(starts) else values[:0]


def _sum(values: npt.NDArray[Any], starts: Places) -> Counts:
    """Return the sum of the values from each start to the next. Raises OverflowError if a sum
    exceeds 64 bits, where numpy would wrap around.
    """
    if not len(starts):
        return np.empty(0, np.int64)
    if int(values.max()) > _MOST // len(values):
        exact = np.add.reduceat(values.astype(object), starts)
        if exact.max() > _MOST:
            raise OverflowError(f"expected counts of at most {_MOST:,}, found {exact.max():,}")
    return np.add.reduceat(values, starts, dtype=np.int64)


def lengths_of(starts: Places, rows: int) -> Counts:
    """Return the number of rows from each start to the next. ``rows``: the number of all rows."""
    return np.diff(starts, append=rows).astype(np.int64)
