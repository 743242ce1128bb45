"""Single roots that a settlement needs: the unbalanced and the failed ones of some spans, with the
edges that each step emitted and acked. Roots have places (indexes); columns by place hold what a
run adds to each root.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ledger.core.breaks import Hop, StepEdges
from ledger.deltas.kernel import Deltas, changes, order_of
from ledger.deltas.rows import Flags, Longs, Places
from ledger.deltas.spans import RootRange

COLUMNS = 4  # delta, acked, emitted_edges, acked_edges: what a run adds to each root or span
_XORS = 2  # the first of them; others are sums
_NO_ROOTS: Longs = np.empty(0, np.int64)
NOTHING = Deltas(_NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS)


class SingleRoots:
    """The roots of some spans, sorted. The place of a root is its index among them.

    ``spans``: the first root of each span.
    ``sizes``: the number of roots of each span.
    ``starts``: the place of the first root of each span.
    """

    def __init__(self, spans: Longs, sizes: Longs):
        self.spans, self.sizes = spans, sizes
        self._ends = np.cumsum(sizes)
        self.starts: Longs = self._ends - sizes

    @classmethod
    def of(cls, spans: Longs, ranges: Sequence[RootRange]) -> "SingleRoots":
        """Return the roots of spans.

        ``spans``: the first root of each span, sorted.
        ``ranges``: the ranges that the spans are in, with the size of their spans. The last span of
        a range may be shorter. A span outside all ranges has one root.
        """
        sizes = np.ones(len(spans), np.int64)
        for some in ranges:
            end = some.first_root + some.roots
            inside = (spans >= some.first_root) & (spans < end)
            sizes[inside] = np.minimum(some.span, end - spans[inside])
        return cls(spans, sizes)

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @property
    def root(self) -> Longs:
        """The root at each place."""
        return np.repeat(self.spans - self.starts, self.sizes) + np.arange(len(self))

    @property
    def first(self) -> int:
        """The least root."""
        return int(self.spans[0])

    @property
    def last(self) -> int:
        """The greatest root."""
        return int(self.spans[-1] + self.sizes[-1] - 1)

    def places(self, root: Longs) -> tuple[Flags, Places]:
        """Return a flag for each of ``root``, whether it is one of these roots, and the places of
        those that are.
        """
        number = np.maximum(np.searchsorted(self.spans, root, "right") - 1, 0)
        offset = root - self.spans[number]
        inside = (offset >= 0) & (offset < self.sizes[number])
        return inside, (self.starts[number] + offset)[inside]

    def has_some(self, first: int, last: int) -> bool:
        """Return whether any of these roots is between ``first`` and ``last``, inclusive."""
        number = int(np.searchsorted(self.spans, last, "right")) - 1
        return number >= 0 and bool(self.spans[number] + self.sizes[number] > first)

    def parts(self, most: int) -> Iterator[tuple[slice, "SingleRoots"]]:
        """Yield parts of at most ``most`` roots, each with the slice of its places. Spans are not
        cut, so a single span may exceed ``most``.
        """
        start = 0
        while start < len(self.spans):
            before = self.starts[start]
            end = max(start + 1, int(np.searchsorted(self._ends, before + most, "right")))
            part = SingleRoots(self.spans[start:end], self.sizes[start:end])
            yield slice(int(before), int(before) + len(part)), part
            start = end

    def posted(self, deltas: Deltas) -> Longs:
        """Return the sums that ``deltas`` add to each span, as ``COLUMNS`` rows with a column for
        each span; 0 where a span has no delta. Each delta is of a different span, and its root is
        the first of that span.
        """
        columns = np.zeros((COLUMNS, len(self.spans)), np.int64)
        columns[:, np.searchsorted(self.spans, deltas.root)] = deltas.columns[1:]
        return columns

    def by_span(self, columns: Longs) -> Longs:
        """Sum columns with a value per root into columns with a value per span."""
        xors = [np.bitwise_xor.reduceat(column, self.starts) for column in columns[:_XORS]]
        sums = [np.add.reduceat(column, self.starts) for column in columns[_XORS:]]
        return np.stack([*xors, *sums])


def add(columns: Longs, roots: SingleRoots, deltas: Deltas) -> Places:
    """Add the deltas of these roots to ``columns``, in place. Return the places of the roots that
    were added to; a place occurs once per delta.
    """
    inside, places = roots.places(deltas.root)
    for number, values in enumerate(deltas.columns[1:]):
        operation = np.bitwise_xor if number < _XORS else np.add
        operation.at(columns[number], places, values[inside])
    return places


def minus(some: Longs, others: Longs) -> Longs:
    """Subtract ``others`` from ``some``, column by column: by XOR for the first two columns, which
    are XORs, and arithmetically for the counts.
    """
    return np.concatenate([some[:_XORS] ^ others[:_XORS], some[_XORS:] - others[_XORS:]])


@dataclass(frozen=True)
class Alike:
    """Roots for which the steps emitted and acked the same numbers of edges.

    ``edges``: these numbers, and the broken components.
    ``reached``: the steps that acked a row of the roots.
    ``residue``: for each of ``root``, the XOR of all its edges.
    """

    edges: StepEdges
    reached: frozenset[str]
    root: Longs
    residue: Longs


def alike(
    runs: Mapping[str, Longs],
    root: Longs,
    failed: Places,
    components: Mapping[int, Sequence[Hop]],
) -> Iterator[Alike]:
    """Find the roots that are not balanced over all runs, and those at the places ``failed``. Yield
    them grouped by the edges that the steps emitted and acked.

    ``runs``: the columns that each step adds, by step.
    ``root``: the root at each place.
    """
    residue, open_edges = np.zeros_like(root), np.zeros_like(root)
    for delta, _, emitted_edges, acked_edges in runs.values():
        residue ^= delta
        open_edges += emitted_edges - acked_edges
    uneven = (residue != 0) | (open_edges != 0)
    uneven[failed] = True
    places = np.flatnonzero(uneven)
    root, residue = root[places], residue[places]
    steps = {step: _Additions.of(columns[:, places]) for step, columns in runs.items()}
    broken = {number: _breaks(hops, steps, len(root)) for number, hops in components.items()}
    # Counts of what is even are of no interest: there may be as many of them as roots.
    emitted, acked = _of_broken(steps, components, broken)
    reached = {name: step.acked_edges > 0 for name, step in steps.items()}
    columns = [*broken.values(), *emitted.values(), *acked.values(), *reached.values()]
    order = order_of(columns)
    starts = changes(*(column[order] for column in columns))
    for places in np.split(order, starts[1:]) if len(root) else ():
        first = places[0]
        edges = StepEdges(
            {name: int(counts[first]) for name, counts in emitted.items()},
            {name: int(counts[first]) for name, counts in acked.items()},
            [number for number, flags in broken.items() if flags[first]],
        )
        by = frozenset(name for name, flags in reached.items() if flags[first])
        yield Alike(edges, by, root[places], residue[places])


def _of_broken(
    steps: Mapping[str, "_Additions"],
    components: Mapping[int, Sequence[Hop]],
    broken: Mapping[int, Flags],
) -> tuple[dict[str, Longs], dict[str, Longs]]:
    """Return, by step, how many edges it emitted for each root, and how many it acked. Only edges
    in broken components of the root are counted.
    """
    emitted, acked = dict[str, Longs](), dict[str, Longs]()
    for number, hops in components.items():
        for name in {hop.producer for hop in hops} & steps.keys():
            emitted[name] = steps[name].emitted_edges * broken[number]
        for name in {hop.consumer for hop in hops} & steps.keys():
            acked[name] = steps[name].acked_edges * broken[number]
    return emitted, acked


@dataclass(frozen=True)
class _Additions:
    """Edges that a step's run adds to each root: XOR and number of those emitted and of those
    acked.
    """

    emitted: Longs
    acked: Longs
    emitted_edges: Longs
    acked_edges: Longs

    @classmethod
    def of(cls, columns: Longs) -> "_Additions":
        delta, acked, emitted_edges, acked_edges = columns
        return cls(delta ^ acked, acked, emitted_edges, acked_edges)


def _breaks(hops: Sequence[Hop], steps: Mapping[str, _Additions], roots: int) -> Flags:
    """Return a flag for each root, whether the producers of ``hops`` emitted other edges for it
    than the consumers acked. ``roots``: the number of roots.
    """
    residue, edges = np.zeros(roots, np.int64), np.zeros(roots, np.int64)
    for name in {hop.producer for hop in hops} & steps.keys():
        residue ^= steps[name].emitted
        edges += steps[name].emitted_edges
    for name in {hop.consumer for hop in hops} & steps.keys():
        residue ^= steps[name].acked
        edges -= steps[name].acked_edges
    flags: Flags = (residue != 0) | (edges != 0)
    return flags
