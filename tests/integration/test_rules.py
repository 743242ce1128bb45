"""Rules of the acker as the ledger keeps them: what arrives in another order, twice, late or
never, and time.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import permutations

import pytest

from ledger.batch import one_plans
from ledger.batch.step_runs import LEASE_SECONDS, interrupt
from ledger.core.states import BatchStatus, RunState
from ledger.deltas.spans import RootRange
from ledger.errors import FencedError, InputError, IntegrityError
from ledger.store.queries import batches, runs
from tests.support.ledgers import pipeline
from tests.support.posting import Delta

STEPS = ("source", "middle", "sink")
FAILED = "SELECT root_id, step, reason FROM failed_root_detail ORDER BY root_id"


def counts(ledger, batch_id):
    """(total, acked, failed) of a batch."""
    query = "SELECT total, acked, failed FROM batch_status WHERE batch_id = :b"
    return tuple(ledger.row(query, b=batch_id))


def acks(roots, offset=2000):
    """The sink's deltas for roots as ``run_middle`` made them."""
    return [Delta(root, acked=root + offset, acked_edges=1) for root in roots]


def stored_in_order(ledger, batch_id, order):
    """Put the deltas and fails of a batch into the ledger again, step by step in this order."""
    with ledger.database.plain.begin() as connection:
        for table in ("ledger_delta", "root_fail"):
            connection.exec_driver_sql(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
            connection.exec_driver_sql(f"TRUNCATE {table}")
            for step in order:
                connection.exec_driver_sql(
                    f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT kept.* FROM kept"
                    f" JOIN step_run USING (step_run_id) WHERE step = '{step}'"
                )
            connection.exec_driver_sql("DROP TABLE kept")


def rejected_plan(ledger, batch):
    """Let a plan of the batch's stage and sink be rejected."""
    plan = one_plans.open_plan(ledger.database, batch.batch_id, ["middle", "sink"], ledger.begin())
    for run in plan.runs:
        interrupt(ledger.database, run, "rejected")
    one_plans.reject_plan(ledger.database, plan, "rejected")


def test_a_rejected_plan_starts_no_clock(ledger):
    """Its runs ended, but once its steps run one by one, the batch waits for the next of them as
    it does without a plan. If the driver dies before, the batch expires.
    """
    batches_ = [ledger.open(pipeline(), name, day) for day, name in enumerate(("dies", "goes on"))]
    later = ledger.now() + timedelta(hours=2)
    for batch in batches_:
        roots = ledger.emit(batch, 2)
        rejected_plan(ledger, batch)
    ledger.run_middle(batch, roots)
    dead, alive = (ledger.settle(batch.batch_id, now=later) for batch in batches_)
    assert (dead.status, alive.status) == (BatchStatus.SETTLED, BatchStatus.OPEN)
    assert alive.reason == "waits for sink to run"


def test_a_sink_in_a_plan_has_no_row_of_a_failed_record(ledger):
    """Hold a batch whose plan's sink acked such a row: its staged files do not say which it is."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    plan = one_plans.open_plan(ledger.database, batch.batch_id, ["middle", "sink"], ledger.begin())
    middle, sink = plan.runs
    passed = [Delta(root, root + 1000, (root + 2000) ^ (root + 3000), 1, 2) for root in roots]
    ledger.finish(middle, passed)
    ledger.finish(sink, acks(roots))
    held = ledger.settle(batch.batch_id)
    assert held.status is BatchStatus.HELD
    assert "sink 'sink' ran in one plan" in held.reason


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids="-".join)
def test_acks_and_fails_before_their_init(ledger, order):
    """Whether acks and fails reached the ledger before or after their init, each root has the
    same verdict.
    """
    batch = ledger.open(pipeline())
    whole, failing, lost = ledger.emit(batch, 3)
    ledger.run_middle(batch, (whole, failing, lost), fail={failing: "bad"})
    ledger.run_sink(batch, [whole])
    stored_in_order(ledger, batch.batch_id, order)
    ledger.settle(batch.batch_id)
    assert ledger.rows(FAILED) == [(failing, "middle", "bad"), (lost, "sink", "lost")]


def test_acks_without_an_init_are_no_root(ledger):
    """Edges that cancel for a root which was never emitted make no acked record."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 1)
    stray = 999_999
    emitted = Delta(stray, emitted=stray + 2000, emitted_edges=1)
    deltas = [Delta(roots[0], roots[0] + 1000, roots[0] + 2000, 1, 1), emitted]
    ledger.finish(ledger.start(batch.batch_id, "middle"), deltas)
    ledger.run_sink(batch, [*roots, stray])
    ledger.settle(batch.batch_id)
    assert counts(ledger, batch.batch_id) == (1, 1, 0)
    assert ledger.rows("SELECT * FROM root_state(:r)", r=stray) == []


def test_source_that_runs_again(ledger):
    """Of a source that ran twice only the second init counts: the roots of the first belong to no
    batch.
    """
    batch, first = ledger.whole_batch(pipeline(), 3)
    second = ledger.emit(batch, 2)
    assert ledger.settle(batch.batch_id).status is BatchStatus.OPEN, "its readers are due"
    ledger.run_middle(batch, second)
    ledger.run_sink(batch, second)
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
    assert counts(ledger, batch.batch_id) == (2, 2, 0)
    assert ledger.rows("SELECT * FROM root_state(:r)", r=first[0]) == []


def test_init_posted_twice(ledger):
    """A run that posted its inits twice does not commit: they would cancel themselves. The next one
    does.
    """
    batch = ledger.open(pipeline())
    run = ledger.start(batch.batch_id, "source")
    first = ledger.transact(batches.reserve_roots, 2)
    roots = range(first, first + 2)
    deltas = [Delta(root, emitted=root + 1000, emitted_edges=1) for root in roots]
    ledger.post(run, deltas)
    ledger.post(run, deltas)
    with pytest.raises(IntegrityError, match=r"folded 2 deltas .* has 4 deltas with XOR 0"):
        ledger.commit(run, deltas, emitted=RootRange(first, 2))
    (first, _) = ledger.emit(batch, 2)
    ledger.run_middle(batch, [first])
    ledger.run_sink(batch, [first])
    ledger.settle(batch.batch_id)
    assert ledger.rows(FAILED) == [(first + 1, "middle", "lost")]


def test_ack_after_the_settlement(ledger):
    """An ack, or a fail, that is posted after its batch was decided is fenced and changes
    nothing.
    """
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots)
    late = ledger.start(batch.batch_id, "sink")
    now = ledger.now() + timedelta(seconds=LEASE_SECONDS + 11)
    assert ledger.settle(batch.batch_id, now=now).failed == 2
    before = ledger.rows("SELECT * FROM failed_message")
    deltas = [*acks(roots[:1]), Delta(roots[1], reason="late")]
    with pytest.raises(FencedError, match="is fenced and posts nothing more"):
        ledger.post(late, deltas)
    with pytest.raises(FencedError, match="is settled"):
        ledger.commit(late, deltas)
    assert ledger.rows("SELECT * FROM ledger_delta WHERE step_run_id = :r", r=late.run_id) == []
    assert not ledger.settle(batch.batch_id).decided
    assert ledger.rows("SELECT * FROM failed_message") == before
    assert {row.reason for row in ledger.rows(FAILED)} == {"did not commit in time"}


