"""Totals of the deltas that a run posts."""

from dataclasses import dataclass

import numpy as np

from ledger.deltas.kernel import Deltas, total


@dataclass(frozen=True)
class Posted:
    """Totals of posted deltas: the number of ``rows``, the XOR of the deltas and that of their
    acked edges, the numbers of edges emitted and acked, and the number of roots that failed.
    """

    rows: int = 0
    delta_xor: int = 0
    acked_xor: int = 0
    emitted_edges: int = 0
    acked_edges: int = 0
    failed_roots: int = 0

    @property
    def sums(self) -> tuple[int, ...]:
        """Rows, XOR, edges emitted and acked: what a commit compares."""
        return self.rows, self.delta_xor, self.emitted_edges, self.acked_edges

    def __add__(self, other: "Posted") -> "Posted":
        return Posted(
            self.rows + other.rows,
            self.delta_xor ^ other.delta_xor,
            self.acked_xor ^ other.acked_xor,
            self.emitted_edges + other.emitted_edges,
            self.acked_edges + other.acked_edges,
            self.failed_roots + other.failed_roots,
        )

    def __str__(self) -> str:
        return (
            f"{self.rows} deltas with XOR {self.delta_xor}, {self.emitted_edges} emitted,"
            f" {self.acked_edges} acked and {self.failed_roots} failed"
        )

    @classmethod
    def of(cls, deltas: Deltas) -> "Posted":
        """Return the totals of ``deltas`` and of their fails."""
        return cls(
            len(deltas.root),
            int(np.bitwise_xor.reduce(deltas.delta)) if len(deltas.root) else 0,
            int(np.bitwise_xor.reduce(deltas.acked)) if len(deltas.root) else 0,
            total(deltas.emitted_edges),
            total(deltas.acked_edges),
            sum(len(fails.root) for fails in deltas.fails),
        )
