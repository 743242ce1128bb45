"""Two ledgers in one Airflow: one of the environment, the other of the connection ``sales``."""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import make_url, select

from ledger.airflow import LedgerCompleteSensor, hooks
from ledger.airflow.hooks import LedgerHook
from ledger.airflow.maintenance import REPLAY_WANTED, replay_wanted
from ledger.airflow.pages import application
from ledger.airflow.sensors import IntervalComplete
from ledger.batch.upkeep import sweeper
from ledger.errors import ConfigurationError
from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.support.airflow import dags_of
from tests.support.ledgers import Ledger, pipeline
from tests.support.users import user

SECRET = "pass-phrase-51b0-of-sales"
NEXT = datetime(2013, 1, 2, tzinfo=UTC)  # a run by hand has the interval before its date
DAGS = """
from airflow.sdk import DAG, CronDataIntervalTimetable
from ledger.airflow import (
    LedgerCompleteSensor, LedgerGate, WhenFailedRatio, accept_dag, pipeline_dag, replay_dag,
    sweeper_dag,
)
from tests.acceptance.copied import pipeline

def note(context):
    with open("{seen}", "w") as file:
        file.write(context["ledger"]["url"])

copied = pipeline_dag(
    pipeline, schedule=None, submit="batch", conn_id="sales", retries=0,
    on_failure_callback=WhenFailedRatio(above=0, notify=note),
)
daily = CronDataIntervalTimetable("@daily", timezone="UTC")
for conn_id in (None, "sales"):
    with DAG(f"waits_{{conn_id}}", schedule=daily, default_args={{"retries": 0}}) as waits:
        options = {{"pipeline": "chain", "conn_id": conn_id}}
        # A test of a DAG waits for a trigger without a timeout.
        looks = {{"poke_interval": 0.1, "timeout": 1, "deferrable": conn_id is not None}}
        wait = LedgerCompleteSensor(task_id="wait", **looks, **options)
        wait >> LedgerGate(task_id="gate", max_lost_ratio=0.3, **options)
    globals()[waits.dag_id] = waits
    for made in (sweeper_dag(schedule=None, conn_id=conn_id), replay_dag(conn_id=conn_id),
                 accept_dag(conn_id=conn_id)):
        globals()[made.dag_id] = made
"""


@pytest.fixture(scope="module")
def sales_url(server_home):
    """The address of a second ledger in the server of the first."""
    url = embedded.ensure_database(embedded.start(server_home), "sales")
    database = Database(url)
    upgrade(database)
    database.dispose()
    return make_url(url)


@pytest.fixture
def sales(sales_url, ledger, environment, monkeypatch, tmp_path):
    """The second ledger, empty, and the connection that names it beside the first."""
    connection = {
        "conn_type": "ackledger",
        "host": sales_url.host or sales_url.query["host"],
        "port": sales_url.port,
        "schema": sales_url.database,
        "login": sales_url.username,
        "password": SECRET,
        "extra": {"storage": str(tmp_path / "sales")},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    other = Ledger(Database(sales_url.render_as_string(hide_password=False)))
    other.empty()
    yield other
    other.database.dispose()


@pytest.fixture
def dags(sales, tmp_path):
    """The DAGs above."""
    with dags_of(DAGS.format(seen=tmp_path / "seen.txt")) as loaded:
        yield loaded


def settled(ledger, lost=(), **options):
    """A decided, published batch of four records of the first of January."""
    batch, _ = ledger.whole_batch(pipeline(max_replays=0, **options), 4, lose_sink=lost)
    ledger.settle(batch.batch_id)
    ledger.deliver()
    return batch


def holding_the_password(folder):
    """Files below a folder that have the connection's password."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return [path for path in files if SECRET.encode() in path.read_bytes()]


def events():
    """The asset of each event that Airflow has, by the event's number."""
    with create_session() as session:
        return {event.id: event.asset.uri for event in session.scalars(select(AssetEvent))}


def test_the_button_asks_the_ledger(sales, monkeypatch):
    """It says which revision the ledger has, or what is wrong with it."""
    ok, answer = LedgerHook("sales").test_connection()
    assert ok, answer
    assert "/sales" in answer
    database = LedgerHook("sales").get_conn()
    assert database.url.database == "sales"
    database.dispose()
    connection = json.loads(os.environ["AIRFLOW_CONN_SALES"])
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps({**connection, "schema": "postgres"}))
    ok, answer = LedgerHook("sales").test_connection()
    assert not ok
    assert "run 'ackledger db upgrade'" in answer
    assert SECRET not in answer


