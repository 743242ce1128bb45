"""Settlement on the real PostgreSQL: who is acked, who failed, where, and under which races."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from ledger import FileSource, ParquetSink, Pipeline
from ledger.batch.step_runs import posting_ahead
from ledger.batch.upkeep import sweeper
from ledger.core.states import BatchStatus
from ledger.deltas.spans import RootRange
from ledger.errors import FencedError, InputError, UnavailableError
from ledger.store.queries import batches
from tests.support.ledgers import pipeline
from tests.support.posting import REPEATED, Delta, record_of


def counts(ledger, batch_id):
    """(total, acked, failed, quarantined, pending), checked to be disjoint."""
    row = ledger.row("SELECT * FROM batch_status WHERE batch_id = :b", b=batch_id)
    result = (row.total, row.acked, row.failed, row.quarantined, row.pending)
    assert result[0] == sum(result[1:])
    return result


def test_all_acked(ledger):
    """A batch whose every edge was acked settles with every root acked and its deltas gone."""
    batch, roots = ledger.whole_batch(pipeline())
    settlement = ledger.settle(batch.batch_id)
    assert (settlement.status, settlement.roots, settlement.failed) == (BatchStatus.SETTLED, 10, 0)
    assert counts(ledger, batch.batch_id) == (10, 10, 0, 0, 0)
    ledger.sweep()
    assert ledger.row("SELECT count(*) FROM ledger_delta")[0] == 0
    assert ledger.row("SELECT status FROM root_state(:r)", r=roots[0]).status == "acked"


def test_the_state_of_a_root_by_its_number(ledger):
    """It is looked up in the range that begins last before it; an empty range hides none."""
    first, roots = ledger.whole_batch(pipeline(), 3, run_id="first", lose_sink=[2])
    ledger.settle(first.batch_id)
    empty = ledger.open(pipeline(), "empty", 1)
    ledger.commit(ledger.start(empty.batch_id, "source"), emitted=RootRange(roots.start, 0))
    second, others = ledger.whole_batch(pipeline(), 2, run_id="second", day=2)
    state = "SELECT batch_id, status FROM root_state(:r)"
    expected = {roots[0]: "acked", roots[2]: "failed", others[1]: "pending"}
    for root, status in expected.items():
        batch = second if root in others else first
        assert ledger.row(state, r=root) == (batch.batch_id, status)
    for root in (0, roots.stop, others.stop):
        assert ledger.rows(state, r=root) == []


def test_a_reason_of_its_own_says_more_than_repeated(ledger):
    """Of a stage's reasons the first by name counts, but that a record was repeated only where
    there is no other, wherever the tasks found them; so it does at an earlier stage.
    """
    flow = pipeline()
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 4)
    reasons = {
        roots[0]: ["zzz", REPEATED],
        roots[1]: [REPEATED],
        roots[2]: ["zzz", "b"],
        roots[3]: [],
    }
    run = ledger.start(batch.batch_id, "middle")
    deltas = [Delta(root, root + 1000, root + 2000, 1, 1) for root in roots]
    for task in range(2):
        fails = [
            Delta(root, reason=some[task]) for root, some in reasons.items() if len(some) > task
        ]
        own = [*deltas[task::2], *fails]
        ledger.post(run, own)
    record = record_of(deltas)
    with_fails = replace(record.posted, rows=len(deltas) + 5)
    ledger.commit(run, replace(record, posted=with_fails))
    sink = ledger.start(batch.batch_id, "sink")
    arrived = [Delta(root, root + 2000, acked_edges=1) for root in roots]
    ledger.finish(sink, [*arrived, Delta(roots[1], reason="at the sink")])
    assert ledger.settle(batch.batch_id).failed == 3
    rows = ledger.rows("SELECT root_id, step, cause, reason FROM failed_root ORDER BY root_id")
    assert [tuple(row) for row in rows] == [
        (roots[0], "middle", "rejected", "zzz"),
        (roots[1], "middle", "repeated", None),
        (roots[2], "middle", "rejected", "b"),
    ]


def test_hop_is_named(ledger):
    """A root lost in the middle and one lost in the sink are named with the step that lost each."""
    batch, roots = ledger.whole_batch(pipeline(), lose_middle=[1], lose_sink=[2])
    ledger.settle(batch.batch_id)
    rows = ledger.rows("SELECT root_id, step, cause, residue FROM failed_root ORDER BY root_id")
    assert [tuple(row) for row in rows] == [
        (roots[1], "middle", "lost", roots[1] + 1000),
        (roots[2], "sink", "lost", roots[2] + 2000),
    ]
    assert counts(ledger, batch.batch_id) == (10, 8, 2, 0, 0)


def test_hop_is_named_with_fan_out(ledger):
    """Of two readers of one output, only the one that lost the root is named."""
    flow = pipeline(fan_out=True)
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 3)
    ledger.run_middle(batch, roots, edges=2)
    ledger.run_sink(batch, roots)
    ledger.run_sink(batch, roots, lose=[roots[0]], name="second", offset=3000)
    ledger.settle(batch.batch_id)
    assert ledger.rows("SELECT root_id, step FROM failed_root") == [(roots[0], "second")]


@pytest.mark.parametrize(
    ("acked", "edges", "reason"),
    [
        (lambda root: (root + 2000) ^ 77, 2, "acked too often"),
        (lambda root: 99, 1, "one lost and another acked too often"),
    ],
)
def test_wrong_acks_fail(ledger, acked, edges, reason):
    """An edge acked too often, or one for another, fails the root and says which it was."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots)
    deltas = [
        Delta(roots[0], acked=acked(roots[0]), acked_edges=edges),
        Delta(roots[1], acked=roots[1] + 2000, acked_edges=1),
    ]
    ledger.finish(ledger.start(batch.batch_id, "sink"), deltas)
    ledger.settle(batch.batch_id)
    assert ledger.rows("SELECT root_id, step, reason FROM failed_root_detail") == [
        (roots[0], "sink", reason)
    ]


