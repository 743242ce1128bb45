"""The commit protocol: fences, supersedes, claims, and what a lost connection may not do twice."""

import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest
from py4j.protocol import Py4JError

from ledger.batch.opening import open_batch
from ledger.batch.recovery import finished
from ledger.batch.step_runs import Attempt, Record, heartbeat
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus
from ledger.deltas import posting
from ledger.deltas.kernel import Deltas, DeltaTotals, Fails
from ledger.deltas.spans import RootRange
from ledger.errors import FencedError, InputError, IntegrityError, NotReadyError, WaitedError
from ledger.execution import run_step
from ledger.execution.steps import end
from ledger.settings import Settings
from ledger.spark.folding.outcome import FoldOutcome
from ledger.spark.job import Job
from ledger.store.queries import batches
from tests.support.dying import dies_at
from tests.support.ledgers import START, pipeline
from tests.support.places import ROOT
from tests.support.posting import Delta


def middle(roots):
    """Middle's deltas for roots as ``emit`` made them."""
    return [Delta(root, root + 1000, root + 2000, 1, 1) for root in roots]


def test_newer_attempt_fences_the_older(ledger):
    """Opening a run fences the running one, whose commit then is refused."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    old = ledger.start(batch.batch_id, "middle")
    deltas = middle(roots)
    ledger.post(old, deltas)
    new = ledger.start(batch.batch_id, "middle")
    with pytest.raises(FencedError, match="newer attempt"):
        ledger.commit(old, deltas)
    ledger.post(new, deltas)
    ledger.commit(new, deltas)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def task(ledger, minutes):
    """A task instance of Airflow that begins now, whose API server's clock says so many minutes."""
    number = ledger.begin().number
    return Attempt(UUID(int=(minutes * 60_000 << 80) | (7 << 76) | (2 << 62)), 1, number)


def test_older_task_cannot_open(ledger):
    """A zombie of Airflow whose driver starts after its successor's is refused, while that one
    lives and once it has committed, though its clock was an hour ahead.
    """
    batch = ledger.open(pipeline())
    older, newer = task(ledger, 61), task(ledger, 1)
    run = ledger.open_run(batch.batch_id, "source", newer)
    with pytest.raises(FencedError, match="newer attempt of source"):
        ledger.open_run(batch.batch_id, "source", older)
    ledger.commit(run, emitted=RootRange(1, 0))
    ledger.age_all(3600)
    with pytest.raises(FencedError, match="newer attempt of source"):
        ledger.open_run(batch.batch_id, "source", older)
    assert ledger.row("SELECT count(*) FROM step_run")[0] == 1


@pytest.mark.parametrize("first", ["task", "command"])
def test_tasks_and_commands_have_one_order(ledger, first):
    """Of a task and a command that which began first is the older one, whichever opens its run
    first."""
    batch = ledger.open(pipeline())
    begun = [lambda: task(ledger, 1), lambda: ledger.begin()]
    older, newer = [make() for make in (begun if first == "task" else reversed(begun))]
    ledger.open_run(batch.batch_id, "source", newer)
    with pytest.raises(FencedError, match="newer attempt"):
        ledger.open_run(batch.batch_id, "source", older)


def test_older_command_cannot_open(ledger):
    """A command that stood still is refused at the step that a command which began later has
    begun."""
    batch = ledger.open(pipeline())
    older, newer = ledger.begin(), ledger.begin()
    ledger.open_run(batch.batch_id, "source", newer)
    with pytest.raises(FencedError, match="newer attempt"):
        ledger.open_run(batch.batch_id, "source", older)


def test_a_clock_that_is_ahead_locks_no_run_out(ledger, monkeypatch):
    """After a command on a host whose clock is an hour ahead the next one goes on at once."""
    batch = ledger.open(pipeline())
    with monkeypatch.context() as ahead:
        now = time.time()
        ahead.setattr(time, "time", lambda: now + 3600)
        ahead.setattr(time, "time_ns", lambda: int((now + 3600) * 1e9))
        first = ledger.open_run(batch.batch_id, "source", ledger.begin())
    second = ledger.open_run(batch.batch_id, "source", ledger.begin())
    states = ledger.rows("SELECT step_run_id, state FROM step_run ORDER BY 1")
    assert states == [(first.run_id, "fenced"), (second.run_id, "running")]


