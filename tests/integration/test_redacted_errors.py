"""Errors of a sink's database, and of hooks, quote no value where the pipeline redacts."""

import pytest

from ledger import (
    DeltaSink,
    FileSource,
    Pipeline,
    PostgresSink,
)
from ledger.batch.publishing import publish
from ledger.errors import ConfigurationError, LedgerError, StageError
from tests.support.everything import holding
from tests.support.runner import END

MARK = "zq7marker"
MARCH, APRIL = END.replace(month=3), END.replace(month=4)
LEFT_OUT = "RuntimeError. Its words may hold what the pipeline redacts: they are left out"


@pytest.fixture
def quotes_nothing(database, caplog):
    """Asserts that an error, the ledger and the log hold no value; returns the error's text."""

    def check(error=None):
        assert MARK not in str(error)
        if error is not None:
            assert error.__cause__ is None
            assert error.__suppress_context__ or error.__context__ is None
        assert holding(database, MARK) == {}
        assert MARK not in caplog.text
        return str(error)

    return check


def mailed(sink) -> Pipeline:
    """One record with a redacted column -> a sink."""
    pipeline = Pipeline("mailed", redact=["email"])
    pipeline.source("people", FileSource("people.csv", schema="id STRING, email STRING"))
    pipeline.sink("out", sink, reads="people")
    return pipeline


@pytest.fixture
def mails(tmp_path):
    """The record."""
    (tmp_path / "people.csv").write_text(f"id,email\n1,{MARK}@example.org\n")


PEOPLE = (
    "CREATE FUNCTION mailable(email text) RETURNS boolean LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN true; END $$",
    "CREATE TABLE people (id text, email text, ackledger_batch bigint, CHECK (mailable(email)))",
)


def refusing(code):
    """The function of the table, which quotes the value in an error of this class."""
    return (
        "CREATE OR REPLACE FUNCTION mailable(email text) RETURNS boolean LANGUAGE plpgsql AS $$"
        f" BEGIN RAISE EXCEPTION 'no right to mail %%', email USING ERRCODE = '{code}'; END $$"
    )


def test_an_error_of_postgresql_when_a_batch_is_staged(
    runner, warehouse, warehouse_url, mails, quotes_nothing
):
    """The run of the sink fails with the database and what to do; the server's words, which quote
    the row, are in neither its record nor the log."""
    warehouse.do(*PEOPLE, refusing("42501"))
    run = runner(mailed(PostgresSink(warehouse_url, "people")))
    batch = run.open()
    with pytest.raises(ConfigurationError) as caught:
        run.settled(batch)
    assert " refused the sink: ***. Check the url" in quotes_nothing(caught.value)
    (failed,) = run.ledger.rows("SELECT failure FROM step_run WHERE state = 'failed'")
    assert "refused the sink: ***" in failed.failure


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("22000", StageError, " refused a row: ***. Nothing of the batch"),
        ("42501", ConfigurationError, " refused the sink: ***. Check the url"),
        ("55P03", LedgerError, " did not answer: ***. Check that the database runs"),
        ("P0001", LedgerError, " refused a statement: ***"),
    ],
    ids=["value", "rights", "locked", "statement"],
)
def test_an_error_of_postgresql_when_a_batch_is_published(
    runner, warehouse, warehouse_url, mails, quotes_nothing, code, kind, words
):
    """The publication fails with the database and what to do, of each class of errors; without
    the server's words."""
    warehouse.do(*PEOPLE)
    run = runner(mailed(PostgresSink(warehouse_url, "people")))
    batch = run.open()
    run.steps(batch)
    run.ledger.settle(batch.batch_id)
    warehouse.do(refusing(code))
    with pytest.raises(kind) as caught:
        publish(run.job, batch.batch_id)
    assert words in quotes_nothing(caught.value)
    assert warehouse.rows("SELECT * FROM people") == []


def test_an_error_of_delta_lake(runner, tmp_path, mails, quotes_nothing):
    """The log of a table has the least and the greatest value of each column: what the library
    quotes of a line that it cannot read is masked, when a batch is staged and when it is
    published."""
    run = runner(mailed(DeltaSink("lake")))
    run.settled(run.open("first"))
    staged = run.open("second", END, MARCH)
    run.steps(staged)
    run.ledger.settle(staged.batch_id)
    line = tmp_path / "lake" / "_delta_log" / f"{2:020}.json"
    line.write_text(f'{{"add": "{MARK}@example.org"}}\n')
    with pytest.raises(ConfigurationError) as caught:
        publish(run.job, staged.batch_id)
    words = "lake could not be opened: ***. Fix the cause and run it again"
    assert words in quotes_nothing(caught.value)
    third = run.open("third", MARCH, APRIL)
    with pytest.raises(ConfigurationError) as caught:
        run.steps(third)
    assert words in quotes_nothing(caught.value)