def test_even_count_of_equal_acks_is_not_hidden(ledger):
    """Two acks of one edge cancel in the XOR, and the count beside it still fails the root."""
    batch = ledger.open(pipeline())
    (root,) = ledger.emit(batch, 1)
    ledger.run_middle(batch, [root])
    deltas = [Delta(root, acked=root + 2000, acked_edges=3)]
    ledger.finish(ledger.start(batch.batch_id, "sink"), deltas)
    assert ledger.settle(batch.batch_id).failed == 1


def test_fail_wins_over_zero(ledger):
    """An explicitly failed root is failed though its ack value is 0, with the reason given."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    ledger.run_middle(batch, roots, fail={roots[0]: "no plane"})
    ledger.run_sink(batch, [roots[1]])
    ledger.settle(batch.batch_id)
    assert ledger.rows("SELECT root_id, step, reason, residue FROM failed_root") == [
        (roots[0], "middle", "no plane", 0)
    ]


def test_earliest_fail_counts(ledger):
    """Of two fails of one root the earlier step's reason is kept."""
    batch = ledger.open(pipeline())
    (root,) = ledger.emit(batch, 1)
    ledger.run_middle(batch, [root], fail={root: "early"})
    ledger.finish(ledger.start(batch.batch_id, "sink"), [Delta(root, reason="late")])
    ledger.settle(batch.batch_id)
    assert ledger.row("SELECT step, reason FROM failed_root") == ("middle", "early")


def test_replay_recovers_and_quarantines(ledger):
    """A replay recovers what it acks and quarantines what fails again with its budget used up."""
    flow = pipeline(max_replays=1)
    batch, roots = ledger.whole_batch(flow, lose_middle=[1, 2])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    new = ledger.emit_replay(replay)
    ledger.run_middle(replay, new, lose=[new[0]])
    ledger.run_sink(replay, [new[1]])
    ledger.settle(replay.batch_id)
    assert counts(ledger, batch.batch_id) == (10, 9, 0, 1, 0)
    assert counts(ledger, replay.batch_id) == (2, 1, 0, 1, 0)
    assert ledger.row("SELECT message_id, step, attempts FROM quarantine") == (
        roots[1],
        "middle",
        2,
    )
    history = ledger.rows(
        "SELECT attempt, outcome FROM replay_history WHERE message_id = :m ORDER BY 1",
        m=roots[2],
    )
    assert history == [(1, "failed"), (2, "acked")]


def test_budget_of_several_replays(ledger):
    """A message is quarantined just when max_replays of its own replays have failed."""
    flow = pipeline(max_replays=2)
    batch, _ = ledger.whole_batch(flow, 1, lose_middle=[0])
    ledger.settle(batch.batch_id)
    for number, expected in ((1, (1, 0, 1, 0, 0)), (2, (1, 0, 0, 1, 0))):
        replay = ledger.replay(flow, batch.batch_id, f"replay-{number}")
        ledger.emit_replay(replay)
        ledger.run_middle(replay, [])
        ledger.run_sink(replay, [])
        ledger.settle(replay.batch_id)
        assert counts(ledger, batch.batch_id) == expected


