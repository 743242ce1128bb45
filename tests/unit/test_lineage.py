"""How a place is named in lineage."""

import pytest

from ledger import DeltaSink, FileSource, ParquetSink, Pipeline, PostgresSink
from ledger.airflow.datasets import dataset
from ledger.airflow.spark_tasks import steps_of
from ledger.settings import Settings


@pytest.mark.parametrize(
    ("address", "namespace", "name"),
    [
        ("/data/in-*.csv", "file", "/data/in-*.csv"),
        ("file:///data/in.csv", "file", "/data/in.csv"),
        ("s3a://bucket/orders/day=1", "s3://bucket", "orders/day=1"),
        ("hdfs://name:8020/orders", "hdfs://name:8020", "orders"),
        ("postgresql+psycopg2://me@db/shop#orders", "postgres://db:5432", "shop.public.orders"),
        ("postgresql://db:5433/shop#eu.orders", "postgres://db:5433", "shop.eu.orders"),
        ("postgresql://[::1]/shop#eu.orders", "postgres://[::1]:5432", "shop.eu.orders"),
        ("postgresql:///shop#orders", "postgres://localhost:5432", "shop.public.orders"),
        ("mysql+pymysql://me@db/shop#orders", "mysql://db:3306", "shop.orders"),
        ("mssql+pyodbc://me@db:1433/shop#dbo.orders", "mssql://db:1433", "shop.dbo.orders"),
        ("table 'orders' of 'shop.db'", "ackledger", "table 'orders' of 'shop.db'"),
        ("env:SHOP_URL#orders", "ackledger", "env:SHOP_URL#orders"),
    ],
)
def test_a_place_has_the_name_that_others_give_it(address, namespace, name):
    """As OpenLineage names files, buckets and tables, so that its graph goes on there."""
    assert dataset(address) == (namespace, name)


def test_where_a_sink_writes_is_shown_without_secrets(monkeypatch):
    """A folder by its path, a table by its database, without user, password and options."""
    settings = Settings(data="/data", output="/made")
    assert ParquetSink("out").location(settings) == "/made/out"
    assert DeltaSink("s3://bucket/out").location(settings) == "s3://bucket/out"
    monkeypatch.setenv("SHOP", "postgresql://me:secret@db:5433/shop?sslmode=require")
    sink = PostgresSink("env:SHOP", "eu.orders")
    assert sink.location(settings) == "postgresql+psycopg2://db:5433/shop#eu.orders"


def test_a_follow_up_runs_the_steps_after_the_settlement():
    """The driver of ``combine`` runs the combines and their sinks, that of ``state`` the states and
    theirs; any other one runs the step that it is given.
    """
    pipeline = Pipeline("summed")
    pipeline.source("a", FileSource("a", schema="n INT"))

    @pipeline.combine(reads="a")
    def total(a):
        return a

    @pipeline.stateful_stage(reads="a")
    def state_of(state, batch):
        return batch

    pipeline.sink("totals", ParquetSink("totals"), reads="total")
    pipeline.sink("states", ParquetSink("states"), reads="state_of")
    assert steps_of(pipeline, "combine") == ["total", "totals"]
    assert steps_of(pipeline, "state") == ["state_of", "states"]
    assert steps_of(pipeline, "a") == ["a"]
