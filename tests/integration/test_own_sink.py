"""Pipelines that write to a sink which is not of the package."""

import sqlite3

import pytest

from ledger import FailedRecord, FileSource, Pipeline
from ledger.batch.upkeep.checks import examine_environment
from ledger.errors import DeclarationError
from ledger.sinks import registry
from tests.support.sqlite_sink import SqliteSink

COUNT = 9


def pipeline(lost=(), **options):
    """Numbers, of which some fail, into a table of a SQLite file."""
    flow = Pipeline("numbers", **options)
    flow.source("read", FileSource("in.csv", schema="n INT"))

    @flow.record_stage(reads="read", schema="n INT")
    def checked(record):
        if record["n"] in lost:
            raise FailedRecord("lost")
        yield {"n": record["n"]}

    flow.sink("kept", SqliteSink("shop.db", "kept"), reads="checked")
    return flow


@pytest.fixture
def numbers_read(tmp_path):
    """The numbers that a reader of the table sees, and their source's file."""
    (tmp_path / "in.csv").write_text("n\n" + "\n".join(map(str, range(COUNT))))

    def read():
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            return [n for (n,) in connection.execute("SELECT n FROM kept ORDER BY 1")]

    return read


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_failed_record_comes_with_its_replay(runner, numbers_read, guarantee):
    """Acked records are published with their batch, a failed one with its replay, each once."""
    run = runner(pipeline({3}, guarantee=guarantee))
    batch = run.open()
    assert run.settled(batch).failed == 1
    assert numbers_read() == [n for n in range(COUNT) if n != 3]
    again = runner(pipeline(guarantee=guarantee))
    assert again.settled(again.open_replay(batch.batch_id)).failed == 0
    assert numbers_read() == list(range(COUNT))


def test_a_refused_row_fails_its_record(runner, numbers_read, tmp_path):
    """A row that the table refuses fails its record when it is staged; the others are published."""
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE kept (n INTEGER CHECK (n <> 5), ackledger_batch INTEGER)")
    run = runner(pipeline())
    assert run.settled(run.open()).failed == 1
    assert numbers_read() == [n for n in range(COUNT) if n != 5]


def test_it_is_looked_at_before_a_batch_is_opened(settings, tmp_path):
    """What a run needs of the sink is among what is looked at."""
    findings = {
        finding.subject: finding
        for finding in examine_environment(settings, pipeline(), None, java=False)
    }
    assert findings["sink kept"].message == "table 'kept' of 'shop.db' can be written to"
    assert not (tmp_path / "shop.db").exists()
    closed = settings.model_copy(update={"data": str(tmp_path / "missing")})
    findings = {
        surrounding.subject: surrounding
        for surrounding in examine_environment(closed, pipeline(), None, java=False)
    }
    assert "expected its folder, found none" in findings["sink kept"].message


def test_one_line_registers_it(monkeypatch):
    """A kind whose class is in the registry is offered where something else is declared."""
    monkeypatch.setattr(registry, "KINDS", (*registry.KINDS, SqliteSink))
    with pytest.raises(DeclarationError, match=r"expected one of .*, SqliteSink, or an object"):
        Pipeline("numbers").sink("kept", "shop.db", reads="read")
