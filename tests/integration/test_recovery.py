"""What a person reads about a batch that stands still, and about the states that wait for it."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ledger import ParquetSink
from ledger.batch import state_runs
from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import asked_as, reprocess, resume
from ledger.batch.opening import open_batch
from ledger.batch.outcome.report import advise
from ledger.batch.recovery import waiting_states, waits_for
from ledger.batch.step_runs import Attempt, Record, StepOutput
from ledger.cli.base import app
from ledger.core.run_request import REPROCESS, Interval, RunKey
from ledger.core.states import Obstacle
from ledger.settings import Settings
from tests.support.ledgers import START, pipeline

MISSING = "InputError: source 'source': no file /data/2013-01-01.csv"


def summing(**options):
    """The chain with a state over batches."""
    flow = pipeline(**options)

    @flow.stateful_stage(reads="middle")
    def total(state, batch):
        return batch

    flow.sink("totals", ParquetSink("totals"), reads="total")
    return flow


@pytest.fixture
def stuck(ledger):
    """A batch whose file is missing, and one after it that is settled."""
    flow = summing()
    first = ledger.open(flow)
    ledger.fail(ledger.start(first.batch_id, "source"), MISSING + ". Second line\nthird")
    second, _ = ledger.whole_batch(flow, run_id="next", day=1)
    ledger.settle(second.batch_id)
    return first, second


def test_what_a_state_waits_for_is_reported(ledger, stuck):
    """A later batch says which batch, interval and step its state waits for, why, and what to do
    about it."""
    first, second = stuck
    (wait,) = ledger.summary(second.batch_id).waits
    assert (
        wait
        == f"the state 'total' of batch {second.batch_id} waits for batch {first.batch_id}: it is "
        "open "
        f"(interval 2013-01-01 to 2013-01-02). Its step 'source' failed: {MISSING}. Second line. "
        "To go on: "
        "in Airflow clear the failed tasks of run run of DAG dag. "
        "If its source never comes, the sweeper abandons the batch after message_timeout"
    )


def test_a_state_waits_for_failed_records(ledger):
    """With publish="complete" a settled batch whose record failed keeps the state waiting: the view
    has the code, the sentence the commands.
    """
    flow = summing(publish="complete")
    batch, _ = ledger.whole_batch(flow, lose_middle=[3])
    ledger.settle(batch.batch_id)
    (sentence,) = ledger.transact(waits_for, batch.batch_id)
    assert code(ledger, batch) == Obstacle.RECORDS_FAILED
    assert sentence.endswith(
        'records of it are failed, and its pipeline has publish="complete" (interval 2013-01-01 to '
        f"2013-01-02). See which and why: ackledger failed --batch {batch.batch_id}. Replay them: "
        f"ackledger replay MODULE:PIPELINE --batch {batch.batch_id}"
    )


def test_a_state_waits_for_a_batch_that_is_replaced(ledger):
    """A later batch says so while an earlier one is reprocessed."""
    flow = summing()
    first, _ = ledger.whole_batch(flow)
    ledger.settle(first.batch_id)
    ledger.reprocess(flow)
    (sentence,) = ledger.transact(waits_for, first.batch_id)
    assert code(ledger, first) == Obstacle.BEING_REPLACED
    assert "it is being replaced (interval" in sentence
    assert sentence.endswith("It goes on once that is decided")


def test_a_state_is_overdue_once_nothing_moves(ledger):
    """The batch that is next: since its settlement, the commit before it, or the end of the lease
    of its run. Never one that waits, nor one of a state that the pipeline no longer has."""
    flow = summing()
    first, _ = ledger.whole_batch(flow)
    ledger.settle(first.batch_id)
    second, _ = ledger.whole_batch(flow, run_id="next", day=1)
    ledger.settle(second.batch_id)

    def since():
        query = "SELECT since FROM pending_follow_up WHERE follow_up = 'state' ORDER BY batch_id"
        return [row.since for row in ledger.rows(query)]

    def instant(query):
        return ledger.row(query).instant

    settled_at = instant("SELECT min(settled_at) AS instant FROM batch")
    assert since() == [settled_at, None]
    run = state_runs.open_next(ledger.database, flow, flow.step("total"), Attempt())
    lease = instant("SELECT lease_until AS instant FROM step_run WHERE step = 'total'")
    assert lease > settled_at
    assert since() == [lease, None]
    nothing = StepOutput(Record())
    state_runs.commit_state(ledger.database, run, nothing, {"totals": nothing}, None)
    committed_at = instant("SELECT committed_at AS instant FROM checkpoint")
    assert since() == [committed_at]
    assert committed_at > instant("SELECT max(settled_at) AS instant FROM batch")
    ledger.open(pipeline(), run_id="last", day=2)
    assert since() == [None]


def code(ledger, batch):
    """What the view says that a state waits for."""
    query = "SELECT waits_because FROM state_progress WHERE batch_id = :b"
    return ledger.row(query, b=batch.batch_id).waits_because


def test_the_view_has_the_codes_of_the_library(ledger):
    """No code without a sentence, no sentence without a code."""
    view = ledger.row("SELECT pg_get_viewdef('state_progress') AS text").text
    codes = set(re.findall(r"THEN '(\w+)'::text", view)) - {"committed", "due"}
    assert codes == {str(code) for code in Obstacle}


def test_status_reports_waiting_states(database, stuck):
    """A user with the reader role reads once about each state that stands still."""
    first, _ = stuck

    def ask(connection):
        return waiting_states(connection), waiting_states(connection, "another")

    (sentence,), others = database.transact(ask, engine=database.reader)
    assert sentence.startswith(
        "pipeline chain: 2 batches are not in the state 'total', which waits for batch "
        f"{first.batch_id}: it is open (interval 2013-01-01 to 2013-01-02)"
    )
    assert MISSING in sentence
    assert others == []


def test_the_command_status_prints_waiting_states(database, stuck, environment):
    """``ackledger status`` prints the sentence once, unbroken, beside its table, and which sinks of
    records are yet to publish; of another pipeline it says nothing.
    """
    sentences = database.transact(waiting_states)
    shown = CliRunner().invoke(app, ["status"])
    assert shown.exit_code == 0
    see = "batch 2: sink sink has not published all rows. See why: ackledger status --batch 2"
    assert shown.stderr.splitlines() == [*sentences, see]
    assert len(sentences) == 1
    assert CliRunner().invoke(app, ["status", "--pipeline", "another"]).stderr == ""


def test_a_running_step_is_waited_for(ledger):
    """While the earlier batch runs nothing is to be done, and the sentence says so."""
    flow = summing()
    first = ledger.open(flow)
    ledger.start(first.batch_id, "source")
    (sentence,) = ledger.transact(waits_for, first.batch_id)
    assert sentence.endswith("Its step 'source' is running")
    assert (
        str(advise(ledger.summary(first.batch_id)))
        == f"batch {first.batch_id} is open. Its step 'source' is running"
    )
    ledger.age(first.batch_id, 3600)
    (sentence,) = ledger.transact(waits_for, first.batch_id)
    assert "Its step 'source' was running, and its driver has died. To go on: " in sentence


def test_a_step_whose_driver_died_is_reported(ledger):
    """A run whose lease has lapsed runs no more: the sentence says so, and how to go on."""
    flow = summing()
    first = ledger.open(flow)
    ledger.start(first.batch_id, "source")
    ledger.age(first.batch_id, 3600)
    (sentence,) = ledger.transact(waits_for, first.batch_id)
    assert sentence.endswith(
        "Its step 'source' was running, and its driver has died. To go on: in Airflow clear the "
        "failed tasks of run run of DAG dag"
    )


def test_sentences_name_the_pipeline_that_is_stored(ledger):
    """A command in a sentence has the pipeline's own MODULE:PIPELINE, where the ledger knows it."""
    flow = summing()
    batch, _ = ledger.whole_batch(flow)
    ledger.settle(batch.batch_id)
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql("UPDATE pipeline SET target = 'jobs.mine:chain'")
    (sentence,) = ledger.transact(waits_for, batch.batch_id)
    assert sentence.endswith(f"now: ackledger publish jobs.mine:chain --batch {batch.batch_id}")