def test_expiry_is_no_fault_of_the_message(ledger):
    """A batch whose stage died expires: its roots fail, and that replay costs them no budget."""
    flow = pipeline(max_replays=1)
    batch, _ = ledger.whole_batch(flow, 1, lose_middle=[0])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    ledger.emit_replay(replay)
    ledger.start(replay.batch_id, "middle")
    ledger.age(replay.batch_id, 60 + 9)
    assert ledger.settle(replay.batch_id).status is BatchStatus.OPEN
    ledger.age(replay.batch_id, 2)
    assert ledger.settle(replay.batch_id).status is BatchStatus.SETTLED
    assert counts(ledger, batch.batch_id) == (1, 0, 1, 0, 0)
    row = ledger.row(
        "SELECT step, cause, own_failure FROM failed_root WHERE batch_id = :b",
        b=replay.batch_id,
    )
    assert row == ("middle", "late", False)


def test_never_early(ledger):
    """A batch waits while a run lives, however old it is, and while it waits for its next task."""
    batch = ledger.open(pipeline(max_batch_age="366d"))
    ledger.emit(batch, 1)
    far = ledger.now() + timedelta(days=365)
    assert ledger.settle(batch.batch_id, now=far).status is BatchStatus.OPEN
    ledger.start(batch.batch_id, "middle")
    assert ledger.settle(batch.batch_id).status is BatchStatus.OPEN


def test_missing_emit_never_reads_as_acked(ledger):
    """Without a committed emit there is no verdict: the batch is abandoned, and opens again."""
    flow = pipeline()
    batch = ledger.open(flow)
    run = ledger.start(batch.batch_id, "source")
    ledger.post(run, [Delta(1, emitted=5, emitted_edges=1)])
    ledger.age(batch.batch_id, 71)
    assert ledger.settle(batch.batch_id).status is BatchStatus.ABANDONED
    assert counts(ledger, batch.batch_id) == (0, 0, 0, 0, 0)
    ledger.sweep()  # drops its partition
    again = ledger.open(flow)
    assert (again.batch_id, again.status) == (batch.batch_id, BatchStatus.OPEN)
    assert ledger.run_all(again).failed == 0


def test_abandoned_replay_releases_its_messages(ledger):
    """Messages claimed by a replay that never emitted can be claimed by the next."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, 3, lose_sink=[0])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    ledger.abandon_dead(replay)
    second = ledger.replay(flow, batch.batch_id, "second")
    assert ledger.row("SELECT status, replay_batch_id FROM failed_message") == (
        "replaying",
        second.batch_id,
    )


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            "DELETE FROM ledger_delta WHERE root_id = {root} AND acked <> 0 AND emitted_edges = 1",
            "middle",
        ),
        (
            (
                "UPDATE ledger_delta SET delta = delta # 1 WHERE root_id = {root} AND"
                " emitted_edges = 0"
            ),
            "sink",
        ),
        ("DELETE FROM ledger_delta WHERE root_id = {root} AND acked_edges = 0", "source"),
    ],
)
def test_damaged_deltas_hold_the_batch(ledger, damage, named):
    """Deltas that differ from what their run recorded hold the batch; running the step again
    opens it.
    """
    batch, roots = ledger.whole_batch(pipeline())
    with ledger.database.plain.begin() as connection:
        assert connection.exec_driver_sql(damage.format(root=roots[3])).rowcount == 1
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert named in settlement.reason
    assert ledger.sweep().settlements == ()
    if named == "sink":
        ledger.run_sink(batch, roots)
        assert ledger.settle(batch.batch_id).failed == 0


def test_deltas_of_unknown_roots_hold_the_batch(ledger):
    """Deltas for a root that the batch never emitted are damage, not a failed root."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 1)
    ledger.run_middle(batch, [*roots, 999_999])
    ledger.run_sink(batch, roots)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert ledger.row("SELECT count(*) FROM failed_root")[0] == 0


