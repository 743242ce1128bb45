"""Numbers of a checksum, and which of them tell sets of rows apart."""

import numpy as np

from ledger.deltas.stored import Checksum
from tests.support.equal_sums import equal_sums, row_ids


def test_only_the_xor_tells_some_sets_apart():
    """Different rows may have an equal count and sum."""
    ids = row_ids(1, 400)
    first, second = (Checksum.of(ids[list(places)]) for places in equal_sums(ids))
    assert (first.rows, first.sum) == (second.rows, second.sum)
    assert first.xor != second.xor


def test_count_and_sum_both_tell_a_row_that_comes_three_times():
    """XOR does not. If XORs are equal, each row comes an odd number of times, so no number is
    smaller: either of the two is enough.
    """
    ids = row_ids(1, 400)
    once, thrice = Checksum.of(ids), Checksum.of(np.append(ids, ids[[7, 7]]))
    assert once.xor == thrice.xor
    assert once.rows < thrice.rows
    assert once.sum < thrice.sum
