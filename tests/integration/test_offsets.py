"""Sources that are read by offsets: each range is claimed once, read the same every time, and
committed in order.
"""

import json
from datetime import timedelta

import pytest

from ledger import FileSource, OffsetSource, ParquetSink, Pipeline, testing
from ledger.airflow import pipeline_dag
from ledger.batch import claims
from ledger.errors import (
    BackPressureError,
    DeclarationError,
    InputError,
    LedgerError,
    NotReadyError,
    StageError,
)
from ledger.execution import notify
from ledger.spark.job import FEW_ROWS
from tests.support.dying import Died, dies_at
from tests.support.feeds import Feed, fed
from tests.support.publishing import publish_settled
from tests.support.runner import START
from tests.support.source_kinds import Topic


@pytest.fixture
def feed(tmp_path):
    """A log with three numbers."""
    log = Feed(tmp_path)
    log.add(1, 2, 3)
    return log


@pytest.fixture
def shown(sink_rows):
    """The numbers that the sink has published."""

    def read():
        return sorted(row[0] for row in sink_rows("out", "n"))

    return read


def ranges(ledger, source="feed"):
    """The ranges that are claimed of a source, in order: batch, start, end."""
    query = (
        "SELECT batch_id, claim_start, claim_end FROM batch_source"
        " WHERE source = :source AND claim_number IS NOT NULL ORDER BY claim_number"
    )
    return [tuple(row) for row in ledger.rows(query, source=source)]


def ranked(feed, **options):
    """A feed -> numbers -> a whole stage -> a folder."""
    pipeline = fed(feed, **options)
    del pipeline._steps["out"]

    @pipeline.stage(reads="numbers", anchors="merged_by_hand")
    def ranked(numbers):
        return numbers

    pipeline.sink("out", ParquetSink("out"), reads="ranked")
    return pipeline


def position(ledger):
    return [row.position for row in ledger.rows("SELECT position FROM source_position")]


def test_each_batch_reads_on(runner, feed, shown):
    """A batch claims what is new when it opens; the source is notified once it is committed as a
    whole; a batch that finds nothing claims nothing.
    """
    run = runner(fed(feed))
    run.settled(run.open_day(1))
    assert shown() == [1, 2, 3]
    feed.add(4, 5)
    run.settled(run.open_day(2))
    run.settled(run.open_day(3))
    assert shown() == [1, 2, 3, 4, 5]
    assert feed.calls == [
        ("latest", None, None),
        ("commit", 1, 3),
        ("latest", 3, None),
        ("commit", 2, 5),
        ("latest", 5, None),
    ]
    assert ranges(run.ledger) == [(1, None, 3), (2, 3, 5)]
    assert position(run.ledger) == ["5"]
    assert run.ledger.summary(2).roots.acked == 2


def test_batches_that_are_open_at_once_read_each_record_once(runner, feed, shown):
    """Each has its own range, and none waits for another: the later one may read first."""
    run = runner(fed(feed))
    first = run.open_day(1)
    feed.add(4)
    second = run.open_day(2)
    run.settled(second)
    assert shown() == [4]
    assert feed.commits == []  # what comes before is not committed
    assert position(run.ledger) == []
    feed.add(5)
    run.settled(first)
    assert shown() == [1, 2, 3, 4]
    assert feed.commits == [(1, 3), (2, 4)]
    assert position(run.ledger) == ["4"]


@pytest.mark.parametrize("place", ["sources asked", "opening batch"])
def test_a_crash_while_a_batch_opens(runner, feed, shown, place):
    """Nothing is claimed, and there is no trace of it: the next one asks again."""
    run = runner(fed(feed))
    with dies_at(place), pytest.raises(Died):
        run.open_day(1)
    assert run.ledger.rows("SELECT * FROM pipeline") == []
    feed.add(4)
    run.settled(run.open_day(1))
    assert shown() == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["files written", "deltas posted", "committing run"])