def test_uncommitted_deltas_do_not_count(ledger):
    """What a run posted without committing changes no verdict."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    zombie = ledger.start(batch.batch_id, "middle")
    deltas = [Delta(root, root + 1000, root + 5000, 1, 1) for root in roots]
    ledger.post(zombie, deltas)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def test_settled_stays_settled(ledger):
    """Settling twice, or sweeping a settled batch, decides once and changes nothing."""
    batch, _ = ledger.whole_batch(pipeline(), lose_sink=[4])
    assert ledger.settle(batch.batch_id).decided
    before = ledger.rows("SELECT * FROM failed_message")
    again = ledger.settle(batch.batch_id)
    assert (again.decided, again.status) == (False, BatchStatus.SETTLED)
    assert ledger.sweep().settlements == ()
    assert ledger.rows("SELECT * FROM failed_message") == before


def test_zero_roots(ledger):
    """A batch without records is a settled batch of 0 roots."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 0)
    ledger.run_middle(batch, [])
    ledger.run_sink(batch, [])
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
    assert counts(ledger, batch.batch_id) == (0, 0, 0, 0, 0)


def test_without_ackers_every_root_is_acked(ledger):
    """With tracking=False nothing is tracked, and every root is acked once the steps have
    committed.
    """
    batch = ledger.open(pipeline(tracking=False))
    for name, emitted in (("source", RootRange(1, 5)), ("middle", None), ("sink", None)):
        run = ledger.start(batch.batch_id, name)
        ledger.commit(run, [], emitted=emitted)
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
    assert counts(ledger, batch.batch_id) == (5, 5, 0, 0, 0)


def test_tracking_is_decided_when_a_batch_opens(ledger):
    """Turning tracking off later does not acquit an open batch: its lost roots still fail."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 5)
    ledger.run_middle(batch, roots)
    ledger.open(pipeline(tracking=False), "later", day=1)
    ledger.run_sink(batch, roots, lose=[roots[0]])
    ledger.settle(batch.batch_id)
    assert counts(ledger, batch.batch_id) == (5, 4, 1, 0, 0)


def test_two_sweepers_one_decision(ledger):
    """Of two sweeps at once exactly one decides the batch."""
    ledger.whole_batch(pipeline(), lose_sink=[0])
    barrier, swept = threading.Barrier(2), []

    def sweep():
        barrier.wait()
        swept.append(ledger.sweep())

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(swept) == 2, "a sweep raised"
    decided = [
        settlement for result in swept for settlement in result.settlements if settlement.decided
    ]
    assert len(decided) == 1
    assert ledger.row("SELECT count(*) FROM failed_root")[0] == 1


def test_sweep_races_the_last_commit(ledger):
    """A sweep beside the last step's commit settles all roots as acked or leaves the batch open."""
    for number in range(15):
        batch = ledger.open(pipeline(), f"run-{number}", number)
        roots = ledger.emit(batch, 3)
        ledger.run_middle(batch, roots)
        run = ledger.start(batch.batch_id, "sink")
        deltas = [Delta(root, acked=root + 2000, acked_edges=1) for root in roots]
        ledger.post(run, deltas)
        barrier = threading.Barrier(2)

        def sweep(barrier=barrier, batch=batch):
            barrier.wait()
            ledger.settle(batch.batch_id)

        thread = threading.Thread(target=sweep)
        thread.start()
        barrier.wait()
        ledger.commit(run, deltas)
        thread.join()
        assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
        assert counts(ledger, batch.batch_id) == (3, 3, 0, 0, 0)


def test_open_copy_blocks_no_other_batch(ledger):
    """While a COPY into one batch is open, other batches open, settle and are cleaned up."""
    slow = ledger.open(pipeline(), "slow", 1)
    run = ledger.start(slow.batch_id, "source")
    with ledger.database.writer.connect() as writing:
        writing.execute(
            text("INSERT INTO ledger_delta VALUES (:b, :r, 1, 1, 0, 1, 0)"),
            {"b": slow.batch_id, "r": run.run_id},
        )
        done = threading.Event()

        def work():
            batch, _ = ledger.whole_batch(pipeline(), run_id="quick", day=2)
            ledger.settle(batch.batch_id)
            done.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert done.wait(20), "opening or settling waited for a COPY of another batch"
        thread.join()
        writing.rollback()


