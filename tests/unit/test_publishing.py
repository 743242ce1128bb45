"""What publishing does around one sink that is broken: the ledger and the sinks are stand-ins."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

from ledger.batch import publishing
from ledger.batch.publishing import Published, lost, publish
from ledger.errors import ConfigurationError, Failures, LostFileError, UnavailableError
from ledger.sinks.base import Delivery, require_staged
from ledger.sinks.staged_files import record_batches
from ledger.storage.manifest import DataFile

START = datetime(2013, 1, 1, tzinfo=UTC)
SINKS = [SimpleNamespace(name=name) for name in ("customers", "orders", "down")]
PIPELINE = SimpleNamespace(sinks=lambda: SINKS, followers=list, redact=(), module="jobs.none")
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


def test_sinks_are_published_as_they_are_declared(pending, monkeypatch, caplog):
    """Batch by batch, and of each in the order of the sinks. One that fails is tried once, and its
    later batches wait; the other sinks do not. The failure is raised, and what is published is in
    the log all the same.
    """
    pending((1, "down"), (1, "orders"), (1, "customers"), (2, "customers"), (2, "down"))
    asked = []

    def show(connection, settings, pipeline, row):
        asked.append((row.batch_id, row.sink))
        if row.sink == "down":
            raise UnavailableError("no answer")
        return Published(row.batch_id, row.sink, 1)

    monkeypatch.setattr(publishing, "publish_one", show)
    with caplog.at_level("INFO", "ledger"), pytest.raises(UnavailableError):
        publish(DATABASE, None, PIPELINE, 1)
    published = [(1, "customers"), (1, "orders"), (2, "customers")]
    assert asked == [*published[:2], (1, "down"), published[2]]
    told = [f"sink {sink!r}: batch {batch} is published, 1 rows" for batch, sink in published]
    assert [record.getMessage() for record in caplog.records] == told


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
