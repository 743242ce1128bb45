"""What publishing does around one sink that is broken: the ledger and the sinks are stand-ins."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from ledger.batch import publishing
from ledger.batch.publishing import Published, lost, publish
from ledger.errors import ConfigurationError, Failures, LostFileError, StageError, UnavailableError
from ledger.sinks.base import Delivery, require_staged
from ledger.sinks.postgres.declared import database_of
from ledger.sinks.staged_files import record_batches
from ledger.storage.manifest import DataFile

START = datetime(2013, 1, 1, tzinfo=UTC)
PIPELINE = SimpleNamespace(followers=list, redact=(), module="jobs.none")
DATABASE = SimpleNamespace(transact=lambda work: work(None))


@pytest.fixture
def pending(monkeypatch):
    """Sets what is decided and not published: (batch, sink) each."""

    def put(*rows):
        made = [SimpleNamespace(batch_id=batch, sink=sink, ready=True) for batch, sink in rows]
        monkeypatch.setattr(publishing.publications, "pending", lambda *_: made)

    return put


def test_a_broken_sink_hides_no_lost_file_of_another(pending, monkeypatch):
    """Lost files are found beside a sink that cannot be looked at; what is wrong with that one is
    kept. Of chosen sinks no other is looked at."""
    pending((1, "address"), (1, "lost"), (1, "there"))

    def is_lost(database, settings, pipeline, row):
        if row.sink == "address":
            raise ConfigurationError("no URL")
        return row.sink == "lost"

    monkeypatch.setattr(publishing, "is_lost", is_lost)
    failures = Failures(str)
    assert [row.sink for row in lost(DATABASE, None, PIPELINE, 1, failures)] == ["lost"]
    with pytest.raises(ConfigurationError, match="no URL"):
        failures.raise_first()
    failures = Failures(str)
    assert lost(DATABASE, None, PIPELINE, 1, failures, ["there"]) == []
    failures.raise_first()


def test_a_sink_whose_rows_refer_to_those_of_a_later_one(pending, monkeypatch, caplog):
    """A sink that refuses rows is asked once more when others publish theirs: what they refer to
    may be there by then. One that cannot be reached, or has lost files, is not; what stays wrong
    is raised, and what is published is in the log all the same.
    """
    pending((1, "a_orders"), (2, "a_orders"), (1, "b_customers"), (1, "c_down"), (1, "d_lost"))
    shown, asked = [], []

    def show(connection, settings, pipeline, row):
        asked.append(row.sink)
        if row.sink == "a_orders" and (1, "b_customers") not in shown:
            raise StageError("violates foreign key constraint")
        if row.sink == "c_down":
            raise UnavailableError("down")
        if row.sink == "d_lost":
            raise LostFileError("gone")
        shown.append((row.batch_id, row.sink))
        return Published(row.batch_id, row.sink, 1)

    monkeypatch.setattr(publishing, "publish_one", show)
    with caplog.at_level("INFO", "ledger"), pytest.raises(UnavailableError):
        publish(DATABASE, None, PIPELINE, 1)
    assert shown == [(1, "b_customers"), (1, "a_orders"), (2, "a_orders")]
    told = [f"sink {sink!r}: batch {batch} is published, 1 rows" for batch, sink in shown]
    assert [record.getMessage() for record in caplog.records] == told
    assert [asked.count(name) for name in ("a_orders", "c_down", "d_lost")] == [3, 1, 1]


def test_urls_of_one_database(monkeypatch):
    """A database is the same by its address and by a variable that holds it, for whoever logs
    in.
    """
    monkeypatch.setenv("SHOP_URL", "postgresql+psycopg2://etl@db:5432/shop")
    one = database_of("env:SHOP_URL")
    assert one == database_of("postgresql://other:secret@db/shop")
    assert one != database_of("postgresql://etl@db/other")
    assert database_of("env:ANOTHER_URL") == "env:ANOTHER_URL"


def test_what_to_do_about_a_lost_file_is_said_once(tmp_path):
    """Gone or damaged: what stages it anew is the same, in both forms of a DAG; which command that
    is, is in a note of what published.
    """
    path = tmp_path / "a.parquet"
    file = DataFile(str(path), 5, 1, 0)
    delivery = Delivery("p.s", 1, 1, START, 1, str(tmp_path), (file,))
    with pytest.raises(LostFileError) as gone:
        require_staged(delivery)
    path.write_text("no rows")
    with pytest.raises(LostFileError) as damaged:
        list(record_batches([file], pa.schema([])))
    again = (
        "publish again, or in Airflow clear `withhold` (or `run`, if the"
        " DAG has one task a batch) and what is downstream: the rows are staged anew from the"
        " sink's input. Of one that is not settled run the sink again"
    )
    assert str(gone.value).endswith(f"Of a settled batch {again}")
    assert str(damaged.value).endswith(f"Of a settled batch delete the file and {again}")
