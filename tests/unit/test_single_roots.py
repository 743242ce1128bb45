"""What of single roots is to be known: what the steps did with uneven ones and failed ones."""

import numpy as np
import pytest

from ledger.core.breaks import hops
from ledger.core.declared_steps import DeclaredStep
from ledger.deltas.kernel import Deltas
from ledger.deltas.single_roots import COLUMNS, NOTHING, SingleRoots, add, alike, minus
from ledger.deltas.spans import RootRange, Spans

RANGES = (RootRange(0, 100, 16), RootRange(4096, 50, 4))
SPANS = (0, 16, 64, 4096, 4100, 4144)
SIZES = (16, 16, 16, 4, 4, 2)  # the last one ends with its source
ROOTS = 10


def longs(*values):
    """A column."""
    return np.array(values, np.int64)


def acking(root, edges=1):
    """A run that acks an edge of each of these roots, whose number is its own."""
    root = np.asarray(root, np.int64)
    return Deltas(root, root, root, root * 0, root * 0 + edges)


def emitting(root):
    """A run that emits it."""
    root = np.asarray(root, np.int64)
    return Deltas(root, root, root * 0, root * 0 + 1, root * 0)


def columns(*deltas, roots=None):
    """What some deltas add to roots, by default those from 0 on."""
    roots = roots or SingleRoots(longs(0), longs(ROOTS))
    table = np.zeros((COLUMNS, len(roots)), np.int64)
    for some in deltas:
        add(table, roots, some)
    return table


def groups(runs, *failed):
    """The groups of those that broke alike."""
    by_step = {step: columns(*deltas) for step, deltas in runs.items()}
    return list(alike(by_step, np.arange(ROOTS), longs(*failed), COMPONENTS))


@pytest.mark.parametrize(
    ("most", "parts"),
    [
        (1000, [[0, 16, 64, 4096, 4100, 4144]]),
        (32, [[0, 16], [64, 4096, 4100, 4144]]),
        (16, [[0], [16], [64], [4096, 4100, 4144]]),
        (1, [[0], [16], [64], [4096], [4100], [4144]]),
    ],
)
def test_parts_have_at_most_so_many_roots(most, parts):
    """A span is looked at as a whole, however many roots it has; places go on from part to part."""
    roots = SingleRoots.of(longs(*SPANS), RANGES)
    assert roots.sizes.tolist() == [*SIZES]
    some = list(roots.parts(most))
    assert [part.spans.tolist() for _, part in some] == parts
    assert np.array_equal(np.concatenate([part.root for _, part in some]), roots.root)
    assert np.array_equal(np.concatenate([roots.root[places] for places, _ in some]), roots.root)


def test_no_spans_are_no_part():
    """There is nothing to read."""
    nothing = SingleRoots.of(longs(), RANGES)
    assert list(nothing.parts(8)) == []
    assert not nothing.has_some(0, 1 << 60)


def test_a_place_is_that_of_its_root():
    """Of the first root of a span, the last, and what lies around."""
    roots = SingleRoots.of(longs(*SPANS), RANGES)
    asked = longs(-1, 0, 15, 31, 32, 63, 64, 79, 80, 4095, 4096, 4104, 4144, 4145, 4146)
    inside, places = roots.places(asked)
    assert np.array_equal(roots.root[places], asked[inside])
    assert asked[~inside].tolist() == [-1, 32, 63, 80, 4095, 4104, 4146]
    assert (roots.first, roots.last, len(roots)) == (0, 4145, sum(SIZES))


def test_whether_a_stretch_has_some_of_the_roots():
    """By the least and the greatest root of a file, or of a part of it."""
    roots = SingleRoots.of(longs(*SPANS), RANGES)
    stretches = [(-9, -1), (-9, 0), (31, 31), (32, 63), (32, 64), (80, 4095), (4145, 9_000)]
    assert [roots.has_some(*ends) for ends in stretches] == [
        False, True, True, False, True, False, True
    ]  # fmt: skip
    assert not roots.has_some(4146, 9_000)


def test_roots_that_no_source_has():
    """Each is a span of its own."""
    assert SingleRoots.of(longs(0, 200, 4146), RANGES).sizes.tolist() == [16, 1, 1]