def test_a_straggler_leaves_no_row_behind(ledger):
    """A run that posts when its batch is decided ends before the settlement does, or is refused: a
    sweep finds all that was posted.
    """
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 3)
    ledger.run_middle(batch, roots)
    late = ledger.start(batch.batch_id, "sink")
    key = {"batch": batch.batch_id, "run": late.run_id}
    ended = ledger.now() + timedelta(minutes=10)
    with ThreadPoolExecutor(1) as pool:
        with posting_ahead(ledger.database, late) as cursor:
            cursor.execute(
                "INSERT INTO ledger_delta VALUES (%(batch)s, %(run)s, 1, 1, 0, 1, 0)", key
            )
            cursor.execute("SELECT FROM step_run WHERE step_run_id = %(run)s FOR SHARE", key)
            settling = pool.submit(ledger.settle, batch.batch_id, now=ended)
            with pytest.raises(TimeoutError):
                settling.result(0.5)
        assert settling.result(20).failed == 3
    with pytest.raises(FencedError, match=f"run {late.run_id} of sink .* is fenced and posts"):
        ledger.post(late, [Delta(1, reason="late")])
    ledger.sweep()
    assert ledger.rows("SELECT FROM ledger_delta UNION ALL SELECT FROM root_fail") == []


def test_a_sweep_removes_the_deltas_of_decided_batches(ledger):
    """Those of settled and abandoned ones; an open and a held batch keep theirs, which are the
    evidence.
    """
    settled, _ = ledger.whole_batch(pipeline(), run_id="settled", day=0)
    ledger.settle(settled.batch_id)
    abandoned = ledger.open(pipeline(), "abandoned", 1)
    run = ledger.start(abandoned.batch_id, "source")
    ledger.post(run, [Delta(1, emitted=5, emitted_edges=1)])
    ledger.fail(run, "a bug")
    assert ledger.abandon(abandoned.batch_id)
    held, roots = ledger.whole_batch(pipeline(), run_id="held", day=2)
    ledger.change(f"DELETE FROM ledger_delta WHERE root_id = {roots[3]}")
    assert ledger.settle(held.batch_id).status is BatchStatus.HELD
    ledger.emit(ledger.open(pipeline(), "open", 3), 2)
    posted = "SELECT DISTINCT batch_id FROM ledger_delta ORDER BY 1"
    assert [row.batch_id for row in ledger.rows(posted)] == [1, 2, 3, 4]
    ledger.sweep()
    assert [row.batch_id for row in ledger.rows(posted)] == [3, 4]
    assert ledger.open(pipeline(), "abandoned", 1).status is BatchStatus.OPEN
    assert ledger.run_all(abandoned).failed == 0


