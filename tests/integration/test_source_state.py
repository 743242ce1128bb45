"""Sources that keep their own position: read on from batch to batch, rolled back alone, never
past what is kept.
"""

import threading
from datetime import timedelta

import pytest

from ledger import FileSource, ParquetSink, Pipeline, testing
from ledger.airflow import pipeline_dag
from ledger.batch import source_positions
from ledger.batch.opening import open_batch
from ledger.batch.outcome.summary import summarize
from ledger.batch.settlement import settle_once
from ledger.batch.state_runs import StepOutput
from ledger.batch.step_runs import Attempt, Record, open_run
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.core.run_request import Interval, RunKey
from ledger.errors import DeclarationError, FencedError, InputError, NotReadyError, StageError
from ledger.execution import notify
from ledger.spark.job import FEW_ROWS
from ledger.store.queries.runs import Emitted
from tests.support.dying import Died, dies_at
from tests.support.feeds import Feed, fed
from tests.support.ledgers import age, one, rows, started
from tests.support.publishing import publish_settled
from tests.support.runner import START


@pytest.fixture
def feed(tmp_path):
    """A log with three numbers."""
    made = Feed(tmp_path)
    made.add(1, 2, 3)
    return made


@pytest.fixture
def shown(sink_rows):
    """The numbers that the sink has published."""

    def read():
        return sorted(row[0] for row in sink_rows("out", "n"))

    return read


def opened(run, day):
    """The batch of a day."""
    start = START + timedelta(days=day)
    return run.open(f"day{day}", start, start + timedelta(days=1))


def snapshots(database, source="feed"):
    """What is committed of a source: the batch, and up to where it has read."""
    found = rows(
        database,
        "SELECT batch_id, (snapshot ->> 'upto')::int AS upto FROM checkpoint WHERE step = :source"
        " ORDER BY step_run_id",
        source=source,
    )
    return [tuple(row) for row in found]


def committed(upto, ticket):
    return {"upto": upto, "ticket": ticket}


def test_each_batch_reads_on(runner, feed, shown):
    """Every hook in order; the position is in the ledger, and what is behind a batch may go once
    it is committed.
    """
    run = runner(fed(feed))
    run.settled(opened(run, 1))
    assert shown() == [1, 2, 3]
    feed.add(4, 5)
    run.settled(opened(run, 2))
    run.settled(opened(run, 3))
    assert shown() == [1, 2, 3, 4, 5]
    assert feed.calls == [
        ("init_state", None),
        ("ack_commit", 1),
        ("init_state", committed(3, 1)),
        ("ack_commit", 2),
        ("init_state", committed(5, 2)),
        ("ack_commit", 3),
    ]
    assert snapshots(run.job.database) == [(1, 3), (2, 5), (3, 5)]
    assert (feed.forgotten, feed.tickets) == (5, [2, 3])
    assert rows(run.job.database, "SELECT * FROM state_progress") == []
    assert summarize(run.job.database, 2).roots.acked == 2


@pytest.mark.parametrize("hook", ["read", "finish_batch", "commit"])
def test_an_attempt_that_fails_is_rolled_back(runner, feed, shown, tmp_path, hook):
    """The next one, in another process, goes back to the committed position and reads the same
    again.
    """
    run = runner(fed(feed))
    run.settled(opened(run, 1))
    feed.add(4, 5)
    broken = runner(fed(Feed(tmp_path, broken=[hook])))
    with pytest.raises(RuntimeError):
        broken.settled(opened(broken, 2))
    assert snapshots(run.job.database) == [(1, 3)]
    feed.add(6)
    fixed = Feed(tmp_path)
    again = runner(fed(fixed))
    again.settled(opened(again, 2))
    position = committed(3, 1)
    assert fixed.calls == [("roll_back", position), ("init_state", position), ("ack_commit", 2)]
    assert shown() == [1, 2, 3, 4, 5, 6]
    assert fixed.tickets == [2]


