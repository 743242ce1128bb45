"""The first hour of a new user: an installed wheel, a project of one's own, a lost record
brought home.
"""

import json
import re
import shlex
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from sqlalchemy import create_engine, text

from ledger.store import embedded
from tests.support.audited_shop import COMMAND, SCRIPT, write_shop
from tests.support.newcomer import Newcomer
from tests.support.pages import blocks, shows, typed
from tests.support.places import ROOT
from tests.support.reasons import bare
from tests.support.wheels import install_wheel

DAY = ("--from", "2026-01-01", "--to", "2026-01-02")
SHOP = "shop:pipeline"
PIPELINE = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink

pipeline = Pipeline("shop", max_replays=3)
orders = "id STRING, customer STRING, cents BIGINT"
pipeline.source("orders", FileSource("{{ interval_start | ds }}/orders.csv", schema=orders))
web = "{{ interval_start | ds }}/web.jsonl"
pipeline.source("web", FileSource(web, format="json", schema=orders))
pipeline.source(
    "shop", FileSource("{{ interval_start | ds }}/shop.parquet", format="parquet", schema=orders)
)
pipeline.reference(
    "customers", FileSource("customers.csv", schema="customer STRING, country STRING")
)


@pipeline.stage(reads=["orders", "web", "shop"])
def together(orders: DataFrame, web: DataFrame, shop: DataFrame) -> DataFrame:
    return orders.unionByName(web).unionByName(shop)


@pipeline.stage(reads="together")
def with_country(together: DataFrame, *, customers: DataFrame) -> DataFrame:
    return together.join(customers, "customer", "inner")


@pipeline.combine(reads="with_country")
def by_country(with_country: DataFrame) -> DataFrame:
    return with_country.groupBy("country").agg(F.sum("cents").alias("cents"))


@pipeline.stateful_stage(reads="with_country")
def balance(state: DataFrame | None, rows: DataFrame) -> DataFrame:
    new = rows.select("customer", "cents")
    both = new if state is None else state.select("customer", "cents").unionByName(new)
    return both.groupBy("customer").agg(F.sum("cents").alias("cents"))