@pytest.mark.parametrize("died", ["failed", "silent"])
@pytest.mark.parametrize("kind", ["task", "command"])
def test_dead_runs_keep_no_attempt_out(ledger, died, kind):
    """A newer attempt that failed, or whose lease has lapsed, does not stop an older one, which
    fences it."""
    batch = ledger.open(pipeline())
    begun = partial(task, ledger) if kind == "task" else lambda _: ledger.begin()
    older, newer = begun(1), begun(61)
    dead = ledger.open_run(batch.batch_id, "source", newer)
    if died == "failed":
        ledger.fail(dead, "out of memory")
    else:
        ledger.age_all(3600)
    alive = ledger.open_run(batch.batch_id, "source", older)
    with pytest.raises(FencedError):
        ledger.commit(dead, emitted=RootRange(1, 0))
    ledger.commit(alive, emitted=RootRange(1, 0))


def test_same_attempt_finds_its_run(ledger):
    """An attempt whose first answer was lost finds the run that it opened."""
    batch = ledger.open(pipeline())
    attempt = Attempt()
    first = ledger.open_run(batch.batch_id, "source", attempt)
    assert ledger.open_run(batch.batch_id, "source", attempt).run_id == first.run_id


def test_ended_attempt_cannot_open_again(ledger):
    """An attempt that failed does not come back to life."""
    batch = ledger.open(pipeline())
    attempt = Attempt()
    ledger.fail(ledger.open_run(batch.batch_id, "source", attempt), "out of memory")
    with pytest.raises(FencedError, match="has ended: failed"):
        ledger.open_run(batch.batch_id, "source", attempt)


def test_a_failure_of_whatever_text_is_kept(ledger):
    """A run whose error has a NUL or a lone surrogate in it is marked failed, with the rest of
    it.
    """
    batch = ledger.open(pipeline())
    ledger.fail(ledger.start(batch.batch_id, "source"), "bad \0 and \ud800 text")
    row = ledger.row("SELECT state, failure FROM step_run")
    assert tuple(row) == ("failed", "bad \N{REPLACEMENT CHARACTER} and \\ud800 text")


def test_an_interrupted_step_is_gone_on_with(ledger, settings):
    """A user who stops a step has nothing to fix: what is committed before it is not run again."""
    flow = pipeline()
    batch = ledger.open(flow)
    ledger.emit(batch, 2)
    job = Job(None, ledger.database, settings, flow)
    stopped = dies_at("run opened", raises=KeyboardInterrupt)
    with stopped, pytest.raises(KeyboardInterrupt):
        run_step(job, batch.batch_id, "middle", Attempt())
    state = ledger.row("SELECT state, failure FROM step_run WHERE step = 'middle'")
    assert tuple(state) == ("fenced", None)
    assert finished(ledger.database, flow, batch.batch_id) == {"source"}


def test_commit_asked_twice(ledger):
    """A commit whose answer was lost is asked again and changes nothing."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    run = ledger.start(batch.batch_id, "middle")
    deltas = middle(roots)
    ledger.post(run, deltas)
    ledger.commit(run, deltas)
    ledger.commit(run, deltas)
    assert ledger.row("SELECT count(*) FROM step_run WHERE state = 'committed'")[0] == 2


def test_backend_killed_during_commit(ledger):
    """A commit whose backend is killed runs again as a whole and takes effect once."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 1)
    run = ledger.start(batch.batch_id, "middle")
    deltas = middle(roots)
    ledger.post(run, deltas)
    tries = []

    def kill_once(connection):
        tries.append(1)
        if len(tries) == 1:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with ledger.database.plain.begin() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")

    ledger.commit(run, deltas, before_commit=kill_once)
    assert len(tries) == 2
    assert (
        ledger.row("SELECT state FROM step_run WHERE step_run_id = :r", r=run.run_id).state
        == "committed"
    )


@pytest.mark.parametrize("when", ["before the deltas", "within them", "before the fails"])
def test_backend_killed_while_a_run_posts(ledger, monkeypatch, when):
    """A commit that posts deltas, whose backend is killed meanwhile, runs again as a whole: they
    count once.
    """
    batch = ledger.open(pipeline())
    root = np.array(ledger.emit(batch, 3))
    run = ledger.start(batch.batch_id, "middle")
    ones = np.ones(3, np.int64)
    failed = Fails(root[:1], np.zeros(1, np.int32), np.zeros(1, bool), ("no good",))
    deltas = Deltas(root, (root + 1000) ^ (root + 2000), root + 1000, ones, ones, [failed])
    posted = DeltaTotals.of(deltas)
    outcome = FoldOutcome(run, posted=posted, pending=[deltas])
    backends = []

    def kill_once():
        if len(backends) == 1:
            with ledger.database.plain.begin() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({backends[0]})")

    def killing(function):
        def killed(*arguments, **options):
            kill_once()
            return function(*arguments, **options)

        return killed

    place = {"within them": "encode", "before the fails": "post_fails"}.get(when, "post")
    monkeypatch.setattr(posting, place, killing(getattr(posting, place)))

    def post(connection):
        backends.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())
        outcome.post(connection)

    ledger.commit(run, Record(posted=posted), post=post)
    assert len(backends) == 2
    ledger.run_sink(batch, [int(number) for number in root])
    assert (
        ledger.row("SELECT count(*) FROM ledger_delta WHERE step_run_id = :r", r=run.run_id)[0] == 3
    )
    assert ledger.settle(batch.batch_id).failed == 1