@pytest.mark.parametrize(
    "place",
    [
        "files written",
        "deltas posted",
        "snapshot taken",
        "committing run",
        "inserting checkpoint",
    ],
    ids=["written", "posted", "before-its-commit", "in-its-commit", "snapshot-in-its-commit"],
)
def test_a_crash_between_the_arrows(runner, feed, shown, place):
    """Whoever dies before the commit or in it leaves the position where it was, and no record
    behind.
    """
    # Few deltas would be posted with the commit.
    run = runner(fed(feed), few_rows=-1 if place == "deltas posted" else FEW_ROWS)
    run.settled(opened(run, 1))
    feed.add(4)
    batch = opened(run, 2)
    with dies_at(place), pytest.raises(Died):
        run.step(batch, "feed")
    assert snapshots(run.job.database) == [(1, 3)]
    run.settled(batch)
    assert feed.calls[-3:-1] == [("roll_back", committed(3, 1)), ("init_state", committed(3, 1))]
    assert shown() == [1, 2, 3, 4]


def test_a_first_attempt_is_rolled_back_to_nothing(runner, feed, shown):
    """Where nothing is committed there is no snapshot to go back to."""
    feed.broken.add("commit")
    run = runner(fed(feed))
    with pytest.raises(RuntimeError):
        run.settled(opened(run, 1))
    feed.broken.clear()
    run.settled(opened(run, 1))
    assert feed.calls[1:3] == [("roll_back", None), ("init_state", None)]
    assert shown() == [1, 2, 3]


def test_an_abandoned_batch_has_read_nothing(runner, feed, shown):
    """A batch whose attempt died and that was abandoned: the next one rolls back and reads what
    it would have.
    """
    run = runner(fed(feed))
    database = run.job.database
    batch = opened(run, 1)
    started(database, batch.batch_id, "feed")
    age(database, batch.batch_id, 120)
    assert settle_once(database, batch.batch_id).status == "abandoned"
    run.settled(opened(run, 2))
    assert feed.calls[:2] == [("roll_back", None), ("init_state", None)]
    assert shown() == [1, 2, 3]
    feed.add(4)
    run.settled(opened(run, 1))
    assert snapshots(database) == [(2, 3), (1, 4)]
    assert shown() == [1, 2, 3, 4]


def test_a_driver_that_falls_silent_is_overtaken(runner, feed, shown):
    """Its lease has lapsed: the next batch reads what it was reading, and it cannot commit any
    more.
    """
    run = runner(fed(feed))
    database = run.job.database
    first = opened(run, 1)
    dead = open_run(database, first.batch_id, "feed", Attempt())
    position = source_positions.position_of(database, dead)
    age(database, first.batch_id, 120)
    run.settled(opened(run, 2))
    assert shown() == [1, 2, 3]
    nothing = StepOutput(Record(), [])
    with pytest.raises(FencedError):
        source_positions.commit_read(database, dead, position, nothing, Emitted(1, 0), None)
    with pytest.raises(FencedError, match=r"began to read where run 2 of batch 2 has read on"):
        source_positions.position_of(database, dead)
    feed.add(4)
    run.settled(first)
    assert shown() == [1, 2, 3, 4]


def test_batches_read_one_after_the_other(runner, feed, shown, monkeypatch):
    """While one batch reads, the next waits for it, not for its settlement; both read everything
    once.
    """
    run = runner(fed(feed))
    database = run.job.database
    first, second = opened(run, 1), opened(run, 2)
    reads, goes_on = threading.Event(), threading.Event()
    slow = Feed(feed.folder.parent)

    def read(spark):
        reads.set()
        assert goes_on.wait(60)
        return Feed.read(slow, spark)

    slow.read = read
    reading = threading.Thread(target=lambda: runner(fed(slow)).step(first, "feed"))
    reading.start()
    assert reads.wait(60)
    with monkeypatch.context() as patched:
        patched.setattr(source_positions, "WAIT_SECONDS", 0.0)
        with pytest.raises(NotReadyError, match="'feed' is being read by run 1 of batch 1"):
            run.step(second, "feed")
    goes_on.set()
    run.step(second, "feed")
    reading.join()
    assert snapshots(database) == [(1, 3), (2, 3)]
    feed.add(4)
    run.settled(opened(run, 3))
    assert shown() == [4]
    assert one(database, "SELECT count(*) AS n FROM batch WHERE status = 'open'").n == 2
    run.settled(second)
    run.settled(first)
    assert shown() == [1, 2, 3, 4]


