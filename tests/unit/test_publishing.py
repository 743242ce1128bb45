"""What publishing does around one sink that is broken: the ledger and the sinks are stand-ins."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest

from ledger.batch import publishing
from ledger.batch.publishing import Published, publication_errors, publish
from ledger.core.run_request import Interval
from ledger.errors import LostFileError, StageError, UnavailableError
from ledger.sinks.base import Delivery, require_staged
from ledger.sinks.staged_files import record_batches
from ledger.storage.manifest import DataFile

START = datetime(2013, 1, 1, tzinfo=UTC)
SINKS = [SimpleNamespace(name=name) for name in ("customers", "orders", "down")]


class Declared(SimpleNamespace):
    """A pipeline as it was declared."""

    __hash__ = object.__hash__

    @property
    def declared(self):
        return self


PIPELINE = Declared(
    sinks=lambda: SINKS, sources=list, followers=list, states=list, redact=(), module="jobs.none"
)
DATABASE = SimpleNamespace(transact=lambda work: work(None))
AT = SimpleNamespace(database=DATABASE, settings=None, pipeline=PIPELINE)


@pytest.fixture
def pending(monkeypatch):
    """Sets what is decided and not published: (batch, sink) each."""

    def put(*rows):
        publications_ = [
            SimpleNamespace(batch_id=batch, sink=sink, ready=True) for batch, sink in rows
        ]
        monkeypatch.setattr(publishing.publications, "pending", lambda *_: publications_)

    return put


def test_sinks_are_published_as_they_are_declared(pending, monkeypatch, caplog):
    """Batch by batch, and of each in the order of the sinks. One that fails is tried once, and its
    later batches wait; the other sinks do not. The failure is raised, and what is published is in
    the log all the same.
    """
    pending((1, "down"), (1, "orders"), (1, "customers"), (2, "customers"), (2, "down"))
    asked = []

    def show(connection, at, row):
        asked.append((row.batch_id, row.sink))
        if row.sink == "down":
            raise UnavailableError("no answer")
        return Published(row.batch_id, row.sink, 1)

    monkeypatch.setattr(publishing, "publish_one", show)
    with caplog.at_level("INFO", "ledger"), pytest.raises(UnavailableError):
        publish(AT, 1)
    published = [(1, "customers"), (1, "orders"), (2, "customers")]
    assert asked == [*published[:2], (1, "down"), published[2]]
    lines = [f"sink {sink!r}: batch {batch} is published, 1 rows" for batch, sink in published]
    assert [record.getMessage() for record in caplog.records] == lines


@pytest.fixture
def explained(monkeypatch):
    """What is said of an error of the publication of batch 2, a replay of batch 1, whose run was of
    a DAG of that name. ``included_in``: states that include batch 1."""

    def explain(error, dag="", pipeline=PIPELINE, included_in=()):
        interval = Interval(START, START + timedelta(days=1))
        batches = {1: SimpleNamespace(dag_id=dag, interval=interval)}
        monkeypatch.setattr(publishing.batches, "get_batch", lambda _, number: batches[number])
        monkeypatch.setattr(publishing.checkpoints, "committed_of", lambda *_: included_in)
        row = SimpleNamespace(batch_id=2, original_id=1, sink="orders")
        at = SimpleNamespace(database=DATABASE, pipeline=pipeline)
        with pytest.raises(type(error)) as caught, publication_errors(at, row):
            raise error
        return str(caught.value), getattr(caught.value, "__notes__", [])

    return explain


def test_an_error_says_which_publication_it_stops(explained):
    """And the command that goes on once its cause is fixed."""
    note = (
        "Sink 'orders' has not published batch 2. To go on: ackledger publish MODULE:PIPELINE"
        " --batch 2. In Airflow: clear the task that failed"
    )
    assert explained(UnavailableError("no answer")) == ("no answer", [note])
    hiding = Declared(**{**vars(PIPELINE), "redact": ("mail",)})
    text, notes = explained(StageError("no partner for ann@x"), pipeline=hiding)
    assert text.startswith(f"StageError ({__file__}:")
    assert ("ann" in text, notes) == (False, [note])


def test_a_lost_file_asks_for_the_interval(explained):
    """The error names the file and the commands that publish again and that reprocess the
    original's interval, in Airflow the DAG's run, too. It names none where the source is
    incremental, or a state includes the batch.
    """
    lost = LostFileError("file a. b: it is gone. Run the sink again")
    beginning = (
        "sink 'orders' cannot publish batch 2: file a. b: it is gone. Put the file back, then"
        " publish again. To go on: ackledger publish MODULE:PIPELINE --batch 2. In Airflow: clear"
        " the task that failed. "
    )
    command = (
        "Or reprocess the interval: ackledger run MODULE:PIPELINE --from 2013-01-01"
        " --to 2013-01-02 --reprocess"
    )
    assert explained(lost) == (beginning + command, [])
    text, _ = explained(lost, dag="shop")
    assert text.startswith(f"{beginning}{command}. In Airflow: airflow dags trigger shop --conf ")
    assert '"interval_start": "2013-01-01' in text
    reading_on = [SimpleNamespace(incremental=True)]
    incremental = Declared(**{**vars(PIPELINE), "sources": lambda: reading_on})
    text, _ = explained(lost, pipeline=incremental)
    assert text == (
        f"{beginning}Nothing else helps: an incremental source has no interval to reprocess"
    )
    text, _ = explained(lost, included_in=["sums"])
    assert text == (
        f"{beginning}Its interval cannot be reprocessed: the state 'sums' includes the batch"
    )


def test_what_to_do_about_a_lost_file_is_said_once(tmp_path):
    """Gone or damaged: the advice is the same."""
    path = tmp_path / "a.parquet"
    file = DataFile(str(path), 5, 1, 0)
    delivery = Delivery("p.s", 1, 1, START, 1, str(tmp_path), (file,), pipeline_since=START)
    with pytest.raises(LostFileError) as gone:
        require_staged(delivery)
    path.write_text("no rows")
    with pytest.raises(LostFileError) as damaged:
        list(record_batches([file], pa.schema([])))
    advice = ". If the batch is settled, reprocess its interval; if it is not, run the sink again"
    assert str(gone.value).endswith(f"it is gone{advice}")
    assert str(damaged.value).endswith(advice)
