"""The classic worked examples of the XOR acker, with their own numbers, in the real ledger."""

import pytest

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch import refining
from ledger.deltas.spans import RootRange
from ledger.store.queries import batches
from tests.support.posting import Delta


def shape(name, stages, sinks):
    """A pipeline of one source; ``stages`` and ``sinks``: name -> what it reads."""
    pipeline = Pipeline(name)
    pipeline.source("source", FileSource("in.csv", schema="n INT"))
    for stage, reads in stages.items():
        function = lambda frame: frame  # noqa: E731
        function.__name__ = stage
        pipeline.stage(reads=reads)(function)
    for sink, reads in sinks.items():
        pipeline.sink(sink, ParquetSink(sink), reads=reads)
    return pipeline


def emit_edges(ledger, batch, value, count):
    """Commit the source with one root whose edges XOR to ``value``; the root."""
    run = ledger.start(batch.batch_id, "source")
    root = ledger.transact(batches.reserve_roots, 1)
    deltas = [Delta(root, emitted=value, emitted_edges=count)]
    ledger.post(run, deltas)
    ledger.commit(run, deltas, emitted=RootRange(root, 1))
    return root


def step(ledger, batch, name, root, *, acked=(), emitted=()):
    """Commit a step that acks and emits edges by their ids; the delta that it posted."""
    delta = Delta(root, _xor(acked), _xor(emitted), len(acked), len(emitted))
    ledger.finish(ledger.start(batch.batch_id, name), [delta])
    return delta.acked ^ delta.emitted


def _xor(values):
    total = 0
    for value in values:
        total ^= value
    return total


def running_value(ledger):
    """The ack value of the one root under way, as users ask for it; 0 when nothing is pending."""
    rows = ledger.rows("SELECT ack_value FROM pending_root")
    assert len(rows) <= 1
    return rows[0].ack_value if rows else 0


def acked(ledger, batch, root):
    """Settle; whether the root is acked."""
    ledger.settle(batch.batch_id)
    return ledger.row(f"SELECT status FROM root_state({root})").status == "acked"


def test_diamond(ledger):
    """source -> A, B -> C with edges 1, 2, 3, 4: the ledger receives 1^2, 1^3, 2^4, 3, 4; total
    0.
    """
    pipeline = shape("diamond", {"a": "source", "b": "source"}, {"c_from_a": "a", "c_from_b": "b"})
    batch = ledger.open(pipeline)
    root = emit_edges(ledger, batch, 1 ^ 2, 2)
    received = [
        1 ^ 2,
        step(ledger, batch, "a", root, acked=[1], emitted=[3]),
        step(ledger, batch, "b", root, acked=[2], emitted=[4]),
        step(ledger, batch, "c_from_a", root, acked=[3]),
        step(ledger, batch, "c_from_b", root, acked=[4]),
    ]
    assert received == [1 ^ 2, 1 ^ 3, 2 ^ 4, 3, 4]
    posted = ledger.row(
        "SELECT array_agg(delta ORDER BY step_run_id) AS d, bit_xor(delta) AS total FROM"
        " ledger_delta",
    )
    assert (posted.d, posted.total) == (received, 0)
    assert running_value(ledger) == 0
    assert acked(ledger, batch, root)


def test_sentence_of_two_words(ledger):
    """Sentence "good idea", root 66, edge 8: split posts 11, the value runs 8, 3, 7, 0."""
    pipeline = shape(
        "words", {"split": "source"}, {"first_counter": "split", "second_counter": "split"}
    )
    ledger.change("UPDATE root_counter SET next_root = 66")
    batch = ledger.open(pipeline)
    root = emit_edges(ledger, batch, 8, 1)
    assert (root, running_value(ledger)) == (66, 8)
    assert step(ledger, batch, "split", root, acked=[8], emitted=[4, 7]) == 11
    assert running_value(ledger) == 3
    step(ledger, batch, "first_counter", root, acked=[4])
    assert running_value(ledger) == 7
    step(ledger, batch, "second_counter", root, acked=[7])
    assert running_value(ledger) == 0
    assert acked(ledger, batch, root)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_one_source_to_many_consumers(ledger, count):
    """After consumer k has acked, id_k is gone from the value; after all of them it is 0."""
    ids = {f"consumer_{k}": 1 << (7 * k) for k in range(count)}
    batch = ledger.open(shape("broadcast", {}, dict.fromkeys(ids, "source")))
    root = emit_edges(ledger, batch, _xor(ids.values()), count)
    left = set(ids.values())
    for name, edge in ids.items():
        assert running_value(ledger) == _xor(left)
        step(ledger, batch, name, root, acked=[edge])
        left.remove(edge)
    assert running_value(ledger) == 0
    assert acked(ledger, batch, root)


def test_a_span_of_four(ledger):
    """Eight records whose roots share rows by four, one of them lost: the rows, their XOR, and what
    of single roots is read. The numbers of docs/concepts.md."""
    ledger.change("UPDATE root_counter SET next_root = 4093")
    batch = ledger.open(shape("spans", {}, {"sink": "source"}))
    edges = {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128}
    first = ledger.transact(batches.reserve_roots, 8, 4)
    assert first == 4096
    emitted = RootRange(first, 8, 4)
    run = ledger.start(batch.batch_id, "source")
    deltas = [Delta(first + n, emitted=edge, emitted_edges=1) for n, edge in edges.items()]
    ledger.post(run, deltas, emitted=emitted)
    ledger.commit(run, deltas, emitted=emitted)
    assert pending(ledger) == [(4096, 15, 4, 4), (4100, 240, 4, 4)]
    arrived = [Delta(first + n, edge, 0, 1) for n, edge in edges.items() if n != 2]
    ledger.finish(ledger.start(batch.batch_id, "sink"), arrived)
    posted = ledger.rows("SELECT root_id, delta FROM ledger_delta ORDER BY step_run_id, root_id")
    assert posted == [(4096, 15), (4100, 240), (4096, 11), (4100, 240)]
    assert pending(ledger) == [(4096, 4, 1, 4)]
    refined = []
    alike = refining.alike

    def watched(*arguments):
        refined.extend(alike(*arguments))
        return refined

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refining, "alike", watched)
        assert ledger.settle(batch.batch_id).failed == 1
    (some,) = refined
    assert (some.root.tolist(), some.residue.tolist()) == ([4098], [4])
    assert (some.edges.emitted["source"], some.edges.acked["sink"]) == (1, 0)
    columns = "root_id, step, cause, producers, emitted_edges, acked_edges, residue"
    failed = ledger.row(f"SELECT {columns} FROM failed_root")
    assert tuple(failed) == (4098, "sink", "lost", "source", 1, 0, 4)


def pending(ledger):
    """The spans that are not even, with their ack value, open edges and number of roots."""
    rows = ledger.rows("SELECT root_id, ack_value, open_edges, roots FROM pending_root ORDER BY 1")
    return [tuple(row) for row in rows]


def test_zero_before_everything_is_committed_is_no_ack(ledger):
    """A value that happens to be 0 while a consumer is missing settles nothing."""
    batch = ledger.open(shape("early", {}, {"one": "source", "two": "source"}))
    root = emit_edges(ledger, batch, 5 ^ 5, 2)
    assert running_value(ledger) == 0
    assert not acked(ledger, batch, root)
    step(ledger, batch, "one", root, acked=[5])
    assert not acked(ledger, batch, root)
    step(ledger, batch, "two", root, acked=[5])
    assert acked(ledger, batch, root)
