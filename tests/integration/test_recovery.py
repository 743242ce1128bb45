"""What a person is told of a batch that stands still, and of the states that wait for it."""

from dataclasses import replace

import pytest

from ledger import ParquetSink
from ledger.opening import open_batch
from ledger.queries import batches
from ledger.recovery import reprocess, run_again, waiting_states, waits_for
from ledger.requests import Interval, RunKey
from ledger.settings import Settings
from ledger.settlement import settle_once
from ledger.stage_runs import fail
from ledger.summary import summarize
from tests.support.ledgers import (
    START,
    opened,
    pipeline,
    replayed,
    started,
    whole_batch,
)

MISSING = "InputError: source 'source': no file /data/2013-01-01.csv"


def summing():
    """The chain with a state over batches."""
    made = pipeline()

    @made.stateful_stage(reads="middle")
    def total(state, batch):
        return batch

    made.sink("totals", ParquetSink("totals"), reads="total")
    return made


@pytest.fixture
def stuck(database):
    """A batch whose file is missing, and one after it that is settled."""
    made = summing()
    first = opened(database, made)
    fail(database, started(database, first.batch_id, "source"), MISSING + ". Second line\nthird")
    second, _ = whole_batch(database, made, run_id="next", day=1)
    settle_once(database, second.batch_id)
    return first, second


def test_what_a_state_waits_for_is_told(database, stuck):
    """A later batch says which batch, interval and step its state waits for, why, and what to do
    about it."""
    first, second = stuck
    (told,) = summarize(database, second.batch_id).waits
    assert told == (
        f"the state 'total' of batch {second.batch_id} waits for batch {first.batch_id}: it is "
        "open "
        f"(interval 2013-01-01 to 2013-01-02). Its step 'source' failed: {MISSING}. Second line. "
        "To go on: "
        "in Airflow clear the task source and those after it in run run of DAG dag; "
        "if its source never comes, the sweeper abandons it after message_timeout"
    )


def test_status_tells_of_waiting_states(database, stuck):
    """Whoever looks at the batches hears once of each state that stands still, as the reader
    role."""
    first, _ = stuck

    def ask(connection):
        return waiting_states(connection), waiting_states(connection, "another")

    (told,), others = database.transact(ask, engine=database.reader)
    assert told.startswith(
        "pipeline chain: 2 batches are not in the state 'total', which waits for batch "
        f"{first.batch_id}: it is open (interval 2013-01-01 to 2013-01-02)"
    )
    assert MISSING in told
    assert others == []


def test_a_running_step_is_waited_for(database):
    """While the earlier batch runs nothing is to be done, and the sentence says so."""
    made = summing()
    first = opened(database, made)
    started(database, first.batch_id, "source")
    (told,) = database.transact(lambda c: waits_for(c, first.batch_id))
    assert told.endswith("Its step 'source' is running")


def test_the_command_that_goes_on(database):
    """A batch of the command line is gone on with by its own run id, interval and parameters; a
    replay by its own."""
    made = pipeline()
    interval = Interval(START, START.replace(hour=6), {"kind": "a b"})
    batch = open_batch(database, Settings(data="/data"), made, RunKey("", "mine"), interval)
    assert run_again(batch, "middle", "jobs.x:p") == (
        "ackledger run jobs.x:p --interval-start 2013-01-01 --interval-end 2013-01-01T06:00:00 "
        "--run-id mine --param 'kind=a b'"
    )
    assert reprocess(batch, "jobs.x:p") == (
        "ackledger run jobs.x:p --interval-start 2013-01-01 --interval-end 2013-01-01T06:00:00 "
        "--reprocess --param 'kind=a b'"
    )
    lossy, _ = whole_batch(database, made, run_id="lossy", day=1, lose_sink=[0])
    settle_once(database, lossy.batch_id)
    replay = replayed(database, made, lossy.batch_id, f"again-{lossy.batch_id}")
    with database.plain.begin() as connection:
        connection.exec_driver_sql("UPDATE batch SET dag_id = ''")
        replay = batches.get_batch(connection, replay.batch_id)
    assert run_again(replay) == (
        f"ackledger replay MODULE:PIPELINE --batch {lossy.batch_id} --run-id again"
    )


def test_what_goes_on_behind_a_settlement(database):
    """A combine, a state and their sinks run in tasks of their own; on the command line publish goes
    on with them."""
    made = summing()

    @made.combine(reads="source")
    def daily(rows):
        return rows

    made.sink("days", ParquetSink("days"), reads="daily")
    (state,) = made.states()
    made.sink("latest", ParquetSink("latest"), reads=state.name)
    batch = opened(database, made)
    tasks = {"daily": "combine", "days": "combine", state.name: "state", "latest": "state"}
    for step, task in tasks.items():
        said = f"in Airflow clear the task {task} and those after it in run run of DAG dag"
        assert run_again(batch, step) == said
    assert "the task source and" in run_again(batch, "source")
    mine = replace(batch, dag_id="")
    for step in tasks:
        assert run_again(mine, step, "a:b") == f"ackledger publish a:b --batch {batch.batch_id}"
    assert run_again(mine, "source").startswith("ackledger run ")
