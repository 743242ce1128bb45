"""One driver of a whole batch: what a retry runs again, and what an attempt that was overtaken
may not do.
"""

from types import SimpleNamespace

import grpc
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from ledger import FileSource, ParquetSink
from ledger.batch.interventions import restart
from ledger.batch.recovery import finished, stands_at
from ledger.batch.step_runs import Record, interrupt
from ledger.core.logs import about_failure, current
from ledger.core.states import BatchStatus
from ledger.deltas.spans import RootRange
from ledger.errors import FencedError, NotReadyError, UnavailableError, WaitedError
from ledger.execution import run_steps
from ledger.execution import steps as running
from ledger.spark.job import Job
from ledger.storage.manifest import DataFile
from ledger.store.queries import batches
from tests.support.ledgers import pipeline
from tests.support.spark_errors import server_error

STEPS = ["source", "middle", "sink"]


@pytest.fixture
def driver(ledger, settings, monkeypatch):
    """Runs the chain's steps of a batch, each by ``acts[step]`` if there is one, then commits
    it; ``ran`` has their names.
    """
    flow, ran, acts = pipeline(), [], {}

    def execute(job, run, step):
        ran.append(step.name)
        acts.pop(step.name, lambda run: None)(run)
        ledger.commit(run, emitted=RootRange(1, 0) if step.name == "source" else None)
        return Record()

    def run(batch, attempt=None, on_step=lambda name, result: None):
        job = Job(None, ledger.database, settings, flow)
        return run_steps(job, batch.batch_id, on_step, attempt)

    monkeypatch.setattr(running, "execute", execute)
    return SimpleNamespace(flow=flow, ran=ran, acts=acts, run=run)


def raising(exc):
    """What a step does that cannot go on."""

    def act(run):
        raise exc

    return act


def states(ledger):
    """Step and state of each run, in their order."""
    rows = ledger.rows("SELECT step, state FROM step_run ORDER BY step_run_id")
    return [tuple(row) for row in rows]


