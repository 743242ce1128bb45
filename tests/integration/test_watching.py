"""``ackledger status --watch``: what is under way, looked at again and again."""

import pytest
from typer.testing import CliRunner

from ledger.cli import inspecting
from ledger.cli.base import app
from tests.support.ledgers import keyed


@pytest.fixture
def under_way(ledger, environment):
    """An open batch of which every step is committed."""
    found = ledger.open(keyed())
    roots = ledger.emit(found, 3)
    ledger.run_middle(found, roots)
    ledger.run_sink(found, roots)
    return found


def watched(*chosen):
    return CliRunner().invoke(app, ["status", "--watch", *chosen])


@pytest.mark.parametrize("one", [True, False], ids=["one batch", "all batches"])
def test_it_looks_again_until_nothing_is_open(ledger, under_way, monkeypatch, one):
    """It ends by itself once the batch is decided, and shows it so."""
    looks = []

    def settled_meanwhile(seconds):
        looks.append(seconds)
        ledger.settle(under_way.batch_id)

    monkeypatch.setattr(inspecting, "sleep", settled_meanwhile)
    said = watched(*(["--batch", str(under_way.batch_id)] if one else []))
    assert said.exit_code == 0, said.output
    assert "settled" in said.output
    assert looks == [2.0]


def test_it_ends_with_ctrl_c(under_way, monkeypatch):
    """Whoever has seen enough gets no error."""

    def stop(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspecting, "sleep", stop)
    said = watched()
    assert (said.exit_code, "open" in said.output) == (0, True)


def test_a_program_asks_again_by_itself(under_way):
    """--json with --watch is refused before anything is printed."""
    said = watched("--json")
    assert said.exit_code == 1
    assert "expected --watch or --json" in str(said.exception)
