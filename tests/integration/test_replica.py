"""A read replica: a real streaming standby answers, and says that it takes no writes."""

import json

import pytest
from tenacity import wait_none
from typer.testing import CliRunner

from ledger.batch.opening import open_batch
from ledger.batch.upkeep.sweeper import sweep_once
from ledger.cli import app
from ledger.core.run_request import Interval, RunKey
from ledger.databases import driver_errors
from ledger.errors import UnavailableError
from ledger.settings import Settings
from tests.support.ledgers import END, START, keyed
from tests.support.standby import standby, wait_for_replay


@pytest.fixture
def replica(ledger, server_home):
    """The standby of a ledger that has a batch with a lost record."""
    batch, roots = ledger.whole_batch(keyed(), lose_middle=[3])
    ledger.settle(batch.batch_id)
    with standby(ledger.database, server_home) as database:
        wait_for_replay(ledger.database, database)
        yield database, roots.start + 3


def address(database):
    return database.url.render_as_string(hide_password=False)


def answered(*arguments):
    """What a command prints as JSON; 3: records are failed."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code in (0, 3), done.output
    return json.loads(done.stdout)


def test_a_standby(replica, ledger, monkeypatch):
    """Answers status, failed, explain and questions in SQL, and refuses what writes; once the
    primary has gone on, it follows."""
    database, lost = replica
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", address(database))
    assert [batch["failed"] for batch in answered("status")] == [1]
    assert [cause["step"] for cause in answered("failed")] == ["middle"]
    assert answered("explain", str(lost))["missing"]
    for name in ("batch_status", "step_progress", "open_failure"):
        assert answered("sql", f"SELECT * FROM {name}")
    key, interval = RunKey("dag", "on the standby"), Interval(START, END)
    monkeypatch.setattr(driver_errors, "RETRYING", driver_errors.RETRYING.copy(wait=wait_none()))
    for write in (
        lambda: sweep_once(database),
        lambda: open_batch(database, Settings(data="/data"), keyed(name="other"), key, interval),
    ):
        with pytest.raises(UnavailableError, match=r"takes no writes: .*a standby while its"):
            write()

    # Beside the primary: questions go to the standby, all else to the primary.
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", address(ledger.database))
    reader = database.url.set(username="ledger_sql").render_as_string(hide_password=False)
    monkeypatch.setenv("ACKLEDGER_READER_URL", reader)
    ledger.open(keyed(name="later"), day=1)
    wait_for_replay(ledger.database, database)
    (row,) = answered("sql", "SELECT pg_is_in_recovery() AS standby, count(*) AS n FROM batch")
    assert row == {"standby": True, "n": 2}
