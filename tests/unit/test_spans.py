"""Spans of roots, and the files that have what a run adds to each root."""

import numpy as np
import pytest

from ledger.deltas.kernel import Deltas, merge_deltas
from ledger.deltas.root_files import RootWriter, read_listing, read_roots, write_listing
from ledger.deltas.spans import MOST_SPANS, RootRange, Spans, span_of
from ledger.errors import LostFileError

RANDOM = np.random.default_rng(7)


def deltas(root):
    """Deltas of these roots, of random bits."""
    root = np.asarray(root, np.int64)
    bits = RANDOM.integers(-(1 << 62), 1 << 62, (2, len(root)))
    counts = RANDOM.integers(0, 5, (2, len(root)))
    return Deltas(root, bits[0], bits[1], counts[0], counts[1])


@pytest.mark.parametrize(
    ("roots", "span"),
    [
        (0, 1),
        (1, 1),
        (MOST_SPANS, 1),
        (MOST_SPANS + 1, 2),
        (10 * MOST_SPANS, 16),
        (30_000_000, 512),
    ],
)
def test_a_span_is_the_least_by_which_a_range_has_few(roots, span):
    """A power of two; half of it would be too many."""
    assert span_of(roots) == span
    assert roots <= span * MOST_SPANS
    assert span == 1 or roots > span // 2 * MOST_SPANS


def test_each_source_has_its_own_spans():
    """A root outside of all ranges stands for itself."""
    spans = Spans([RootRange(8192, 100, 16), RootRange(4096, 10), RootRange(16384, 0, 4)])
    roots = np.array([4095, 4096, 4105, 4106, 8192, 8207, 8208, 8291, 8292, 16384])
    of = [4095, 4096, 4105, 4106, 8192, 8192, 8208, 8288, 8292, 16384]
    assert spans.of(roots).tolist() == of
    assert not spans.by_root
    assert Spans([RootRange(4096, 10)]).by_root
    assert Spans().of(roots) is roots


def test_a_span_adds_up_its_roots():
    """XOR of the bits, sum of the edges."""
    some = deltas([4096, 4097, 4099, 4100, 4096])
    whole = Spans([RootRange(4096, 5, 4)]).to_spans(some)
    assert whole.root.tolist() == [4096, 4100]
    first = np.array([0, 1, 2, 4])
    assert whole.delta[0] == np.bitwise_xor.reduce(some.delta[first])
    assert whole.acked[0] == np.bitwise_xor.reduce(some.acked[first])
    assert whole.emitted_edges.tolist() == [some.emitted_edges[first].sum(), some.emitted_edges[3]]


def test_roots_are_read_as_they_were_written(tmp_path):
    """Part by part, those that are asked for."""
    parts = [deltas(np.arange(10, 2_000)), deltas(np.arange(1_500, 3_000))]
    with RootWriter(f"{tmp_path}/run=1/0.parquet") as writer:
        for part in parts:
            writer.add(part)
        file = writer.close()
    assert (file.rows, file.first_root, file.last_root) == (3_490, 10, 2_999)
    write_listing(f"{tmp_path}/run=1", [file])
    files = read_listing(f"{tmp_path}/run=1")
    assert files == [file]
    read, whole = merge_deltas(list(read_roots(files))), merge_deltas(parts)
    for name in ("root", "delta", "acked", "emitted_edges", "acked_edges"):
        assert np.array_equal(getattr(read, name), getattr(whole, name)), name
    asked = []

    def wanted(least, greatest):
        asked.append((least, greatest))
        return greatest > 2_000

    (part,) = read_roots(files, wanted)
    assert np.array_equal(part.root, parts[1].root)
    assert asked == [(10, 2_999), (10, 1_999), (1_500, 2_999)]
    assert not list(read_roots(files, lambda least, greatest: False))


def test_a_file_that_failed_or_has_nothing_is_not_there(tmp_path):
    """Neither what an error interrupted nor an empty one."""
    with RootWriter(f"{tmp_path}/a.parquet") as writer:
        assert writer.close() is None

    def fail():
        with RootWriter(f"{tmp_path}/b.parquet") as writer:
            writer.add(deltas([1]))
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert not list(tmp_path.iterdir())


def test_lost_files_are_named(tmp_path):
    """The listing, and a file of it."""
    with pytest.raises(LostFileError, match=r"files\.json is gone"):
        read_listing(f"{tmp_path}/run=1")
    with RootWriter(f"{tmp_path}/0.parquet") as writer:
        writer.add(deltas([1]))
        file = writer.close()
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(LostFileError, match=r"0\.parquet"):
        list(read_roots([file]))


def test_roots_that_share_a_span():
    """Those of a range with one of more than a root; not a root that no source has."""
    spans = Spans([RootRange(4096, 10), RootRange(8192, 10, 4)])
    roots = np.array([1, 4096, 8192, 8201, 8202], np.int64)
    assert spans.shares(roots).tolist() == [False, False, True, True, False]
    assert not Spans([RootRange(4096, 10)]).shares(roots).any()
