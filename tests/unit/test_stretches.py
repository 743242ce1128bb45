"""Which files can be folded by themselves, by the order of their roots."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.deltas import stretches
from ledger.deltas.stretches import Stretches, sorted_out
from ledger.storage.manifest import DataFile

FEW = 4  # stretches of a file that are too many, by one
roots = st.lists(st.integers(0, 12), max_size=12)


def in_windows(values, size):
    """The values a few at a time, with a window of none."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return [np.array(part, np.int64) for part in [*parts[:1], [], *parts[1:]]]


def ascending(values):
    """The values cut where they descend."""
    pieces = []
    for value in values:
        if pieces and pieces[-1][-1] <= value:
            pieces[-1].append(value)
        else:
            pieces.append([value])
    return pieces


@given(roots, st.integers(1, 5))
def test_stretches_of_a_file(values, size):
    """A file is in order unless a root is in two of its stretches, or these are too many, in
    whatever windows they are read. Where gaps are few all of them are told apart.
    """
    with patch.object(stretches, "MOST_STRETCHES", FEW - 1):
        result = Stretches.of(in_windows(values, size))
    pieces = ascending(values)
    once = sum(len(set(piece)) for piece in pieces) == len(set(values))
    assert result.in_order == (once and len(pieces) < FEW)
    if result.in_order:
        in_ranges = [root for first, last in result.ranges for root in range(first, last + 1)]
        assert sorted(in_ranges) == sorted(set(values))
    else:
        assert result.ranges == ((min(values), max(values)),)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_only_wide_gaps_are_told_apart(size):
    """Those between the parts of other files, and not what a stage leaves that drops rows."""
    values = [*range(0, 500, 2), *range(5000, 5500, 3)]
    result = Stretches.of(in_windows(values, size))
    assert result.in_order
    assert not [some for some in result.ranges if some[0] < 4999 <= some[1]]
    if size == 1000:
        assert result.ranges == ((0, 498), (5000, 5498))


@given(st.lists(roots, max_size=6), st.booleans())
def test_files_are_told_apart(drawn, by_input):
    """No root of a file that is folded by itself is in another one, if that matters; it lies in
    order there. A file is out of order only by itself.
    """
    files = [DataFile(str(number), 1, 1, number) for number in range(len(drawn))]
    orders = [Stretches.of(in_windows(values, 3)) for values in drawn]
    kinds = [
        [int(file.path) for file in kind] for kind in sorted_out(files, orders, by_input=by_input)
    ]
    assert sorted(number for kind in kinds for number in kind) == list(range(len(drawn)))
    ordered, shared, unordered = kinds
    assert all(orders[number].in_order for number in ordered)
    assert not any(orders[number].in_order for number in unordered)
    if by_input:
        for number in [*ordered, *unordered]:
            others = {root for n, values in enumerate(drawn) if n != number for root in values}
            assert not others.intersection(drawn[number])
        assert len(shared) != 1
    else:
        assert shared == []


@pytest.mark.parametrize(
    ("ranges", "shared"),
    [
        ([[(0, 3)], [(4, 9)]], []),
        ([[(0, 3)], [(3, 9)]], [0, 1]),
        ([[(0, 3), (8, 9)], [(4, 7)]], []),
        ([[(0, 3), (8, 9)], [(4, 8)], [(20, 30)]], [0, 1]),
        ([[(0, 100)], [(2, 5)], [(4, 6)], [(7, 8)], []], [0, 1, 2, 3]),
        ([[(0, 5)], [(2, 9)], [(6, 7)], [(10, 11)]], [0, 1, 2]),
    ],
)
def test_files_with_roots_in_common(ranges, shared):
    """Also by way of a third one, and at the border of a stretch."""
    files = [DataFile(str(number), 1, 1, number) for number in range(len(ranges))]
    orders = [Stretches(tuple(some)) for some in ranges]
    _, together, _ = sorted_out(files, orders, by_input=True)
    assert [int(file.path) for file in together] == shared
