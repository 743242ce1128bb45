"""The log of a driver, as JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from ledger import Pipeline
from ledger.batch.opening import open_batch
from ledger.core.logs import KEYS
from ledger.core.run_request import Interval, RunKey
from ledger.settings import Settings
from tests.support import jvm
from tests.support.ledgers import END, START
from tests.support.places import ROOT

SHOP = """
import logging
from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("shop")
pipeline.source("orders", FileSource("in.csv", schema="n INT"))

@pipeline.stage(reads="orders")
def priced(orders):
    logging.getLogger("shop").info("pricing")
    if SHARE is None:
        raise ValueError("no price")
    return orders

pipeline.sink("out", ParquetSink("out"), reads="priced")
SHARE = 1
"""


@pytest.fixture
def drive(ledger, server_home, monkeypatch, tmp_path):
    """Runs a driver of the whole batch of a pipeline, as Airflow submits it; its lines of JSON, and
    the batch.
    """
    (tmp_path / "in.csv").write_text("n\n1\n2\n")

    def run(source):
        (tmp_path / "shop_logs.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "shop_logs", raising=False)
        from shop_logs import pipeline

        assert isinstance(pipeline, Pipeline)
        settings, interval = Settings(data=str(tmp_path)), Interval(START, END)
        batch = open_batch(ledger.database, settings, pipeline, RunKey("dag", "run"), interval)
        variables = {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "ACKLEDGER_HOME": str(server_home),
            "ACKLEDGER_DATA": str(tmp_path),
            "ACKLEDGER_STORAGE": str(tmp_path / "storage"),
            "ACKLEDGER_LOG_FORMAT": "json",
        }
        program = [Path(sys.executable).with_name("spark-submit"), "--master=local[1]"]
        program += ["--conf=spark.ui.enabled=false", "--conf=spark.sql.shuffle.partitions=1"]
        program += [ROOT / "ledger" / "run_step.py", "--pipeline", "shop_logs:pipeline"]
        program += ["--batch", str(batch.batch_id), "--attempt", str(uuid4())]
        done = subprocess.run(
            program,
            env={**os.environ, **jvm.environment(), **variables},
            cwd=tmp_path,
            stdout=subprocess.PIPE,  # to which spark-submit sends what Python has for stderr
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=240,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"timestamp"')]
        assert lines, done.stdout
        return [json.loads(line) for line in lines], batch

    return run


def about(line):
    """What a line is about."""
    return {key: line[key] for key in KEYS if key in line}


def test_every_line_of_a_driver_says_what_it_is_about(drive, ledger):
    """Each has the pipeline and the batch, each of a step has its name, and what is logged while a
    step runs, or of what it has done, has the number of its run, a stage's own lines as well.
    """
    lines, batch = drive(SHOP)
    ran = ledger.rows("SELECT step, step_run_id FROM step_run")
    number = {row.step: row.step_run_id for row in ran}
    whole = {"pipeline": "shop", "batch_id": batch.batch_id}
    assert all(whole.items() <= line.items() for line in lines)
    done = [line for line in lines if " rows, " in line["event"]]
    assert [about(line) for line in done] == [
        {**whole, "step": step, "step_run_id": number[step]} for step in ("orders", "priced", "out")
    ]
    assert [about(line)["step"] for line in lines if line["event"].endswith(" begins")] == [
        "orders",
        "priced",
        "out",
    ]
    (own,) = (line for line in lines if line["logger"] == "shop")
    assert own["event"] == "pricing"
    assert about(own) == {**whole, "step": "priced", "step_run_id": number["priced"]}
    assert lines[-1]["event"].startswith(f"batch {batch.batch_id} is settled")
    assert about(lines[-1]) == whole


def test_the_last_line_of_a_driver_that_fails_names_the_run(drive, ledger):
    """The error has pipeline, batch, step and the run that failed."""
    lines, batch = drive(SHOP.replace("SHARE = 1", "SHARE = None"))
    (failed,) = ledger.rows("SELECT step_run_id FROM step_run WHERE state = 'failed'")
    assert "no price" in lines[-1]["event"]
    assert (lines[-1]["level"], lines[-1]["logger"]) == ("error", "ackledger")
    assert about(lines[-1]) == {
        "pipeline": "shop",
        "batch_id": batch.batch_id,
        "step": "priced",
        "step_run_id": failed.step_run_id,
    }
