"""What a settlement has to know of single roots: which are not even, or failed, and what the steps
did with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ledger.core.naming import StepEdges
from ledger.core.verdict import Hop
from ledger.deltas.kernel import Deltas, changes, order_of, united
from ledger.deltas.rows import Flags, Longs, Places
from ledger.deltas.spans import RootRange, Spans

_NO_ROOTS: Longs = np.empty(0, np.int64)
NOTHING = Deltas(_NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS)


def parts_of(spans: Longs, ranges: Sequence[RootRange], most_roots: int) -> Iterator[Longs]:
    """Spans, by their first roots in order, in parts that have at most so many roots, but for a
    part of one span.
    """
    sizes = np.ones(len(spans), np.int64)
    for some in ranges:
        inside = (spans >= some.first_root) & (spans < some.first_root + some.roots)
        sizes[inside] = some.span
    ends = np.cumsum(sizes)
    start = 0
    while start < len(spans):
        before = ends[start] - sizes[start]
        end = max(start + 1, int(np.searchsorted(ends, before + most_roots, "right")))
        yield spans[start:end]
        start = end


def is_in(values: Longs, ordered: Longs) -> Flags:
    """Whether each value is among others, which are in order: np.isin sorts both first, and takes up
    to 14 times as long.
    """
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    flags: Flags = ordered[places] == values
    return flags


def differences(posted: Deltas, rows: Deltas, spans: Spans) -> Deltas:
    """Of each span whose roots' ``rows`` do not add up to what a run has ``posted``, by how much
    they differ.
    """
    of_roots = spans.united(rows)
    taken = replace(
        of_roots, emitted_edges=-of_roots.emitted_edges, acked_edges=-of_roots.acked_edges
    )
    rest = united([posted, taken])
    return taking(
        rest,
        (rest.delta != 0) | (rest.acked != 0) | (rest.emitted_edges != 0) | (rest.acked_edges != 0),
    )


@dataclass(frozen=True)
class Alike:
    """Roots that broke alike: what the steps did with each of them, and the XOR that is left of
    each. ``reached``: the steps that acked a row of them.
    """

    edges: StepEdges
    reached: frozenset[str]
    root: Longs
    residue: Longs


def alike(
    runs: Sequence[tuple[str, Deltas]], failed: Longs, components: Mapping[int, Sequence[Hop]]
) -> Iterator[Alike]:
    """The roots that are not even over all runs, or that failed by a word of one, by what the steps
    did with them. ``runs``: each with its step, and with a row a root.
    """
    total = united([rows for _, rows in runs])
    uneven = (total.delta != 0) | (total.emitted_edges != total.acked_edges)
    uneven |= is_in(total.root, failed)
    root, residue = total.root[uneven], total.delta[uneven]
    steps = {step: _Additions(len(root)) for step, _ in runs}
    for step, rows in runs:
        steps[step].add(rows, root)
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
    """By step the edges that it emitted to, and acked of, what is broken of each root, 0 of what is
    not.
    """
    emitted, acked = dict[str, Longs](), dict[str, Longs]()
    for number, hops in components.items():
        for name in {hop.producer for hop in hops} & steps.keys():
            emitted[name] = steps[name].emitted_edges * broken[number]
        for name in {hop.consumer for hop in hops} & steps.keys():
            acked[name] = steps[name].acked_edges * broken[number]
    return emitted, acked


class _Additions:
    """What the runs of a step add to each of some roots."""

    def __init__(self, roots: int):
        self.emitted, self.acked, self.emitted_edges, self.acked_edges = (
            np.zeros(roots, np.int64) for _ in range(4)
        )

    def add(self, rows: Deltas, root: Longs) -> None:
        """Add the rows of a run, as far as they are of these roots, which are in order."""
        rows = taking(rows, is_in(rows.root, root))
        places = np.searchsorted(root, rows.root)
        self.emitted[places] ^= rows.delta ^ rows.acked
        self.acked[places] ^= rows.acked
        self.emitted_edges[places] += rows.emitted_edges
        self.acked_edges[places] += rows.acked_edges


def _breaks(hops: Sequence[Hop], steps: Mapping[str, _Additions], roots: int) -> Flags:
    """Of which of so many roots the producers of these hops emitted otherwise than the consumers
    acked.
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


def taking(deltas: Deltas, places: Places) -> Deltas:
    """The deltas at these places."""
    root, delta, acked, emitted_edges, acked_edges = (column[places] for column in deltas.columns)
    return Deltas(root, delta, acked, emitted_edges, acked_edges)


def split(deltas: Deltas, numbers: Longs) -> Iterator[tuple[int, Deltas]]:
    """The deltas of each of these numbers, one a delta, in their order."""
    order = order_of([numbers])
    ordered = numbers[order]
    starts = changes(ordered)
    for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
        yield int(ordered[start]), taking(deltas, order[start:end])
