"""Crashes of Spark alone: the JVM of a driver that runs a whole batch ends, and its Python lives
on.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from ledger.batch.opening import open_batch
from ledger.core.run_request import Interval, RunKey
from ledger.pipeline.load import load_pipeline
from ledger.settings import Settings
from tests.support.places import ROOT

WAITING = """import time
from pathlib import Path

from ledger import FileSource, ParquetSink, Pipeline

FOLDER = Path(__file__).parent

pipeline = Pipeline("waiting")
pipeline.source("numbers", FileSource("in.csv", schema="n INT"))


@pipeline.stage(reads="numbers")
def same(numbers):
    return numbers


@pipeline.record_stage(reads="same", schema="n INT")
def slowly(record):
    (FOLDER / "begun").touch()
    while not (FOLDER / "go on").exists():
        time.sleep(0.1)
    yield record


pipeline.sink("out", ParquetSink("out"), reads="slowly")
"""
NOT_AGAIN = [f"batch 1: {step} is committed and does not run again" for step in ("numbers", "same")]
GONE_ON = ["slowly of batch 1 begins", "sink 'out': batch 1 is published, 2 rows"]
# One kill of these; ``make test-all`` has both.
OFTEN = frozenset(("killed",))


@pytest.fixture
def folder(migrated, database, tmp_path, monkeypatch):
    """A folder with the pipeline and its file; the settings of a driver."""
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "in.csv").write_text("n\n1\n2\n")
    variables = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "ACKLEDGER_DATA": str(tmp_path),
        "ACKLEDGER_HOME": str(tmp_path / "home"),
        "ACKLEDGER_DATABASE_URL": migrated.url.render_as_string(hide_password=False),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("waiting", None)


@contextmanager
def submitted(folder, batch_id, log):
    """A driver of the whole batch, as Airflow submits it; the process is its JVM, which does not
    outlive the block.
    """
    conf = (
        "spark.ui.enabled=false",
        "spark.log.level=WARN",
        f"spark.sql.warehouse.dir={folder / 'warehouse'}",
    )
    options = [f"--conf={text}" for text in (*conf, "spark.sql.shuffle.partitions=1")]
    program = [Path(sys.executable).with_name("spark-submit"), "--master=local[1]", *options]
    asked = ["--pipeline", "waiting:pipeline", "--batch", str(batch_id)]
    driver = [ROOT / "ledger" / "run_step.py", *asked, "--attempt", str(uuid4())]
    with (
        log.open("wb") as errors,
        subprocess.Popen([*program, *driver], cwd=folder, stdout=errors, stderr=errors) as jvm,
    ):
        try:
            yield jvm
        finally:
            jvm.kill()


def python_of(jvm, folder, log):
    """The Python of the driver, once it waits for a job of the third step."""
    until = time.monotonic() + 120
    while not (folder / "begun").exists():
        assert jvm.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < until
        time.sleep(0.1)
    process = psutil.Process(jvm.pid)
    assert process.name() == "java"
    (python,) = filter(_is_driver, process.children())
    return python


def _is_driver(process):
    with suppress(psutil.Error):  # it may have ended
        return "run_step.py" in " ".join(process.cmdline())
    return False


def committed(ledger):
    """The run of each committed step."""
    rows = ledger.rows("SELECT step, step_run_id FROM step_run WHERE state = 'committed'")
    return {row.step: row.step_run_id for row in rows}


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_a_driver_whose_jvm_ends(folder, ledger, by):
    """Its run is interrupted and not failed, so the retry goes on at that step; what is
    committed keeps its run.
    """
    interval = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    pipeline = load_pipeline("waiting:pipeline")
    batch = open_batch(ledger.database, Settings(), pipeline, RunKey("waiting", "run"), interval)
    log = folder / "log"
    with submitted(folder, batch.batch_id, log) as jvm:
        python = python_of(jvm, folder, log)
        jvm.send_signal(by)
        python.wait(60)
    before = committed(ledger)
    assert before.keys() == {"numbers", "same"}
    ended = ledger.row("SELECT state, failure FROM step_run WHERE step = 'slowly'")
    assert ended.state == "fenced"
    assert ended.failure.startswith("UnavailableError: Spark does not answer any more (")
    (folder / "go on").touch()
    with submitted(folder, batch.batch_id, log) as again:
        code = again.wait(120)
    text = log.read_text()
    assert code == 0, text[-4000:]
    for line in (*NOT_AGAIN, *GONE_ON):
        assert line in text
    after = committed(ledger)
    assert after.keys() == {"numbers", "same", "slowly", "out"}
    assert before.items() <= after.items()
