"""One batch on masters of other sizes than the session of all tests, which has two cores: of one
core, and of two executors that have only what is shipped to executors.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

from ledger.store import embedded
from ledger.store.connection import Database
from ledger.store.upgrade import upgrade
from tests.support import cores
from tests.support.places import ROOT
from tests.support.wheels import executor_environment

# And the most spans of a source there: each record has one, or four share one.
MASTERS = (
    ("local[1]", 1 << 16),
    ("local-cluster[2,1,1024]", cores.FILES * cores.RECORDS // 4),
)


@pytest.fixture(scope="module")
def lean(tmp_path_factory):
    """The Python of executors: no driver of a database, no SQLAlchemy, no Airflow."""
    python = executor_environment(tmp_path_factory.mktemp("lean"))
    for module in ("psycopg2", "sqlalchemy", "airflow", "pandas"):
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, env={})
        assert done.returncode, f"{module} is there"
    return python


@pytest.fixture
def results(server_home, tmp_path, lean):
    """What came of the batch on each master, with a ledger of its own; and Spark's logs."""
    places = []
    for number, (master, *kind) in enumerate(MASTERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        cores.write(folder)
        url = embedded.ensure_database(embedded.start(server_home), f"cores_{number}")
        database = Database(url)
        upgrade(database)
        database.dispose()
        places.append((master, url, str(folder), *kind))
    for name in ("events", "spark"):
        (tmp_path / name).mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():  # executors write below its home
        (tmp_path / "spark" / path.name).symlink_to(path)
    conf = {
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # they live for seconds
        "spark.speculation": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/ackledger-warehouse",
    }
    options = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": str(lean),
        "PYSPARK_SUBMIT_ARGS": f"--driver-memory 512m {options} pyspark-shell",
        "SPARK_HOME": str(tmp_path / "spark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.support.cores", json.dumps(places), "0"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines], tmp_path / "events"


def test_a_batch_does_not_depend_on_its_cores(results):
    """Positions, roots, verdicts and rows are those that they have to be on one core and on two
    executors that have no address of the ledger and no driver of its database, with spans and
    without: tasks cut and read the files, and fold. Speculation is on, but
    Spark tries no task a second time on the machine that it runs on: make cluster has two.
    """
    outcomes, events = results
    assert outcomes == [cores.expected()] * len(MASTERS)
    assert cores.tried_twice(events) == 0
