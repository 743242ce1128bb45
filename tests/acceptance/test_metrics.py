"""What tasks send by Airflow's statistics, to a socket that listens for StatsD."""

import re
import socket

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from ledger.airflow import metrics
from ledger.airflow.metrics import METRICS
from ledger.errors import UnavailableError
from tests.support.airflow import dags_of
from tests.support.ledgers import pipeline
from tests.support.places import ROOT

DAGS = """
from airflow.sdk import DAG, task
from ledger.airflow import sweeper_dag
from ledger.airflow.settlement import Complete
from ledger.airflow.settlement import Settle

sweeper = sweeper_dag(schedule=None)
with DAG("ends", schedule=None, default_args={"retries": 0}) as ends:

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    open_batch() >> Settle(target="tests.acceptance.dated:pipeline") >> Complete(
        task_id="complete", target="tests.acceptance.dated:pipeline"
    )
"""


@pytest.fixture(scope="module")
def dags():
    """The DAGs above."""
    with dags_of(DAGS) as loaded:
        yield loaded


class StatsD:
    """A server that has heard what was sent to it."""

    def __init__(self, listening):
        self._listening = listening

    def heard(self, prefix="ackledger."):
        """The values sent by now, by name."""
        values = {}
        while True:
            try:
                packet = self._listening.recv(65536).decode()
            except BlockingIOError:
                return values
            for line in packet.splitlines():
                name, value, kind = re.fullmatch(r"airflow\.(.+):(.+)\|(\w+).*", line).groups()
                if name.startswith(prefix):
                    assert kind == "g", line
                    values[name.removeprefix(prefix)] = float(value)


@pytest.fixture
def statsd(monkeypatch):
    """Airflow's statistics go to a socket of this process, as its task runner turns them on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        data = {"statsd_on": "True", "statsd_host": "127.0.0.1", "statsd_prefix": "airflow"}
        data |= {"statsd_port": str(listening.getsockname()[1])}
        for name, value in data.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", value)
        stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
        yield StatsD(listening)
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)


def test_a_run_sends_what_its_batch_has_come_to(ledger, dags, statsd):
    """Records by state, rows by step, seconds: under the name that is tagged, and under one that
    has the pipeline in it, because plain StatsD drops tags.
    """
    batch, _ = ledger.whole_batch(pipeline(), 10, lose_sink=[0, 1])
    assert dags["ends"].test(run_conf={"batch": batch.batch_id}).state == "failed"
    heard = statsd.heard()
    roots = {"acked": 8, "failed": 2, "quarantined": 0, "pending": 0}
    assert {name: heard[f"roots.chain.{name}"] for name in roots} == roots
    assert heard["roots"] == 0  # of the state that was sent last
    assert heard["rows.chain.middle.input"] == 0  # this ledger is filled by hand
    assert 0 < heard["batch_seconds.chain"] < 600
    assert 0 < heard["settle_seconds.chain"] < 60
    assert heard["settle_seconds"] == heard["settle_seconds.chain"]


def test_a_settlement_that_was_made_before_is_not_timed(ledger, dags, statsd):
    """A task that is cleared has decided nothing."""
    batch, _ = ledger.whole_batch(pipeline(), 4)
    ledger.settle(batch.batch_id)
    dags["ends"].test(run_conf={"batch": batch.batch_id})
    assert "settle_seconds" not in statsd.heard()


def test_the_sweeper_sends_the_metrics_of_the_ledger(ledger, dags, statsd):
    """All the metrics that are declared for it, of each pipeline; with what a sweep has found
    overdue.
    """
    batch, _ = ledger.whole_batch(pipeline("shop_eu", max_replays=0), 10, lose_sink=[0])
    ledger.settle(batch.batch_id)
    ledger.open(pipeline("idle"))
    assert dags["ledger_sweeper"].test().state == "success"
    heard = statsd.heard()
    for metric in METRICS:
        if metric.sent_by == "sweep":
            assert {f"{metric.name}.shop_eu", f"{metric.name}.idle"} <= heard.keys()
    assert heard["quarantined_records.shop_eu"] == 1
    assert (heard["open_batches.idle"], heard["open_batches.shop_eu"]) == (1, 0)
    metrics.of_ledger(ledger.database, [batch.batch_id])
    heard = statsd.heard()
    assert (heard["overdue_batches.idle"], heard["overdue_batches.shop_eu"]) == (0, 1)


def test_a_name_with_the_pipeline_can_be_turned_off(ledger, dags, statsd, monkeypatch):
    """As Airflow's own are, where the backend has tags."""
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    ledger.open(pipeline())
    dags["ledger_sweeper"].test()
    heard = statsd.heard()
    assert heard["open_batches"] == 1
    assert not [name for name in heard if "chain" in name]


class Broken:
    """A backend that is out of order."""

    def gauge(self, *arguments, **options):
        raise OSError("no route to the host")

    def __getattr__(self, name):
        return lambda *arguments, **options: None


def test_statistics_that_cannot_be_sent_fail_no_task(ledger, dags, statsd, caplog):
    """It is logged which one was not."""
    ledger.open(pipeline())
    stats.initialize(factory=Broken, export_legacy_names=True)
    with caplog.at_level("WARNING", "ledger"):
        metrics.of_ledger(ledger.database, [])
    assert "metric ackledger.open_batches is not sent: no route to the host" in caplog.messages


class Away:
    """A ledger that does not answer."""

    reader = None

    def transact(self, work, engine=None):
        raise UnavailableError("no answer")


def test_a_ledger_that_is_away_fails_no_task(statsd, caplog):
    """It is logged that nothing is sent of it."""
    with caplog.at_level("WARNING", "ledger"):
        metrics.of_ledger(Away(), [])
        metrics.of_batch(Away(), 7)
    assert caplog.messages == ["no metrics are sent of the ledger: no answer"] * 2
    assert statsd.heard() == {}


def test_without_statistics_the_ledger_is_not_asked(database, monkeypatch):
    """A sweep costs nothing more where Airflow sends no statistics."""
    monkeypatch.setattr(type(database), "transact", None)
    metrics.of_ledger(database, [])
    metrics.of_batch(database, 7)


def test_the_documented_metrics_are_those_that_are_sent():
    """The table of the docs has name, tags, meaning and sender of each, in the same order."""
    page = (ROOT / "docs" / "alerting.md").read_text()
    rows = [
        f"| `{each.full_name}` | {', '.join(each.tags)} | {each.meaning} | `{each.sent_by}` |"
        for each in METRICS
    ]
    text = [line for line in page.splitlines() if line.startswith("| `ackledger.")]
    assert text == rows