def test_the_other_source_goes_on(runner, tmp_path, shown):
    """Of two sources one fails: that one alone is rolled back; what the other has read stays,
    and it reads on in the next batch meanwhile.
    """
    good, bad = Feed(tmp_path, "good"), Feed(tmp_path, "bad", ["finish_batch"])
    good.add(1, 2)
    bad.add(11)
    run = runner(fed(good, bad))
    first, second = opened(run, 1), opened(run, 2)
    run.step(first, "good")
    with pytest.raises(RuntimeError):
        run.step(first, "bad")
    good.add(3)
    run.step(second, "good")
    assert snapshots(run.job.database, "good") == [(1, 2), (2, 3)]
    assert snapshots(run.job.database, "bad") == []
    bad.broken.clear()
    for name in ("bad", "numbers", "out"):
        run.step(second, name)
    settle_once(run.job.database, second.batch_id)
    publish_settled(run.job, second.batch_id)
    notify(run.job, second.batch_id)
    assert shown() == [3, 11]
    assert (good.forgotten, bad.forgotten) == (0, 1)  # of the good one batch 1 is unfinished
    run.settled(first)
    assert shown() == [1, 2, 3, 11]
    assert [call for call in good.calls if call[0] != "init_state"] == [
        ("ack_commit", 1),
        ("ack_commit", 2),
    ]
    assert bad.calls[:3] == [("init_state", None), ("roll_back", None), ("init_state", None)]
    assert (good.forgotten, bad.forgotten) == (3, 1)


def abandoned(run, day, read):
    """A day's batch of two sources that was abandoned after one of them had read."""
    batch, database = opened(run, day), run.job.database
    run.step(batch, read)
    started(database, batch.batch_id, "bad")
    age(database, batch.batch_id, 120)
    assert settle_once(database, batch.batch_id).status == "abandoned"
    return batch


def test_what_an_abandoned_batch_has_read_is_taken_over(runner, tmp_path, shown):
    """A committed position never goes back: the next batch emits what the abandoned one had
    read, from the ledger.
    """
    good, bad = Feed(tmp_path, "good"), Feed(tmp_path, "bad")
    good.add(1, 2)
    bad.add(11)
    run = runner(fed(good, bad))
    database = run.job.database
    abandoned(run, 1, "good")
    assert snapshots(database, "good") == [(1, 2)]
    (good.folder / "forgotten").write_text("2")  # nobody needs it there any more
    good.add(3)
    run.settled(opened(run, 2))
    assert shown() == [1, 2, 3, 11]
    assert snapshots(database, "good") == [(2, 3)]
    assert [call[0] for call in good.calls] == ["init_state", "init_state", "ack_commit"]
    good.add(4)
    run.settled(opened(run, 1))
    assert shown() == [1, 2, 3, 4, 11]
    assert snapshots(database, "good") == [(2, 3), (1, 4)]


def test_an_abandoned_batch_that_opens_again_emits_what_it_had_read(runner, tmp_path, shown):
    """Nobody has taken it over: the batch has it still, and no hook is called for it."""
    good, bad = Feed(tmp_path, "good"), Feed(tmp_path, "bad")
    good.add(1, 2)
    run = runner(fed(good, bad))
    abandoned(run, 1, "good")
    good.add(3)
    run.settled(opened(run, 1))
    assert shown() == [1, 2]
    assert [call for call in good.calls if call[0] != "init_state"] == [("ack_commit", 1)]
    run.settled(opened(run, 2))
    assert shown() == [1, 2, 3]


def test_what_is_opened_again_meanwhile_is_not_taken_over(runner, tmp_path, shown, monkeypatch):
    """The abandoned batch opens again while another one is about to take over what it had read:
    one has it.
    """
    good, bad = Feed(tmp_path, "good"), Feed(tmp_path, "bad")
    good.add(1, 2)
    run = runner(fed(good, bad))
    abandoned(run, 1, "good")
    second = opened(run, 2)
    with monkeypatch.context() as patched:
        patched.setattr(Feed, "finish_batch", lambda self, batch_id: opened(run, 1) and self.upto)
        with pytest.raises(FencedError, match="that one has been opened again: run good again"):
            run.step(second, "good")
    run.settled(second)
    assert shown() == []
    run.settled(opened(run, 1))
    assert shown() == [1, 2]


@pytest.mark.parametrize("track", [None, "n > 2"])
def test_a_source_that_runs_again_emits_the_same(runner, feed, shown, track):
    """Its task is cleared: the batch keeps what it has read, though there is more by now; no
    hook is called.
    """
    made = Pipeline("fed", guarantee="exactly_once")
    made.source("feed", feed, track=track)
    made.sink("out", ParquetSink("out"), reads="feed")
    run = runner(made)
    batch = opened(run, 1)
    run.step(batch, "feed")
    feed.add(4)
    calls = list(feed.calls)
    run.settled(batch)
    assert feed.calls == [*calls, ("ack_commit", 1)]
    assert shown() == [1, 2, 3]
    assert summarize(run.job.database, 1).roots.acked == (3 if track is None else 1)
    assert snapshots(run.job.database) == [(1, 3)]


