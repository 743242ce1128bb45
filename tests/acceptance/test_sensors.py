"""DAGs of others that wait for a pipeline's interval, as Airflow runs them."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from airflow.models.asset import AssetDagRunQueue, AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import delete, select

from ledger.airflow import LedgerCompleteSensor, LedgerGate, interval_complete, sensors
from ledger.airflow.sensors import COMPLETED, IntervalComplete, announce
from ledger.errors import ConfigurationError, InputError, UnavailableError
from tests.support.airflow import dags_of
from tests.support.ledgers import pipeline

DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable, task
from ledger.airflow import LedgerCompleteSensor, LedgerGate, interval_complete
from ledger.airflow.settlement import Complete

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("waits", schedule=daily, default_args={"retries": 0}) as waits:
    wait = LedgerCompleteSensor(
        task_id="wait", pipeline="chain", poke_interval=0.1, timeout=20
    )

    @task
    def report():
        return "read"

    wait >> report()
again = {"retries": 1, "retry_delay": timedelta(0)}
with DAG("gated", schedule=daily, default_args=again) as gated:
    LedgerGate(task_id="gate", pipeline="chain", max_lost_ratio=0.3)
with DAG("ends", schedule=None) as ends:

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    open_batch() >> Complete(task_id="complete", target="jobs.p:made", retries=0)
with DAG("starts", schedule=interval_complete("chain"), is_paused_upon_creation=False):

    @task
    def read():
        return None

    read()
"""
NEXT = datetime(2013, 1, 2, tzinfo=UTC)  # a run by hand has the interval before its date


@pytest.fixture(scope="module")
def dags():
    """The DAGs above."""
    with dags_of(DAGS) as loaded:
        yield loaded


def settled(ledger, **lost):
    """The decided, published batch of the first of January."""
    batch, _ = ledger.whole_batch(pipeline(max_replays=0), 4, **lost)
    ledger.settle(batch.batch_id)
    ledger.deliver()
    return batch


def test_a_dag_waits_in_the_triggerer_until_the_interval_is_complete(ledger, dags, monkeypatch):
    """The sensor defers while the batch is not published, and goes on by itself once it is."""
    batch, _ = ledger.whole_batch(pipeline(), 4)
    ledger.settle(batch.batch_id)
    run, looks = IntervalComplete.run, []

    async def published_meanwhile(self):
        looks.append(self.serialize()[1]["interval_start"])
        ledger.deliver()
        async for event in run(self):
            yield event

    monkeypatch.setattr(IntervalComplete, "run", published_meanwhile)
    done = dags["waits"].test(logical_date=NEXT)
    assert done.state == "success"
    assert looks == ["2013-01-01T00:00:00+00:00"]


def test_a_complete_interval_is_not_waited_for(ledger, dags, monkeypatch):
    """Nothing is deferred."""
    settled(ledger)
    monkeypatch.delattr(IntervalComplete, "run")
    assert dags["waits"].test(logical_date=NEXT).state == "success"


def test_a_sensor_that_does_not_defer_looks_again_itself(ledger):
    """As any sensor, and says what it waits for."""
    batch = settled(ledger, lose_sink=[0])
    sensor = LedgerCompleteSensor(
        task_id="wait",
        pipeline="chain",
        interval_start="2013-01-01",
        interval_end="2013-01-02",
        deferrable=False,
    )
    assert not sensor.poke({})
    ledger.accept(batch.batch_id, by="somebody", reason="known")
    assert sensor.poke({})
    sensor.interval_end = ""
    with pytest.raises(InputError, match="no data interval: give interval_start"):
        sensor.poke({})


@pytest.mark.parametrize(("lost", "state"), [([0], "success"), ([0, 1], "failed")])
def test_a_gate_lets_pass_what_has_lost_little(ledger, dags, capfd, lost, state):
    """One of four is under 30 %, two are above: the task fails in one line, without a retry."""
    settled(ledger, lose_sink=lost)
    run = dags["gated"].test(logical_date=NEXT)
    assert (run.state, run.get_task_instance("gate").try_number) == (state, 1)
    message = "2 of 4 records of chain are failed or quarantined (50.00%)" in capfd.readouterr().out
    assert message == (state == "failed")