def test_a_reprocess_goes_on_in_its_own_run(ledger):
    """What is cleared is the run as Airflow knows it, not the name that its second batch has."""
    batch = ledger.open(pipeline(), f"manual__2013{REPROCESS}")
    assert sentences(resume(batch, "middle")).endswith("of run manual__2013 of DAG dag")


def test_the_command_that_goes_on(ledger):
    """A batch of the command line is gone on with by its own run id, interval and parameters; a
    replay by its own."""
    flow = pipeline()
    interval = Interval(START, START.replace(hour=6), {"kind": "a b"})
    batch = open_batch(ledger.database, Settings(data="/data"), flow, RunKey("", "mine"), interval)
    assert (
        sentences(resume(batch, "middle", "jobs.x:p"))
        == "To go on: ackledger run jobs.x:p --from 2013-01-01 "
        "--to 2013-01-01T06:00 "
        "--param 'kind=a b' --run-id mine"
    )
    assert (
        reprocess(batch, "jobs.x:p")
        == "ackledger run jobs.x:p --from 2013-01-01 --to 2013-01-01T06:00 "
        "--param 'kind=a b' --reprocess"
    )
    lossy, _ = ledger.whole_batch(flow, run_id="lossy", day=1, lose_sink=[0])
    ledger.settle(lossy.batch_id)
    replay = ledger.replay(flow, lossy.batch_id, f"again-{lossy.batch_id}", dag="")
    assert (
        sentences(resume(replay))
        == f"To go on: ackledger replay MODULE:PIPELINE --batch {lossy.batch_id} --run-id again"
    )
    assert asked_as(replay) == "again"
    options = ("--spark", "spark://far:7077")
    far = sentences(resume(replay, target="jobs.x:p", options=options))
    assert far.endswith("--run-id again --spark spark://far:7077")


