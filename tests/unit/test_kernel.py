"""The kernel against plain Python: a dictionary of integers, one row at a time, and Spark's own
hash.
"""

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.deltas import hashing, kernel
from ledger.deltas.hashing import BLOCK, hash_longs, hash_text
from tests.support.oracle import (
    Oracle,
    anchor,
    as_dict,
    edges,
    fails_of,
    flat,
    outputs,
    texts,
)


@settings(max_examples=300)
@given(outputs(), st.integers(0, 2), st.booleans())
def test_acks_of_what_is_emitted(drawn, consumers, emits_one):
    """Each distinct input is acked once, in whatever order its rows come, and however many there
    are.
    """
    lists, written = drawn
    oracle = Oracle(edges(consumers))
    for row in written:
        oracle.emit(*row)
    oracle.ack_emitted()
    result = kernel.fold_emitted(flat(written, lists), edges(consumers), emits_one=emits_one)
    assert as_dict(result) == oracle.deltas()
    assert result.drops == oracle.drops()
    assert result.with_rows == len(oracle.by_input)
    assert fails_of(result) == {**oracle.repeated(emits_one), **oracle.fails}


@settings(max_examples=200)
@given(outputs(), st.lists(anchor, max_size=20, unique=True), st.integers(0, 2), st.booleans())
def test_acks_of_what_is_read(drawn, read, consumers, emits_one):
    """Every input is acked, also one that no row comes from; rows emit as ever."""
    lists, written = drawn
    oracle = Oracle(edges(consumers))
    for row in written:
        oracle.emit(*row)
    for anchor_ in read:
        oracle.ack(*anchor_)
    rows = flat([(0, [anchor_], None, None) for anchor_ in read], lists=False)
    own = edges(consumers)
    output = kernel.fold_output(flat(written, lists), own, emits_one=emits_one)
    result = kernel.merge_deltas([kernel.fold_read(rows, own), output])
    assert as_dict(result) == oracle.deltas()
    assert result.drops == oracle.drops()
    assert fails_of(result) == {**oracle.repeated(emits_one), **oracle.fails}


@given(outputs(), st.integers(0, 2))
def test_parts_of_an_output(drawn, consumers):
    """Folded in two parts that have no input in common the deltas are those of the whole."""
    lists, written = drawn
    low = [row for row in written if max(parent for _, _, parent in row[1]) < 7]
    high = [row for row in written if min(parent for _, _, parent in row[1]) >= 7]
    own = edges(consumers)
    whole = kernel.fold_emitted(flat([*low, *high], lists), own, emits_one=True)
    parts = [kernel.fold_emitted(flat(part, lists), own, emits_one=True) for part in (low, high)]
    result = kernel.merge_deltas(parts)
    assert as_dict(result) == as_dict(whole)
    assert fails_of(result) == fails_of(whole)
    assert (result.drops, result.with_rows) == (whole.drops, whole.with_rows)


@pytest.mark.parametrize("consumers", [0, 1, 2])
def test_records_of_a_source(consumers):
    """A record has an edge to each consumer; one that did not parse has none, and fails."""
    oracle = Oracle(edges(consumers))
    root = np.arange(100, 110)
    failed = texts([None] * 8 + ["broken", "a"])
    result = kernel.fold_source(root, np.arange(10), edges(consumers), failed)
    for position in range(10):
        oracle.emit(position, [(100 + position, 0, 0)], None if position < 8 else "x", None)
    assert as_dict(result) == oracle.deltas()
    assert fails_of(result) == {108: (False, "broken"), 109: (False, "a")}


def test_interleaved_parents_are_one():
    """5, 5, 6, 5 are three runs and two parents: a parent that is acked twice would cancel."""
    written = [(place, [(1, 0, parent)], None, None) for place, parent in enumerate([5, 5, 6, 5])]
    result = kernel.fold_emitted(flat(written, lists=False), edges(1))
    assert result.acked_edges.tolist() == [2]
    assert result.with_rows == 2