def test_a_crash_while_a_batch_reads(runner, feed, shown, place):
    """The next attempt reads the same range again, though there is more by then."""
    # Few deltas would be posted with the commit.
    run = runner(fed(feed), few_rows=-1 if place == "deltas posted" else FEW_ROWS)
    batch = run.open_day(1)
    with dies_at(place), pytest.raises(Died):
        run.step(batch, "feed")
    feed.add(4)
    run.settled(batch)
    assert shown() == [1, 2, 3]
    assert ranges(run.ledger) == [(1, None, 3)]


@pytest.mark.parametrize("track", [None, "n > 2"])
def test_a_source_that_runs_again_reads_the_same(runner, feed, shown, track):
    """Its task is cleared: the batch keeps its range; the source is not asked again."""
    pipeline = Pipeline("fed", guarantee="exactly_once")
    pipeline.source("feed", feed, track=track)
    pipeline.sink("out", ParquetSink("out"), reads="feed")
    run = runner(pipeline)
    batch = run.open_day(1)
    run.step(batch, "feed")
    feed.add(4)
    run.settled(batch)
    assert feed.calls == [("latest", None, None), ("commit", 1, 3)]
    assert shown() == [1, 2, 3]
    assert run.ledger.summary(1).roots.acked == (3 if track is None else 1)


def test_the_next_batch_takes_the_range_of_an_abandoned_one_whole(runner, feed, shown):
    """It is not cut, and what came since waits; the source is not asked for it."""
    run = runner(fed(feed))
    run.abandoned_day(1, "feed")
    feed.add(4)
    calls = list(feed.calls)
    run.settled(run.open_day(2))
    assert shown() == [1, 2, 3]
    assert feed.calls == [*calls, ("commit", 2, 3)]
    run.settled(run.open_day(3))
    assert shown() == [1, 2, 3, 4]
    assert ranges(run.ledger) == [(2, None, 3), (3, 3, 4)]
    feed.add(5)
    run.settled(run.open_day(1))  # it has its range no more, and reads on
    assert shown() == [1, 2, 3, 4, 5]
    assert ranges(run.ledger)[-1] == (1, 4, 5)


def test_an_abandoned_batch_that_opens_again_has_its_own_range(runner, feed, shown):
    """Of two ranges that wait it takes its own, not the first; that one is the next batch's."""
    run = runner(fed(feed))
    first = run.open_day(1)
    feed.add(4)
    run.abandoned_day(2, "feed")
    run.ledger.abandon_dead(first, "feed")
    run.settled(run.open_day(2))
    assert shown() == [4]
    assert feed.commits == []
    run.settled(run.open_day(3))
    assert shown() == [1, 2, 3, 4]
    assert feed.commits == [(3, 3), (2, 4)]


def test_a_faster_batch(runner, feed, shown, monkeypatch):
    """Another batch claims what this one is about to claim: the source is asked again from there,
    and every record is claimed once.
    """
    run = runner(fed(feed))
    latest = Feed.latest

    def slow(self, start, room):
        monkeypatch.setattr(Feed, "latest", latest)
        end = latest(self, start, room)
        run.open_day(2)  # faster
        self.add(4)
        return end

    monkeypatch.setattr(Feed, "latest", slow)
    run.open_day(1)
    assert [call[:2] for call in feed.calls] == [("latest", None), ("latest", None), ("latest", 3)]
    assert [row[1:] for row in ranges(run.ledger)] == [(None, 3), (3, 4)]
    run.settled(run.open_day(1))
    run.settled(run.open_day(2))
    assert shown() == [1, 2, 3, 4]


def test_other_batches_that_are_faster_every_time(runner, feed, monkeypatch):
    """The source is asked so often, then the run says that it is to be run again."""
    run = runner(fed(feed))
    monkeypatch.setattr(claims, "MOST_ATTEMPTS", 2)
    latest, days = Feed.latest, iter(range(2, 9))

    def slow(self, start, room):
        end = latest(self, start, room)
        with monkeypatch.context() as patched:
            patched.setattr(Feed, "latest", latest)
            run.open_day(next(days))
        self.add(9)
        return end

    monkeypatch.setattr(Feed, "latest", slow)
    with pytest.raises(NotReadyError, match="were faster to claim what is new: run this again"):
        run.open_day(1)
    assert [row[0] for row in ranges(run.ledger)] == [1, 2]