@pytest.mark.parametrize("failing", ["sink", "second"])
def test_fail_wins_in_either_order(ledger, failing):
    """A root whose every edge is acked is failed if one reader says so, be it the first or the
    last to commit.
    """
    batch = ledger.open(pipeline(fan_out=True))
    (root,) = ledger.emit(batch, 1)
    ledger.run_middle(batch, [root], edges=2)
    for name, offset in (("sink", 2000), ("second", 3000)):
        reason = "no good" if name == failing else None
        delta = Delta(root, acked=root + offset, acked_edges=1, reason=reason)
        ledger.finish(ledger.start(batch.batch_id, name), [delta])
    assert ledger.rows("SELECT * FROM pending_root") == [], "its ack value is 0"
    ledger.settle(batch.batch_id)
    assert ledger.rows(FAILED) == [(root, failing, "no good")]


def test_two_sweepers_one_expiry(ledger):
    """Of two that find a batch expired one decides, the other hears of it; each failure is
    recorded once.
    """
    batch = ledger.open(pipeline())
    ledger.emit(batch, 5)
    ledger.fail(ledger.start(batch.batch_id, "middle"), "out of memory")
    now = ledger.now() + timedelta(seconds=11)
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda _: ledger.settle(batch.batch_id, now=now), range(2))
        outcomes = sorted(
            (settlement.decided, settlement.status, settlement.failed) for settlement in both
        )
    assert outcomes == [(decided, BatchStatus.SETTLED, 5) for decided in (False, True)]
    for table in ("failed_root", "failed_message"):
        assert ledger.row(f"SELECT count(*) FROM {table}")[0] == 5