def test_a_run_works_in_the_ledger_of_its_connection(ledger, sales, dags, tmp_path, capfd):
    """Its tasks and its driver: the other ledger has no batch, its storage no file, and the
    password is in no log, file or row. What Airflow tells links to that ledger.
    """
    (tmp_path / "numbers.csv").write_text("n\n1\n2\nx\n")
    run = dags["copied"].test(
        run_conf={"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    )
    states = {task.task_id: task.state for task in run.get_task_instances()}
    assert states == {"open": "success", "run": "success", "complete": "failed"}
    assert sales.row("SELECT total, acked, failed FROM batch_status") == (3, 2, 1)
    assert ledger.rows("SELECT * FROM batch") == []
    assert list((tmp_path / "sales").iterdir())
    assert not (tmp_path / "storage").exists()
    report = run.get_task_instance("complete").xcom_pull(task_ids="complete", key="report")
    assert "commands need ACKLEDGER_DATABASE_URL of connection sales" in report
    assert (tmp_path / "seen.txt").read_text().endswith("?batch=1&conn_id=sales")
    assert SECRET not in "".join(capfd.readouterr())
    assert holding_the_password(tmp_path) == []
    assert holding_the_password(os.environ["AIRFLOW_HOME"]) == []


def test_a_run_for_another_ledger_is_refused(ledger, sales, dags):
    """Its conf names the ledger of a batch, which both ledgers have under the same number."""
    for each in (ledger, sales):
        settled(each, name="copied")
    opens = {"mark_success_pattern": "^(?!open$).*"}
    for conn_id, state in ((None, "failed"), ("sales", "success")):
        run = dags["copied"].test(run_conf={"batch": 1, "conn_id": conn_id}, **opens)
        assert run.get_task_instance("open").state == state


def test_an_overdue_batch_gets_a_run_for_its_ledger(ledger, sales, dags, monkeypatch):
    """The other ledger may have another batch of the same number."""
    overdue = SimpleNamespace(batch_id=1, dag_id="chain")
    swept = SimpleNamespace(settlements=[], overdue=[overdue], replays=[], errors={})
    monkeypatch.setattr(sweeper, "sweep_once", lambda database: swept)
    for name, conn_id in (("ledger_sweeper.sales", "sales"), ("ledger_sweeper", None)):
        (run,) = dags[name].get_task("sweep").python_callable(conn_id)["overdue"]
        assert run["conf"] == {"batch": 1, "conn_id": conn_id}


def test_what_waits_asks_the_ledger_of_its_connection(ledger, sales, dags):
    """An interval that is complete in one ledger is not so in the other."""
    settled(sales)
    assert dags["waits_sales"].test(logical_date=NEXT).state == "success"
    assert dags["waits_None"].test(logical_date=NEXT).state == "failed"


def test_each_ledger_has_a_sweeper_and_forms(ledger, sales, dags):
    """A sweep asks for replays of its own ledger, and a form accepts a batch of its own: both
    ledgers have a batch 1.
    """
    assert REPLAY_WANTED.uri != replay_wanted("sales").uri
    for each in (ledger, sales):
        batch, _ = each.whole_batch(pipeline(auto_replay=True, max_replays=1), 4, lose_sink=[0])
        assert batch.batch_id == 1
        each.settle(1)
        each.deliver()
    earlier = set(events())  # of other tests, with which this one shares Airflow's database
    done = dags["ledger_sweeper.sales"].test()
    assert done.get_task_instance("ask_for_replay").state == "success"
    uris = [uri for number, uri in events().items() if number not in earlier]
    assert replay_wanted("sales").uri in uris
    assert REPLAY_WANTED.uri not in uris
    find = dags["ledger_replay.sales"].get_task("find")
    params = {name: param.value for name, param in find.dag.params.items()}
    by_hand = SimpleNamespace(run_id="by hand")
    (wanted,) = find.python_callable("sales", params=params, dag_run=by_hand)
    assert wanted["conf"] == {"replay_of": 1, "conn_id": "sales"}
    for each in (ledger, sales):
        each.empty()
        settled(each, lost=[0])
    conf = {"batch": 1, "reason": "known"}
    assert dags["ledger_accept.sales"].test(run_conf=conf).state == "success"
    assert len(sales.rows("SELECT * FROM accepted_record")) == 1
    assert ledger.rows("SELECT * FROM accepted_record") == []


def test_a_connection_that_comes_late_is_asked_for_again(sales, monkeypatch, capfd):
    """By a sensor wherever it waits, because Airflow also knows none while its server is away;
    one that describes no ledger fails it.
    """
    settled(sales)
    interval = {"interval_start": "2013-01-01", "interval_end": "2013-01-02"}
    options = {"pipeline": "chain", "deferrable": False, "conn_id": "sales"}
    sensor = LedgerCompleteSensor(task_id="wait", **options, **interval)
    trigger = IntervalComplete("chain", *interval.values(), 0, "sales")
    connection, overrides = os.environ["AIRFLOW_CONN_SALES"], hooks.overrides_of
    raised = []

    def late(connection):
        if raised:
            raise raised.pop()
        return overrides(connection)

    async def deferred():
        return [event.payload async for event in trigger.run()]

    monkeypatch.setattr(hooks, "overrides_of", late)
    unknown = hooks.AirflowNotFoundException("not there")
    raised.append(unknown)
    assert (sensor.poke({}), sensor.poke({})) == (False, True)
    raised.extend([unknown, unknown])
    capfd.readouterr()
    assert asyncio.run(deferred()) == [{"complete": True}]
    assert capfd.readouterr().out.count("Airflow knows no connection 'sales'") == 1
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps({**json.loads(connection), "schema": ""}))
    for wait in (lambda: sensor.poke({}), lambda: asyncio.run(deferred())):
        with pytest.raises(ConfigurationError, match="has no database"):
            wait()


@pytest.fixture
def ask(sales, ledger, monkeypatch):
    """Asks the pages, which show the second ledger before a third that does not answer."""
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.utils.db import initdb

    away = {"conn_type": "ackledger", "host": "127.0.0.1", "port": 1, "schema": "none"}
    for name, value in {
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.support.users.PerDag",
        "AIRFLOW__API_AUTH__JWT_SECRET": "secret" * 12,
        "AIRFLOW__ACKLEDGER__CONN_IDS": "sales, first, away, nowhere",
        "AIRFLOW_CONN_FIRST": first(ledger),
        "AIRFLOW_CONN_AWAY": json.dumps(away),
    }.items():
        monkeypatch.setenv(name, value)
    initdb()
    server = TestClient(create_app("core"), raise_server_exceptions=False)
    application.connected.cache_clear()

    def asked(path):
        token = get_auth_manager().generate_jwt(user("somebody", "admin"))
        return server.get(f"/ledger/api/{path}", headers={"Authorization": f"Bearer {token}"})

    yield asked
    for conn_id in ("sales", "first"):
        application.connected(conn_id).dispose()
    application.connected.cache_clear()


def first(ledger):
    """The first ledger as a connection."""
    url = ledger.database.url
    host = url.host or url.query["host"]
    fields = {"host": host, "port": url.port, "schema": url.database, "login": url.username}
    return json.dumps({"conn_type": "ackledger", **fields})


def test_the_pages_show_the_ledger_that_is_asked_for(ask, ledger, sales):
    """By the connection's name, or else the first; a pipeline and a run without it, as Airflow's
    own pages name them, that which knows them. No other connection can be asked for.
    """
    settled(sales, lost=[0], name="chain")
    settled(ledger, name="hidden")
    settled(ledger, name="chain_of_first")
    overview = ask("overview").json()
    assert (overview["conn_id"], overview["conn_ids"]) == (
        "sales",
        ["sales", "first", "away", "nowhere"],
    )
    assert [each["name"] for each in overview["pipelines"]] == ["chain"]
    page = ask("batch?number=1").json()
    assert page["forms"]["accept"] == "ledger_accept.sales"
    advised = " ".join(command or "" for _, command in page["commands"])
    assert "airflow dags trigger ledger_accept.sales " in advised
    assert ask("batch?number=1&conn_id=first").json()["forms"]["release"] == "ledger_replay.first"
    assert ask("replay?batch=1&quarantined=true").json()["conf"]["conn_id"] == "sales"
    assert ask("replay?batch=1&conn_id=first").json()["conf"]["conn_id"] == "first"
    assert ask("pipeline?name=chain").json()["conn_id"] == "sales"
    assert ask("pipeline?name=chain_of_first").json()["conn_id"] == "first"
    assert ask("run?dag_id=chain_of_first&run_id=run").json()["conn_id"] == "first"
    record = sales.row("SELECT message_id FROM failed_message")[0]
    following = ask(f"record?number={record}").json()["next"]
    assert any("ledger_accept.sales" in line for line in following)
    refused = ask("overview?conn_id=spark_default")
    assert refused.status_code == 404
    assert "add it to conn_ids in section [ackledger]" in refused.json()["detail"]
    lost = ask("overview?conn_id=away")
    assert (lost.status_code, "did not answer" in lost.json()["detail"]) == (503, True)
    unknown = ask("overview?conn_id=nowhere")
    assert "knows no connection 'nowhere'" in unknown.json()["detail"]


def test_the_page_of_a_run_shows_no_batch_of_another_ledger(ask, ledger, sales):
    """The id of a form names its ledger. Where that is not shown, or no ledger knows the DAG, the
    run's conf names no batch of the page's ledger. If two ledgers know a pipeline of the same name,
    the run's own comes first.
    """
    settled(sales)
    settled(ledger)
    for each, run_id in ((sales, "of sales"), (ledger, "of first")):
        each.open(pipeline("both"), run_id, 1, dag="both")

    def asked(dag_id, run_id="run"):
        data = ask(f"run?dag_id={dag_id}&run_id={run_id}").json()
        return data["conn_id"], data["knows_dag"], [each["pipeline"] for each in data["batches"]]

    for form in ("ledger_accept", "ledger_replay", "ledger_sweeper"):
        assert asked(f"{form}.first") == ("first", True, [])
        assert asked(f"{form}.sales") == ("sales", True, [])
        assert asked(f"{form}.stock") == asked(form) == ("sales", False, [])
    assert asked("chain") == ("sales", True, [])
    assert asked("another") == ("sales", False, [])
    assert asked("both", "of first") == ("first", True, ["both"])
    assert asked("both", "of sales") == ("sales", True, ["both"])
    assert asked("both", "elsewhere") == ("sales", True, [])
