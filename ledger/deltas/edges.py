"""Ids of edges: one row on its way to one consumer.

An edge's id is ``xxhash64('<run>:<consumer>', root, position)``, in Spark, in SQL and here: a
function of where the row is stored, so two readings of the same files agree, and equal siblings
differ (decision 001). An edge is XORed in twice, when it is emitted and when its consumer acks
it. See CONCEPTS of Storm's acker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from ledger.deltas.hashing import Hashes, hash_longs, hash_text
from ledger.deltas.rows import Codes, Counts, Longs


@dataclass(frozen=True)
class Edges:
    """The edges that one run emits and acks.

    ``consumers``: the steps to which it emits.
    ``inputs``: the run ids of the steps that it reads, by step name, in the order of
    ``Rows.input``.
    """

    run_id: int
    step: str
    consumers: Sequence[str]
    inputs: Mapping[str, int]

    def emitted(self, roots: Longs, lengths: Counts, position: Longs) -> Hashes:
        """Return for each row the XOR of its edges to all consumers; 0 without consumers.

        ``roots``: the root of each series of rows with one root.
        ``lengths``: the number of rows of each series.
        """
        ids = [_ids(seed, roots, lengths, position) for seed in self._out]
        return reduce(np.bitwise_xor, ids) if ids else np.zeros(len(position), np.uint64)

    def acked(self, roots: Longs, lengths: Counts, parent: Longs, number: Codes | None) -> Hashes:
        """Return for each anchor its edge from the input row at ``parent`` to this step.

        ``roots``, ``lengths``: as for ``emitted``.
        ``number``: place of each anchor's input in ``inputs``; None: there is one input.
        """
        if number is None:
            return _ids(self._in[0], roots, lengths, parent)
        return hash_longs(parent, hash_longs(np.repeat(roots, lengths), np.array(self._in)[number]))

    @cached_property
    def _out(self) -> list[np.uint64]:
        return [_seed(self.run_id, consumer) for consumer in self.consumers]

    @cached_property
    def _in(self) -> list[np.uint64]:
        return [_seed(run_id, self.step) for run_id in self.inputs.values()]


def edge_text(run_id: int, consumer: str) -> str:
    """Return the text that an edge's hash begins with; root and position are chained to it."""
    return f"{run_id}:{consumer}"


def _seed(run_id: int, consumer: str) -> np.uint64:
    return np.uint64(hash_text(edge_text(run_id, consumer))[0])


def _ids(seed: np.uint64, roots: Longs, lengths: Counts, position: Longs) -> Hashes:
    """Return the ids of edges. The root is hashed first, so once for a series of rows with one
    root.
    """
    begun = hash_longs(roots, seed)
    return hash_longs(position, begun if len(begun) == len(position) else np.repeat(begun, lengths))