def test_sweep_lets_a_held_batch_be_fixed(ledger):
    """While the step that holds a batch runs again, a sweep does not hold the batch again."""
    batch, roots = ledger.whole_batch(pipeline())
    ledger.change(f"DELETE FROM ledger_delta WHERE root_id = {roots[3]}")
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    run = ledger.start(batch.batch_id, "source")
    (swept,) = ledger.sweep().settlements
    assert (swept.status, swept.reason) == (BatchStatus.OPEN, "source running")
    deltas = [Delta(root, emitted=root + 1000, emitted_edges=1) for root in roots]
    ledger.post(run, deltas)
    ledger.commit(run, deltas, emitted=RootRange(roots.start, len(roots)))
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def test_replay_that_emits_too_little_is_held(ledger):
    """A message that a replay claimed and never emitted does not pass for recovered."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, 5, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    roots = ledger.emit(replay, 1)
    ledger.run_middle(replay, roots)
    ledger.run_sink(replay, roots)
    settlement = ledger.settle(replay.batch_id)
    assert (settlement.status, "claimed 2 records and emitted 1" in settlement.reason) == (
        BatchStatus.HELD,
        True,
    )
    assert {row.status for row in ledger.rows("SELECT status FROM failed_message")} == {"replaying"}


def test_replay_needs_tracking_and_its_sources(ledger):
    """A replay is refused with tracking off, or when a source of the failed messages is gone."""
    batch, _ = ledger.whole_batch(pipeline(), 3, lose_sink=[0])
    ledger.settle(batch.batch_id)
    with pytest.raises(InputError, match="tracking=False"):
        ledger.replay(pipeline(tracking=False), batch.batch_id)
    renamed = Pipeline("chain")
    renamed.source("origin", FileSource("in.csv", schema="n INT"))
    renamed.sink("sink", ParquetSink("out"), reads="origin")
    with pytest.raises(InputError, match=r"came from source 'source'.*it has origin"):
        ledger.replay(renamed, batch.batch_id)
    assert ledger.row("SELECT status FROM failed_message").status == "failed"


def test_one_bad_batch_does_not_stop_a_sweep(ledger, monkeypatch):
    """A batch whose settlement raises is reported; the others are settled and cleaned up all the
    same.
    """
    bad, _ = ledger.whole_batch(pipeline(), run_id="bad", day=1)
    good, _ = ledger.whole_batch(pipeline(), run_id="good", day=2)

    def settle(database, batch_id, **options):
        if batch_id == bad.batch_id:
            raise UnavailableError("disk full")
        return ledger.settle(batch_id, **options)

    monkeypatch.setattr(sweeper, "settle_once", settle)
    swept = ledger.sweep()
    assert swept.errors == {bad.batch_id: "disk full"}
    assert [settlement.batch_id for settlement in swept.settlements] == [good.batch_id]


def test_expiry_without_tracking_holds_the_batch(ledger):
    """With tracking=False the ledger does not know what a step that died lost: the batch is
    held, not acked.
    """
    flow = pipeline(tracking=False)
    batch = ledger.open(flow)
    run = ledger.start(batch.batch_id, "source")
    ledger.commit(run, emitted=RootRange(1, 7))
    ledger.start(batch.batch_id, "middle")
    ledger.age(batch.batch_id, 71)
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert (
        "with tracking=False the ledger does not know what is missing after it: run middle again"
        in settlement.reason
    )


def two_sources():
    """first and second, each with a sink of its own."""
    flow = Pipeline("pair", message_timeout="10s")
    for name in ("first", "second"):
        flow.source(name, FileSource(f"{name}.csv", schema="n INT"))
        flow.sink(f"{name}_sink", ParquetSink(name), reads=name)
    return flow


def run_source(ledger, batch, name, count=3):
    """Commit a source with roots whose edges are root + 1000."""
    run = ledger.start(batch.batch_id, name)
    first = ledger.transact(batches.reserve_roots, count)
    roots = range(first, first + count)
    deltas = [Delta(root, emitted=root + 1000, emitted_edges=1) for root in roots]
    ledger.post(run, deltas)
    ledger.commit(run, deltas, emitted=RootRange(first, count))
    return roots


def test_abandoned_batch_of_two_sources_starts_from_the_beginning(ledger):
    """When one of two sources never commits, the batch is abandoned with all that the other did,
    and runs whole again.
    """
    flow = two_sources()
    batch = ledger.open(flow)
    roots = run_source(ledger, batch, "first")
    ledger.run_sink(batch, roots, name="first_sink", offset=1000)
    ledger.abandon_dead(batch, "second")
    assert ledger.open(flow).status is BatchStatus.OPEN
    for name in ("first", "second"):
        roots = run_source(ledger, batch, name)
        ledger.run_sink(batch, roots, name=f"{name}_sink", offset=1000)
    assert ledger.settle(batch.batch_id).failed == 0
    assert counts(ledger, batch.batch_id) == (6, 6, 0, 0, 0)


def test_release_is_for_too_many_failures_only(ledger):
    """A release of a batch that damage holds does not switch its circuit breaker off."""
    batch, roots = ledger.whole_batch(pipeline(hold_above=0.2), 10, lose_sink=[0, 1, 2])
    ledger.change(f"DELETE FROM ledger_delta WHERE root_id = {roots[9]}")
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    assert ledger.release(batch.batch_id).status is BatchStatus.HELD
    assert ledger.row("SELECT released FROM batch").released is False


def test_of_two_readers_the_one_that_committed_is_blamed(ledger):
    """A record that one reader lost while another never committed failed at the first, through
    its own fault.
    """
    batch = ledger.open(pipeline(fan_out=True))
    roots = ledger.emit(batch, 3)
    ledger.run_middle(batch, roots, edges=2)
    ledger.run_sink(batch, roots, [roots[1]], name="second", offset=3000)
    ledger.start(batch.batch_id, "sink")
    ledger.age(batch.batch_id, 71)
    assert ledger.settle(batch.batch_id).failed == 3
    rows = ledger.rows(
        "SELECT step, cause, own_failure, wrong_at FROM failed_root ORDER BY root_id"
    )
    assert [tuple(row)[:3] for row in rows] == [
        ("sink", "late", False),
        ("second", "lost", True),
        ("sink", "late", False),
    ]
    assert rows[1].wrong_at == "sink, second"
