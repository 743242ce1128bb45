"""What Storm and JStorm test of their own acker, shown of whole pipelines on Spark."""

import time
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, acked, testing
from ledger.batch.step_runs import Attempt, fail, heartbeat
from ledger.core.states import BatchStatus, RunState
from ledger.errors import FencedError, NotReadyError
from ledger.execution import run_step
from ledger.store.queries import runs
from tests.support.dying import dies_at
from tests.support.ledgers import Ledger
from tests.support.runner import START

COUNT = 12
DAY = timedelta(days=1)
DATA = {"numbers": [{"n": n} for n in range(COUNT)]}


def piped(*functions, sinks=("out",), **options):
    """numbers -> a stage for each function, one behind the other -> the sinks."""
    acks = options.pop("acks", "on_emit")
    pipeline = Pipeline("originals", guarantee="at_least_once", message_timeout="10s", **options)
    pipeline.source("numbers", FileSource("{{ interval_start | ds }}.csv", schema="n INT"))
    last = "numbers"
    for function in functions:
        pipeline.stage(reads=last, acks=acks, filters="lost")(function)
        last = function.__name__
    for sink in sinks:
        pipeline.sink(sink, ParquetSink(sink), reads=last)
    return pipeline


def keep(frame):
    return frame


def written(folder, day, numbers):
    """The numbers as the input of one day."""
    text = "n\n" + "".join(f"{n}\n" for n in numbers)
    (folder / f"{START + day * DAY:%Y-%m-%d}.csv").write_text(text)


def day_of(run, day):
    """A batch over one day."""
    return run.open(f"day-{day}", START + day * DAY, START + (day + 1) * DAY)


def held_by(result, sink="out"):
    """How often a sink holds each number."""
    return Counter(row["n"] for row in result.rows[sink])


def test_self_anchor(spark):
    """A record that is anchored to itself, and one anchored to the same parent twice, is acked
    once at each hop.
    """

    def twice(frame):
        return frame.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))

    result = testing.run_batch(piped(keep, twice), DATA, spark=spark)
    assert (result.roots.total, result.roots.acked) == (COUNT, COUNT)
    assert held_by(result) == Counter(list(range(COUNT)) * 2)
    edges = "SELECT step, acked_edges, emitted_edges FROM step_run ORDER BY step_run_id"
    assert [tuple(row) for row in Ledger(result.lab.database).rows(edges)] == [
        ("numbers", 0, COUNT),
        ("keep", COUNT, COUNT),
        ("twice", COUNT, 2 * COUNT),
        ("out", 2 * COUNT, 0),
    ]


