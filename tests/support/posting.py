"""Posts deltas as a driver does ahead of the commit, without Spark."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from psycopg2.extras import execute_values

from ledger.batch.step_runs import OpenedRun, Record, posting_ahead
from ledger.deltas.kernel import DeltaTotals, Fails
from ledger.deltas.posting import post_fails
from ledger.deltas.rows import NONE
from ledger.store.connection import Database

REPEATED = "repeated"  # the reason of a fail without one


@dataclass(frozen=True)
class Delta:
    """What one run adds to one root: XORs and counts of edges acked and emitted. ``reason``: it
    fails the root, if ``shared`` with others.
    """

    root: int
    acked: int = 0
    emitted: int = 0
    acked_edges: int = 0
    emitted_edges: int = 0
    reason: str | None = None
    shared: bool = False


def signed(value: int) -> int:
    """A 64-bit pattern as PostgreSQL's bigint."""
    return value - (1 << 64) if value >> 63 else value


def post_deltas(
    database: Database, run: OpenedRun, deltas: Iterable[Delta], fails: Iterable[Delta] = ()
) -> None:
    """Post deltas ahead of the commit. ``fails``: failed roots without a delta of their own."""
    batch_id, run_id, rows = run.batch.batch_id, run.run_id, list(deltas)
    values = [
        (
            batch_id,
            run_id,
            delta.root,
            signed(delta.acked ^ delta.emitted),
            signed(delta.acked),
            delta.emitted_edges,
            delta.acked_edges,
        )
        for delta in rows
    ]
    failing = [
        Fails(
            np.array([delta.root]),
            np.full(1, NONE if delta.reason is REPEATED else 0, np.int32),
            np.full(1, delta.shared),
            (delta.reason,),
        )
        for delta in (*rows, *fails)
        if delta.reason is not None
    ]
    with posting_ahead(database, run) as cursor:
        if values:
            execute_values(cursor, "INSERT INTO ledger_delta VALUES %s", values)
        post_fails(cursor, batch_id, run_id, failing, masks=False)


def record_of(deltas: Iterable[Delta]) -> Record:
    """What the run that posted ``deltas`` records when it commits."""
    xor = rows = emitted = acked = 0
    for delta in deltas:
        xor ^= delta.acked ^ delta.emitted
        rows += 1
        emitted += delta.emitted_edges
        acked += delta.acked_edges
    return Record(posted=DeltaTotals(rows, signed(xor), emitted_edges=emitted, acked_edges=acked))
