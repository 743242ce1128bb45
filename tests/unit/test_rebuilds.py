"""Which record of a unit counts as failed, so that the unit is replayed."""

from types import SimpleNamespace

import pytest

from ledger.batch.rebuilds import _root_of_batch
from ledger.deltas.spans import RootRange

SOURCES = [RootRange(5, 3), RootRange(20, 10_000)]


@pytest.mark.parametrize(
    ("failed", "roots"),
    [([], [5]), ([5, 7], [6]), ([5, 6, 7, 20], [21]), ([*range(5, 8), *range(20, 10_020)], [])],
    ids=["none failed", "of the first source", "of the second", "all failed"],
)
def test_one_record_of_a_batch(failed, roots):
    """Of a batch that is one unit it is the first record that did not fail, and no other."""
    spoiling = [SimpleNamespace(root_id=root) for root in failed]
    assert _root_of_batch(SOURCES, spoiling) == roots
