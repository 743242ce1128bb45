"""Rows as a run writes them, at random, and what their deltas are by plain Python: a dictionary
of integers.
"""

from collections import defaultdict
from functools import cache

import numpy as np
from hypothesis import strategies as st

from ledger.deltas.edges import Edges
from ledger.deltas.hashing import hash_longs, hash_text
from ledger.deltas.kernel import merge_deltas
from ledger.deltas.portions import Folded
from ledger.deltas.rows import NONE, Rows, Texts
from ledger.deltas.stored import Checksum

INPUTS = {"one": 11, "two": 12}
REASONS = (None, "", "b", "a", "c")
REPEATED = "repeated"  # a fail without a reason


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
        seen = set()
        for root, number, parent in sorted(anchors):
            self.by_input[root, number, parent].append(dropped)
            self.seen.add(root)
            if failed is not None:
                result = (shared, failed)
                self.fails[root] = min(self.fails.get(root, result), result)
            elif dropped is None and root not in seen:
                self.going[root, number, parent] += 1
                for consumer in self.edges.consumers:
                    self.emitted[root] ^= edge(f"{self.edges.run_id}:{consumer}", position, root)
                    self.out[root] += 1
            seen.add(root)

    def ack_emitted(self):
        """Each distinct input is acked that a row comes from."""
        for root, number, parent in self.by_input:
            self.ack(root, number, parent)

    def repeated(self, emits_one):
        """The roots of which more than one row goes on of an input, if one may, as ``fails``."""
        roots = {key[0] for key, count in self.going.items() if count > 1 and emits_one}
        return dict.fromkeys(roots, (False, REPEATED))

    def drops(self):
        """Inputs of which every row was dropped, by reason."""
        result = defaultdict(int)
        for marks in self.by_input.values():
            if None not in marks and min(marks):
                result[min(marks)] += 1
        return dict(result)

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
    words = [text_ for text_ in dict.fromkeys(values) if text_ is not None]
    codes = [NONE if text_ is None else words.index(text_) for text_ in values]
    return Texts.of(np.array(codes, np.int32), words)


def flat(written, lists):
    """Written rows as the kernel takes them: one for each anchor."""
    results = []
    for position, anchors, failed, dropped in written:
        seen, roots = set(), {root for root, _, _ in anchors}
        for root, number, parent in sorted(anchors):
            results.append(
                (root, number, parent, position, root not in seen, len(roots) > 1, failed, dropped)
            )
            seen.add(root)
    columns = list(zip(*results, strict=True)) or [()] * 8
    root, number, parent, position = (np.array(column, np.int64) for column in columns[:4])
    first, shared = (np.array(column, bool) for column in columns[4:6])
    return Rows(
        root,
        parent,
        position,
        number.astype(np.int32),
        first if lists else None,
        shared if lists else None,
        texts(columns[6]) if any(column is not None for column in columns[6]) else None,
        texts(columns[7]) if any(column is not None for column in columns[7]) else None,
    )


anchor = st.tuples(st.integers(1, 5), st.integers(0, 1), st.integers(5, 8))
marks = st.sampled_from(
    [(None, None)] * 4
    + [(reason, None) for reason in REASONS]
    + [(None, reason) for reason in REASONS]
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


def joined(parts):
    """What all parts of a fold add, at least one: a delta for each root."""
    return Folded(
        merge_deltas([part.deltas for part in parts]),
        sum((part.wrote for part in parts), Checksum()),
    )


def as_dict(deltas):
    """What ``Oracle.deltas`` makes."""
    names = ("delta", "acked", "emitted_edges", "acked_edges")
    columns = [getattr(deltas, name).tolist() for name in names]
    result = dict(zip(deltas.root.tolist(), zip(*columns, strict=True), strict=True))
    assert len(result) == len(deltas.root)
    return result


def fails_of(deltas):
    """Of each root that fails whether it shares its row, and its reason, as a settlement finds
    it: the first by name, one of its own before a shared one, that it was repeated after every
    other.
    """
    result = defaultdict(list)
    for delta in deltas.fails:
        columns = (delta.root.tolist(), delta.reason.tolist(), delta.shared.tolist())
        for root, code, shared in zip(*columns, strict=True):
            result[root].append((shared, REPEATED if code == NONE else delta.words[code]))
    return {
        root: min(fails, key=lambda fail: (fail[1] == REPEATED, fail))
        for root, fails in result.items()
    }
