"""One driver of a whole batch: what a retry runs again, and what an attempt that was overtaken
may not do.
"""

from types import SimpleNamespace

import grpc
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from ledger import FileSource, ParquetSink, run_step
from ledger.batch.manual_actions import restart
from ledger.batch.recovery import finished, stands_at
from ledger.batch.step_runs import Attempt, Record, interrupt
from ledger.cli.runs import going_on
from ledger.core.logs import about_failure, current
from ledger.core.states import BatchStatus
from ledger.deltas.spans import RootRange
from ledger.errors import (
    FencedError,
    LedgerError,
    NotReadyError,
    UnavailableError,
    WaitedError,
)
from ledger.execution import run_steps
from ledger.execution import steps as running
from ledger.spark.failures import noted
from ledger.spark.job import Job
from ledger.storage.manifest import DataFile
from ledger.store.queries import batches, publications
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

    job = Job(None, ledger.database, settings, flow)

    def run(batch, attempt=None, on_step=lambda name, result: None):
        return run_steps(job, batch.batch_id, on_step, attempt)

    monkeypatch.setattr(running, "execute", execute)
    return SimpleNamespace(flow=flow, ran=ran, acts=acts, run=run, job=job)


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


@pytest.mark.parametrize("dag", ["", "dag"])
def test_a_failed_step_says_how_all_steps_run_again(ledger, driver, dag):
    """Drivers of whole batches, commands and the status of a batch advise a restart where a step
    failed and others are committed, and nowhere else.
    """
    batch = ledger.open(driver.flow, dag=dag)
    command = f"ackledger restart {batch.batch_id}"
    advice = ". If you fixed an earlier step or the files of a source, " + (
        f"clear its task and those downstream; if the DAG has one task a batch, run {command} first"
        if dag
        else f"first: {command}"
    )

    def says(kind, act):
        driver.acts.update(act)
        with pytest.raises(kind) as caught:
            run_step._run_whole(driver.job, batch.batch_id, ledger.begin())
        with (
            pytest.raises(LedgerError) as printed,
            going_on(ledger.database, batch, "To go on", lambda: "a step"),
        ):
            raise caught.value
        texts = noted(caught.value), str(printed.value), str(ledger.transact(stands_at, batch))
        return {text.endswith(advice) for text in texts}

    assert says(UnavailableError, {"middle": raising(UnavailableError("away"))}) == {False}
    assert says(PySparkException, {"middle": raising(PySparkException("a bug"))}) == {True}


def status_of(ledger, batch):
    """The batch's status as of now."""
    return ledger.transact(batches.get_batch, batch.batch_id).status


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_stops_once_its_batch_is_restarted(ledger, driver, step):
    """A driver that is about to open a step when its batch is restarted opens none, whatever it has
    done: it may have the code from before the fix. The next one runs all steps.
    """
    batch = ledger.open(driver.flow)

    def restarted(name, result):
        if (name, result) == (step, None):
            restart(ledger.database, batch.batch_id)

    with pytest.raises(FencedError, match="was restarted after this attempt began"):
        driver.run(batch, on_step=restarted)
    assert driver.ran == STEPS[: STEPS.index(step)]
    assert {state for _, state in states(ledger)} <= {"superseded"}
    assert status_of(ledger, batch) is BatchStatus.HELD
    driver.ran.clear()
    driver.run(batch)
    assert driver.ran == STEPS
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED


@pytest.mark.parametrize("number", [True, False])
def test_a_driver_uses_nothing_from_before_a_restart(ledger, driver, number):
    """A retry has seen which steps are committed when its batch is restarted: it does not go on
    after these, also if its attempt has no number.
    """
    batch = ledger.open(driver.flow)
    driver.acts["sink"] = raising(PySparkException("a bug"))
    with pytest.raises(PySparkException):
        driver.run(batch)

    def restarted(name, result):
        if (name, result) == ("sink", None):
            restart(ledger.database, batch.batch_id)

    late = ledger.begin() if number else Attempt()
    match = "was restarted" if number else "reads middle, which has no committed run"
    with pytest.raises(FencedError if number else NotReadyError, match=match):
        driver.run(batch, late, restarted)
    assert status_of(ledger, batch) is BatchStatus.HELD


