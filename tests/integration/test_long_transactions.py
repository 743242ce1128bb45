"""What a long batch holds in the ledger keeps no other batch waiting."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from ledger.core.probes import listening
from ledger.core.states import BatchStatus
from ledger.databases.driver_errors import raw_cursor
from ledger.deltas import posting
from ledger.deltas.kernel import Deltas
from ledger.store import connection
from ledger.store.connection import Database
from tests.support.ledgers import Ledger, pipeline


@contextmanager
def held_at(place, work) -> Iterator[None]:
    """``work`` in a thread, which stands still at ``place`` within its transaction until the block
    ends.
    """
    there, on = threading.Event(), threading.Event()
    held = threading.local()

    def listener(reached, _):
        if reached == place and getattr(held, "here", False):
            there.set()
            assert on.wait(60)

    def worker():
        held.here = True
        work()

    with listening(listener), ThreadPoolExecutor(1) as pool:
        done = pool.submit(worker)
        try:
            assert there.wait(60), f"{place!r} was not reached: {done.exception(0)}"
            yield
        finally:
            on.set()
        done.result(60)


@contextmanager
def posting_of(ledger, batch, step) -> Iterator[None]:
    """The transaction in which a driver posts deltas of a step, which goes on."""
    run = ledger.start(batch.batch_id, step)
    root = np.arange(1000, dtype=np.int64)
    deltas = Deltas(root, root, root, root * 0, root * 0 + 1)
    writer = ledger.database.writer
    with writer.connect() as poster, poster.begin() as posting_in, raw_cursor(poster) as cursor:
        posting.post(cursor, batch.batch_id, run.run_id, deltas, masks=False)
        yield
        posting_in.rollback()


def committing(ledger, batch, roots):
    return held_at("committing run", lambda: ledger.run_middle(batch, roots))


def settling(ledger, batch, roots):
    ledger.run_middle(batch, roots, lose=roots[:2])
    ledger.run_sink(batch, roots[2:])
    return held_at("settling", lambda: ledger.settle(batch.batch_id))


def copying(ledger, batch, roots):
    return posting_of(ledger, batch, "middle")


def claiming(ledger, batch, roots):
    ledger.run_middle(batch, roots, lose=roots[:2])
    ledger.run_sink(batch, roots[2:])
    ledger.settle(batch.batch_id)
    return held_at("claiming messages", lambda: ledger.replay(pipeline("long"), batch.batch_id))


@pytest.fixture
def impatient(database, monkeypatch):
    """The ledger for those who wait for no lock longer than a second."""
    monkeypatch.setattr(connection, "LOCK_TIMEOUT", "1s")
    own = Database(database.url.render_as_string(hide_password=False))
    yield Ledger(own)
    own.dispose()


@pytest.mark.parametrize("hold", [copying, committing, settling, claiming])
def test_another_batch_lives_meanwhile(ledger, impatient, hold):
    """While a batch posts, commits, settles or claims, and does not come to an end, one of another
    pipeline opens, posts, settles, is replayed and swept.
    """
    long = ledger.open(pipeline("long"), "long")
    roots = ledger.emit(long, 10)
    with hold(ledger, long, roots):
        other = pipeline("other")
        first, _ = impatient.whole_batch(other, run_id="first", lose_sink=[1])
        assert impatient.settle(first.batch_id).failed == 1
        again = impatient.replay(other, first.batch_id)
        assert again.status is BatchStatus.OPEN
        second = impatient.open(other, "second", 1)
        assert impatient.run_all(second).status is BatchStatus.SETTLED
        for _ in range(2):
            swept = impatient.sweep()
            assert swept.errors == {}
    assert ledger.sweep().errors == {}
    decided = "SELECT batch_id FROM batch WHERE status NOT IN ('open', 'held')"
    assert ledger.rows(f"SELECT * FROM ledger_delta WHERE batch_id IN ({decided})") == []