def test_units_of_a_source(runner, feed, shown):
    """Behind a whole stage its records have units, when it runs again and when they are
    replayed.
    """

    def whole(lose=()):
        made = fed(feed, lose=lose)
        del made._steps["out"]

        @made.stage(reads="numbers", whole=True, unit="n")
        def ranked(numbers):
            return numbers

        made.sink("out", ParquetSink("out"), reads="ranked")
        return made

    run = runner(whole(lose=[2]))
    batch = opened(run, 1)
    run.step(batch, "feed")
    run.settled(batch)
    assert shown() == [1, 3]
    fixed = runner(whole())
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert shown() == [1, 2, 3]


def test_a_replay_needs_nothing_of_the_source(runner, feed, shown):
    """What failed is replayed from the ledger's snapshot: no hook, though the source has
    forgotten it all.
    """
    run = runner(fed(feed, lose=[2]))
    batch = opened(run, 1)
    run.settled(batch)
    assert shown() == [1, 3]
    assert feed.forgotten == 3
    calls = list(feed.calls)
    fixed = runner(fed(feed))
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert shown() == [1, 2, 3]
    assert feed.calls == calls
    assert snapshots(run.job.database) == [(1, 3)]


def test_a_null_is_judged_by_todays_schema(runner, feed, sink_rows):
    """A record that had a null where none was allowed is replayed once it is allowed, with its
    other values.
    """
    feed.schema = "n INT, s STRING NOT NULL"
    feed.read = lambda spark: spark.createDataFrame([(1, "a"), (2, None)], "n INT, s STRING")
    feed.upto = 1
    run = runner(fed(feed))
    batch = opened(run, 1)
    assert run.settled(batch).failed == 1
    assert one(run.job.database, "SELECT reason FROM failed_root").reason == "s is null"
    feed.schema = "n INT, s STRING"
    fixed = runner(fed(feed))
    replay = fixed.open_replay(batch.batch_id)
    assert fixed.settled(replay).failed == 0
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}", "n", "s") == [(2, None)]


def test_ack_commit_waits_and_may_come_twice(runner, feed, monkeypatch):
    """It comes once the sinks publish the batch, again if it raised or nobody noted it, and
    fails nothing.
    """
    run = runner(fed(feed))
    feed.broken.add("ack_commit")
    run.settled(opened(run, 1))
    assert feed.calls[-1] == ("ack_commit", 1)
    assert feed.forgotten == 0
    feed.broken.clear()
    feed.add(4)
    second = opened(run, 2)
    run.steps(second)
    settle_once(run.job.database, second.batch_id)
    with dies_at("recording publication"), pytest.raises(Died):
        publish_settled(run.job, second.batch_id)
    notify(run.job, second.batch_id)
    assert (feed.calls[-1], feed.forgotten) == (("ack_commit", 1), 3)
    publish_settled(run.job, second.batch_id)
    with dies_at("recording ack"), pytest.raises(Died):
        notify(run.job, second.batch_id)
    assert feed.forgotten == 4
    notify(run.job, second.batch_id)
    assert feed.calls[-2:] == [("ack_commit", 2), ("ack_commit", 2)]
    told = list(feed.calls)
    notify(run.job, second.batch_id)
    assert feed.calls == told


def test_ack_commit_waits_for_a_batch_that_is_held_back(runner, feed, shown):
    """With settle="hold" nothing of the batch is published before its replay is settled."""
    run = runner(fed(feed, lose=[2], settle="hold"))
    first = opened(run, 1)
    run.settled(first)
    run.settled(opened(run, 2))
    assert "ack_commit" not in dict(feed.calls)
    fixed = runner(fed(feed, settle="hold"))
    fixed.settled(fixed.open_replay(first.batch_id))
    assert shown() == [1, 2, 3]
    assert feed.calls[-2:] == [("ack_commit", 1), ("ack_commit", 2)]


