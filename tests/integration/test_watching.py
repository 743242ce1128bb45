"""``ackledger status --watch``: what is under way, looked at again and again."""

import json

import pytest
from typer.testing import CliRunner

from ledger.cli import batches
from ledger.cli.base import app
from tests.support.ledgers import keyed


@pytest.fixture
def under_way(ledger, environment):
    """An open batch of which every step is committed."""
    batch = ledger.open(keyed())
    roots = ledger.emit(batch, 3)
    ledger.run_middle(batch, roots)
    ledger.run_sink(batch, roots)
    return batch


def watched(*arguments):
    return CliRunner().invoke(app, ["status", "--watch", *arguments])


@pytest.mark.parametrize("single", [True, False], ids=["one batch", "all batches"])
def test_it_looks_again_until_nothing_is_open(ledger, under_way, monkeypatch, single):
    """It ends by itself once the batch is decided, and shows it so."""
    looks = []

    def settled_meanwhile(seconds):
        looks.append(seconds)
        ledger.settle(under_way.batch_id)

    monkeypatch.setattr(batches, "sleep", settled_meanwhile)
    result = watched(*(["--batch", str(under_way.batch_id)] if single else []))
    assert result.exit_code == 0, result.output
    assert "settled" in result.output
    assert looks == [2.0]


def test_it_ends_with_ctrl_c(under_way, monkeypatch):
    """A user who has seen enough gets no error."""

    def stop(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(batches, "sleep", stop)
    result = watched()
    assert (result.exit_code, "open" in result.output) == (0, True)


def test_a_program_waits(ledger, under_way, monkeypatch):
    """With --json it prints nothing until the batch is decided, and then the batch."""
    monkeypatch.setattr(batches, "sleep", lambda seconds: ledger.settle(under_way.batch_id))
    result = watched("--json")
    (batch,) = json.loads(result.stdout)
    assert (result.exit_code, batch["status"]) == (0, "settled")
