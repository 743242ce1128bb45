"""Which files can be folded by themselves, by the order of their roots."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.deltas import stretches
from ledger.deltas.stretches import Stretches, classify_files, merge_ranges, overlapping_groups
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
    whatever windows they are read. Where gaps are few all of them are distinguished.
    """
    with patch.object(stretches, "MOST_STRETCHES", FEW - 1):
        result = Stretches.of(in_windows(values, size))
    pieces = ascending(values)
    once = sum(len(set(piece)) for piece in pieces) == len(set(values))
    assert result.in_order == (once and len(pieces) < FEW)
    in_ranges = [root for first, last in result.ranges for root in range(first, last + 1)]
    assert len(in_ranges) == len(set(in_ranges))
    assert set(in_ranges).issuperset(values)
    assert not result.in_order or set(in_ranges) == set(values)


LEAST, GREATEST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("values", "ranges"),
    [
        ([0, 1, 2, 500, 501, 502, 10**12], ((0, 2), (500, 502), (10**12, 10**12))),
        ([LEAST, GREATEST], ((LEAST, LEAST), (GREATEST, GREATEST))),
        ([GREATEST, LEAST], ((LEAST, LEAST), (GREATEST, GREATEST))),
        ([LEAST, LEAST + 1, GREATEST - 1, GREATEST],
         ((LEAST, LEAST + 1), (GREATEST - 1, GREATEST))),
    ],
)  # fmt: skip
def test_roots_of_other_files_may_lie_in_gaps(values, ranges):
    """However much wider another gap is, and however far roots are apart."""
    assert Stretches.of([np.array(values)]) == Stretches(ranges)


@pytest.mark.parametrize("size", [7, 1000])
def test_the_widest_gaps_count(size):
    """Those between the parts of other files, and not all that a stage leaves that drops rows."""
    values = [*range(0, 500, 2), *range(5000, 5500, 3)]
    with patch.object(stretches, "MOST_GAPS", 1):
        ranges = Stretches.of(in_windows(values, size)).ranges
    assert not [some for some in ranges if some[0] < 4999 <= some[1]]
    if size == 1000:
        assert ranges == ((0, 498), (5000, 5498))


@given(st.lists(roots, max_size=6), st.sets(st.integers(0, 5)))
def test_files_are_distinguished(drawn, group):
    """Those that are folded with others may share an input, and their ranges of roots meet those of
    another. Any other one is folded by itself if it lies in order.
    """
    numbers = range(len(drawn))
    files = [DataFile(str(number), 1, 1, number) for number in numbers]
    orders = [Stretches.of(in_windows(values, 3)) for values in drawn]
    groups_by_input = [
        [n for n in numbers if n in group],
        *([n] for n in numbers if n not in group),
    ]
    ordered, shared, unordered = (
        [int(file.path) for file in kind] for kind in classify_files(files, orders, groups_by_input)
    )
    assert sorted([*ordered, *shared, *unordered]) == list(numbers)
    assert all(orders[number].in_order for number in ordered)
    assert not any(orders[number].in_order for number in unordered)
    assert group.issuperset(shared)
    if len(groups_by_input[0]) > 1:
        for number in group.intersection([*ordered, *unordered]):
            others = {root for n, values in enumerate(drawn) if n != number for root in values}
            assert not others.intersection(drawn[number])


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([[(0, 3)], [(4, 9)]], [[0], [1]]),
        ([[(0, 3)], [(3, 9)]], [[0, 1]]),
        ([[(0, 3), (8, 9)], [(4, 7)]], [[0], [1]]),
        ([[(0, 3), (8, 9)], [(4, 8)], [(20, 30)]], [[0, 1], [2]]),
        ([[(0, 100)], [(2, 5)], [(4, 6)], [(7, 8)], []], [[0, 1, 2, 3], [4]]),
        ([[(0, 5), (20, 21)], [(10, 11)], [(4, 6)], [(11, 20)]], [[0, 1, 2, 3]]),
        ([[(("a", 0), ("a", 9))], [(("b", 0), ("b", 9))], [(("a", 9), ("b", 0))]], [[0, 1, 2]]),
        ([[(("a", 0), ("a", 9))], [(("b", 0), ("b", 9))]], [[0], [1]]),
    ],
)
def test_files_whose_ranges_meet(ranges, groups):
    """Also by way of a third one, and at the border of a range."""
    assert sorted(map(sorted, overlapping_groups(ranges))) == groups


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=4), max_size=6))
def test_every_pair_that_meets_is_in_one_group(drawn):
    """And no two files that do not meet, be it by way of others."""
    files = [merge_ranges((first, first + many) for first, many in ranges) for ranges in drawn]
    sets = [{root for first, last in ranges for root in range(first, last + 1)} for ranges in files]
    groups = overlapping_groups(files)
    assert sorted(number for group in groups for number in group) == list(range(len(drawn)))
    for group in groups:
        others = [some for number, some in enumerate(sets) if number not in group]
        assert not any(sets[number] & other for number in group for other in others)
        reached = {group[0]}
        for _ in group:
            reached |= {n for n in group if any(sets[n] & sets[m] for m in reached)}
        assert reached == set(group)
