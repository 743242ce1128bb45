"""Notices to sources: on_ack and on_fail, once the settlement is durable, at least once."""

from datetime import timedelta

import pytest
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.airflow import pipeline_dag
from ledger.batch.upkeep.sweeper import OverdueFollowUp
from ledger.errors import NotReadyError
from ledger.execution import notify, settle_and_follow
from tests.support.publishing import publish_settled
from tests.support.reasons import bare, named


class Hooks:
    """Keeps what it was notified of."""

    def __init__(self, fail_first=False):
        self.acked, self.failed, self.calls = {}, {}, 0
        self._fail_first = fail_first

    def on_ack(self, batch_id, messages):
        self.calls += 1
        assert messages.columns == ["message_id", "record"]
        self.acked[batch_id] = sorted((row["record"]["n"] for row in messages.collect()), key=str)

    def on_fail(self, batch_id, messages):
        if self._fail_first and self.calls == 1:
            raise RuntimeError("the source does not answer")
        assert set(messages.columns) == {"message_id", "record", "raw", "step", "reason"}
        rows = messages.select("record.*", "step", "reason", "raw").collect()
        self.failed[batch_id] = sorted((row["n"] or 0, *row[1:]) for row in rows)


def noticed(hooks, lose=(), tracking=True):
    pipeline = Pipeline("noticed", tracking=tracking)
    pipeline.source(
        "numbers", FileSource("in.csv", schema="n INT"), on_ack=hooks.on_ack, on_fail=hooks.on_fail
    )

    @pipeline.stage(reads="numbers", filters="lost")
    def checked(frame):
        return frame.where(~F.col("n").isin(list(lose))) if lose else frame

    pipeline.sink("out", ParquetSink("out"), reads="checked")
    return pipeline


def numbers(tmp_path):
    (tmp_path / "in.csv").write_text("n\n1\n2\nx\n4\n")


def test_a_batch_decided_without_its_run_is_notified_of_later(runner, tmp_path):
    """The sweeper names a settled batch whose sources heard nothing, once its own run had its
    time; one that was notified, or wants no notice, it does not name.
    """
    numbers(tmp_path)
    hooks = Hooks()
    run = runner(noticed(hooks))
    ledger = run.ledger
    batch = run.open(dag_id="noticed")
    run.steps(batch)
    (settled,) = ledger.sweep().settlements
    assert settled.decided
    now = ledger.now()
    assert ledger.sweep(now=now + timedelta(minutes=14)).overdue == ()
    later = now + timedelta(minutes=16)
    assert ledger.sweep(now=later).overdue == (OverdueFollowUp(batch.batch_id, "noticed"),)
    notify(run.job, batch.batch_id)
    publish_settled(run.job, batch.batch_id)
    assert ledger.sweep(now=later).overdue == ()
    assert hooks.acked == {batch.batch_id: [1, 2, 4]}


def test_sources_are_notified(runner, tmp_path):
    """After the settlement a source is notified of its acked messages and of its failed ones,
    with step, reason and raw text; a replay notifies it of its own.
    """
    numbers(tmp_path)
    hooks = Hooks()
    run = runner(noticed(hooks, [2]))
    batch = run.open()
    run.steps(batch)
    with pytest.raises(NotReadyError, match="notified once it is settled"):
        notify(run.job, batch.batch_id)
    settle_and_follow(run.job, batch.batch_id)
    assert hooks.acked == {batch.batch_id: [1, 4]}
    lost, unparsed = sorted(hooks.failed[batch.batch_id], key=lambda row: -row[0])
    assert (*lost[:2], lost[3]) == (2, "checked", None)
    assert bare(lost[2]) == named(run.job.spark, "filter: condition false: NOT (n IN (2))")
    assert (unparsed[1], unparsed[3]) == ("numbers", "x")
    fixed = runner(noticed(hooks))
    replay = fixed.open_replay(batch.batch_id, step="checked")
    fixed.steps(replay)
    settle_and_follow(fixed.job, replay.batch_id)
    assert hooks.acked[replay.batch_id] == [2]
    assert hooks.failed[replay.batch_id] == []


def test_a_batch_superseded_before_its_notice_is_notified_of(runner, tmp_path):
    """The source is notified of what was settled, though a batch that reprocesses the interval
    took its place meanwhile; the sweeper names it till then, and a cleared task succeeds.
    """
    numbers(tmp_path)
    hooks = Hooks()
    run = runner(noticed(hooks, [2]))
    ledger = run.ledger
    first = run.open("first", dag_id="noticed")
    run.steps(first)
    ledger.settle(first.batch_id)
    publish_settled(run.job, first.batch_id)
    run.settled(run.open("again", dag_id="noticed", reprocess=True))
    later = ledger.now() + timedelta(minutes=16)
    assert ledger.sweep(now=later).overdue == (OverdueFollowUp(first.batch_id, "noticed"),)
    assert notify(run.job, first.batch_id) == ["numbers"]
    assert hooks.acked[first.batch_id] == [1, 4]
    assert notify(run.job, first.batch_id) == []
    assert ledger.sweep(now=later).overdue == ()


def test_a_call_that_raises_is_repeated(runner, tmp_path):
    """A call that raises leaves the notice pending; asking again calls both, and once they return
    never again.
    """
    numbers(tmp_path)
    hooks = Hooks(fail_first=True)
    run = runner(noticed(hooks))
    batch = run.open()
    run.steps(batch)
    with pytest.raises(RuntimeError, match="does not answer"):
        settle_and_follow(run.job, batch.batch_id)
    assert hooks.failed == {}
    assert notify(run.job, batch.batch_id) == ["numbers"]
    assert notify(run.job, batch.batch_id) == []
    assert (hooks.calls, list(hooks.failed)) == (2, [batch.batch_id])


def test_without_tracking_everything_is_acked(runner, tmp_path):
    """With tracking=False a source is notified that all of its messages are acked."""
    numbers(tmp_path)
    hooks = Hooks()
    run = runner(noticed(hooks, [2], tracking=False))
    batch = run.open()
    run.steps(batch)
    settle_and_follow(run.job, batch.batch_id)
    assert hooks.acked[batch.batch_id] == [1, 2, 4, None]
    assert hooks.failed == {batch.batch_id: []}


def test_the_dag_notifies_the_sources():
    """A pipeline with a notice has a task for it behind the settlement; one without has none."""
    dag = pipeline_dag(noticed(Hooks()), schedule=None, target="m:p")
    assert {task.task_id for task in dag.get_task("settle").downstream_list} == {
        "notify",
        "withhold",
        "complete",
    }
    pipeline = Pipeline("quiet")
    pipeline.source("a", FileSource("a", schema="n INT"))
    pipeline.sink("b", ParquetSink("b"), reads="a")
    assert "notify" not in pipeline_dag(pipeline, schedule=None, target="m:p").task_ids