def test_zombie_after_its_successor(ledger):
    """What a step run posts, and tries to commit, after its successor committed changes nothing."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 3)
    zombie = ledger.start(batch.batch_id, "middle")
    deltas = [Delta(root, root + 1000, root + 5000, 1, 1) for root in roots]
    ledger.post(zombie, deltas[:1])
    ledger.run_middle(batch, roots, lose=[roots[0]])
    with pytest.raises(FencedError, match="is fenced and posts nothing more"):
        ledger.post(zombie, deltas[1:])
    with pytest.raises(FencedError, match="newer attempt"):
        ledger.commit(zombie, deltas)
    ledger.run_sink(batch, roots[1:])
    ledger.settle(batch.batch_id)
    assert ledger.rows(FAILED) == [(roots[0], "middle", "lost")]


@pytest.mark.parametrize("death", ["failed", "silent"])
def test_timeout_by_a_given_clock(ledger, death):
    """Of a message timeout of 10 seconds 9 have passed: all is pending; 11: all has failed."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 2)
    run = ledger.start(batch.batch_id, "middle")
    if death == "failed":
        ledger.fail(run, "out of memory")
    died = ledger.row(
        "SELECT coalesce(closed_at, lease_until) FROM step_run WHERE step_run_id = :r",
        r=run.run_id,
    )[0]
    early, late = (died + timedelta(seconds=seconds) for seconds in (9, 11))
    assert ledger.settle(batch.batch_id, now=early).status is BatchStatus.OPEN
    assert counts(ledger, batch.batch_id) == (2, 0, 0)
    assert ledger.settle(batch.batch_id, now=late).status is BatchStatus.SETTLED
    assert counts(ledger, batch.batch_id) == (2, 0, 2)


def test_two_slots_for_twelve_batches(ledger):
    """Twelve batches, two at a time, whose steps take ten times the message timeout, all finish
    and none expires.
    """
    flow = pipeline()
    waiting = [ledger.open(flow, f"run-{n}", n) for n in range(12)]
    start, passed = ledger.now(), 0

    def beat(living):
        """Fifty seconds pass; who lives renews the lease, and everybody is swept."""
        nonlocal passed
        passed += 50
        for run in living:
            state = ledger.transact(runs.renew_lease, run.run_id, passed + 60)
            assert state is RunState.RUNNING
        swept = ledger.sweep(now=start + timedelta(seconds=passed))
        assert not swept.errors
        return swept.settlements

    while waiting:
        slots, waiting = waiting[:2], waiting[2:]
        roots = [ledger.emit(batch, 2) for batch in slots]
        for name in ("middle", "sink"):
            living = [ledger.start(batch.batch_id, name) for batch in slots]
            for _ in range(2):
                assert not any(item.decided for item in beat(living))
            for run, own in zip(living, roots, strict=True):
                deltas = (
                    acks(own)
                    if name == "sink"
                    else [Delta(root, root + 1000, root + 2000, 1, 1) for root in own]
                )
                ledger.finish(run, deltas)
        assert sum(item.decided for item in beat([])) == 2
    assert ledger.rows("SELECT DISTINCT status, acked, failed FROM batch_status") == [
        ("settled", 2, 0)
    ]
    assert passed > 10 * flow.message_timeout_seconds


def test_abandoned_batch_whose_interval_was_taken(ledger):
    """An abandoned batch releases its interval: it opens again, unless another has taken it
    meanwhile.
    """
    flow = pipeline()
    batch = ledger.open(flow)
    ledger.fail(ledger.start(batch.batch_id, "source"), "no file")
    now = ledger.now() + timedelta(seconds=11)
    assert ledger.settle(batch.batch_id, now=now).status is BatchStatus.ABANDONED
    other = ledger.open(flow, "another")
    assert other.batch_id != batch.batch_id
    with pytest.raises(InputError, match=f"batch {other.batch_id}"):
        ledger.open(flow)
    ledger.fail(ledger.start(other.batch_id, "source"), "no file")
    now = ledger.now() + timedelta(seconds=11)
    ledger.settle(other.batch_id, now=now)
    assert ledger.open(flow).batch_id == batch.batch_id
    roots = ledger.emit(batch, 1)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0