ERRORS = {
    "py4j": lambda: Py4JNetworkError("Answer from Java side is empty"),
    "connect": lambda: server_error(grpc.StatusCode.UNAVAILABLE),
    "unavailable": lambda: UnavailableError("no space is left on the disk"),
    "waited": lambda: WaitedError("the table is locked"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_no_fault_of_a_step_interrupts_it(ledger, driver, name):
    """Where Spark, a database or a file system is away the retry goes on at the step; the ledger
    says why it ended.
    """
    exc = ERRORS[name]()
    batch = ledger.open(driver.flow)
    driver.acts["middle"] = raising(exc)
    with pytest.raises(type(exc)):
        driver.run(batch)
    assert states(ledger) == [("source", "committed"), ("middle", "fenced")]
    standing = str(ledger.transact(stands_at, batch))
    assert standing.startswith(
        f"Its step 'middle' was interrupted: {running.recorded(exc)}. To go on: "
    )
    driver.ran.clear()
    driver.run(batch)
    assert driver.ran == ["middle", "sink"]


def test_a_failure_is_logged_as_the_run_that_failed(ledger, driver):
    """A failure that is logged at the end has batch, step and run of the place where it was raised,
    and what is logged after it has not.
    """
    batch = ledger.open(driver.flow)
    driver.acts["middle"] = raising(PySparkException("a bug"))
    with pytest.raises(PySparkException) as caught:
        driver.run(batch)
    (number,) = ledger.rows("SELECT step_run_id FROM step_run WHERE state = 'failed'")
    with about_failure(caught.value):
        context = current()
    assert context == {"batch_id": batch.batch_id, "step": "middle", "step_run_id": number[0]}
    assert current() == {}


def test_a_run_goes_on_at_the_step_that_failed(ledger, driver, caplog):
    """What is committed before it, a source above all, does not run again, and the log says so."""
    batch = ledger.open(driver.flow)
    driver.acts["sink"] = raising(PySparkException("a bug"))
    with pytest.raises(PySparkException):
        driver.run(batch)
    assert finished(ledger.database, driver.flow, batch.batch_id) == {"source", "middle"}
    heard = []
    with caplog.at_level("INFO", "ledger"):
        driver.run(batch, on_step=lambda name, result: heard.append((name, result)))
    assert driver.ran == [*STEPS, "sink"]
    assert [record.getMessage() for record in caplog.records] == [
        f"batch {batch.batch_id}: {step} is committed and does not run again"
        for step in ("source", "middle")
    ]
    assert [(name, result and result.record) for name, result in heard] == [
        ("source", None), ("middle", None), ("sink", None), ("sink", Record()),
    ]  # fmt: skip


def test_a_batch_that_is_restarted_runs_all_steps_again(ledger, driver):
    """Where a step before the failed one was fixed, a person restarts the batch: every step runs
    again, also if the first attempt at that is killed; no settlement comes between.
    """
    batch = ledger.open(driver.flow)
    driver.acts["sink"] = raising(PySparkException("a bug"))
    with pytest.raises(PySparkException):
        driver.run(batch)
    advice = restart(ledger.database, batch.batch_id)
    assert str(advice).startswith("All its steps run again. To go on: ")
    assert restart(ledger.database, batch.batch_id) == advice
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    driver.acts["source"] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.run(batch)
    driver.ran.clear()
    driver.run(batch)
    assert driver.ran == STEPS
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED
    with pytest.raises(NotReadyError, match="is settled: expected one that is open or on hold"):
        restart(ledger.database, batch.batch_id)


def test_a_batch_whose_step_runs_is_not_restarted(ledger):
    """Its driver would go on with runs that no longer count."""
    batch = ledger.open(pipeline())
    ledger.start(batch.batch_id, "source")
    with pytest.raises(NotReadyError, match="step 'source' of batch 1 is running: wait until"):
        restart(ledger.database, batch.batch_id)


def test_what_failed_before_a_batch_was_abandoned_is_past(ledger):
    """Opened again, a batch that is killed goes on at its step, whatever had failed in its first
    life.
    """
    flow = pipeline()
    flow.source("last", FileSource("last.csv", schema="n INT"))
    flow.sink("second", ParquetSink("out2"), reads="last")
    batch = ledger.open(flow)
    ledger.emit(batch, 2)
    ledger.fail(ledger.start(batch.batch_id, "last"), "no such file")
    ledger.age(batch.batch_id, 60)
    assert ledger.settle(batch.batch_id).status is BatchStatus.ABANDONED
    again = ledger.open(flow)
    assert (again.batch_id, again.status) == (batch.batch_id, BatchStatus.OPEN)
    ledger.emit(again, 2)
    interrupt(ledger.database, ledger.start(batch.batch_id, "middle"))
    assert finished(ledger.database, flow, batch.batch_id) == {"source"}


def held(ledger, flow):
    """A batch of which too much has failed."""
    batch, _ = ledger.whole_batch(flow, lose_sink=range(5))
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    return batch


def test_a_held_batch_starts_all_over(ledger, driver):
    """Of a batch that is held every step runs again, also if the first attempt at that is killed
    in its first step.
    """
    flow = pipeline(max_failed_ratio=0.1)
    batch = held(ledger, flow)
    assert finished(ledger.database, flow, batch.batch_id) == set()
    interrupt(ledger.database, ledger.start(batch.batch_id, "source"))
    assert ledger.transact(batches.get_batch, batch.batch_id).status is BatchStatus.OPEN
    assert finished(ledger.database, flow, batch.batch_id) == set()
    driver.run(batch)
    assert driver.ran == STEPS


def test_a_step_whose_files_are_lost_runs_again(ledger, driver, tmp_path):
    """A committed step counts while its files are there as they were; without them it runs
    again, and what reads it.
    """
    batch = ledger.open(driver.flow)
    ledger.emit(batch, 0)
    path = tmp_path / "part.parquet"
    path.write_bytes(b"rows")
    files = [DataFile(str(path), 4, 0, 0)]
    ledger.commit(ledger.start(batch.batch_id, "middle"), files=files)
    assert finished(ledger.database, driver.flow, batch.batch_id) == {"source", "middle"}
    path.unlink()
    assert finished(ledger.database, driver.flow, batch.batch_id) == {"source"}
    driver.run(batch)
    assert driver.ran == ["middle", "sink"]


def test_a_settled_batch_is_done(ledger, driver):
    """Nothing of a decided batch runs again, though its files may be gone by then."""
    batch, _ = ledger.whole_batch(driver.flow)
    assert ledger.settle(batch.batch_id).decided
    for run in ledger.rows("SELECT step_run_id AS id FROM step_run"):
        ledger.note_files(run.id, [DataFile("/gone", 1, 1, 0)])
    assert finished(ledger.database, driver.flow, batch.batch_id) == set(STEPS)


def by_attempt(ledger):
    """Step, state and number of the attempt of each run, in their order."""
    rows = ledger.rows("SELECT step, state, attempt_number FROM step_run ORDER BY step_run_id")
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_comes_late_commits_nothing(ledger, driver, step):
    """At whichever step a newer attempt is, an older one that begins to run the batch is fenced
    there; the newer commits every step.
    """
    batch = ledger.open(driver.flow)
    older, newer = ledger.begin(), ledger.begin()

    def late(run):
        with pytest.raises(FencedError, match=f"a newer attempt of {step} "):
            driver.run(batch, older)

    driver.acts[step] = late
    driver.run(batch, newer)
    assert driver.run(batch, older) == []
    assert by_attempt(ledger) == [(name, "committed", newer.number) for name in STEPS]


def test_a_driver_that_stood_still_commits_nothing(ledger, driver):
    """An older attempt that goes on at a step which a newer one has committed meanwhile is
    fenced there.
    """
    batch = ledger.open(driver.flow)
    older, newer = ledger.begin(), ledger.begin()

    def stand_still(name, result):
        driver.run(batch, newer)

    with pytest.raises(FencedError, match="a newer attempt of source "):
        driver.run(batch, older, stand_still)
    assert by_attempt(ledger) == [(name, "committed", newer.number) for name in STEPS]


def test_a_driver_that_is_overtaken_stops(ledger, driver):
    """An older attempt whose step a newer one begins does not commit it, and begins no other."""
    batch = ledger.open(driver.flow)
    older, newer = ledger.begin(), ledger.begin()
    driver.acts["middle"] = lambda run: driver.run(batch, newer)
    with pytest.raises(FencedError, match="a newer attempt owns the step"):
        driver.run(batch, older)
    assert by_attempt(ledger) == [
        ("source", "committed", older.number),
        ("middle", "fenced", older.number),
        ("middle", "committed", newer.number),
        ("sink", "committed", newer.number),
    ]