def test_a_batch_takes_what_there_is_room_for(runner, feed, shown):
    """``latest`` gets how many records may be pending; of the rest the next batch takes some."""
    feed.add(4, 5)
    run = runner(fed(feed, max_pending=2))
    first = run.open_day(1)
    with pytest.raises(BackPressureError, match="2 records are pending in batches 1"):
        run.open_day(2)
    run.settled(first)
    run.settled(run.open_day(2))
    assert shown() == [1, 2, 3, 4]
    assert [call for call in feed.calls if call[0] == "latest"] == [
        ("latest", None, 2),
        ("latest", 2, 2),
    ]


def test_offsets_by_partition(runner, tmp_path, sink_rows):
    """Each batch goes on in every partition, within its room; a new partition begins at 0."""
    topic = Topic(tmp_path)
    topic.add((0, 10), (1, 11), (2, 12), (4, 14))
    pipeline = Pipeline("topic", max_pending=3)
    pipeline.source("topic", topic.declared())
    pipeline.sink("out", ParquetSink("out"), reads="topic")
    run = runner(pipeline)
    run.settled(run.open_day(1))
    (topic.folder / "p2.jsonl").write_text('{"id": 6, "n": 16}\n')
    run.settled(run.open_day(2))
    second = {"0": 3, "1": 1, "p2": 1}
    assert ranges(run.ledger, "topic") == [
        (1, None, {"0": 3, "1": 0}),
        (2, {"0": 3, "1": 0}, second),
    ]
    assert [id for id, _ in sink_rows("out", "id", "n")] == [0, 1, 2, 4, 6]
    assert json.loads((topic.folder / "committed.json").read_text()) == second
    assert [json.loads(text) for text in position(run.ledger)] == [second]
    (topic.folder / "p2.jsonl").unlink()  # its messages are read
    topic.add((8, 18))
    run.settled(run.open_day(3))
    assert [id for id, _ in sink_rows("out", "id", "n")] == [0, 1, 2, 4, 6, 8]
    pipeline.step("topic").source._declared.commit(1, {"0": 3, "1": 0})  # late
    assert (
        json.loads((topic.folder / "committed.json").read_text())
        == ranges(run.ledger, "topic")[-1][2]
    )
    (topic.folder / "p3.jsonl").touch()  # a range without a record
    run.settled(run.open_day(5))
    assert ranges(run.ledger, "topic")[-1][2]["p3"] == 0
    (topic.folder / "0.jsonl").write_text('{"id": 10, "n": 20}\n')
    with pytest.raises(InputError, match=r"ends at 1, before offset \d: it was set up again"):
        run.open_day(4)


def test_a_range_that_is_given_back_waits_for_room(runner, feed, shown):
    """It is never cut: with other records pending it waits until it fits, or is alone."""
    narrow, wide = runner(fed(feed, max_pending=1)), runner(fed(feed, max_pending=3))
    first = narrow.open_day(1)
    narrow.step(first, "feed")
    wide.abandoned_day(2, "feed")
    tight = runner(fed(feed, max_pending=2))
    with pytest.raises(
        BackPressureError, match="1 record is pending in batches 1, and more than 1 are to be read"
    ):
        tight.open_day(3)
    tight.settled(first)
    tight.settled(tight.open_day(3))
    assert ranges(tight.ledger) == [(1, None, 1), (3, 1, 3)]
    assert shown() == [1, 2, 3]


@pytest.mark.parametrize("redact", [(), ("n",)])
def test_a_source_that_has_gone_back_is_refused(runner, feed, monkeypatch, redact):
    """An offset where an earlier batch ended would be read twice; nothing is claimed. An offset
    is a value: a pipeline that redacts does not quote it."""
    run = runner(fed(feed, redact=redact))
    run.open_day(1)
    feed.add(4)
    run.open_day(2)
    monkeypatch.setattr(Feed, "latest", lambda self, start, room: 3)
    offsets = r"\*\*\* it reads on to \*\*\*" if redact else "4 it reads on to 3"
    with pytest.raises(InputError, match=f"has gone back: from offset {offsets}, where"):
        run.open_day(3)
    assert len(run.ledger.rows("SELECT * FROM batch")) == 2