def test_deltas_that_wait_for_a_lock_in_vain(ledger):
    """What the database refuses while a run posts is an error of the ledger's own, that says
    whether to try again.
    """
    batch = ledger.open(pipeline())
    run = ledger.start(batch.batch_id, "source")
    deltas = Deltas(*(np.arange(1) for _ in range(5)))
    outcome = FoldOutcome(run, posted=DeltaTotals.of(deltas), pending=[deltas])

    def post(connection):
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        with ledger.database.plain.begin() as other:
            other.exec_driver_sql("LOCK TABLE ledger_delta")
            outcome.post(connection)

    with pytest.raises(WaitedError, match="Nothing was changed"):
        ledger.commit(run, Record(posted=outcome.posted), post=post)


@pytest.mark.parametrize(
    ("change", "actual"),
    [
        (
            "DELETE FROM ledger_delta WHERE step_run_id = 2 AND root_id = 2",
            "1 deltas with XOR 1080, 1 emitted and 1",
        ),
        (
            "INSERT INTO ledger_delta SELECT * FROM ledger_delta WHERE step_run_id = 2",
            "4 deltas with XOR 0",
        ),
        ("UPDATE ledger_delta SET delta = delta # 1 WHERE root_id = 2", "2 deltas with XOR 1"),
        ("UPDATE ledger_delta SET emitted_edges = 5", "10 emitted and 2 acked"),
        ("UPDATE ledger_delta SET acked_edges = 0", "2 emitted and 0 acked"),
    ],
)
def test_a_run_commits_with_the_deltas_that_it_folded_alone(ledger, change, actual):
    """Those that never arrived, that are there twice, or that are others, do not count."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    run = ledger.start(batch.batch_id, "middle")
    deltas = middle(roots)
    ledger.post(run, deltas)
    ledger.change(change)
    with pytest.raises(IntegrityError, match=f"run 2 of middle folded 2 .* has .*{actual}"):
        ledger.commit(run, deltas)


def test_deltas_that_are_there_twice_do_not_commit(ledger):
    """A posting whose answer was lost is not repeated: the step runs again."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 2)
    run = ledger.start(batch.batch_id, "middle")
    deltas = middle(roots)
    ledger.post(run, deltas)
    ledger.post(run, deltas)
    with pytest.raises(IntegrityError, match=r"the ledger has 4 deltas .*: run it again"):
        ledger.commit(run, deltas)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def test_rerun_supersedes_its_readers(ledger):
    """Running a step again supersedes its old run and all that read it, at any depth."""
    batch, roots = ledger.whole_batch(pipeline())
    ledger.run_middle(batch, roots)
    states = dict(
        tuple(row)
        for row in ledger.rows(
            "SELECT step, string_agg(state::text, ',' ORDER BY step_run_id) FROM step_run GROUP"
            " BY 1",
        )
    )
    assert states == {"source": "committed", "middle": "superseded,committed", "sink": "superseded"}
    assert ledger.settle(batch.batch_id).status is BatchStatus.OPEN
    ledger.run_sink(batch, roots)
    assert ledger.settle(batch.batch_id).failed == 0


def test_old_run_counts_until_the_new_one_commits(ledger):
    """Opening a re-run supersedes nothing: if it dies, the old run still counts."""
    batch, _ = ledger.whole_batch(pipeline())
    ledger.fail(ledger.start(batch.batch_id, "middle"), "died")
    assert ledger.settle(batch.batch_id).failed == 0


def test_reader_of_a_superseded_run_is_refused(ledger):
    """A sink that read middle's old run cannot commit after middle ran again."""
    batch = ledger.open(pipeline())
    roots = ledger.emit(batch, 1)
    ledger.run_middle(batch, roots)
    sink = ledger.start(batch.batch_id, "sink")
    ledger.run_middle(batch, roots)
    deltas = [Delta(roots[0], acked=roots[0] + 2000, acked_edges=1)]
    ledger.post(sink, deltas)
    with pytest.raises(FencedError, match="superseded"):
        ledger.commit(sink, deltas)


