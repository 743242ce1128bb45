"""What a replay takes, when, how often, and when a person has to look: on the real PostgreSQL."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text

from ledger.batch.opening import open_replay
from ledger.batch.records.failures import cases
from ledger.batch.records.filters import require_names
from ledger.batch.records.forgetting import forget, named
from ledger.batch.replay_matches import left_out, require_match
from ledger.core.run_request import RunKey, Selection
from ledger.core.states import BatchStatus
from ledger.errors import InputError, NotReadyError
from ledger.settings import Settings
from ledger.store.queries import batches, replays
from tests.support.ledgers import START, Ledger, pipeline

HOUR = timedelta(hours=1)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


def failing_replay(ledger, flow, original, run_id, lose=None, now=None, **selection):
    """A replay that loses its messages (all by default) at the sink, settled at ``now``."""
    key = RunKey("dag", run_id)
    settings = Settings(data="/data")
    replay = open_replay(
        ledger.database, settings, flow, key, original, Selection(**selection), now=now
    )
    roots = ledger.emit_replay(replay)
    ledger.run_middle(replay, roots)
    ledger.run_sink(replay, roots, roots if lose is None else [roots[n] for n in lose])
    ledger.settle(replay.batch_id, now=now)
    return replay, roots


def claimed(ledger, replay):
    return ledger.claimed_messages(replay.batch_id)


@pytest.fixture
def reworded(ledger):
    """Every cause is put into the same other words."""
    before = ledger.row("SELECT pg_get_functiondef('failure_reason'::regproc) AS text").text
    names = "cause failure_cause, step text, reason text"
    ledger.change(
        f"CREATE OR REPLACE FUNCTION failure_reason({names}) RETURNS text"
        " LANGUAGE sql IMMUTABLE AS $$ SELECT 'words' $$"
    )
    yield
    ledger.change(before)


@pytest.mark.usefixtures("reworded")
def test_other_words_for_a_cause_change_no_decision(ledger):
    """What is advised, which records a chosen cause takes, that they failed again in the same way,
    and what is forgotten of them is decided by the cause."""
    flow = pipeline(max_replays=2)
    batch, roots = ledger.whole_batch(flow, lose_middle=[0], lose_sink=[1])
    ledger.settle(batch.batch_id)
    advised = {(case.step, case.cause) for case in cases(ledger.database, {})}
    assert advised == {("middle", "lost"), ("sink", "lost")}
    causes = [{"step": "middle", "cause": "lost", "words": None}]
    replay = ledger.replay(flow, batch.batch_id, causes=causes)
    assert claimed(ledger, replay) == [roots[0]]
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again, again)
    ledger.run_sink(replay, [])
    ledger.settle(replay.batch_id)
    rows = ledger.transact(replays.count_due, None, batch.batch_id, {}, LATER)
    assert {(row.step, row.cause, row.repeated) for row in rows} == {
        ("middle", "lost", 1),
        ("sink", "lost", 0),
    }
    ledger.quarantine(record=roots[0])
    before = ledger.rows("SELECT * FROM failed_root ORDER BY 1")
    forget(ledger.database, named(ledger.database, roots[0]))
    assert ledger.rows("SELECT * FROM failed_root ORDER BY 1") == before


def test_a_loss_is_asked_for_by_its_cause_and_repeats_on_another_line(ledger):
    """Records that an operation lost are selected by the cause; an attempt that lost them on
    another line of a changed file failed as the one before.
    """
    flow = pipeline(max_replays=2)
    batch, _ = ledger.whole_batch(flow, lose_middle=[0], lose_sink=[1])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id, step="middle")
    again = ledger.emit_replay(replay)
    ledger.run_middle(replay, again, again)
    ledger.run_sink(replay, [])
    ledger.settle(replay.batch_id)
    ledger.change(
        "UPDATE failed_root SET operation = 'filter', place = 'job.py:' || attempt,"
        " reason = 'filter at job.py:' || attempt || ': condition NULL: n > 0'"
        " WHERE step = 'middle'"
    )
    for reason, steps in (("lost", {"middle", "sink"}), ("filter%NULL%", {"middle"})):
        selection = {"reason": reason}
        due = ledger.transact(replays.count_due, None, batch.batch_id, selection, LATER)
        assert {row.step for row in due} == steps
        assert {case.step for case in cases(ledger.database, selection)} == steps
        assert {row.repeated for row in due if row.step == "middle"} == {1}


def test_replay_takes_no_more_than_its_limit(ledger):
    """A replay takes at most replay_limit messages, the oldest; the next one takes the rest."""
    flow = pipeline(replay_limit=2)
    batch, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 2, 4])
    ledger.settle(batch.batch_id)
    first = ledger.replay(flow, batch.batch_id, "first")
    second = ledger.replay(flow, batch.batch_id, "second")
    assert claimed(ledger, first) == [roots[0], roots[2]]
    assert claimed(ledger, second) == [roots[4]]


def test_a_replay_of_a_whole_batch_claims_all(ledger):
    """With a whole stage a replay claims all failed records of its batch, whichever it is asked
    for, however many it may take, and also those that are not due.
    """
    flow = pipeline(whole=True, replay_limit=1, replay_backoff="1h")
    batch, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 2])
    ledger.settle(batch.batch_id)
    ledger.change(f"UPDATE failed_message SET not_before = NULL WHERE message_id = {roots[2]}")
    replay = ledger.replay(flow, batch.batch_id, record=roots[2])
    assert claimed(ledger, replay) == [roots[0], roots[2]]


@pytest.fixture
def nested_loops(database):
    """The ledger's writers join by nested loops that keep nothing: what stands inside runs again
    for each row."""
    methods = ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "sort", "bitmapscan")
    methods += ("indexscan", "indexonlyscan")

    def force(connection):
        for method in methods:
            connection.exec_driver_sql(f"SET LOCAL enable_{method} = off")

    event.listen(database.writer, "begin", force)
    yield Ledger(database)
    event.remove(database.writer, "begin", force)


def taken_by_a_subquery(database):
    """How many messages a claim of 2 takes with its limit in a subquery; it is rolled back."""
    claim = text("""
        UPDATE failed_message SET status = 'replaying', replay_batch_id = original_batch_id
        WHERE message_id IN (
          SELECT m.message_id FROM failed_message m JOIN failed_root r ON r.root_id = m.root_id
          ORDER BY m.attempts, m.message_id LIMIT 2 FOR UPDATE OF m
        ) AND status = 'failed'
    """)
    with database.writer.connect() as connection, connection.begin() as transaction:
        taken = connection.execute(claim).rowcount
        transaction.rollback()
    return taken


@pytest.mark.parametrize("options", [{"replay_limit": 2}, {"max_pending": 2}], ids=str)
def test_limit_holds_with_every_plan(nested_loops, options):
    """A replay takes no more than replay_limit, or than max_pending leaves room for, by a plan too
    that runs a limited subquery for each row."""
    flow = pipeline(**options)
    batch, roots = nested_loops.whole_batch(pipeline(), 5, lose_sink=[0, 1, 2, 3, 4])
    nested_loops.settle(batch.batch_id)
    version = nested_loops.row("SELECT current_setting('server_version_num')::int AS number").number
    if version >= 180000:  # before it another plan was taken, which shows nothing
        assert taken_by_a_subquery(nested_loops.database) > 2
    assert claimed(nested_loops, nested_loops.replay(flow, batch.batch_id)) == list(roots[:2])


def test_backoff_doubles_up_to_its_cap(ledger):
    """A message waits 1, 2, 4 hours between its replays, then the cap; never early, never never."""
    flow = pipeline(replay_backoff="1h", replay_backoff_cap="5h", max_replays=9)
    batch, _ = ledger.whole_batch(flow, 3, lose_sink=[0])
    now = ledger.now()
    ledger.settle(batch.batch_id, now=now)
    for number, wait in enumerate([1, 2, 4, 5, 5]):
        due = now + wait * HOUR
        with pytest.raises(NotReadyError, match="not due yet"):
            failing_replay(
                ledger, flow, batch.batch_id, f"r{number}", now=due - timedelta(seconds=1)
            )
        failing_replay(ledger, flow, batch.batch_id, f"r{number}", now=due)
        now = due
    assert ledger.row("SELECT status, failed_replays FROM failed_message") == ("failed", 5)


def test_sweeper_waits_for_the_backoff(ledger):
    """The sweeper asks for an automatic replay once the wait of a message is over."""
    flow = pipeline(replay_backoff="1h", auto_replay=True)
    batch, _ = ledger.whole_batch(flow, 3, lose_sink=[0])
    now = ledger.now()
    ledger.settle(batch.batch_id, now=now)
    assert ledger.sweep(now=now + HOUR - timedelta(seconds=1)).replays == ()
    (asked,) = ledger.sweep(now=now + HOUR).replays
    assert (asked.batch_id, asked.records) == (batch.batch_id, 1)


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        ({"reason": "bad %"}, [0, 1]),
        ({"reason": "bad row"}, [0]),
        ({"step": "sink"}, [2]),
        ({"source": "source"}, [0, 1, 2]),
        ({"until": START}, []),
        ({"since": START, "reason": "%date"}, [1]),
        ({"since": LATER}, []),
        ({"until": LATER}, [0, 1, 2]),
    ],
    ids=str,
)
def test_selection(ledger, selection, taken):
    """A replay takes what matches by reason (a SQL pattern), step, source and time of failure, and
    a dry run reports it.
    """
    flow = pipeline()
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 4)
    ledger.run_middle(batch, roots, fail={roots[0]: "bad row", roots[1]: "bad date"})
    ledger.run_sink(batch, roots[2:], [roots[2]])
    ledger.settle(batch.batch_id)
    records = Selection(**selection)
    dry = ledger.database.transact(
        lambda c: replays.count_due(c, "chain", None, records.as_json(), batches.database_now(c))
    )
    assert sum(row.records for row in dry) == len(taken)
    if not taken:
        with pytest.raises(NotReadyError):
            ledger.replay(flow, batch.batch_id, **selection)
        return
    replay = ledger.replay(flow, batch.batch_id, **selection)
    assert claimed(ledger, replay) == [roots[n] for n in taken]


NAMES = [
    ({"pipeline": "chian"}, "no batch of a pipeline 'chian'; did you mean 'chain'"),
    ({"batch_id": 7}, "batch 7 is not in the ledger, whose latest is 2"),
    ({"batch_id": 2, "pipeline": "chain"}, "batch 2 is of pipeline 'other', not 'chain'"),
    ({"step": "midle"}, "has no step 'midle'; did you mean 'middle'"),
    ({"source": "sorce"}, "has no source 'sorce'; did you mean 'source'"),
    ({"reason": "bad rwo"}, "failed for a reason like 'bad rwo'; did you mean 'bad row'"),
    ({"record": 9999}, "no record 9999"),
    ({"record": 1, "batch_id": 2}, "record 1 is of batch 1 of pipeline 'chain', not of batch 2"),
]


@pytest.mark.parametrize(("filters", "message"), NAMES, ids=str)
def test_a_name_that_the_ledger_does_not_know_is_an_error(ledger, filters, message):
    """A pipeline, batch, step, source, reason or record that is not there is refused with the one
    that was meant, for a replay as for a list; what is known passes.
    """
    flow = pipeline()
    batch = ledger.open(flow)
    roots = ledger.emit(batch, 4)
    ledger.run_middle(batch, roots, fail={roots[0]: "bad row"})
    ledger.run_sink(batch, roots[1:])
    ledger.settle(batch.batch_id)
    ledger.open(pipeline("other"), "other")
    names = {"pipeline": "chain", "batch_id": 1, "step": "sink", "source": "source", "record": 1}
    ledger.transact(require_names, {**names, "reason": "bad %"})
    with pytest.raises(InputError, match=message):
        ledger.transact(require_names, filters)
    selection = {name: filters[name] for name in filters if name in ("step", "source", "reason")}
    if selection:
        with pytest.raises(InputError, match=message):
            require_match(ledger.database, flow, None, Selection(**selection))
        with pytest.raises(InputError, match=message):
            ledger.replay(flow, batch.batch_id, **selection)


def test_quarantined_by_hand(ledger):
    """Messages taken from quarantine begin with a new budget and keep every earlier attempt."""
    flow = pipeline(max_replays=1)
    batch, roots = ledger.whole_batch(flow, 3, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    failing_replay(ledger, flow, batch.batch_id, "first")
    assert ledger.row("SELECT count(*) FROM quarantine")[0] == 2
    with pytest.raises(NotReadyError):
        ledger.replay(flow, batch.batch_id, "none")
    failing_replay(ledger, flow, batch.batch_id, "again", [1], quarantined=True)
    rows = ledger.rows(
        "SELECT message_id, status, attempts, failed_replays FROM failed_message ORDER BY 1",
    )
    assert rows == [(roots[0], "recovered", 2, 0), (roots[1], "quarantined", 3, 1)]
    history = ledger.rows(
        f"SELECT attempt, outcome, step, reason FROM replay_history WHERE message_id = {roots[0]}"
        " ORDER BY attempt",
    )
    assert history == [
        (1, "failed", "sink", "lost"),
        (2, "failed", "sink", "lost"),
        (3, "acked", None, None),
    ]


def test_what_a_person_gave_up_is_left_out_unless_asked_for(ledger):
    """A replay of quarantined records leaves out those that a person quarantined by hand or
    accepted, and says who decided and why; an option of its own takes these, or both.
    """
    flow = pipeline(max_replays=1)
    batch, roots = ledger.whole_batch(flow, 6, lose_sink=[0, 1, 2, 3])
    ledger.settle(batch.batch_id)
    ledger.quarantine("a test order", "ada", record=roots[0])
    failing_replay(ledger, flow, batch.batch_id, "first", reason="lost")
    ledger.accept(batch.batch_id, by="bob", reason="no such planes")
    asked = Selection(quarantined=True)
    sentences = left_out(ledger.database, "chain", None, asked)
    assert [re.sub(r" on \d{4}-\d\d-\d\d:", ":", sentence) for sentence in sentences] == [
        "batch 1: 1 record is left out, accepted by ada: a test order. With --accepted a replay"
        " takes them",
        "batch 1: 3 records are left out, accepted by bob: no such planes. With --accepted a replay"
        " takes them",
    ]
    with pytest.raises(NotReadyError, match="nothing to replay"):
        ledger.replay(flow, batch.batch_id, "none", quarantined=True)
    failing_replay(ledger, flow, batch.batch_id, "again", accepted=True, record=roots[1])
    assert (
        left_out(ledger.database, "chain", None, Selection(quarantined=True, accepted=True)) == []
    )
    both = ledger.replay(flow, batch.batch_id, "both", quarantined=True, accepted=True)
    assert claimed(ledger, both) == list(roots[:4])


def test_poison_blocks_neither_the_others_nor_the_source(ledger):
    """One record that always fails ends in quarantine; the rest of its replay and the next
    interval go through.
    """
    flow = pipeline(max_replays=2)
    batch, roots = ledger.whole_batch(flow, 5, lose_sink=[0, 1, 2])
    ledger.settle(batch.batch_id)
    failing_replay(ledger, flow, batch.batch_id, "first", [0])
    later, _ = ledger.whole_batch(flow, 4, "later", day=1)
    assert ledger.settle(later.batch_id).failed == 0
    failing_replay(ledger, flow, batch.batch_id, "second", [0])
    assert ledger.rows("SELECT message_id FROM quarantine") == [(roots[0],)]
    status = ledger.row(f"SELECT * FROM batch_status WHERE batch_id = {batch.batch_id}")
    assert (status.acked, status.failed, status.quarantined) == (4, 0, 1)


def test_too_many_failures_hold_the_batch_for_a_person(ledger):
    """Above hold_above nothing is decided; running the step again, or a release, goes on."""
    flow = pipeline(hold_above=0.2)
    batch, _ = ledger.whole_batch(flow, 10, lose_sink=[0, 1, 2])
    settlement = ledger.settle(batch.batch_id)
    assert settlement.status is BatchStatus.HELD
    assert settlement.reason.startswith(
        "3 of 10 records failed; the limit is 20 % (hold_above). Most failed at sink. "
        "Fix it and rerun: in run run of DAG dag clear the task of the fixed step"
    )
    release_it = f". Or publish the rest anyway: ackledger release {batch.batch_id}"
    assert settlement.reason.endswith(release_it)
    assert ledger.row("SELECT count(*) FROM failed_message")[0] == 0
    released = ledger.release(batch.batch_id)
    assert (released.status, released.failed) == (BatchStatus.SETTLED, 3)
    failing_replay(ledger, flow, batch.batch_id, "replay")
    assert {row.status for row in ledger.rows("SELECT status FROM batch")} == {"settled"}
    with pytest.raises(NotReadyError, match="is settled: only a batch on hold"):
        ledger.release(batch.batch_id)


def test_fixed_step_needs_no_release(ledger):
    """A batch held for too many failures settles by itself once the broken step ran again,
    fixed.
    """
    batch, roots = ledger.whole_batch(pipeline(hold_above=0.2), 10, lose_sink=[0, 1, 2])
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def test_just_the_ratio_is_tolerated(ledger):
    """A share of failures equal to hold_above settles; a replay is never measured against
    itself.
    """
    flow = pipeline(hold_above=0.2)
    batch, _ = ledger.whole_batch(flow, 10, lose_sink=[0, 1])
    assert ledger.settle(batch.batch_id).failed == 2
    failing_replay(ledger, flow, batch.batch_id, "replay")
    assert ledger.row("SELECT count(*) FROM batch WHERE status = 'settled'")[0] == 2


def test_failures_of_dead_steps_trip_nothing(ledger):
    """Records that failed because a step died are no failures of their own: the batch settles."""
    flow = pipeline(hold_above=0.1)
    batch = ledger.open(flow)
    ledger.run_middle(batch, ledger.emit(batch, 5))
    ledger.start(batch.batch_id, "sink")
    ledger.age(batch.batch_id, 71)
    assert ledger.settle(batch.batch_id).failed == 5


def test_queued_batches_do_not_expire(ledger):
    """Twelve batches that wait for two slots, each far longer than the timeout, all finish."""
    flow = pipeline()
    waiting = [ledger.open(flow, f"run-{n}", n) for n in range(12)]
    late = timedelta(0)
    while waiting:
        slot, waiting = waiting[:2], waiting[2:]
        for batch in slot:
            roots = ledger.emit(batch, 2)
            ledger.run_middle(batch, roots)
            ledger.run_sink(batch, roots)
        late += timedelta(hours=10)
        ledger.sweep(now=ledger.now() + late)
    assert ledger.rows("SELECT DISTINCT status, acked, failed FROM batch_status") == [
        ("settled", 2, 0)
    ]


def test_oldest_batch_is_abandoned(ledger):
    """A batch whose first task never ran is abandoned at max_batch_age, and its interval is free
    again.
    """
    flow = pipeline(max_batch_age="1d")
    batch = ledger.open(flow)
    now = ledger.now()
    assert ledger.settle(batch.batch_id, now=now + 23 * HOUR).status is BatchStatus.OPEN
    assert ledger.settle(batch.batch_id, now=now + 25 * HOUR).status is BatchStatus.ABANDONED
    assert ledger.open(flow, "another").batch_id != batch.batch_id


def test_abandoned_replay_of_quarantine_can_be_opened_again(ledger):
    """Messages taken from quarantine by a replay that never emitted go back there, and it can
    take them again.
    """
    flow = pipeline(max_replays=1)
    batch, _ = ledger.whole_batch(flow, 3, lose_sink=[0])
    ledger.settle(batch.batch_id)
    failing_replay(ledger, flow, batch.batch_id, "first")
    again = ledger.replay(flow, batch.batch_id, "again", quarantined=True)
    ledger.abandon_dead(again)
    assert ledger.row("SELECT status FROM failed_message").status == "quarantined"
    reopened = ledger.replay(flow, batch.batch_id, "again", quarantined=True)
    assert (reopened.batch_id, reopened.status) == (again.batch_id, BatchStatus.OPEN)
    assert len(claimed(ledger, reopened)) == 1


def test_attempts_are_counted_in_the_order_in_which_they_were_made(ledger):
    """Of a replay that is opened again after a later one the attempt is the last."""
    flow = pipeline(max_replays=9)
    batch, _ = ledger.whole_batch(flow, 3, lose_middle=[0])
    ledger.settle(batch.batch_id)
    first = ledger.replay(flow, batch.batch_id, "first")
    ledger.abandon_dead(first)
    failing_replay(ledger, flow, batch.batch_id, "second")
    again = ledger.replay(flow, batch.batch_id, "first")
    assert again.batch_id == first.batch_id
    ledger.run_replay(again)
    ledger.settle(again.batch_id)
    history = ledger.rows("SELECT attempt, outcome FROM replay_history ORDER BY attempt")
    assert history == [(1, "failed"), (2, "failed"), (3, "acked")]


def test_what_failed_least_often_goes_first(ledger):
    """Under a limit a message whose step dies every time does not keep the others from being
    replayed.
    """
    flow = pipeline(replay_limit=1, max_replays=9)
    batch, roots = ledger.whole_batch(flow, 3, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    deadly = ledger.replay(flow, batch.batch_id, "deadly")
    assert claimed(ledger, deadly) == [roots[0]]
    ledger.emit_replay(deadly)
    ledger.start(deadly.batch_id, "middle")
    ledger.age(deadly.batch_id, 71)
    ledger.settle(deadly.batch_id)
    assert ledger.row(
        f"SELECT failed_replays FROM failed_message WHERE message_id = {roots[0]}"
    ) == (0,)
    assert claimed(ledger, ledger.replay(flow, batch.batch_id, "next")) == [roots[1]]
