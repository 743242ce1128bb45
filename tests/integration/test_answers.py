"""The answers on the pages are the ledger's: the flights of January, run as ``make demo`` does."""

from itertools import pairwise

from typer.testing import CliRunner

from demo import data
from jobs.flights import pipeline
from ledger.cli import app
from ledger.cli.base import out
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "sql.md"


def lines(text):
    """What a reader compares: no margin, no empty line."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_each_query_has_the_answer_that_the_page_shows(
    runner, environment, settings, tmp_path, monkeypatch
):
    """Half of the planes first, then all of them and a replay: each table on docs/sql.md
    is what ``ackledger sql`` prints then, to the digit.
    """
    monkeypatch.setattr(out, "width", 200)  # columns of the terminal
    data.write_months(tmp_path, [1])
    data.write_planes(tmp_path, every=2)
    flights = runner(pipeline)
    original = flights.open()
    assert flights.settled(original).failed == 15_482
    data.write_planes(tmp_path)
    flights.settled(flights.open_replay(original.batch_id))
    compared = 0
    for query, answer in pairwise(blocks(PAGE)):
        if (query.language, answer.language, answer.heading) == ("sql", "", query.heading):
            done = CliRunner().invoke(app, ["sql", query.code])
            assert lines(done.stdout) == lines(answer.code), query.code
            compared += 1
    assert compared >= 7