@pytest.mark.parametrize("offset", [{1, 2}, float("nan")])
def test_an_offset_is_json(runner, feed, monkeypatch, offset):
    """A set is none: the message says what is expected; the pipeline is not there either."""
    monkeypatch.setattr(Feed, "latest", lambda self, start, room: offset)
    run = runner(fed(feed))
    with pytest.raises(StageError, match="latest of source 'feed' returned what is no JSON"):
        run.open_day(1)
    assert run.ledger.rows("SELECT * FROM pipeline") == []


def test_an_offset_that_is_changed_in_place(runner, feed, monkeypatch, shown):
    """``start`` is the source's own copy: changed and returned, it is another offset."""

    def latest(self, start, room):
        offset = start or {"n": 0}
        offset["n"] = len(self.log)
        return offset

    monkeypatch.setattr(Feed, "latest", latest)
    monkeypatch.setattr(
        Feed,
        "read",
        lambda self, spark, start, end: spark.createDataFrame(
            [(n,) for n in self.log[start["n"] if start else 0 : end["n"]]], "n INT"
        ),
    )
    run = runner(fed(feed))
    for day in (1, 2):
        run.settled(run.open_day(day))
        feed.add(3 + day)
    assert shown() == [1, 2, 3, 4]
    assert position(run.ledger) == ['{"n": 4}']


@pytest.mark.parametrize("method", ["latest", "read"])
def test_what_the_source_raises(runner, feed, shown, method):
    """The batch does not open, or its step fails; run again, it reads the same."""
    feed.broken.add(method)
    run = runner(fed(feed))
    with pytest.raises(RuntimeError):
        run.settled(run.open_day(1))
    feed.broken.clear()
    run.settled(run.open_day(1))
    assert shown() == [1, 2, 3]


def test_the_other_source_goes_on(runner, tmp_path, shown):
    """Of two sources one fails: what the other has read stays, and is committed in its order."""
    good, bad = Feed(tmp_path, "good"), Feed(tmp_path, "bad", ["read"])
    good.add(1, 2)
    bad.add(11)
    run = runner(fed(good, bad))
    first = run.open_day(1)
    run.step(first, "good")
    with pytest.raises(RuntimeError):
        run.step(first, "bad")
    good.add(3)
    bad.broken.clear()
    bad.add(12)
    run.settled(run.open_day(2))
    assert shown() == [3, 12]
    assert (good.forgotten, bad.forgotten) == (0, 0)
    run.settled(first)
    assert shown() == [1, 2, 3, 11, 12]
    assert (good.commits, bad.commits) == ([(1, 2), (2, 3)], [(1, 1), (2, 2)])


def test_a_whole_batch_of_a_feed(runner, feed, shown):
    """With a whole stage a replay takes all that its batch has read, once."""
    run = runner(ranked(feed, lose=[2]))
    batch = run.open_day(1)
    run.step(batch, "feed")
    run.settled(batch)
    assert shown() == [1, 3]
    fixed = runner(ranked(feed))
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert shown() == [1, 2, 3]


def test_a_whole_stage_gets_all_that_is_new(runner, feed, shown):
    """With max_pending no batch is cut: it takes all, and the next one waits for it."""
    run = runner(ranked(feed, max_pending=1))
    first = run.open_day(1)
    with pytest.raises(BackPressureError, match="batch 1 has yet to read it"):
        run.open_day(2)
    run.step(first, "feed")
    with pytest.raises(BackPressureError, match="3 records are pending in batches 1"):
        run.open_day(2)
    run.settled(first)
    feed.add(4)
    run.settled(run.open_day(2))
    assert shown() == [1, 2, 3, 4]
    assert [call[2] for call in feed.calls if call[0] == "latest"] == [None, None]