def test_every_second_record_is_forgotten(spark):
    """Of a stage that acks by itself and forgets every second record just those fail, and a
    replay acks them.
    """
    forgets = [True]

    def judge(frame):
        due = frame.where("n % 2 = 0") if forgets else frame
        return due.where("n < 6"), acked(due.where("n >= 6"))

    result = testing.run_batch(piped(judge, acks="explicit"), DATA, spark=spark)
    assert (result.roots.acked, result.roots.failed) == (COUNT // 2, COUNT // 2)
    assert {(record.step, record.reason) for record in result.failed} == {
        ("judge", "not acked by judge")
    }
    assert held_by(result) == Counter([0, 2, 4])
    forgets.clear()
    again = testing.replay(result)
    assert (again.roots.total, again.roots.acked) == (COUNT // 2, COUNT // 2)
    assert held_by(again) == Counter(range(6))


def test_timeout_is_reset_while_the_stage_lives(runner, tmp_path):
    """A stage that renews its lease is not timed out, however long it takes; once it is dead, it
    is.
    """
    written(tmp_path, 0, range(COUNT))

    def slow(frame):
        ledger = run.ledger
        start = ledger.now()
        (own,) = ledger.rows("SELECT step_run_id FROM step_run WHERE state = 'running'")
        for seconds in (60, 120, 180):
            renew = partial(runs.renew_lease, run_id=own.step_run_id, lease_seconds=seconds + 5)
            assert ledger.transact(renew) is RunState.RUNNING
            now = start + timedelta(seconds=seconds)
            results.append(ledger.settle(batch.batch_id, now=now).status)
        raise testing.Crash

    results = []
    run = runner(piped(slow))
    batch = day_of(run, 0)
    with dies_at("before failure", raises=testing.Crash), pytest.raises(testing.Crash):
        run.steps(batch)
    assert results == [BatchStatus.OPEN] * 3
    (lapsed,) = run.ledger.row("SELECT max(lease_until) FROM step_run WHERE step = 'slow'")
    for seconds, status in ((9, BatchStatus.OPEN), (11, BatchStatus.SETTLED)):
        now = lapsed + timedelta(seconds=seconds)
        assert run.ledger.settle(batch.batch_id, now=now).status is status
    why = "SELECT step, cause, count(*) FROM failed_root GROUP BY 1, 2"
    assert run.ledger.rows(why) == [("slow", "late", COUNT)]


def test_the_lease_of_a_running_step_is_renewed(runner, tmp_path, monkeypatch):
    """While a step runs its driver renews the lease by itself, though the stage itself never
    touches the ledger.
    """
    written(tmp_path, 0, range(COUNT))
    monkeypatch.setattr("ledger.execution.steps.heartbeat", partial(heartbeat, every=0.05))

    def slow(frame):
        own = "SELECT lease_until FROM step_run WHERE state = 'running'"
        first = run.ledger.row(own).lease_until
        deadline = time.monotonic() + 20
        while run.ledger.row(own).lease_until == first:
            assert time.monotonic() < deadline, "the lease is what it was"
            time.sleep(0.05)
        return frame

    run = runner(piped(slow))
    assert run.settled(day_of(run, 0)).failed == 0


def test_a_run_that_has_ended_itself_is_not_fenced(runner, tmp_path, monkeypatch, caplog):
    """A driver that records the failure of its own step does not take it for a newer attempt."""
    written(tmp_path, 0, range(COUNT))
    monkeypatch.setattr("ledger.execution.steps.heartbeat", partial(heartbeat, every=0.01))
    monkeypatch.setattr("ledger.execution.steps.fail", lingering)

    def broken(frame):
        raise ValueError("broken")

    run = runner(piped(broken))
    with pytest.raises(ValueError, match="broken"):
        run.steps(day_of(run, 0))
    assert "a newer attempt owns" not in caplog.text


def lingering(*arguments):
    """Record a failure, and return late."""
    fail(*arguments)
    time.sleep(0.5)


def test_retry_limit(spark):
    """A record that fails each time is quarantined after max_replays; one that fails once, and all
    others, are acked.
    """
    poison = {3, 5}

    def swallow(frame):
        return frame.withColumn("_failed", F.when(F.col("n").isin(poison), "poison"))

    result = testing.run_batch(piped(swallow, max_replays=2), DATA, spark=spark)
    assert (result.roots.acked, result.roots.failed) == (COUNT - 2, 2)
    poison.remove(5)
    first = testing.replay(result)
    assert (first.roots.acked, first.roots.failed, first.roots.quarantined) == (1, 1, 0)
    second = testing.replay(result)
    assert (second.roots.acked, second.roots.failed, second.roots.quarantined) == (0, 0, 1)
    with pytest.raises(NotReadyError):
        testing.replay(result)
    assert held_by(second) == Counter(set(range(COUNT)) - poison)


def test_replays_take_what_failed(runner, tmp_path, sink_rows):
    """Of two batches under way at once, settled in reverse order, each replay emits just what
    failed of its own.
    """
    failed, lost = {1, 7}, {4, 8, 13}

    def early(frame):
        return frame.withColumn("_failed", F.when(F.col("n").isin(failed), "bad"))

    def late(frame):
        return frame.where(~F.col("n").isin(lost))

    run = runner(piped(early, late))
    own = {}
    for day, numbers in enumerate((range(COUNT), range(6, 6 + COUNT))):
        written(tmp_path, day, numbers)
        own[day_of(run, day).batch_id] = {(n,) for n in numbers if n in failed | lost}
    reverse = sorted(own, reverse=True)
    for step in run.job.pipeline.steps():
        for batch_id in own if step.name == "late" else reverse:
            run_step(run.job, batch_id, step.name, Attempt())
    for batch_id in reverse:
        assert run.ledger.settle(batch_id).failed == len(own[batch_id])
    failed.clear()
    lost.clear()
    for batch_id in reverse:
        before = Counter(sink_rows("out", "n"))
        settlement = run.settled(run.open_replay(batch_id, f"replay of {batch_id}"))
        assert (settlement.roots, settlement.failed) == (len(own[batch_id]), 0)
        assert Counter(sink_rows("out", "n")) - before == Counter(own[batch_id])


def test_acks_of_a_stale_owner(runner, tmp_path, sink_rows):
    """The older attempt of a stage, still at work when a newer one committed, is fenced; the
    newer's acks stand.
    """
    written(tmp_path, 0, range(COUNT))
    attempts = []

    def owned(frame):
        attempts.append(len(attempts))
        if len(attempts) > 1:
            return frame.where("n <> 7")
        run.step(batch, "owned")  # Airflow has given this attempt up, and tries again
        return frame.where("n < 3")

    run = runner(piped(owned))
    batch = day_of(run, 0)
    run.step(batch, "numbers")
    with pytest.raises(FencedError, match="newer attempt"):
        run.step(batch, "owned")
    run.step(batch, "out")
    assert run.ledger.settle(batch.batch_id).failed == 1
    assert Counter(sink_rows("out", "n")) == Counter((n,) for n in range(COUNT) if n != 7)
    assert len(attempts) == 2


def test_broadcast_acks_once_for_each_consumer(spark):
    """A record that goes to three consumers has three edges, each acked by its consumer alone."""
    result = testing.run_batch(piped(sinks=("one", "two", "three")), DATA, spark=spark)
    assert (result.roots.total, result.roots.acked) == (COUNT, COUNT)
    edges = "SELECT step, emitted_edges, acked_edges FROM step_run ORDER BY step_run_id"
    rows = {row.step: tuple(row)[1:] for row in Ledger(result.lab.database).rows(edges)}
    assert rows == {
        "numbers": (3 * COUNT, 0),
        "one": (0, COUNT),
        "two": (0, COUNT),
        "three": (0, COUNT),
    }
    for sink in ("one", "two", "three"):
        assert held_by(result, sink) == Counter(range(COUNT))
