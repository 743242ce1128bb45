"""Rules of the acker as the ledger keeps them: what arrives in another order, twice, late or
never, and time.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import permutations

import pytest

from ledger.batch.settlement import settle_once
from ledger.batch.step_runs import LEASE_SECONDS, commit, fail
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.core.states import BatchStatus
from ledger.errors import FencedError, InputError
from ledger.store.queries import batches, runs
from ledger.store.queries.runs import Emitted
from tests.support.ledgers import (
    emit,
    finish,
    one,
    opened,
    pipeline,
    rows,
    run_middle,
    run_sink,
    started,
    whole_batch,
)
from tests.support.posting import Delta, post_bucket, record_of

STEPS = ("source", "middle", "sink")
FAILED = "SELECT root_id, step, reason FROM failed_root ORDER BY root_id"


def counts(database, batch_id):
    """(total, acked, failed) of a batch."""
    query = "SELECT total, acked, failed FROM batch_status WHERE batch_id = :b"
    return tuple(one(database, query, b=batch_id))


def acks(roots, offset=2000):
    """The sink's deltas for roots as ``run_middle`` made them."""
    return [Delta(root, acked=root + offset, acked_edges=1) for root in roots]


def stored_in_order(database, batch_id, order):
    """Put the deltas and fails of a batch into the ledger anew, step by step in this order."""
    with database.plain.begin() as connection:
        for table in (f"ledger_delta_{batch_id}", "root_fail"):
            connection.exec_driver_sql(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
            connection.exec_driver_sql(f"TRUNCATE {table}")
            for step in order:
                connection.exec_driver_sql(
                    f"INSERT INTO {table} SELECT kept.* FROM kept JOIN step_run USING (step_run_id)"
                    f" WHERE step = '{step}'"
                )
            connection.exec_driver_sql("DROP TABLE kept")


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids="-".join)
def test_acks_and_fails_before_their_init(database, order):
    """Whether acks and fails reached the ledger before or after their init, each root has the
    same verdict.
    """
    batch = opened(database, pipeline())
    whole, failing, lost = emit(database, batch, 3)
    run_middle(database, batch, (whole, failing, lost), fail={failing: "bad"})
    run_sink(database, batch, [whole])
    stored_in_order(database, batch.batch_id, order)
    settle_once(database, batch.batch_id)
    assert rows(database, FAILED) == [(failing, "middle", "bad"), (lost, "sink", "lost")]


def test_acks_without_an_init_are_no_root(database):
    """Edges that cancel for a root which was never emitted make no acked record."""
    batch = opened(database, pipeline())
    roots = emit(database, batch, 1)
    stray = 999_999
    emitted = Delta(stray, emitted=stray + 2000, emitted_edges=1)
    deltas = [Delta(roots[0], roots[0] + 1000, roots[0] + 2000, 1, 1), emitted]
    finish(database, started(database, batch.batch_id, "middle"), deltas)
    run_sink(database, batch, [*roots, stray])
    settle_once(database, batch.batch_id)
    assert counts(database, batch.batch_id) == (1, 1, 0)
    assert rows(database, "SELECT * FROM root_state(:r)", r=stray) == []


def test_source_that_runs_again(database):
    """Of a source that ran twice only the second init counts: the roots of the first are
    nobody's.
    """
    batch, first = whole_batch(database, pipeline(), 3)
    second = emit(database, batch, 2)
    assert settle_once(database, batch.batch_id).status is BatchStatus.OPEN, "its readers are due"
    run_middle(database, batch, second)
    run_sink(database, batch, second)
    assert settle_once(database, batch.batch_id).status is BatchStatus.SETTLED
    assert counts(database, batch.batch_id) == (2, 2, 0)
    assert rows(database, "SELECT * FROM root_state(:r)", r=first[0]) == []


def test_init_posted_twice(database):
    """An init that a task posted twice is in the ledger once: were it twice, it would cancel
    itself.
    """
    batch = opened(database, pipeline())
    run = started(database, batch.batch_id, "source")
    first = database.transact(lambda c: batches.reserve_roots(c, 2))
    roots = range(first, first + 2)
    deltas = [Delta(root, emitted=root + 1000, emitted_edges=1) for root in roots]
    assert post_bucket(database, batch.batch_id, run.run_id, 0, deltas)
    assert not post_bucket(database, batch.batch_id, run.run_id, 0, deltas)
    commit(database, run, record_of(deltas), emitted=Emitted(first, 2))
    run_middle(database, batch, [first])
    run_sink(database, batch, [first])
    settle_once(database, batch.batch_id)
    assert rows(database, FAILED) == [(first + 1, "middle", "lost")]


def test_ack_after_the_settlement(database):
    """An ack, or a fail, that is posted after its batch was decided is fenced and changes
    nothing.
    """
    batch = opened(database, pipeline())
    roots = emit(database, batch, 2)
    run_middle(database, batch, roots)
    late = started(database, batch.batch_id, "sink")
    now = database.transact(batches.database_now) + timedelta(seconds=LEASE_SECONDS + 11)
    assert settle_once(database, batch.batch_id, now=now).failed == 2
    before = rows(database, "SELECT * FROM failed_message")
    deltas = [*acks(roots[:1]), Delta(roots[1], reason="late")]
    post_bucket(database, batch.batch_id, late.run_id, 0, deltas)
    with pytest.raises(FencedError, match="is settled"):
        commit(database, late, record_of(deltas))
    assert sweep_once(database).dropped == (batch.batch_id,)
    assert not settle_once(database, batch.batch_id).decided
    assert rows(database, "SELECT * FROM failed_message") == before
    assert {row.reason for row in rows(database, FAILED)} == {"did not commit in time"}