pipeline.sink("sold", ParquetSink("warehouse/sold"), reads="with_country")
pipeline.sink("lake", DeltaSink("warehouse/lake"), reads="with_country")
pipeline.sink("table", PostgresSink("env:SHOP_URL", "sold"), reads="with_country")
pipeline.sink("totals", DeltaSink("warehouse/totals"), reads="by_country")
pipeline.sink("balances", ParquetSink("warehouse/balances"), reads="balance")
"""


@pytest.fixture(scope="module")
def installed():
    """The Python of an environment that has only the wheel and what the wheel says it depends
    on, for a machine without a database.
    """
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield install_wheel(folder, "embedded", "delta")


@pytest.fixture
def newcomer(installed):
    """A new project; its server is stopped by its own command."""
    with tempfile.TemporaryDirectory(prefix="ackledger-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        person = Newcomer(folder, installed)
        try:
            yield person
        finally:
            person.run("db", "stop")
            assert embedded.running(folder / "home") is None


def write_day(project):
    """Orders of one day in three formats; one customer is not known yet."""
    day = project / "2026-01-01"
    day.mkdir()
    (day / "orders.csv").write_text("id,customer,cents\na,ann,100\nb,bob,200\n")
    lines = [
        {"id": "c", "customer": "ann", "cents": 300},
        {"id": "d", "customer": "cyd", "cents": 400},
    ]
    (day / "web.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = pa.table({"id": ["e"], "customer": ["bob"], "cents": pa.array([500], pa.int64())})
    pq.write_table(table, day / "shop.parquet")


def test_first_run(newcomer):
    """From an installed wheel: check, run, one record lost, the cause fixed, replayed, and every
    sink is right.
    """
    project = newcomer.project
    (project / "shop.py").write_text(PIPELINE)
    assert newcomer.run("--version").stdout.startswith("ackledger ")
    newcomer.run("db", "start")
    url = embedded.ensure_database(embedded.running(project.parent / "home").url, "shop")
    missing = newcomer.json("check", SHOP, *DAY, code=1)
    assert {row["check"] for row in missing if row["ok"] is False} == {
        "reference customers", "source orders", "source web", "source shop", "sink table"
    }  # fmt: skip
    write_day(project)
    (project / "customers.csv").write_text("customer,country\nann,NO\nbob,SE\n")
    newcomer.environment["SHOP_URL"] = url.replace("postgresql+psycopg2", "postgresql")
    assert newcomer.run("check", SHOP, *DAY).stdout.count("ok ") >= 12

    ran = newcomer.run("run", SHOP, *DAY, code=3)
    assert "5 records: 4 acked, 1 failed" in ran.stdout
    assert "batch 1: run id run-" in ran.stderr
    assert "batch 1: with_country, 4 rows" in ran.stderr
    (lost,) = newcomer.json("failed")
    assert (lost["step"], bare(lost["reason"]), lost["records"]) == (
        "with_country", "inner join: no partner for customer", 1
    )  # fmt: skip

    (project / "customers.csv").write_text("customer,country\nann,NO\nbob,SE\ncyd,DK\n")
    (replayed,) = newcomer.json("replay", SHOP, "--batch", "1")
    assert (replayed["outcome"], replayed["records"]["acked"]) == ("complete", 1)
    assert [row["failed"] for row in newcomer.json("status")] == [0, 0]
    assert max(map(len, newcomer.run("status").stdout.splitlines())) <= 80
    _check_sinks(project / "warehouse", url)


def test_a_new_project_runs_as_its_readme_says(newcomer):
    """``init``, then the commands of the README that it wrote: one order is lost, found, and
    brought home.
    """
    project = newcomer.project
    assert {"orders.py", "dags/orders_dag.py"} <= set(newcomer.json("init", ".")["files"])
    newcomer.environment["ACKLEDGER_DATA"] = "data"
    shown = (project / "README.md").read_text()
    commands = re.findall(r"^ackledger (.*)$", shown, re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        "check", "run", "failed", "trace", "replay", "status"
    ]  # fmt: skip
    check, run, failed, trace, replay, status = (shlex.split(command) for command in commands)
    newcomer.run(*check)
    assert "4 records: 3 acked, 1 failed" in newcomer.run(*run, code=3).stdout
    assert "with_country" in newcomer.run(*failed).stdout
    traced = newcomer.run(*trace).stdout
    assert "with_country  lost" in traced
    assert '"customer": "eve"' in traced
    with (project / "data" / "customers.csv").open("a") as customers:
        customers.write("eve,SE\n")
    newcomer.run(*replay)
    assert [row["failed"] for row in newcomer.json(*status)] == [0, 0]
    sold = ds.dataset(project / "data" / "warehouse", partitioning="hive").to_table()
    assert sorted(sold["country"].to_pylist()) == ["FR", "GB", "SE"]


def test_a_script_is_audited_as_the_readme_says(newcomer):
    """The first command of the README prints its report without a database; nothing is written
    beside the page that is asked for.
    """
    write_shop(newcomer.project)
    before = {path.name for path in newcomer.project.iterdir()}
    (audited,) = [
        line
        for block in blocks(ROOT / "README.md", "console")
        for line in typed(block)
        if line.command == COMMAND
    ]
    done = newcomer.run("audit", "--html", "report.html", SCRIPT, code=1, is_quiet=False)
    assert shows(done.stdout, audited.output), done.stdout
    assert {path.name for path in newcomer.project.iterdir()} - before == {"report.html"}


def _check_sinks(warehouse, url):
    ids = ["a", "b", "c", "d", "e"]
    sold = ds.dataset(warehouse / "sold", partitioning="hive").to_table()
    assert sorted(sold["id"].to_pylist()) == ids
    assert sorted(DeltaTable(warehouse / "lake").to_pyarrow_table()["id"].to_pylist()) == ids
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id FROM sold ORDER BY id")).scalars().all()
    engine.dispose()
    assert rows == ids
    totals = DeltaTable(warehouse / "totals").to_pyarrow_table().to_pylist()
    assert {row["country"]: row["cents"] for row in totals} == {"NO": 400, "SE": 700, "DK": 400}
    balances = ds.dataset(warehouse / "balances", partitioning="hive").to_table().to_pylist()
    assert {row["customer"]: row["cents"] for row in balances} == {
        "ann": 400,
        "bob": 700,
        "cyd": 400,
    }
