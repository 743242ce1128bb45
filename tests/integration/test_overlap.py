"""Batches overlap up to their settlement: what follows one of them keeps no other from running."""

import threading
from datetime import timedelta

import pytest

from ledger import FileSource, ParquetSink, Pipeline, StatefulStage
from ledger.core.states import BatchStatus
from ledger.execution import advance_states
from ledger.sinks.parquet.publisher import ParquetPublisher
from tests.support.publishing import publish_settled
from tests.support.runner import START

DAY = timedelta(days=1)
PATIENCE = 120


class Gate:
    """Stops each thread that comes until it is opened."""

    def __init__(self):
        self.reached, self._opened = threading.Event(), threading.Event()

    def stop_here(self):
        self.reached.set()
        assert self._opened.wait(PATIENCE)

    def open(self):
        self._opened.set()


class Sum(StatefulStage):
    """The sum of all numbers; its first commit stops at the gate."""

    def __init__(self, gate):
        self._gate, self._before, self.commits = gate, 0, []

    def init_state(self, snapshot):
        self._before = snapshot or 0

    def finish_batch(self, batch_id, batch):
        return self._before + sum(row["n"] for row in batch.collect())

    def commit(self, batch_id, state):
        if not self.commits:
            self._gate.stop_here()
        self.commits.append((batch_id, state))
        return state


def numbered(tmp_path, hooks=None):
    """Numbers of a day -> a stage -> a folder and, with a keeper, a state."""
    for day, number in enumerate((10, 20)):
        (tmp_path / f"{(START + day * DAY):%Y-%m-%d}.csv").write_text(
            f"n\n{number}\n{number + 1}\n"
        )
    pipeline = Pipeline("overlap")
    pipeline.source("numbers", FileSource("{{ interval_start | ds }}.csv", schema="n INT"))
    pipeline.stage(reads="numbers")(as_it_is)
    pipeline.sink("out", ParquetSink("out"), reads="as_it_is")
    if hooks is not None:
        pipeline.stateful("sums", hooks, reads="as_it_is")
    return pipeline


def as_it_is(rows):
    return rows


def settled(run, day):
    """A batch whose steps have run and that is settled, nothing else."""
    batch = run.open(f"day {day}", START + day * DAY, START + (day + 1) * DAY)
    run.steps(batch)
    assert run.ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
    return batch


@pytest.fixture
def beside():
    """Runs functions in threads that are over at the end, and have raised nothing."""
    threads, errors = [], []

    def start(function):
        def work():
            try:
                function()
            except BaseException as exc:
                errors.append(exc)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert errors == []


def test_a_batch_runs_and_is_published_while_another_is_being_published(
    runner, tmp_path, sink_rows, monkeypatch, beside
):
    """The next batch opens, runs, settles and is published while the one before is in the middle
    of its publish.
    """
    run, gate = runner(numbered(tmp_path)), Gate()
    first = settled(run, 0)
    publish = ParquetPublisher.publish

    def slow(publisher, delivery):
        if delivery.batch_id == first.batch_id:
            gate.stop_here()
        publish(publisher, delivery)

    monkeypatch.setattr(ParquetPublisher, "publish", slow)
    publishing = beside(lambda: publish_settled(run.job, first.batch_id))
    assert gate.reached.wait(PATIENCE)
    second = settled(run, 1)
    publish_settled(run.job, second.batch_id)
    assert sink_rows("out", "n") == [(20,), (21,)]
    gate.open()
    publishing.join(PATIENCE)
    assert sink_rows("out", "n") == [(10,), (11,), (20,), (21,)]


def test_a_batch_runs_and_is_published_while_the_state_of_another_commits(
    runner, tmp_path, sink_rows, beside
):
    """A commit that takes long is off the next batch's path, up to its own state, which comes
    behind it.
    """
    gate = Gate()
    hooks = Sum(gate)
    run = runner(numbered(tmp_path, hooks))
    first = settled(run, 0)
    committing = beside(lambda: advance_states(run.job, first.batch_id))
    assert gate.reached.wait(PATIENCE)
    second = settled(run, 1)
    publish_settled(run.job, second.batch_id)
    assert sink_rows("out", "n") == [(20,), (21,)]
    assert hooks.commits == []
    gate.open()
    committing.join(PATIENCE)
    advance_states(run.job, second.batch_id)
    assert hooks.commits == [(first.batch_id, 21), (second.batch_id, 62)]
    rows = run.ledger.rows("SELECT DISTINCT state FROM state_progress")
    assert [row.state for row in rows] == ["committed"]