def test_what_was_done_before_a_restart_never_settles(ledger, driver):
    """Restarted when every step is committed, a batch is settled neither by its old driver nor by a
    release: only what ran since counts.
    """
    batch = ledger.open(driver.flow)
    driver.run(batch)
    restart(ledger.database, batch.batch_id)
    assert ledger.settle(batch.batch_id).status is BatchStatus.HELD
    with pytest.raises(NotReadyError, match=r"was restarted and has no results .* To go on: "):
        ledger.release(batch.batch_id)
    assert ledger.sweep().settlements == ()
    driver.acts["middle"] = lambda run: ledger.settle(batch.batch_id)
    driver.run(batch)
    assert by_attempt(ledger)[:3] == [(step, "superseded", 1) for step in STEPS]
    assert ledger.settle(batch.batch_id).status is BatchStatus.SETTLED


def test_a_batch_on_hold_is_restarted(ledger, driver):
    """A restart ends a hold for too many failures with its preview; the advice is to run all steps,
    in Airflow too, and no release.
    """
    flow = pipeline(hold_above=0.1)
    batch = held(ledger, flow)
    assert str(restart(ledger.database, batch.batch_id)) == (
        "All its steps run again. To go on: in run run of DAG dag clear the tasks of all steps (or"
        " `run`, if the DAG has one task a batch) and those downstream"
    )
    assert ledger.summary(batch.batch_id).preview == ()
    ledger.change("UPDATE batch SET held_reason = '***'")  # as if a record of it were forgotten
    with pytest.raises(NotReadyError, match="was restarted"):
        ledger.release(batch.batch_id)
    driver.run(batch)
    assert driver.ran == STEPS


def test_a_run_that_fell_silent_commits_nothing_after_a_restart(ledger, driver):
    """A run whose lease lapsed does not commit after a restart, also once a newer attempt has
    opened the batch again.
    """
    flow = pipeline()
    flow.source("last", FileSource("last.csv", schema="n INT"))
    flow.sink("second", ParquetSink("out2"), reads="last")
    batch = ledger.open(flow)
    silent = ledger.start(batch.batch_id, "last")
    ledger.age(batch.batch_id, 3600)
    restart(ledger.database, batch.batch_id)
    ledger.emit(batch, 2)
    with pytest.raises(FencedError, match="is fenced: a newer attempt owns the step"):
        ledger.commit(silent, emitted=RootRange(1, 0))


def test_a_replay_that_is_restarted_recovers_its_records(ledger):
    """A replay keeps what it has claimed, emits it again, and only that run counts."""
    flow = pipeline()
    batch, roots = ledger.whole_batch(flow, 4, lose_sink=[1, 2])
    ledger.settle(batch.batch_id)
    replay = ledger.replay(flow, batch.batch_id)
    ledger.run_middle(replay, ledger.emit_replay(replay))
    restart(ledger.database, replay.batch_id)
    assert ledger.claimed_messages(replay.batch_id) == [roots[1], roots[2]]
    ledger.run_replay(replay)
    settlement = ledger.settle(replay.batch_id)
    assert (settlement.status, settlement.roots, settlement.failed) == (BatchStatus.SETTLED, 2, 0)
    rows = ledger.rows("SELECT status FROM failed_message")
    assert [row.status for row in rows] == ["recovered"] * 2


def test_what_a_restarted_batch_has_decided_is_not_published(ledger):
    """At least once, a sink does not publish what it committed before a restart; what it publishes
    after it replaces what was published.
    """
    batch = ledger.open(pipeline(guarantee="at_least_once"))

    def deliver():
        run = ledger.start(batch.batch_id, "sink")
        ledger.commit(run, before_commit=lambda c: publications.decide_at_commit(c, run.run_id))

    def run():
        ledger.run_middle(batch, ledger.emit(batch, 0))
        deliver()

    run()
    ledger.deliver()
    deliver()
    restart(ledger.database, batch.batch_id)
    assert ledger.rows("SELECT * FROM pending_publication") == []
    run()
    ledger.deliver()
    rows = ledger.rows("SELECT state FROM sink_publication ORDER BY step_run_id")
    assert [row.state for row in rows] == ["replaced", "replaced", "published"]


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
    flow = pipeline(hold_above=0.1)
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
