"""Lives of small batches through the ledger's services, as drivers lead them, without Spark: what
the ledger itself does, and what it leaves behind.
"""

from datetime import timedelta
from functools import partial

import numpy as np
from sqlalchemy import Connection, text
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from benchmarks.history import UNTIL
from ledger.batch.opening import open_batch, open_replay
from ledger.batch.settlement import settle_once
from ledger.batch.step_runs import Attempt, OpenedRun, Record, StepOutput, commit, open_run
from ledger.core.run_request import Interval, RunKey, Selection
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.kernel import Deltas, DeltaTotals, Fails, Messages
from ledger.deltas.rows import Longs
from ledger.deltas.spans import RootRange
from ledger.pipeline.pipeline import Pipeline
from ledger.settings import Settings
from ledger.storage.manifest import DataFile
from ledger.store.connection import Database
from ledger.store.queries import batches, payloads, publications
from ledger.store.queries.batches import Batch

RECORDS, FAILING = 100, 2  # of each batch, and how many of them fail
_STEPS = ("orders", "cleaned", "priced", "warehouse")
_DAY = timedelta(days=1)


def live(database: Database, settings: Settings, flow: Pipeline, day: int) -> Batch:
    """Open a batch of a history's pipeline, run and settle it; two of its records fail."""
    start = UNTIL + day * _DAY
    key = RunKey(flow.name, f"scheduled__{start:%Y-%m-%d}")
    batch = open_batch(database, settings, flow, key, Interval(start, start + _DAY))
    _run(database, batch, np.arange(RECORDS, dtype=np.int64), FAILING)
    return batch


def live_again(database: Database, settings: Settings, flow: Pipeline, original: Batch) -> Batch:
    """Replay what failed in a batch; all of it is recovered."""
    key = RunKey(flow.name, f"replay_{original.batch_id}")
    batch = open_replay(database, settings, flow, key, original.batch_id, Selection())
    keys = (batch.batch_id, original.batch_id, "orders")
    (emit,) = database.transact(lambda c: payloads.claimed(c, *keys))
    _run(database, batch, np.array(emit.messages, dtype=np.int64), 0, replayed=True)
    return batch


def _run(
    database: Database, batch: Batch, messages: Longs, failing: int, replayed: bool = False
) -> None:
    count = len(messages)
    first = database.transact(lambda c: batches.reserve_roots(c, count))
    roots = np.arange(first, first + count, dtype=np.int64)
    for place, step in enumerate(_STEPS):
        opened = open_run(database, batch.batch_id, step, Attempt())
        assert opened is not None
        failed = roots[:failing] if place == 1 else roots[:0]
        read = roots if place < 2 else roots[failing:]
        deltas = _deltas(read, place, failed, messages if replayed and place == 0 else None)
        output = StepOutput(
            _record(len(read), DeltaTotals.of(deltas)),
            _files(opened),
            partial(_post, opened, deltas),
            emitted=RootRange(first, count) if place == 0 else None,
        )
        commit(database, opened, output)
    settle_once(database, batch.batch_id)
    database.transact(lambda c: _follow(c, batch, roots[:failing]))


def _post(run: OpenedRun, deltas: Deltas, connection: Connection) -> None:
    with raw_cursor(connection) as cursor:
        posting.post(cursor, run.batch.batch_id, run.run_id, deltas, masks=False)


def _follow(connection: Connection, batch: Batch, failed: Longs) -> None:
    """Cost of what follows a settlement: content is kept, sinks publish, the source is notified."""
    rows = [(int(n), batch.batch_id, int(n), None, "{}", True, None, None) for n in failed]
    payloads.insert(connection, rows)
    for row in publications.pending(connection, batch.batch_id):
        publications.set_published(connection, row.step_run_id)
    batches.set_notified(connection, batch.batch_id, _STEPS[0])


def _deltas(roots: Longs, place: int, failed: Longs, messages: Longs | None) -> Deltas:
    """Each root's edge to a step is its number with that step's: acked from the one before, emitted
    to the next, which the failed ones lack.
    """
    hands_on = (~np.isin(roots, failed)).astype(np.int64) * (place < len(_STEPS) - 1)
    acked = (roots * 8 + place) * (place > 0)
    emitted = (roots * 8 + place + 1) * hands_on
    none = np.zeros(len(failed), dtype=np.int32)
    fails = (Fails(failed, none, none.astype(np.bool_), ("negative amount",)),)
    acks = np.full(len(roots), int(place > 0))
    failures = fails if len(failed) else ()
    of_roots = () if messages is None else [Messages(roots, messages)]
    return Deltas(roots, acked ^ emitted, acked, hands_on, acks, failures, messages=of_roots)


def _record(rows: int, posted: DeltaTotals) -> Record:
    return Record(
        input_rows=rows,
        output_rows=rows - posted.failed_roots,
        failed_rows=posted.failed_roots,
        posted=posted,
    )


def _files(run: OpenedRun) -> list[DataFile]:
    path = f"/storage/{run.batch.pipeline}/{run.step}/{run.run_id}/part-00000.parquet"
    return [DataFile(path, 1000, RECORDS, 0)]


_COUNTS = """
SELECT sum(pg_stat_get_dead_tuples(oid)) / greatest(sum(pg_stat_get_live_tuples(oid)), 1)
FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'ackledger'::regnamespace
"""
# Those that were left open end now, and are waited for.
_OTHERS = """
SELECT count(CASE WHEN state = 'idle' THEN pg_terminate_backend(pid) ELSE true END)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def wait_for_counts(database: Database) -> None:
    """End all other sessions of the database and wait for them: a session counts its rows for all
    to see when it ends.
    """
    database.dispose()
    trying = Retrying(retry=retry_if_result(bool), wait=wait_fixed(0.05), stop=stop_after_delay(60))
    with database.plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        trying(lambda: connection.execute(text(_OTHERS)).scalar_one())


def dead_share(database: Database) -> float:
    """Dead rows over live ones, of all tables."""
    with database.plain.connect() as connection:
        return float(connection.execute(text(_COUNTS)).scalar_one())
