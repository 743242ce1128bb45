"""A batch that the sweeper leaves open, because it does not see its storage: what is said of it,
and the command that settles it.
"""

import json

import pytest

from tests.support.ledgers import pipeline
from tests.support.retention import command

pytestmark = pytest.mark.usefixtures("environment")


def test_a_batch_that_needs_refinement_is_settled_where_its_storage_is_seen(ledger):
    """``sweep`` leaves it open and names the command; ``status`` does, too; ``settle`` fails where
    the storage is not seen, and decides where it is."""
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[1], span=4)
    settle = f"ackledger settle {batch.batch_id}"
    away = ledger.storage.rename(ledger.storage.parent / "away")
    swept = command("sweep")
    assert swept.exit_code == 0
    (settlement,) = json.loads(command("sweep", "--json").stdout)["settlements"]
    assert settlement["status"] == "open"
    assert settlement["reason"].endswith(settle)
    status = command("status", "--batch", str(batch.batch_id))
    assert "needs refinement" in status.stdout
    assert settle in status.stdout
    tried = command("settle", str(batch.batch_id))
    assert tried.exit_code == 1
    assert "needs refinement" in tried.stdout
    away.rename(ledger.storage)
    settled = command("settle", str(batch.batch_id), "--json")
    assert settled.exit_code == 0
    assert json.loads(settled.stdout)["failed"] == 1


def test_a_batch_that_waits_is_not_settled(ledger):
    """One of which a step has not run stays open, and the command says why; one that is decided is
    said to be."""
    batch = ledger.open(pipeline())
    ledger.emit(batch, 3)
    waits = command("settle", str(batch.batch_id))
    assert waits.exit_code == 1
    assert "waits for middle, sink to run" in waits.stdout
    other, _ = ledger.whole_batch(pipeline(), 3, "other", day=1)
    assert command("settle", str(other.batch_id)).exit_code == 0
    again = command("settle", str(other.batch_id))
    assert again.exit_code == 0
    assert "already settled" in again.stdout
