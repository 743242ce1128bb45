"""What of single roots a settlement has to know where the ledger has spans: the rows of those that
are not even, and of those that failed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ledger.deltas.kernel import Deltas, changes, order_of, united
from ledger.deltas.rows import Flags, Longs, Places
from ledger.deltas.spans import RootRange, Spans

_NO_ROOTS: Longs = np.empty(0, np.int64)
NOTHING = Deltas(_NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS, _NO_ROOTS)


def parts_of(spans: Longs, ranges: Sequence[RootRange], most_roots: int) -> Iterator[Longs]:
    """Spans, by their first roots in order, in parts that have at most so many roots, but for a
    part of one span.
    """
    sizes = np.zeros(len(spans), np.int64)
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
    """Whether each value is among others, which are in order."""
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


def judged(runs: Sequence[Deltas], failed: Longs) -> list[Deltas]:
    """Of the rows of each run, one a root, those of roots that are not even over all runs, or that
    failed by a word of a run.
    """
    total = united(runs)
    uneven = (total.delta != 0) | (total.emitted_edges != total.acked_edges)
    judged_roots = np.union1d(total.root[uneven], failed)
    return [taking(rows, is_in(rows.root, judged_roots)) for rows in runs]


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