def test_a_replay_needs_nothing_of_the_source(runner, feed, shown):
    """What failed comes from the ledger's snapshot, though the source has forgotten it all."""
    run = runner(fed(feed, lose=[2]))
    batch = run.open_day(1)
    run.settled(batch)
    assert shown() == [1, 3]
    assert feed.forgotten == 3
    calls = list(feed.calls)
    fixed = runner(fed(feed))
    fixed.settled(fixed.open_replay(batch.batch_id))
    assert shown() == [1, 2, 3]
    assert feed.calls == calls


def test_a_null_is_judged_by_todays_schema(runner, feed, sink_rows):
    """A record that had a null where none was allowed is replayed once it is allowed, with its
    other values.
    """
    feed.schema = "n INT, s STRING NOT NULL"
    feed.read = lambda spark, start, end: spark.createDataFrame(
        [(1, "a"), (2, None)], "n INT, s STRING"
    )
    run = runner(fed(feed))
    batch = run.open_day(1)
    assert run.settled(batch).failed == 1
    assert run.ledger.row("SELECT reason FROM failed_root").reason == "s is null"
    feed.schema = "n INT, s STRING"
    fixed = runner(fed(feed))
    replay = fixed.open_replay(batch.batch_id)
    assert fixed.settled(replay).failed == 0
    assert sink_rows(f"out/ackledger_batch={replay.batch_id}", "n", "s") == [(2, None)]


def test_commit_waits_and_may_come_twice(runner, feed):
    """It comes once the sinks publish the batch, again if it raised or was not recorded, and
    fails nothing.
    """
    run = runner(fed(feed))
    feed.broken.add("commit")
    run.settled(run.open_day(1))
    assert feed.commits == [(1, 3)]
    assert feed.forgotten == 0
    feed.broken.clear()
    feed.add(4)
    second = run.open_day(2)
    run.steps(second)
    run.ledger.settle(second.batch_id)
    with dies_at("recording publication"), pytest.raises(Died):
        publish_settled(run.job, second.batch_id)
    notify(run.job, second.batch_id)
    assert feed.commits == [(1, 3), (1, 3)]
    publish_settled(run.job, second.batch_id)
    with dies_at("recording ack"), pytest.raises(Died):
        notify(run.job, second.batch_id)
    assert feed.forgotten == 4
    notify(run.job, second.batch_id)
    notify(run.job, second.batch_id)
    assert feed.commits == [(1, 3), (1, 3), (2, 4), (2, 4)]


def test_commit_waits_for_a_batch_that_is_held_back(runner, feed, shown):
    """With publish="complete" nothing of the batch is published before its replay is settled."""
    run = runner(fed(feed, lose=[2], publish="complete"))
    first = run.open_day(1)
    run.settled(first)
    feed.add(4)
    run.settled(run.open_day(2))
    assert feed.commits == []
    fixed = runner(fed(feed, publish="complete"))
    fixed.settled(fixed.open_replay(first.batch_id))
    assert shown() == [1, 2, 3, 4]
    assert feed.commits == [(1, 3), (2, 4)]


def test_commit_waits_for_a_replay_without_what_was_given_up(runner, feed, shown):
    """With publish="complete" and a record whose replays are used up nothing is published before a
    replay has left it out."""
    run = runner(ranked(feed, lose=[2], publish="complete", max_replays=0))
    batch = run.open_day(1)
    run.settled(batch)
    assert (feed.commits, shown()) == ([], [])
    run.settled(run.open_replay(batch.batch_id))
    assert (feed.commits, shown()) == ([(1, 3)], [1, 3])


def test_the_sweeper_sends_for_a_notice_that_is_pending(runner, feed):
    """A batch that settled behind its run's back: a run is asked for, which notifies the source."""
    run = runner(fed(feed))
    job = run.job
    batch = run.settled_by_others()
    later = run.ledger.row("SELECT now() + interval '1 hour' AS later").later
    assert [late.batch_id for late in run.ledger.sweep(now=later).overdue] == [1]
    notify(job, batch.batch_id)
    assert feed.commits == [(1, 3)]
    assert run.ledger.sweep(now=later).overdue == ()