def test_a_gate_does_not_pass_what_is_not_decided(ledger, dags, capfd):
    """Nothing is known of it yet."""
    batch, _ = ledger.whole_batch(pipeline(), 4)
    assert dags["gated"].test(logical_date=NEXT).state == "failed"
    assert f"batch {batch.batch_id} is open" in capfd.readouterr().out
    with pytest.raises(InputError, match="expected 0 to 1"):
        LedgerGate(task_id="gate", pipeline="chain", max_lost_ratio=5)


def test_the_last_acceptance_completes_an_interval(ledger):
    """So the form announces it, too."""
    messages = []
    outlet = SimpleNamespace(add=lambda asset, extra: messages.append((asset.uri, extra["batch"])))
    batch = settled(ledger, lose_sink=[0])
    announce(batch.batch_id, {COMPLETED: outlet})
    assert messages == []
    ledger.accept(batch.batch_id, by="somebody", reason="it may stay out")
    announce(batch.batch_id, {COMPLETED: outlet})
    assert messages == [(interval_complete("chain").uri, batch.batch_id)]


def test_a_ledger_that_is_away_is_asked_again(ledger, dags, monkeypatch, capfd):
    """By a sensor wherever it waits, which says what it waits for; nothing that stays wrong is."""
    settled(ledger)
    raised, asks = [], sensors.connected_by

    def connected(settings):
        if raised:
            raise raised.pop()
        return asks(settings)

    async def deferred():
        return [event.payload async for event in trigger.run()]

    monkeypatch.setattr(sensors, "connected_by", connected)
    interval = {"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    sensor = LedgerCompleteSensor(task_id="wait", pipeline="chain", deferrable=False, **interval)
    trigger = IntervalComplete("chain", *interval.values(), 0)
    raised.append(UnavailableError("no answer"))
    assert (sensor.poke({}), sensor.poke({})) == (False, True)
    raised.extend(UnavailableError("no answer") for _ in range(2))
    capfd.readouterr()
    assert asyncio.run(deferred()) == [{"complete": True}]
    assert capfd.readouterr().out.count("pipeline chain: no answer") == 1
    for wait in (lambda: sensor.poke({}), lambda: asyncio.run(deferred())):
        raised.append(ConfigurationError("no such database"))
        with pytest.raises(ConfigurationError):
            wait()


def test_a_run_without_an_interval_learns_what_to_give(ledger):
    """As of a schedule without intervals: "@daily" in Airflow 3."""
    same = "2013-01-01T00:00:00+00:00"
    gate = LedgerGate(
        task_id="gate", pipeline="p", max_lost_ratio=0, interval_start=same, interval_end=same
    )
    with pytest.raises(InputError, match="CronDataIntervalTimetable"):
        gate.execute({})


def test_a_complete_interval_is_an_event_of_the_pipelines_asset(ledger, dags):
    """With its batch and interval, and a DAG that has the asset as schedule is started; an
    incomplete one is none.
    """

    def events():
        with create_session() as session:
            uri = interval_complete("chain").uri
            results = [event for event in session.query(AssetEvent) if event.asset.uri == uri]
            return [event.extra for event in results]

    def queued():
        with create_session() as session:
            return list(session.scalars(select(AssetDagRunQueue.target_dag_id)))

    with create_session() as session:  # what other tests wrote to Airflow's database
        session.execute(delete(AssetEvent))
        session.execute(delete(AssetDagRunQueue))
    batch = settled(ledger, lose_sink=[0])
    assert dags["ends"].test(run_conf={"batch": batch.batch_id}).state == "failed"
    assert (events(), queued()) == ([], [])
    ledger.empty()
    batch = settled(ledger)
    assert dags["ends"].test(run_conf={"batch": batch.batch_id}).state == "success"
    (extra,) = events()
    assert queued() == ["starts"]
    assert {name: extra[name] for name in ("batch", "interval_start", "interval_end")} == {
        "batch": batch.batch_id,
        "interval_start": "2013-01-01T00:00:00+00:00",
        "interval_end": "2013-01-02T00:00:00+00:00",
    }
