"""Ids of edges: one row on its way to one consumer.

An edge's id is ``xxhash64('<run>:<consumer>', position, root)``, in Spark, in SQL and here: a function of where the
row is stored, so two readings of the same files agree, and equal siblings differ (decision 001). An edge is
XORed in twice, when it is emitted and when its consumer acks it. See CONCEPTS of Storm's acker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ledger.deltas.hashing import Hashes, hash_longs, hash_text
from ledger.deltas.rows import Codes, Longs


@dataclass(frozen=True)
class Edges:
    """The edges of one run: those that it emits to ``consumers``, and those that it acks, of ``inputs``, run ids
    of the steps that it reads by name, in the order of ``Rows.input``."""

    run_id: int
    step: str
    consumers: Sequence[str]
    inputs: Mapping[str, int]

    def emitted(self, position: Longs, root: Longs) -> Hashes:
        """XOR of each row's edges to all consumers; 0 where there are none."""
        mixed = np.zeros(len(root), np.uint64)
        for seed in self._out:
            mixed ^= _edge(seed, position, root)
        return mixed

    def acked(self, parent: Longs, root: Longs, number: Codes | None) -> Hashes:
        """Each anchor's edge from the input row at ``parent`` to this step; ``number``: of its input."""
        if number is None:
            return _edge(self._in[0], parent, root)
        return _edge(np.array(self._in)[number], parent, root)

    @cached_property
    def _out(self) -> list[np.uint64]:
        return [_seed(self.run_id, consumer) for consumer in self.consumers]

    @cached_property
    def _in(self) -> list[np.uint64]:
        return [_seed(run_id, self.step) for run_id in self.inputs.values()]


def _seed(run_id: int, consumer: str) -> np.uint64:
    return np.uint64(hash_text(f"{run_id}:{consumer}")[0])


def _edge(seed: Hashes | np.uint64, position: Longs, root: Longs) -> Hashes:
    return hash_longs(root, hash_longs(position, seed))
