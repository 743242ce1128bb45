"""What of single roots is to be known: rows of uneven ones and of failed ones, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from ledger.deltas.kernel import Deltas, united
from ledger.deltas.single_roots import NOTHING, differences, is_in, judged, parts_of
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


def test_rows_of_uneven_and_failed_roots_are_left():
    """Over all runs: one that lost a root, one that acked another too often, and a fail."""
    runs = [emitting([1, 2, 3, 4, 5]), acking([1, 3, 4, 5]), acking([5], edges=2)]
    left = judged(runs, longs(1))
    assert [rows.root.tolist() for rows in left] == [[1, 2, 5], [1, 5], [5]]
    assert left[0].emitted_edges.tolist() == [1, 1, 1]


def test_even_roots_leave_nothing():
    """Nor do runs without rows."""
    runs = [emitting([1, 2]), acking([1, 2]), NOTHING]
    assert [len(rows.root) for rows in judged(runs, longs())] == [0, 0, 0]
