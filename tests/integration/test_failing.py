"""How a command that runs a batch fails: what it gives back, and what it says."""

import logging
import time
from functools import partial

import pytest

from ledger.batch.opening import open_batch
from ledger.cli import runs
from ledger.cli.runs import going_on
from ledger.core.run_request import Interval, RunKey
from ledger.core.states import BatchStatus
from ledger.errors import InputError, LedgerError, UnavailableError
from ledger.execution import steps
from ledger.spark.job import Job
from ledger.spark.progress import watching
from ledger.store.queries import batches
from tests.support.ledgers import END, START, pipeline

AGAIN = "ackledger run jobs.x:p --run-id run"


def status_of(ledger, batch):
    """The batch's status as of now."""
    return ledger.transact(batches.get_batch, batch.batch_id).status


def fails(ledger, batch, exc):
    """What is raised where a step of the batch ends with ``exc``."""
    with (
        pytest.raises(LedgerError) as raised,
        going_on(ledger.database, batch, f"To go on: {AGAIN}", lambda: "step 'source'"),
    ):
        raise exc
    return raised.value


def test_the_batch_of_a_run_that_lives_is_left_to_it(ledger):
    """Of two commands with one run id the one that fails does not abandon what the other is at;
    once that one fell silent, it does.
    """
    batch = ledger.open(pipeline())
    ledger.start(batch.batch_id, "source")
    error = str(fails(ledger, batch, InputError("no such module")))
    assert (
        error == f"batch 1 (run id run) failed at step 'source': no such module. To go on: {AGAIN}"
    )
    assert status_of(ledger, batch) is BatchStatus.OPEN
    ledger.age(batch.batch_id, 3600)
    assert "Batch 1 is abandoned and claims nothing. To go on: " in str(
        fails(ledger, batch, InputError("no such module"))
    )
    assert status_of(ledger, batch) is BatchStatus.ABANDONED


def test_a_database_that_goes_away_hides_no_error(ledger, monkeypatch):
    """Where the claim cannot be given back, the step's own error is raised, with the way on."""
    batch = ledger.open(pipeline())

    def gone(*_):
        raise UnavailableError("the database did not answer")

    monkeypatch.setattr(runs, "abandon", gone)
    error = fails(ledger, batch, InputError("a file is cut off"))
    assert isinstance(error, InputError)
    assert str(error).endswith(f"failed at step 'source': a file is cut off. To go on: {AGAIN}")


def test_a_run_that_failed_says_how_all_its_steps_run_again(ledger):
    """It goes on at the step that failed; where the fix is before it, the batch is restarted."""
    batch = ledger.open(pipeline(), dag="")
    ledger.emit(batch, 2)
    assert str(fails(ledger, batch, InputError("a bug"))).endswith(f"a bug. To go on: {AGAIN}")
    ledger.fail(ledger.start(batch.batch_id, "middle"), "a bug")
    error = str(fails(ledger, batch, InputError("a bug")))
    assert error.endswith(
        f"a bug. To go on: {AGAIN}. If you fixed an earlier step or the files of a source,"
        " first: ackledger restart 1"
    )


def test_an_interrupted_run_says_how_to_go_on(ledger):
    """Ctrl-C ends with batch, run id, step and command, also once something is committed."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 2)
    error = str(fails(ledger, batch, KeyboardInterrupt()))
    assert error == f"batch 1 (run id run) was interrupted at step 'source'. To go on: {AGAIN}"
    assert status_of(ledger, batch) is BatchStatus.OPEN


@pytest.mark.parametrize(
    ("spark", "option"),
    [("spark://far:7077", " --spark spark://far:7077"), (runs.LOCAL, "")],
)
def test_a_run_says_its_id_when_it_begins(spark, option, database, settings, monkeypatch, capsys):
    """A run id that was made up is printed before Spark starts; the way on goes to the same
    cluster.
    """

    def refuse(*_):
        raise InputError("no cluster")

    monkeypatch.setattr(runs, "spark_session", refuse)
    flow = pipeline()
    batch = open_batch(database, settings, flow, RunKey("", "run-1f"), Interval(START, END))
    with pytest.raises(InputError) as raised:
        runs._run_batch(runs.CommandTarget("jobs.x:p", flow, settings, database, spark), batch)
    assert capsys.readouterr().err.splitlines()[0] == "batch 1: run id run-1f"
    assert str(raised.value).endswith(
        "failed at its start: no cluster. Batch 1 is abandoned and claims nothing. To go on: "
        "ackledger run jobs.x:p --from 2013-01-01 --to 2013-01-02 "
        f"--run-id run-1f{option}"
    )


def test_the_log_of_a_driver_says_how_far_a_long_step_is(ledger, settings, monkeypatch, caplog):
    """A line again and again, every minute unless a test hurries, until the step is done."""
    monkeypatch.setattr(steps, "watching", partial(watching, every=0.01))
    caplog.set_level(logging.INFO, steps.__name__)
    flow = pipeline()
    batch = ledger.open(flow)
    run = ledger.start(batch.batch_id, "source")
    message = f"source of batch {batch.batch_id}: 0 s"
    with steps.holding_lease(Job(None, ledger.database, settings, flow), run):
        until = time.monotonic() + 10
        while message not in caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
    assert message in caplog.messages
    length = len(caplog.messages)
    time.sleep(0.05)
    assert len(caplog.messages) <= length + 1
