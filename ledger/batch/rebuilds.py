"""Request units again without the records that were quarantined.

A unit is withheld because a record of it failed. If all its failed records were quarantined, none
of it would be replayed. So one of its other records counts as failed, and the replay of that record
takes the unit without the quarantined ones.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
from sqlalchemy import Connection

from ledger.batch.settlement import decide_publications, record_failures
from ledger.batch.surroundings import Surroundings
from ledger.core.column_names import UNIT
from ledger.core.states import BatchStatus
from ledger.deltas.rows import Longs
from ledger.storage import parquet
from ledger.store.connection import Database
from ledger.store.queries import batches, publications, rebuilds, runs, settlement
from ledger.store.queries.publications import FailedRoot
from ledger.store.queries.runs import Emit

_ADVICE = (
    "It has the units of the batch's records. Put it back, then clear `settle` in Airflow or type"
    " `ackledger publish`; or reprocess the interval"
)


def rebuild(at: Surroundings, batch_id: int) -> list[int]:
    """Request the units of a batch's family that were withheld and would not be replayed, and
    return the batches that had some. Safe to repeat.
    """
    numbers = at.database.transact(lambda c: rebuilds.pending(c, batch_id))
    for number in numbers:
        _rebuild(at, number)
    return numbers


def _rebuild(at: Surroundings, batch_id: int) -> None:
    database, graph = at.database, at.pipeline.graph
    failed = database.transact(lambda c: publications.failed_roots(c, batch_id))
    spoiling = [row for row in failed if graph.in_units(row.source)]
    emits = database.transact(lambda c: runs.emits(c, batch_id))
    emits = [emit for emit in emits if graph.in_units(emit.source)]
    step, roots = "", list[int]()
    if spoiling and graph.unit:
        step, roots = spoiling[0].step, _roots_of_units(database, emits, spoiling)
    elif spoiling and not any(row.live for row in spoiling):
        step, roots = spoiling[0].step, _root_of_batch(emits, spoiling)
    database.transact(lambda c: request(c, batch_id, roots, step, failed))


def _root_of_batch(emits: Sequence[Emit], spoiling: Sequence[FailedRoot]) -> list[int]:
    """Return the first root that did not fail of a batch that is a single unit."""
    failed = {row.root_id for row in spoiling}
    roots = (root for emit in emits for root in emit.numbers if root not in failed)
    return list(islice(roots, 1))


def _roots_of_units(
    database: Database, emits: Sequence[Emit], spoiling: Sequence[FailedRoot]
) -> list[int]:
    """Return a root that did not fail for each unit of which nothing would be replayed."""
    failed = np.array([row.root_id for row in spoiling], np.int64)
    live = np.array([row.live for row in spoiling], bool)
    ready, waiting = np.array([], np.int64), np.array([], np.int64)
    for roots, units in _emitted(database, emits):
        ready = np.union1d(ready, units[np.isin(roots, failed[~live])])
        waiting = np.union1d(waiting, units[np.isin(roots, failed[live])])
    ready = np.setdiff1d(ready, waiting)
    firsts: dict[int, int] = {}
    for roots, units in _emitted(database, emits):
        sound = np.isin(units, ready) & ~np.isin(roots, failed)
        own, places = np.unique(units[sound], return_index=True)
        for unit, root in zip(own.tolist(), roots[sound][places].tolist(), strict=True):
            firsts.setdefault(unit, root)
    return sorted(firsts.values())


def _emitted(database: Database, emits: Sequence[Emit]) -> Iterator[tuple[Longs, Longs]]:
    """Yield the roots of the emits and the unit of each, file by file."""
    for emit in emits:
        for file in database.transact(partial(runs.files, run_id=emit.emit_run_id)):
            with parquet.stored_file(file.path, _ADVICE) as stored:
                column = parquet.read(stored, [UNIT]).column(0).combine_chunks()
            roots = np.arange(file.rows, dtype=np.int64) + file.first_position
            tracked = roots < emit.roots  # the others lie after them
            tracked &= column.is_valid().to_numpy(zero_copy_only=False)  # and parsed
            units = np.from_dlpack(column.fill_null(0)).astype(np.int64, copy=False)
            yield roots[tracked] + emit.first_root, units[tracked]


def request(
    connection: Connection,
    batch_id: int,
    roots: Sequence[int],
    step: str,
    seen: Sequence[FailedRoot] | None = None,
) -> None:
    """Count roots of a settled batch as failed with their unit. Roots that already failed in the
    batch stay as they are.

    ``seen``: the failed roots by which ``roots`` were chosen. If other roots have failed by now,
    nothing is requested, and the next call of ``rebuild`` chooses again.
    """
    batch = batches.lock_family(connection, batch_id)
    assert batch is not None
    if batch.status is not BatchStatus.SETTLED:
        return  # it was superseded meanwhile: nothing of it is replayed
    if seen is not None and publications.failed_roots(connection, batch_id) != seen:
        return
    rebuilds.set_requested(connection, batch_id)
    rebuilds.collect(connection, batch_id, roots, step)
    record_failures(connection, batch)
    settlement.record_attempts(connection, batch_id)
    decide_publications(connection, batch)
