"""One batch on masters of other sizes: of one core, of two, and of two executors that run slow
tasks twice and have only what is shipped to executors.
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
from tests.support import cores
from tests.support.places import ROOT
from tests.support.wheels import executor_environment

MASTERS = ALONE, PAIR, EXECUTORS = "local[1]", "local[2]", "local-cluster[2,1,1024]"
# A task is tried a second time as soon as another one has ended.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "0ms",
}


@pytest.fixture(scope="module")
def lean(tmp_path_factory):
    """The Python of executors: no driver of a database, no SQLAlchemy, no Airflow."""
    python = executor_environment(tmp_path_factory.mktemp("lean"))
    for module in ("psycopg2", "sqlalchemy", "airflow", "pandas"):
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, env={})
        assert done.returncode, f"{module} is there"
    return python


@pytest.fixture
def run(server_home, tmp_path, lean):
    """Runs the batch on a master, with a ledger of its own; what came of it, and of each task
    whether it ran beside another try of it.
    """

    def once(master):
        name = f"cores_{MASTERS.index(master)}"
        folder = tmp_path / name
        (folder / "events").mkdir(parents=True)
        (folder / "spark").mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():  # executors write below its home
            (folder / "spark" / path.name).symlink_to(path)
        cores.write(folder)
        url = embedded.ensure_database(embedded.start(server_home), name)
        conf = {
            **(SPECULATION if master == EXECUTORS else {}),
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/ackledger-warehouse",
        }
        options = " ".join(f"--conf {key}={value}" for key, value in conf.items())
        environment = {
            **os.environ,
            "ACKLEDGER_DATABASE_URL": url,
            "ACKLEDGER_STORAGE": str(folder / "storage"),
            "ACKLEDGER_DATA": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(lean if master == EXECUTORS else sys.executable),
            "PYSPARK_SUBMIT_ARGS": f"--driver-memory 512m {options} pyspark-shell",
            "SPARK_HOME": str(folder / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        upgraded = ["ackledger", "db", "upgrade"]
        subprocess.run(upgraded, env=environment, check=True, capture_output=True)
        command = [sys.executable, "-m", "tests.support.cores", master]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1]), twins(folder / "events")

    return once


def twins(folder):
    """How many tasks were started beside another try of the same one. Nothing that Spark knows, and
    tells executors, is an address of the ledger.
    """
    (log,) = folder.iterdir()
    assert "postgresql" not in log.read_text()
    events = map(json.loads, log.read_text().splitlines())
    starts = [event["Task Info"] for event in events if event["Event"] == "SparkListenerTaskStart"]
    assert starts
    return sum(start["Speculative"] for start in starts)


def test_a_batch_does_not_depend_on_its_cores(run):
    """Positions, roots, verdicts and rows are the same on one core, on two, and on two executors
    of which speculation runs tasks twice; these have no address of the ledger and no driver of its
    database.
    """
    count = cores.FILES * cores.RECORDS
    alone, none = run(ALONE)
    assert none == 0
    assert [n for _, n in alone["positions"]] == list(range(count))
    verdicts = {n: tuple(alone["roots"][n][1:]) for n in range(count)}
    assert verdicts[97] == ("failed", "twice", "ValueError: a multiple of 97")
    assert verdicts[102] == ("failed", "sifted", "lost")
    assert verdicts[5] == ("acked", None, None)
    shown = [n for n in range(count) if verdicts[n][0] == "acked"]
    assert alone["sink"] == [[n, copy] for n in shown for copy in (1, 2)]
    assert run(PAIR) == (alone, 0)
    there, speculative = run(EXECUTORS)
    assert there == alone
    assert speculative > 0