longs = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(st.integers(0, 3) | longs, st.integers(0, 3) | longs)))
def test_rows_are_put_in_order(pairs):
    """By the first key, then by the second, equal rows as they were: whatever values the keys
    have.
    """
    keys = [np.array([pair[place] for pair in pairs], np.int64) for place in (0, 1)]
    expected = sorted(range(len(pairs)), key=pairs.__getitem__)
    assert kernel.order_of(keys).tolist() == expected


def chained(values, seeds):
    """XXH64 of each long with its seed, by another library."""
    pairs = zip(values.tolist(), seeds.tolist(), strict=True)
    return [xxhash.xxh64_intdigest(struct.pack("<q", value), seed=seed) for value, seed in pairs]


@pytest.mark.parametrize(
    ("block", "count"),
    [(block, count) for block in (1, 2, 3, 7, 100) for count in (0, 1, block, block + 1, 3 * block)]
    + [(BLOCK, BLOCK + 1)],
)
def test_longs_of_several_blocks(block, count, monkeypatch):
    """As another library has it, wherever the blocks end that are hashed at a time: with a seed
    each, or one for all. What is given stays as it is.
    """
    monkeypatch.setattr(hashing, "BLOCK", block)
    random = np.random.default_rng(count)
    values = random.integers(-(1 << 63), (1 << 63) - 1, count)
    seeds = random.integers(0, 2**64 - 1, count, np.uint64)
    before = values.copy(), seeds.copy()
    assert hash_longs(values, seeds).tolist() == chained(values, seeds)
    assert hash_longs(values).tolist() == chained(values, np.full(count, hashing.SEED))
    assert np.array_equal((values.view(np.uint64), seeds), (before[0].view(np.uint64), before[1]))


@given(st.text(max_size=120), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3))
def test_texts_of_any_length(text, seeds):
    """As another library has it: below and above the 32 bytes that are mixed at a time."""
    result = hash_text(text, np.array(seeds, np.uint64)).tolist()
    assert result == [xxhash.xxh64_intdigest(text.encode(), seed=seed) for seed in seeds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Spark", -4294468057691064905), ("", -7444071767201028348)],
)
def test_texts_hash_as_in_spark(text, expected):
    """Known values of Spark's xxhash64."""
    assert int(hash_text(text).view(np.int64)[0]) == expected


counts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, (1 << 63) - 1)), min_size=1)


@given(counts)
def test_counts_that_64_bits_do_not_hold_raise(pairs):
    """Instead of wrapping round; all others are added up."""
    root, edges_ = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    zeros = np.zeros(len(root), np.int64)
    part = kernel.Deltas(root, zeros, zeros, edges_, zeros)
    assert kernel.total(edges_) == sum(edges_.tolist())
    sums = {number: sum(n for key, n in pairs if key == number) for number, _ in pairs}
    if max(sums.values()) >= 1 << 63:
        with pytest.raises(OverflowError, match=r"at most 9,223,372,036,854,775,807, found"):
            kernel.merge_deltas([part])
        return
    whole = kernel.merge_deltas([part])
    assert dict(zip(whole.root.tolist(), whole.emitted_edges.tolist(), strict=True)) == sums


@given(st.lists(st.lists(st.integers(0, 40), max_size=20), max_size=8), st.integers(1, 30))
def test_parts_are_compacted(lists, most):
    """They come to the same, and no part but the last has few deltas, nor many more than asked."""

    def part(numbers):
        root = np.array(numbers, np.int64)
        return kernel.Deltas(root, root * 3, root * 5, root + 1, root + 2)

    parts = [part(numbers) for numbers in lists]
    result = list(kernel.compacted(iter(parts), most))
    assert all(len(some.root) > most // 2 for some in result[:-1])
    assert all(len(some.root) <= most + 20 for some in result)
    if parts:
        whole = kernel.merge_deltas(parts)
        assert as_dict(kernel.merge_deltas(result)) == as_dict(whole)
    else:
        assert result == []
