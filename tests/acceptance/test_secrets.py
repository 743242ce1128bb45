"""A password is nowhere but where it was given: searched after runs, some of which failed."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from ledger.store import embedded
from tests.acceptance.confided import MARK
from tests.support.airflow import dags_of
from tests.support.everything import holding
from tests.support.places import ROOT

SECRET = "pass-phrase-7c1f-of-the-ledger"
OTHER = "pass-phrase-d92b-of-the-shop"
DAGS = """
from ledger.airflow import SparkSubmit, pipeline_dag
from tests.acceptance.vault import broken, nowhere, pipeline

CONF = {{
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "{events}", "spark.eventLog.compress": "false",
}}
OPTIONS = {{"schedule": None, "submit": "batch", "spark": SparkSubmit(conf=CONF), "retries": 0}}
vault = pipeline_dag(pipeline, target="tests.acceptance.vault:pipeline", **OPTIONS)
raising = pipeline_dag(broken, target="tests.acceptance.vault:broken", **OPTIONS)
unknown = pipeline_dag(nowhere, target="tests.acceptance.vault:nowhere", **OPTIONS)
"""
JANUARY = {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}


@pytest.fixture
def shop(database, server_home, monkeypatch, tmp_path):
    """Tables to read and write; the ledger's address and theirs have a password each, for which
    the embedded server does not ask. A folder for what is seen of Spark."""
    url = sa.make_url(embedded.ensure_database(embedded.start(server_home), "shop"))
    with sa.create_engine(url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS numbers, evens, ackledger_commit")
        connection.exec_driver_sql(
            "CREATE TABLE numbers AS SELECT generate_series(1, 8)::bigint AS n"
        )

    def with_password(url, password):
        return url.set(password=password).render_as_string(hide_password=False)

    for name in ("seen", "events"):
        (tmp_path / name).mkdir()
    for name, value in {
        "ACKLEDGER_DATABASE_URL": with_password(database.url, SECRET),
        "ACKLEDGER_STORAGE": str(tmp_path / "storage"),
        "ACKLEDGER_DATA": str(tmp_path),
        "ACKLEDGER_VERBOSE": "1",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
        "VAULT_SOURCE": with_password(url, OTHER),
        "VAULT_SINK": with_password(url, OTHER),
        "VAULT_NOWHERE": with_password(url.set(database="nowhere"), OTHER),
        "VAULT_SEEN": str(tmp_path / "seen"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def leaks(*folders):
    """Files that hold one of the passwords."""
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert files
    needles = [secret.encode() for secret in (SECRET, OTHER)]
    return [path for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_no_password_is_left_anywhere(ledger, shop, capfd):
    """After a run by spark-submit, one whose stage raises, one that has no sink and one that has no
    ledger, all with tracebacks, no password is in the log of a task, in Airflow's database (its
    rendered templates, XComs, notes), in an argument of a process, in Spark's UI or event log, in
    the ledger, or in a file of storage and sinks."""
    with dags_of(DAGS.format(events=shop / "events")) as dags:
        run = dags["vault"].test(run_conf=JANUARY)
        assert run.get_task_instance("run").state == "success"
        failed = dags["broken"].test(run_conf=JANUARY)
        assert failed.get_task_instance("run").state == "failed"
        refused = dags["nowhere"].test(run_conf=JANUARY)
        assert refused.get_task_instance("open").state == "failed"
        with pytest.MonkeyPatch.context() as patch:
            nowhere = ledger.database.url.set(database="nowhere", password=SECRET)
            patch.setenv("ACKLEDGER_DATABASE_URL", nowhere.render_as_string(hide_password=False))
            lost = dags["vault"].test(
                run_conf={"interval_start": "2026-01-02", "interval_end": "2026-01-03"},
                mark_success_pattern="^(?!open$).*",
            )
            assert lost.get_task_instance("open").state == "failed"
    log = "".join(capfd.readouterr())
    for there in ("vault:pipeline", "the vault is closed"):
        assert there in log
    assert log.count('"nowhere" does not exist') >= 2
    assert "Traceback" in log
    assert SECRET not in log
    assert OTHER not in log
    environment = json.loads((shop / "seen" / "environment.json").read_text())
    assert environment["sparkProperties"]
    assert "deploy.SparkSubmit" in (shop / "seen" / "processes.json").read_text()
    assert list((shop / "events").rglob("events_*"))
    assert ledger.row("SELECT failure FROM step_run WHERE state = 'failed'").failure
    assert leaks(shop, os.environ["AIRFLOW_HOME"]) == []
    assert holding(ledger.database, SECRET) == {}
    assert holding(ledger.database, OTHER) == {}


RAISING = """
from ledger import FileSource, ParquetSink, Pipeline

made = Pipeline("people", redact=["name"])
made.source("people", FileSource("people.csv", schema="id INT, name STRING"))


@made.stage(reads="people")
def greeted(people):
    from pyspark.sql import functions as F

    @F.udf("string")
    def greet(name):
        raise ValueError(f"no greeting for {name}")

    return people.withColumn("greeting", greet("name"))


made.sink("out", ParquetSink("out"), reads="greeted")
"""


CONFIDED = """
from ledger.airflow import pipeline_dag
from tests.acceptance.confided import asked, greeting

OPTIONS = {"schedule": None, "submit": "batch", "retries": 0}
asked = pipeline_dag(asked, target="tests.acceptance.confided:asked", **OPTIONS)
greeting = pipeline_dag(greeting, target="tests.acceptance.confided:greeting", **OPTIONS)
"""


def test_a_task_of_airflow_shows_no_redacted_value(ledger, shop, capfd):
    """A source that raises in Airflow's own process, and a stage that raises in the driver, leave
    no value in the tasks' logs, with tracebacks, in Airflow's database, or in the ledger."""
    with dags_of(CONFIDED) as dags:
        opened = dags["asked"].test(run_conf=JANUARY)
        assert opened.get_task_instance("open").state == "failed"
        run = dags["greeting"].test(run_conf=JANUARY)
        assert run.get_task_instance("run").state == "failed"
    log = "".join(capfd.readouterr())
    assert "Traceback" in log
    assert "ValueError" in log
    assert MARK not in log
    airflow = [path for path in Path(os.environ["AIRFLOW_HOME"]).rglob("*") if path.is_file()]
    assert [path for path in airflow if MARK.encode() in path.read_bytes()] == []
    assert holding(ledger.database, MARK) == {}


def test_a_command_prints_no_redacted_value(shop):
    """A run whose stage raises in an executor, with the traceback and with what Spark would log:
    the log has the class and the place of the exception, and not its words."""
    (shop / "raising.py").write_text(RAISING)
    (shop / "people.csv").write_text("id,name\n1,Zaphod\n")
    done = subprocess.run(
        ["ackledger", "--verbose", "run", "raising:made", "--from", "2026-01-01",
         "--to", "2026-01-02"],
        env={**os.environ, "PYTHONPATH": f"{shop}:{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert "Traceback" in text
    assert "ValueError" in text
    assert "raising.py" in text
    assert "Zaphod" not in text
