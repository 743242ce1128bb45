"""What of single roots is to be known: what the steps did with uneven ones and failed ones."""

from dataclasses import replace

import numpy as np
import pytest

from ledger.core.verdict import hops
from ledger.deltas.kernel import Deltas, united
from ledger.deltas.single_roots import NOTHING, alike, differences, is_in, parts_of
from ledger.deltas.spans import RootRange, Spans

RANGES = (RootRange(0, 100, 16), RootRange(4096, 50, 4))
RANDOM = np.random.default_rng(7)


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
    """A span is read as a whole, however many roots it has."""
    spans = longs(0, 16, 64, 4096, 4100, 4144)
    assert [part.tolist() for part in parts_of(spans, RANGES, most)] == parts


def test_no_spans_are_no_part():
    """There is nothing to read."""
    assert list(parts_of(longs(), RANGES, 8)) == []


def test_membership():
    """Of what is in order, the first, the last, and what lies around."""
    values = longs(-1, 4, 5, 6, 9, 10)
    assert is_in(values, longs(5, 9)).tolist() == [False, False, True, False, True, False]
    assert not is_in(values, longs()).any()
    assert not len(is_in(longs(), longs(5)))


def test_rows_that_add_up_differ_in_nothing():
    """By span, whatever their order, and if a root has several rows."""
    spans = Spans(RANGES)
    rows = acking([17, 3, 4099, 4099, 16])
    assert not len(differences(spans.united(rows), united([rows]), spans).root)


@pytest.mark.parametrize("name", ["delta", "acked", "emitted_edges", "acked_edges"])
def test_each_number_is_compared(name):
    """XOR, acked XOR and both counts: the span that differs is named, and by how much."""
    spans = Spans(RANGES)
    rows = united([acking([17, 3, 4099])])
    posted = spans.united(rows)
    column = getattr(posted, name).copy()
    column[1] ^= 1
    wrong = differences(replace(posted, **{name: column}), rows, spans)
    assert wrong.root.tolist() == [16]
    assert abs(int(getattr(wrong, name)[0])) == 1


def test_rows_of_one_side_alone_differ():
    """A span that was posted and is in no file, and one that is in a file and was not posted."""
    spans = Spans(RANGES)
    rows = united([acking([3, 17])])
    assert differences(spans.united(rows), NOTHING, spans).root.tolist() == [0, 16]
    assert differences(NOTHING, rows, spans).root.tolist() == [0, 16]


COMPONENTS = {
    hop.component: [hop]
    for hop in hops(
        [
            {"name": "source", "reads": []},
            {"name": "stage", "reads": ["source"]},
            {"name": "sink", "reads": ["stage"]},
        ]
    )
}
STAGE, SINK = COMPONENTS


def test_uneven_and_failed_roots_are_grouped_by_what_happened_to_them():
    """One that was lost, one that was acked too often, and one that failed by a word and is even;
    with the XOR that is left of each.
    """
    runs = [
        ("source", emitting([1, 2, 3, 4, 5, 6])),
        ("stage", acking([1, 3, 4, 5])),
        ("stage", acking([5], edges=2)),
    ]
    groups = [
        (some.root.tolist(), some.residue.tolist(), some.edges.acked["stage"], some.edges.broken)
        for some in alike(runs, longs(1), COMPONENTS)
    ]
    assert sorted(groups) == [
        ([1], [0], 0, []), ([2, 6], [2, 6], 0, [STAGE]), ([5], [5], 3, [STAGE])
    ]  # fmt: skip


def test_equal_counts_of_other_edges_break():
    """What is broken is told by XOR, too; and what the producer emitted is not what it acked."""
    both = Deltas(longs(1), longs(1 ^ 8), longs(1), longs(1), longs(1))
    runs = [("source", emitting([1])), ("stage", both), ("sink", acking([1]))]
    (some,) = alike(runs, longs(), COMPONENTS)
    assert (some.edges.broken, some.residue.tolist()) == ([SINK], [8 ^ 1])
    assert some.edges.emitted == {"source": 0, "stage": 1}  # of what is broken
    assert some.reached == {"stage", "sink"}


def test_counts_of_what_is_even_make_no_groups():
    """Roots that lost a row at the sink broke alike, however many rows the stage made of each."""
    many = longs(3, 4, 5)
    roots, ones = longs(1, 2, 3), longs(1, 1, 1)
    runs = [
        ("source", Deltas(roots, roots, roots * 0, many, ones * 0)),
        ("stage", Deltas(roots, roots ^ 9, roots, ones, many)),
        ("sink", Deltas(roots, roots * 0 + 8, roots * 0 + 8, ones * 0, ones)),
    ]
    (some,) = alike(runs, longs(), COMPONENTS)
    assert (some.root.tolist(), some.edges.broken) == ([1, 2, 3], [SINK])


def test_spans_of_roots_that_no_source_has():
    """Each counts as one."""
    assert [part.tolist() for part in parts_of(longs(0, 200, 201), RANGES, 17)] == [[0, 200], [201]]


def test_even_roots_leave_nothing():
    """Nor do runs without rows, nor a root that failed and of which nothing was posted."""
    runs = [("source", emitting([1, 2])), ("stage", acking([1, 2])), ("sink", NOTHING)]
    assert list(alike(runs, longs(), COMPONENTS)) == []
    assert list(alike(runs, longs(7), COMPONENTS)) == []