def test_an_undecided_batch_has_its_command(ledger):
    """What is said of a batch whose step failed, or of one that is held, has its run id and
    command; the pipeline's place is the ledger's.
    """
    flow = pipeline(hold_above=0.2)
    interval = Interval(START, START.replace(hour=6))
    batch = open_batch(
        ledger.database, Settings(data="/data"), flow, RunKey("", "run-1f"), interval
    )
    with ledger.database.plain.begin() as connection:
        connection.exec_driver_sql("UPDATE pipeline SET target = 'jobs.x:p'")
    again = "ackledger run jobs.x:p --from 2013-01-01 --to 2013-01-01T06:00 --run-id run-1f"
    name = f"batch {batch.batch_id} is"
    advice = lambda: str(advise(ledger.summary(batch.batch_id)))  # noqa: E731
    assert advice() == f"{name} open. Its step 'source' has not run. To go on: {again}"
    ledger.fail(ledger.start(batch.batch_id, "source"), MISSING)
    assert (
        f"Its step 'source' failed: {MISSING}. To go on: {again}. If its source never comes,"
        in advice()
    )
    roots = ledger.emit(batch, 4)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots, lose=roots[:2])
    ledger.settle(batch.batch_id)
    assert advice().startswith(f"{name} on hold. 2 of 4 records failed; the limit is 20 % ")
    release = f"Or publish the rest anyway: ackledger release {batch.batch_id}"
    assert advice().endswith(f". Fix it and rerun: {again}. {release}")
    batch, _ = ledger.whole_batch(flow, 4, run_id="run-2f", day=1, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    release = f"Or publish the rest anyway: ackledger release {batch.batch_id}"
    then = (
        "in run run-2f of DAG dag clear the task of the fixed step (or `run`, if the DAG has one"
        " task a batch) and those downstream"
    )
    assert advice().endswith(f". Fix it and rerun: {then}. {release}")


def test_what_goes_on_after_a_settlement(ledger):
    """Publish goes on with a combine, a state and their sinks. In Airflow it is the task that
    failed, and no run is named: that of another batch may have been at it.
    """
    flow = summing()

    @flow.combine(reads="source")
    def daily(rows):
        return rows

    flow.sink("days", ParquetSink("days"), reads="daily")
    (state,) = flow.states()
    flow.sink("latest", ParquetSink("latest"), reads=state.name)
    batch = ledger.open(flow)
    publish = f"To go on: ackledger publish a:b --batch {batch.batch_id}"
    by_hand = replace(batch, dag_id="")
    for step in ("daily", "days", state.name, "latest"):
        words = sentences(resume(batch, step, "a:b"))
        assert words == f"{publish}. In Airflow: clear the task that failed"
        assert sentences(resume(by_hand, step, "a:b")) == publish
    click = "To go on: in Airflow clear the failed tasks of run run of DAG dag"
    for step in ("source", "middle", "sink", None):
        assert sentences(resume(batch, step)) == click
        assert sentences(resume(by_hand, step)).startswith("To go on: ackledger run ")
