"""The kernel against plain Python: a dictionary of integers, one row at a time, and Spark's own hash."""

import struct
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.deltas import hashing, kernel
from ledger.deltas.edges import Edges
from ledger.deltas.hashing import BLOCK, hash_longs, hash_text
from ledger.deltas.rows import NONE, Rows, Texts

INPUTS = {"one": 11, "two": 12}
REASONS = (None, "", "b", "a", "c")


@cache
def edge(text, position, root):
    """An edge's id, of Python integers."""
    seed = int(hash_text(text)[0])
    for value in (root, position):
        seed = int(hash_longs(np.array([value]), np.array([seed], np.uint64))[0])
    return seed


class Oracle:
    """Deltas as a dictionary: of each root XOR and count of what is emitted and acked."""

    def __init__(self, edges):
        self.edges, self.names = edges, list(edges.inputs)
        self.emitted, self.acked = defaultdict(int), defaultdict(int)
        self.out, self.back = defaultdict(int), defaultdict(int)
        self.seen, self.going, self.fails = set(), defaultdict(int), {}
        self.by_input = defaultdict(list)

    def ack(self, root, number, parent):
        """An input is acked."""
        run = self.edges.inputs[self.names[number]]
        self.acked[root] ^= edge(f"{run}:{self.edges.step}", parent, root)
        self.back[root] += 1

    def emit(self, position, anchors, failed, dropped):
        """A row is written."""
        shared = len({root for root, _, _ in anchors}) > 1
        given = set()
        for root, number, parent in sorted(anchors):
            self.by_input[root, number, parent].append(dropped)
            self.seen.add(root)
            if failed is not None:
                found = (shared, failed)
                self.fails[root] = min(self.fails.get(root, found), found)
            elif dropped is None and root not in given:
                self.going[root, number, parent] += 1
                for consumer in self.edges.consumers:
                    self.emitted[root] ^= edge(f"{self.edges.run_id}:{consumer}", position, root)
                    self.out[root] += 1
            given.add(root)

    def ack_emitted(self):
        """Each distinct input is acked that a row comes from."""
        for root, number, parent in self.by_input:
            self.ack(root, number, parent)

    def drops(self):
        """Inputs of which every row was dropped, by reason."""
        found = defaultdict(int)
        for marks in self.by_input.values():
            if None not in marks and min(marks):
                found[min(marks)] += 1
        return dict(found)

    def deltas(self):
        """Of each root delta, acked, edges emitted, edges acked."""
        return {
            root: (
                signed(self.emitted[root] ^ self.acked[root]),
                signed(self.acked[root]),
                self.out[root],
                self.back[root],
            )
            for root in self.seen | set(self.acked)
        }


def signed(value):
    """64 bits as PostgreSQL's bigint."""
    return value - (1 << 64) if value >= 1 << 63 else value


def texts(values):
    """A column of texts, coded in the order in which they come."""
    words = [one for one in dict.fromkeys(values) if one is not None]
    codes = [NONE if one is None else words.index(one) for one in values]
    return Texts.of(np.array(codes, np.int32), words)


def flat(written, lists):
    """Written rows as the kernel takes them: one for each anchor."""
    found = []
    for position, anchors, failed, dropped in written:
        given, roots = set(), {root for root, _, _ in anchors}
        for root, number, parent in sorted(anchors):
            found.append((root, number, parent, position, root not in given, len(roots) > 1, failed, dropped))  # fmt: skip
            given.add(root)
    columns = list(zip(*found, strict=True)) or [()] * 8
    root, number, parent, position = (np.array(one, np.int64) for one in columns[:4])
    first, shared = (np.array(one, bool) for one in columns[4:6])
    return Rows(
        root,
        parent,
        position,
        number.astype(np.int32),
        first if lists else None,
        shared if lists else None,
        texts(columns[6]) if any(one is not None for one in columns[6]) else None,
        texts(columns[7]) if any(one is not None for one in columns[7]) else None,
    )


anchor = st.tuples(st.integers(1, 5), st.integers(0, 1), st.integers(5, 8))
marks = st.sampled_from(
    [(None, None)] * 4 + [(one, None) for one in REASONS] + [(None, one) for one in REASONS]
)


@st.composite
def outputs(draw):
    """Rows in whatever order: repeated and interleaved parents, several inputs, anchors, marks."""
    lists = draw(st.booleans())
    anchors = st.lists(anchor, min_size=1, max_size=3 if lists else 1)
    drawn = draw(st.lists(st.tuples(anchors, marks), max_size=20))
    positions = draw(st.permutations(range(len(drawn))))
    return lists, [(p, a, *m) for p, (a, m) in zip(positions, drawn, strict=True)]


def edges(consumers):
    """Edges of run 7 to so many consumers."""
    return Edges(7, "step", [f"c{n}" for n in range(consumers)], INPUTS)


