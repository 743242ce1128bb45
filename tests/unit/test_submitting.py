"""The task that submits a step: what it does when the driver fails."""

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from jobs.wordcount import pipeline
from ledger.airflow import submitting
from ledger.airflow.submitting import submitted
from ledger.errors import EXIT_PERMANENT, ConfigurationError

TAIL = """
Last spark-submit output:
2026-01-01 00:00:00,000 ackledger INFO starting
2026-01-01 00:00:01,000 ackledger ERROR words of batch 7: no file matches /data/x.csv"""


class Numbering:
    """A ledger that draws one number."""

    def transact(self, _work):
        return 42


def failing(monkeypatch, code):
    """A step's task whose spark-submit ends with a code."""
    monkeypatch.setattr(submitting, "connected", Numbering)

    def execute(self, context):
        raise AirflowException(f"Cannot execute: spark-submit x. Error code is: {code}.{TAIL}")

    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    return submitted(pipeline, "jobs.wordcount:pipeline", "words", application="run_step.py")


def test_what_would_fail_again_is_not_retried(monkeypatch):
    """A missing file fails the task for good, with the driver's own line and no second JVM."""
    with pytest.raises(AirflowFailException) as caught:
        failing(monkeypatch, EXIT_PERMANENT).execute({})
    assert str(caught.value) == "words of batch 7: no file matches /data/x.csv"


@pytest.mark.parametrize("code", [1, 137, 650])
def test_what_may_succeed_is_retried(monkeypatch, code):
    """A driver that was killed, or failed in any other way, is left to the task's retries."""
    with pytest.raises(AirflowException) as caught:
        failing(monkeypatch, code).execute({})
    assert not isinstance(caught.value, AirflowFailException)


def test_the_task_numbers_its_attempt(monkeypatch):
    """The driver gets the number that the ledger drew before it was submitted."""
    monkeypatch.setattr(submitting, "connected", Numbering)
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda self, context: None)
    step = submitted(pipeline, "jobs.wordcount:pipeline", "words", application="run_step.py")
    step.execute({})
    assert step.application_args[-2:] == ["--attempt-number", "42"]


def test_a_ledger_that_refuses_the_number(monkeypatch):
    """Without a ledger nothing is submitted, and the task fails for good with the ledger's line."""

    def refuse():
        raise ConfigurationError("run 'ackledger db upgrade'")

    monkeypatch.setattr(submitting, "connected", refuse)
    step = submitted(pipeline, "jobs.wordcount:pipeline", "words", application="run_step.py")
    with pytest.raises(AirflowFailException, match="run 'ackledger db upgrade'"):
        step.execute({})
