"""Row ids of a plan's input, and sets of them that count and sum do not tell apart."""

from itertools import combinations

import numpy as np

from ledger.deltas.hashing import SEED, hash_longs
from ledger.deltas.stored import LOW_BITS


def row_ids(first_root, rows):
    """Hashes of root and position of a source's rows."""
    position = np.arange(rows)
    return hash_longs(position, hash_longs(position + first_root, SEED))


def equal_sums(ids):
    """Places of two sets of three ids, none in common, whose sums in a checksum are equal."""
    low, seen = [int(each) & LOW_BITS for each in ids], {}
    for places in combinations(range(len(low)), 3):
        total = sum(low[place] for place in places)
        other = seen.setdefault(total, places)
        if not set(other) & set(places):
            return other, places
    raise AssertionError