def test_the_sweeper_sends_for_what_was_not_told(runner, feed):
    """A batch that settled behind its run's back: a run is asked for, which tells the source."""
    run = runner(fed(feed))
    job = run.job
    start = START + timedelta(days=1)
    key, interval = RunKey("dag", "run"), Interval(start, start + timedelta(days=1))
    batch = open_batch(job.database, job.settings, job.pipeline, key, interval)
    run.steps(batch)
    settle_once(job.database, batch.batch_id)
    publish_settled(job, batch.batch_id)
    later = one(job.database, "SELECT now() + interval '1 hour' AS later").later
    assert [one.batch_id for one in sweep_once(job.database, now=later).overdue] == [1]
    notify(job, batch.batch_id)
    assert feed.calls[-1] == ("ack_commit", 1)
    assert sweep_once(job.database, now=later).overdue == ()


@pytest.mark.parametrize("options", [{"guarantee": "at_least_once"}, {"ackers": 0}])
def test_other_promises(runner, feed, shown, options):
    """At least once, and without tracking, the position is kept and told of just the same."""
    run = runner(fed(feed, **options))
    run.settled(opened(run, 1))
    feed.add(4)
    run.settled(opened(run, 2))
    assert shown() == [1, 2, 3, 4]
    assert feed.calls[-1] == ("ack_commit", 2)
    assert snapshots(run.job.database) == [(1, 3), (2, 4)]


def test_in_a_dag_the_source_is_told_once_all_is_published(feed):
    """A task notify, behind publish: before that nothing is committed as a whole."""
    dag = pipeline_dag(fed(feed), schedule=None, target="m:p")
    assert dag.get_task("notify").upstream_task_ids == {"publish"}


def test_in_a_test_rows_take_the_place_of_the_source(spark, feed):
    """The user's own tests run the pipeline over given rows, without the system outside."""
    result = testing.run_batch(fed(feed), {"feed": [{"n": 7}]}, spark=spark)
    assert result.rows["out"] == [{"n": 7}]
    assert feed.calls == []


def test_what_read_gives_has_the_declared_columns(runner, feed):
    """A column that is missing, or of another type, is named; others are left out."""
    run = runner(fed(feed))
    feed.read = lambda spark: spark.createDataFrame([("1",)], "n STRING")
    with pytest.raises(
        InputError, match="read of Feed: expected column n of type int, found string"
    ):
        run.step(opened(run, 1), "feed")
    feed.read = lambda spark: spark.createDataFrame([(1,)], "m INT")
    with pytest.raises(InputError, match="found no such column"):
        run.step(opened(run, 1), "feed")
    feed.read, feed.upto = lambda spark: spark.createDataFrame([(1, 2)], "n INT, m INT"), 1
    assert run.settled(opened(run, 1)).roots == 1


def test_a_snapshot_must_be_json(runner, feed):
    """A set is no snapshot: the message says what is expected."""
    feed.commit = lambda batch_id, state: {1, 2}
    run = runner(fed(feed))
    with pytest.raises(StageError, match="commit of source 'feed' returned what is no JSON"):
        run.settled(opened(run, 1))


def test_what_cannot_be_declared(runner, feed, tmp_path):
    """A class, an object without a schema, a reference, an interval again."""
    made = Pipeline("refused")
    with pytest.raises(DeclarationError, match="a subclass of StatefulSource, found <class"):
        made.source("feed", Feed)
    bare = Feed(tmp_path)
    bare.schema = None
    with pytest.raises(DeclarationError, match="expected an attribute schema of Feed"):
        made.source("feed", bare)
    with pytest.raises(DeclarationError, match="expected a FileSource that is not incremental"):
        made.reference("feed", feed)
    job = runner(fed(feed)).job
    with pytest.raises(InputError, match="is incremental, it has no interval to run again"):
        open_batch(
            job.database,
            job.settings,
            job.pipeline,
            RunKey("", "again"),
            Interval(START, START + timedelta(days=1)),
            reprocess=True,
        )


def test_beside_files_of_an_interval(runner, feed, tmp_path, shown):
    """A pipeline may have sources of each kind."""
    (tmp_path / "in.csv").write_text("n\n21\n")
    made = Pipeline("fed", guarantee="exactly_once")
    made.source("feed", feed)
    made.source("file", FileSource("in.csv", schema="n INT"))

    @made.stage(reads=["feed", "file"])
    def numbers(one, other):
        return one.unionByName(other)

    made.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(made)
    run.settled(opened(run, 1))
    assert shown() == [1, 2, 3, 21]