@pytest.mark.parametrize("failing", ["sink", "second"])
def test_fail_wins_whoever_comes_first(database, failing):
    """A root whose every edge is acked is failed if one reader says so, be it the first or the
    last to commit.
    """
    batch = opened(database, pipeline(fan_out=True))
    (root,) = emit(database, batch, 1)
    run_middle(database, batch, [root], edges=2)
    for name, offset in (("sink", 2000), ("second", 3000)):
        reason = "no good" if name == failing else None
        delta = Delta(root, acked=root + offset, acked_edges=1, reason=reason)
        finish(database, started(database, batch.batch_id, name), [delta])
    assert rows(database, "SELECT * FROM pending_root") == [], "its ack value is 0"
    settle_once(database, batch.batch_id)
    assert rows(database, FAILED) == [(root, failing, "no good")]


def test_two_sweepers_one_expiry(database):
    """Of two that find a batch expired one decides, the other hears of it; each failure is
    recorded once.
    """
    batch = opened(database, pipeline())
    emit(database, batch, 5)
    fail(database, started(database, batch.batch_id, "middle"), "out of memory")
    now = database.transact(batches.database_now) + timedelta(seconds=11)
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda _: settle_once(database, batch.batch_id, now=now), range(2))
        found = sorted((one.decided, one.status, one.failed) for one in both)
    assert found == [(decided, BatchStatus.SETTLED, 5) for decided in (False, True)]
    for table in ("failed_root", "failed_message"):
        assert one(database, f"SELECT count(*) FROM {table}")[0] == 5


def test_zombie_after_its_successor(database):
    """What a step run posts, and tries to commit, after its successor committed changes nothing."""
    batch = opened(database, pipeline())
    roots = emit(database, batch, 3)
    zombie = started(database, batch.batch_id, "middle")
    run_middle(database, batch, roots, lose=[roots[0]])
    deltas = [Delta(root, root + 1000, root + 5000, 1, 1) for root in roots]
    post_bucket(database, batch.batch_id, zombie.run_id, 0, deltas)
    with pytest.raises(FencedError, match="newer attempt"):
        commit(database, zombie, record_of(deltas))
    run_sink(database, batch, roots[1:])
    settle_once(database, batch.batch_id)
    assert rows(database, FAILED) == [(roots[0], "middle", "lost")]


@pytest.mark.parametrize("death", ["failed", "silent"])
def test_timeout_by_a_given_clock(database, death):
    """Of a message timeout of 10 seconds 9 have passed: all is pending; 11: all has failed."""
    batch = opened(database, pipeline())
    emit(database, batch, 2)
    run = started(database, batch.batch_id, "middle")
    if death == "failed":
        fail(database, run, "out of memory")
    died = one(
        database,
        "SELECT coalesce(closed_at, lease_until) FROM step_run WHERE step_run_id = :r",
        r=run.run_id,
    )[0]
    early, late = (died + timedelta(seconds=seconds) for seconds in (9, 11))
    assert settle_once(database, batch.batch_id, now=early).status is BatchStatus.OPEN
    assert counts(database, batch.batch_id) == (2, 0, 0)
    assert settle_once(database, batch.batch_id, now=late).status is BatchStatus.SETTLED
    assert counts(database, batch.batch_id) == (2, 0, 2)


def test_two_slots_for_twelve_batches(database):
    """Twelve batches, two at a time, whose steps take ten times the message timeout, all finish
    and none expires.
    """
    made = pipeline()
    waiting = [opened(database, made, f"run-{n}", n) for n in range(12)]
    start, passed = database.transact(batches.database_now), 0

    def beat(living):
        """Fifty seconds pass; who lives renews the lease, and everybody is swept."""
        nonlocal passed
        passed += 50
        for run in living:
            assert database.transact(
                lambda c, run=run: runs.renew_lease(c, run.run_id, passed + 60)
            )
        swept = sweep_once(database, now=start + timedelta(seconds=passed))
        assert not swept.errors
        return swept.settlements

    while waiting:
        slots, waiting = waiting[:2], waiting[2:]
        roots = [emit(database, batch, 2) for batch in slots]
        for name in ("middle", "sink"):
            living = [started(database, batch.batch_id, name) for batch in slots]
            for _ in range(2):
                assert not any(one.decided for one in beat(living))
            for run, own in zip(living, roots, strict=True):
                deltas = (
                    acks(own)
                    if name == "sink"
                    else [Delta(root, root + 1000, root + 2000, 1, 1) for root in own]
                )
                finish(database, run, deltas)
        assert sum(one.decided for one in beat([])) == 2
    assert rows(database, "SELECT DISTINCT status, acked, failed FROM batch_status") == [
        ("settled", 2, 0)
    ]
    assert passed > 10 * made.message_timeout_seconds


def test_abandoned_batch_whose_interval_was_taken(database):
    """An abandoned batch releases its interval: it opens again, unless another has taken it
    meanwhile.
    """
    made = pipeline()
    batch = opened(database, made)
    fail(database, started(database, batch.batch_id, "source"), "no file")
    now = database.transact(batches.database_now) + timedelta(seconds=11)
    assert settle_once(database, batch.batch_id, now=now).status is BatchStatus.ABANDONED
    other = opened(database, made, "another")
    assert other.batch_id != batch.batch_id
    with pytest.raises(InputError, match=f"batch {other.batch_id}"):
        opened(database, made)
    fail(database, started(database, other.batch_id, "source"), "no file")
    now = database.transact(batches.database_now) + timedelta(seconds=11)
    settle_once(database, other.batch_id, now=now)
    assert opened(database, made).batch_id == batch.batch_id
    roots = emit(database, batch, 1)
    run_middle(database, batch, roots)
    run_sink(database, batch, roots)
    assert settle_once(database, batch.batch_id).failed == 0
