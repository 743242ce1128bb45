"""Commands that messages ask for."""

from datetime import timedelta, timezone
from types import SimpleNamespace

import pytest

from ledger.batch.advice.actions import sentences
from ledger.batch.advice.batches import instead_of_a_second_run
from ledger.core.commands import ackledger, run
from ledger.core.run_request import Interval
from tests.support.ledgers import END, START

ASKED = Interval(START, END, {"shop": "a b"})


def holder(dag_id, run_id):
    """The batch that has an interval, of a run of a DAG or of the command line."""
    return SimpleNamespace(batch_id=7, dag_id=dag_id, run_id=run_id)


def test_a_command_has_the_shorter_form_of_a_time():
    """A date where it is midnight in UTC, else the time without its zone, which is UTC."""
    interval = Interval(START.astimezone(timezone(timedelta(hours=9))), START.replace(hour=6))
    assert (
        run("etl:shop", interval, "--reprocess")
        == "ackledger run etl:shop --from 2013-01-01 --to 2013-01-01T06:00"
        " --reprocess"
    )


@pytest.mark.parametrize(("run_id", "typed"), [("run-1", "run-1"), ("my run", "'my run'")])
def test_an_interval_of_the_command_line_is_run_again_under_its_run_id(run_id, typed):
    """The error for an interval that a typed command has claimed names that command with its run
    id, and without it to replace the batch.
    """
    again = "ackledger run etl:shop --from 2013-01-01 --to 2013-01-02 --param 'shop=a b'"
    assert (
        sentences(instead_of_a_second_run("etl:shop", ASKED, holder("", run_id)))
        == f"Run it again: {again} --run-id {typed}. Replay what failed in it: ackledger replay"
        f" etl:shop --batch 7. Or replace it: {again} --reprocess"
    )


def test_an_interval_of_a_dag_is_run_again_by_clearing_its_run():
    """The error for an interval that a run of a DAG has claimed names the run to clear, and the
    runs of the DAG that replay or replace the batch.
    """
    again, replay, replace = instead_of_a_second_run("etl:shop", ASKED, holder("shop", "manual__1"))
    assert str(again) == "Run it again: in Airflow clear run 'manual__1' of DAG 'shop'"
    assert replay.command == """airflow dags trigger shop --conf '{"replay_of": 7}'"""
    assert '"shop": "a b", "reprocess": true}' in replace.command


def test_a_command_has_the_options_that_are_set():
    """One that is True has no value; one that is None or False is left out."""
    assert (
        ackledger("failed", batch=7, step="a step", records=True, reason=None, from_source=False)
        == "ackledger failed --batch 7 --step 'a step' --records"
    )