def test_commit_after_settlement_is_refused(ledger):
    """A run still open when its batch expired comes too late."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 1)
    run = ledger.start(batch.batch_id, "middle")
    ledger.age(batch.batch_id, 80)
    ledger.settle(batch.batch_id)
    with pytest.raises(FencedError, match="is settled"):
        ledger.commit(run)


def test_task_of_a_settled_batch_changes_nothing(ledger):
    """A cleared task of a settled batch opens no run."""
    batch, _ = ledger.whole_batch(pipeline())
    ledger.settle(batch.batch_id)
    assert ledger.open_run(batch.batch_id, "middle", Attempt()) is None


def test_input_must_be_committed(ledger):
    """A step whose input has not committed is refused, naming the input."""
    batch = ledger.open(pipeline())
    with pytest.raises(NotReadyError, match="reads source, which has no committed run"):
        ledger.open_run(batch.batch_id, "middle", Attempt())


def test_heartbeat_renews_and_finds_the_fence(ledger):
    """A living driver renews its lease, and learns that it was fenced."""
    batch = ledger.open(pipeline())
    run = ledger.start(batch.batch_id, "source")
    fenced = threading.Event()
    before = ledger.row("SELECT lease_until FROM step_run").lease_until
    with heartbeat(ledger.database, run.run_id, fenced.set, every=0.02):
        while ledger.row("SELECT lease_until FROM step_run").lease_until == before:
            pass
        ledger.start(batch.batch_id, "source")
        assert fenced.wait(10)


def test_heartbeat_ends_once_its_run_has_committed(ledger):
    """A driver that has committed is not told that a newer attempt owns its step."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 2)
    (run,) = ledger.rows("SELECT step_run_id FROM step_run WHERE state = 'committed'")
    fences = []
    with heartbeat(ledger.database, run.step_run_id, lambda: fences.append("fenced"), every=0.01):
        (beating,) = (t for t in threading.enumerate() if t.name == f"lease-{run.step_run_id}")
        beating.join(10)
        assert not beating.is_alive()
    assert not fences


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("None", b""),
        (
            "SimpleNamespace(interruptAll=lambda: print('interrupted', flush=True))",
            b"interrupted\n",
        ),
        ("SimpleNamespace(interruptAll=lambda: time.sleep(60))", b""),
    ],
    ids=["own JVM", "server", "server that is gone"],
)
def test_fenced_driver_ends(ledger, server, message):
    """A driver that Airflow has lost ends by itself once a newer attempt owns its step, and what
    it runs on a Connect server with it.
    """
    batch = ledger.open(pipeline())
    run = ledger.start(batch.batch_id, "source")
    program = (
        "import sys, time\n"
        "from functools import partial\n"
        "from types import SimpleNamespace\n"
        "from ledger.run_step import _leave\n"
        "from ledger.store.connection import Database\n"
        "from ledger.batch.step_runs import heartbeat\n"
        f"leave = partial(_leave, {server})\n"
        "with heartbeat(Database(sys.argv[1]), int(sys.argv[2]), leave, every=0.1):\n"
        "    print('alive', flush=True)\n"
        "    time.sleep(60)\n"
    )
    url = ledger.database.url.render_as_string(hide_password=False)
    with subprocess.Popen(
        [sys.executable, "-c", program, url, str(run.run_id)], cwd=ROOT, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout.readline() == b"alive\n"
        ledger.start(batch.batch_id, "source")
        assert driver.wait(30) == 1
        assert driver.stdout.read() == message


def test_interval_is_claimed_once(ledger):
    """A second batch over an interval is refused, naming the batch that has it."""
    flow = pipeline()
    first = ledger.open(flow, "first")
    with pytest.raises(InputError, match=f"belongs to batch {first.batch_id}"):
        ledger.open(flow, "second")
    assert ledger.row("SELECT count(*) FROM batch")[0] == 1


def test_run_is_found_again(ledger):
    """Opening the same run again, also at once from two processes, gives the one batch."""
    flow, runs = pipeline(), []
    barrier = threading.Barrier(2)

    def work():
        barrier.wait()
        runs.append(ledger.open(flow).batch_id)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 2
    assert len(set(runs)) == 1


def test_two_replays_share_nothing(ledger):
    """Two replays opened at once claim each message once between them."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, lose_sink=range(10))
    ledger.settle(batch.batch_id)
    barrier, outcomes = threading.Barrier(2), []

    def work(name):
        barrier.wait()
        try:
            outcomes.append(ledger.replay(flow, batch.batch_id, name).batch_id)
        except NotReadyError:
            outcomes.append(None)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome is None for outcome in outcomes) == [False, True]
    claims = ledger.rows("SELECT DISTINCT replay_batch_id FROM failed_message")
    assert len(claims) == 1


def test_replay_takes_what_is_selected(ledger):
    """A selection by root or step claims just those messages; an empty one is refused, named."""
    flow = pipeline()
    batch, roots = ledger.whole_batch(flow, lose_middle=[1], lose_sink=[2, 3])
    ledger.settle(batch.batch_id)
    ledger.replay(flow, batch.batch_id, "one", record=roots[2])
    ledger.replay(flow, batch.batch_id, "two", step="middle")
    claimed = ledger.rows(
        "SELECT message_id, replay_batch_id - :b FROM failed_message WHERE status = 'replaying'"
        " ORDER BY 1",
        b=batch.batch_id,
    )
    assert claimed == [(roots[1], 2), (roots[2], 1)]
    with pytest.raises(InputError, match="failed for a reason like 'unheard of'; known: lost"):
        ledger.replay(flow, batch.batch_id, "three", reason="unheard of")
    assert ledger.row("SELECT count(*) FROM batch")[0] == 3


def test_replay_never_takes_an_acked_message(ledger):
    """What a replay recovered is not taken by the next."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, lose_sink=[0])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    ledger.run_replay(replay)
    ledger.settle(replay.batch_id)
    with pytest.raises(NotReadyError, match="nothing to replay"):
        ledger.replay(flow, batch.batch_id, "again")


def test_only_settled_originals_are_replayed(ledger):
    """A replay of an open batch, or of a replay, is refused with the batch to use."""
    flow = pipeline()
    batch, _ = ledger.whole_batch(flow, lose_sink=[0])
    with pytest.raises(NotReadyError, match="is open"):
        ledger.replay(flow, batch.batch_id)
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    with pytest.raises(InputError, match=f"its original, batch {batch.batch_id}"):
        ledger.replay(flow, replay.batch_id, "deeper")


def test_emit_ranges_are_never_used_twice(database):
    """Each emit run reserves its own range, rounded up to 4,096."""
    first = database.transact(lambda c: batches.reserve_roots(c, 5000))
    second = database.transact(lambda c: batches.reserve_roots(c, 0))
    third = database.transact(lambda c: batches.reserve_roots(c, 1))
    assert (second - first, third - second) == (8192, 4096)
    fourth = database.transact(lambda c: batches.reserve_roots(c, 1, 16384))
    fifth = database.transact(lambda c: batches.reserve_roots(c, 1))
    assert (fourth % 16384, fifth - fourth, fourth > third) == (0, 16384, True)


def test_path_is_rendered_and_kept(ledger):
    """The batch keeps the path as rendered for its interval, with the data folder in front."""
    from ledger import FileSource, ParquetSink, Pipeline

    flow = Pipeline("paths")
    flow.source(
        "s", FileSource("in/{{ interval_start | ds }}-{{ params.kind }}.csv", schema="n INT")
    )
    flow.sink("out", ParquetSink("out"), reads="s")
    interval = Interval(START, START.replace(day=2), {"kind": "x"})
    open_batch(ledger.database, Settings(data="/data"), flow, RunKey("dag", "run"), interval)
    assert ledger.row("SELECT path FROM batch_source").path == "/data/in/2013-01-01-x.csv"


def test_attempt_numbers_grow(ledger):
    """Commands that begin one after the other have growing numbers, whatever batch they run."""
    numbers = [ledger.begin().number for _ in range(100)]
    assert numbers == sorted(set(numbers))


def test_a_failed_run_keeps_no_record(ledger):
    """What the ledger keeps of a failed run is class, condition and place: Java's words, which hold
    a record, are not for every reader of the ledger.
    """
    batch = ledger.open(pipeline())
    ledger.emit(batch, 1)
    run = ledger.start(batch.batch_id, "middle")
    message = (
        "SparkException: [MALFORMED_RECORD_IN_PARSING] Malformed records are detected: [7,marked]"
    )
    error = Py4JError(
        f"An error occurred while calling o1.parquet.\n: org.apache.spark.{message}\n"
    )
    end(SimpleNamespace(database=ledger.database), run, error)
    failure = ledger.row("SELECT failure FROM step_run WHERE state = 'failed'").failure
    assert failure.startswith("StageError: SparkException [MALFORMED_RECORD_IN_PARSING]. ")
    assert "marked" not in failure