def as_dict(deltas):
    """What ``Oracle.deltas`` makes."""
    names = ("delta", "acked", "emitted_edges", "acked_edges")
    columns = [getattr(deltas, name).tolist() for name in names]
    found = dict(zip(deltas.root.tolist(), zip(*columns, strict=True), strict=True))
    assert len(found) == len(deltas.root)
    return found


def fails_of(deltas):
    """Of each root that fails whether it shares its row, and its reason."""
    return {
        root: (shared, one.words[code])
        for one in deltas.fails
        for root, code, shared in zip(
            one.root.tolist(), one.reason.tolist(), one.shared.tolist(), strict=True
        )
    }


@settings(max_examples=300, deadline=None)
@given(outputs(), st.integers(0, 2), st.booleans())
def test_acks_of_what_is_emitted(drawn, consumers, emits_one):
    """Each distinct input is acked once, in whatever order its rows come, and however many there are."""
    lists, written = drawn
    oracle = Oracle(edges(consumers))
    for row in written:
        oracle.emit(*row)
    oracle.ack_emitted()
    found = kernel.fold_emitted(flat(written, lists), edges(consumers), emits_one=emits_one)
    assert as_dict(found) == oracle.deltas()
    assert found.drops == oracle.drops()
    assert found.with_rows == len(oracle.by_input)
    repeated = {key[0] for key, count in oracle.going.items() if count > 1} if emits_one else set()
    told = dict.fromkeys(repeated, (False, kernel.REPEATED))
    assert fails_of(found) == {**told, **oracle.fails}


@settings(max_examples=200, deadline=None)
@given(outputs(), st.lists(anchor, max_size=20, unique=True), st.integers(0, 2))
def test_acks_of_what_is_read(drawn, read, consumers):
    """Every input is acked, also one that no row comes from; rows emit as ever."""
    lists, written = drawn
    oracle = Oracle(edges(consumers))
    for row in written:
        oracle.emit(*row)
    for one in read:
        oracle.ack(*one)
    rows = flat([(0, [one], None, None) for one in read], lists=False)
    own = edges(consumers)
    found = kernel.united(
        [kernel.fold_read(rows, own), kernel.fold_output(flat(written, lists), own)]
    )
    assert as_dict(found) == oracle.deltas()
    assert found.drops == oracle.drops()
    assert fails_of(found) == oracle.fails


@given(outputs(), st.integers(0, 2), st.integers(0, 20))
def test_parts_of_an_output(drawn, consumers, cut):
    """Folded in two parts that have no input in common the deltas are those of the whole."""
    lists, written = drawn
    if lists:
        return
    parts = [[row for row in written if (row[1][0][2] < 7) is low] for low in (True, False)]
    own = edges(consumers)
    whole = kernel.fold_emitted(flat(written, lists), own)
    found = kernel.united([kernel.fold_emitted(flat(part, lists), own) for part in parts])
    assert as_dict(found) == as_dict(whole)
    assert (found.drops, found.with_rows) == (whole.drops, whole.with_rows)


@pytest.mark.parametrize("consumers", [0, 1, 2])
def test_records_of_a_source(consumers):
    """A record has an edge to each consumer; one that did not parse has none, and fails."""
    oracle = Oracle(edges(consumers))
    root = np.arange(100, 110)
    failed = texts([None] * 8 + ["broken", "a"])
    found = kernel.fold_source(root, np.arange(10), edges(consumers), failed)
    for position in range(10):
        oracle.emit(position, [(100 + position, 0, 0)], None if position < 8 else "x", None)
    assert as_dict(found) == oracle.deltas()
    assert fails_of(found) == {108: (False, "broken"), 109: (False, "a")}


def test_interleaved_parents_are_one():
    """5, 5, 6, 5 are three runs and two parents: a parent that is acked twice would cancel."""
    written = [(place, [(1, 0, parent)], None, None) for place, parent in enumerate([5, 5, 6, 5])]
    found = kernel.fold_emitted(flat(written, lists=False), edges(1))
    assert found.acked_edges.tolist() == [2]
    assert found.with_rows == 2


longs = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(st.integers(0, 3) | longs, st.integers(0, 3) | longs)))
def test_rows_are_put_in_order(pairs):
    """By the first key, then by the second, equal rows as they were: whatever values the keys have."""
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
    """As another library has it, wherever the blocks end that are hashed at a time: with a seed each, or one for all.
    What is given stays as it is."""
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
    found = hash_text(text, np.array(seeds, np.uint64)).tolist()
    assert found == [xxhash.xxh64_intdigest(text.encode(), seed=seed) for seed in seeds]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Spark", -4294468057691064905), ("", -7444071767201028348)],
)
def test_texts_hash_as_in_spark(text, expected):
    """Known values of Spark's xxhash64."""
    assert int(hash_text(text).view(np.int64)[0]) == expected