def test_rows_that_add_up_differ_in_nothing():
    """By span, whatever their order, and if a root has several rows; others are left out."""
    roots = SingleRoots.of(longs(0, 16, 4096), RANGES)
    rows = acking([17, 3, 4099, 4099, 16])
    posted = roots.posted(Spans(RANGES).to_spans(rows))
    table = columns(rows, acking([32, 4100]), roots=roots)
    assert not minus(posted, roots.by_span(table)).any()


@pytest.mark.parametrize("number", range(COLUMNS))
def test_each_number_is_compared(number):
    """XOR, acked XOR and both counts: the span that differs is named, and by how much."""
    roots = SingleRoots.of(longs(0, 16, 4096), RANGES)
    rows = acking([17, 3, 4099])
    posted = roots.posted(Spans(RANGES).to_spans(rows))
    posted[number, 1] += 2
    wrong = minus(posted, roots.by_span(columns(rows, roots=roots)))
    assert [*zip(*np.nonzero(wrong), strict=True)] == [(number, 1)]
    assert wrong[number, 1] in (2, 17 ^ 19)


def test_rows_of_one_side_alone_differ():
    """A span that was posted and is in no file, and one that is in a file and was not posted."""
    roots = SingleRoots.of(longs(0, 16), RANGES)
    rows = acking([3, 17])
    posted, read = roots.posted(Spans(RANGES).to_spans(rows)), columns(rows, roots=roots)
    nothing = roots.posted(NOTHING)
    assert minus(posted, roots.by_span(columns(roots=roots)))[3].tolist() == [1, 1]
    assert minus(nothing, roots.by_span(read))[3].tolist() == [-1, -1]


COMPONENTS = {
    hop.component: [hop]
    for hop in hops(
        [
            DeclaredStep("source", "source"),
            DeclaredStep("stage", "stage", ("source",)),
            DeclaredStep("sink", "sink", ("stage",)),
        ]
    )
}
STAGE, SINK = COMPONENTS


def test_uneven_and_failed_roots_are_grouped_by_what_happened_to_them():
    """One that was lost, one that was acked too often, and one that failed by a word and is even;
    with the remaining XOR of each.
    """
    runs = {
        "source": [emitting([1, 2, 3, 4, 5, 6])],
        "stage": [acking([1, 3, 4, 5]), acking([5], edges=2)],
    }
    grouped = [
        (some.root.tolist(), some.residue.tolist(), some.edges.acked["stage"], some.edges.broken)
        for some in groups(runs, 1)
    ]
    assert sorted(grouped) == [
        ([1], [0], 0, []), ([2, 6], [2, 6], 0, [STAGE]), ([5], [5], 3, [STAGE])
    ]  # fmt: skip


def test_equal_counts_of_other_edges_break():
    """XOR shows what is broken, too; and what the producer emitted is not what it acked."""
    both = Deltas(longs(1), longs(1 ^ 8), longs(1), longs(1), longs(1))
    (some,) = groups({"source": [emitting([1])], "stage": [both], "sink": [acking([1])]})
    assert (some.edges.broken, some.residue.tolist()) == ([SINK], [8 ^ 1])
    assert some.edges.emitted == {"source": 0, "stage": 1}  # of what is broken
    assert some.reached == {"stage", "sink"}


def test_counts_of_what_is_even_make_no_groups():
    """Roots that lost a row at the sink broke alike, however many rows the stage made of each."""
    many = longs(3, 4, 5)
    roots, ones = longs(1, 2, 3), longs(1, 1, 1)
    runs = {
        "source": [Deltas(roots, roots, roots * 0, many, ones * 0)],
        "stage": [Deltas(roots, roots ^ 9, roots, ones, many)],
        "sink": [Deltas(roots, roots * 0 + 8, roots * 0 + 8, ones * 0, ones)],
    }
    (some,) = groups(runs)
    assert (some.root.tolist(), some.edges.broken) == ([1, 2, 3], [SINK])


def test_even_roots_leave_nothing():
    """Nor do runs without rows."""
    runs = {"source": [emitting([1, 2])], "stage": [acking([1, 2])], "sink": []}
    assert groups(runs) == []
