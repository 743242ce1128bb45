"""What the demo says at its end."""

import io
from collections import Counter
from types import SimpleNamespace

import pytest
from rich.console import Console

import demo.__main__ as shown

COUNTS = SimpleNamespace(total=3, recovered=1, quarantined=1, failed=0, pending=0)


@pytest.mark.parametrize(("missing", "code"), [(0, 0), (1, 1)])
def test_it_ends_by_saying_which_page_to_open(monkeypatch, missing, code):
    """The batch's page, and the command that starts the Airflow which has it, are the last that is
    said before the verdict; a flight that is missing makes it red.
    """
    console = Console(file=io.StringIO(), width=1000)
    monkeypatch.setattr(shown, "console", console)
    database = SimpleNamespace(reader=None, transact=lambda work, engine: COUNTS)
    wanted, counts = Counter({("a",): 1 + missing}), Counter({("a",): 1})
    assert shown._conclude(database, wanted, counts, True, 0.0) == code
    line = [line for line in console.file.getvalue().splitlines() if line]
    page, start, _whole, verdict = line[-4:]
    assert page == "http://127.0.0.1:8080/plugin/ledger?batch=1"
    assert start.endswith(" make up")
    assert "ACKLEDGER_HOME=" in start
    assert verdict == ("The sinks are wrong." if missing else "The sinks are right.")


def test_it_fits_the_terminal(monkeypatch):
    """Tables have the width of the terminal that they are printed in, and what is said at the end
    fits 80 columns, but for the folder's name.
    """
    assert shown.console.width == Console().width
    console = Console(file=io.StringIO(), width=1000)
    monkeypatch.setattr(shown, "console", console)
    counts = SimpleNamespace(**{**vars(COUNTS), "total": 336776, "recovered": 11003})
    database = SimpleNamespace(reader=None, transact=lambda work, engine: counts)
    flights = Counter({("a",): 336776})
    shown._conclude(database, flights, flights, True, 0.0)
    lines = [line for line in console.file.getvalue().splitlines() if "ACKLEDGER_HOME" not in line]
    assert max(map(len, lines)) <= 80