@pytest.mark.parametrize("options", [{"guarantee": "at_least_once"}, {"tracking": False}])
def test_other_promises(runner, feed, shown, options):
    """At least once, and without tracking, ranges are claimed and committed just the same."""
    run = runner(fed(feed, **options))
    run.settled(run.open_day(1))
    feed.add(4)
    run.settled(run.open_day(2))
    assert shown() == [1, 2, 3, 4]
    assert feed.commits == [(1, 3), (2, 4)]


def test_in_a_dag_the_source_is_notified_once_all_is_published(feed):
    """A task notify, behind publish: before that nothing is committed as a whole."""
    dag = pipeline_dag(fed(feed), schedule=None, target="m:p")
    assert dag.get_task("notify").upstream_task_ids == {"publish"}


def test_a_source_without_commit_is_not_notified(tmp_path):
    """Where the class has no ``commit`` there is nothing to notify it of, and no task."""

    class Plain(Feed):
        commit = OffsetSource.commit

    pipeline = fed(Plain(tmp_path))
    assert not pipeline.wants_notice
    assert "notify" not in pipeline_dag(pipeline, schedule=None, target="m:p").task_ids


def test_in_a_test_rows_take_the_place_of_the_source(spark, feed):
    """The user's own tests run the pipeline over given rows, without the system outside."""
    result = testing.run_batch(fed(feed), {"feed": [{"n": 7}]}, spark=spark)
    assert result.rows["out"] == [{"n": 7}]
    assert feed.calls == []


def test_what_read_gives_has_the_declared_columns(runner, feed):
    """A column that is missing, or of another type, is named; others are left out."""
    run = runner(fed(feed))
    feed.read = lambda spark, start, end: spark.createDataFrame([("1",)], "n STRING")
    with pytest.raises(
        InputError, match="read of Feed: expected column n of type int, found string"
    ):
        run.step(run.open_day(1), "feed")
    feed.read = lambda spark, start, end: spark.createDataFrame([(1,)], "m INT")
    with pytest.raises(InputError, match="found no such column"):
        run.step(run.open_day(1), "feed")
    feed.read = lambda spark, start, end: spark.createDataFrame([(1, 2)], "n INT, m INT")
    assert run.settled(run.open_day(1)).roots == 1


def test_what_cannot_be_declared(runner, feed, tmp_path):
    """A class, an object without a schema, a reference, an interval again."""
    pipeline = Pipeline("refused")
    with pytest.raises(DeclarationError, match="a subclass of OffsetSource, found <class"):
        pipeline.source("feed", Feed)
    bare = Feed(tmp_path)
    bare.schema = None
    with pytest.raises(DeclarationError, match="expected an attribute schema of Feed"):
        pipeline.source("feed", bare)
    with pytest.raises(DeclarationError, match="expected a FileSource that is not incremental"):
        pipeline.reference("feed", feed)
    with pytest.raises(InputError, match="is incremental, it has no interval to run again"):
        runner(fed(feed)).open_day(1, reprocess=True)


def test_beside_files_of_an_interval(runner, feed, tmp_path, shown):
    """A pipeline may have sources of each kind; one that is refused leaves no claim of another."""
    pipeline = Pipeline("fed", guarantee="exactly_once")
    pipeline.source("feed", feed)
    pipeline.source("file", FileSource("in.csv", schema="n INT"))

    @pipeline.stage(reads=["feed", "file"])
    def numbers(left, right):
        return left.unionByName(right)

    pipeline.sink("out", ParquetSink("out"), reads="numbers")
    run = runner(pipeline)
    (tmp_path / "in.csv").write_text("n\n21\n")
    run.settled(run.open_day(1))
    assert shown() == [1, 2, 3, 21]
    feed.add(4)
    start = START + timedelta(days=1)
    with pytest.raises(LedgerError, match="belongs to batch 1"):
        run.open("other", start, start + timedelta(days=1))
    assert ranges(run.ledger) == [(1, None, 3)]
