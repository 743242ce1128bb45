"""Complete intervals as partitions of an asset: a DAG that starts once a whole month is there."""

from datetime import UTC, datetime

import pytest
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import select

from ledger.airflow.versions import HAS_PARTITIONS
from ledger.batch.outcome import completeness
from tests.support.airflow import begin_partitioned_runs, dags_of
from tests.support.ledgers import pipeline

DAGS = """
from airflow.sdk import (
    DAG, MonthWindow, PartitionedAssetTimetable, RollupMapper, StartOfMonthMapper, task,
)
from ledger.airflow import interval_partitions
from ledger.airflow.sensors import COMPLETED, announce
from ledger.airflow.settlement import Complete

days = interval_partitions("chain")
with DAG("announces", schedule=None):

    @task(outlets=[COMPLETED, days])
    def announce_all(**context):
        for batch in context["dag_run"].conf["batches"]:
            announce(batch, context["outlet_events"], partitions=days)

    announce_all()
with DAG("ends", schedule=None):

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    open_batch() >> Complete(
        task_id="complete", target="jobs.p:made", partitions=days, retries=0
    )
month = RollupMapper(upstream_mapper=StartOfMonthMapper(), window=MonthWindow())
with DAG(
    "months",
    schedule=PartitionedAssetTimetable(assets=days, default_partition_mapper=month),
    is_paused_upon_creation=False,
):

    @task
    def total():
        return None

    total()
"""
DAYS = 31


@pytest.mark.skipif(not HAS_PARTITIONS, reason="needs Airflow 3.3.1")
def test_days_are_rolled_up_to_a_month(ledger):
    """The run of the month starts once every day is complete, not when the last day has ended with
    a lost record: then it waits until the record is accepted. One task announces the other days,
    because a run for each takes a second.
    """
    numbers = []
    for day in range(DAYS):
        batch, _ = ledger.whole_batch(
            pipeline(max_replays=0), 2, f"run {day}", day, lose_sink=[0] if day == 30 else []
        )
        ledger.settle(batch.batch_id)
        numbers.append(batch.batch_id)
    ledger.deliver()
    with dags_of(DAGS) as dags:
        *others, last = numbers
        assert dags["announces"].test(run_conf={"batches": others}).state == "success"
        assert dags["ends"].test(run_conf={"batch": last}).state == "failed"
        assert begin_partitioned_runs() == []
        ledger.accept(last, by="somebody", reason="known")
        assert dags["ends"].test(run_conf={"batch": last}).state == "success"
        assert begin_partitioned_runs() == [("months", "2013-01", datetime(2013, 1, 1, tzinfo=UTC))]


@pytest.mark.skipif(not HAS_PARTITIONS, reason="needs Airflow 3.3.1")
def test_a_run_that_completes_no_interval_has_no_event(ledger, monkeypatch):
    """Its last task succeeds, as its batch is complete, while another of the interval is not: no
    asset has an event, not even one without a partition.
    """

    def events():
        with create_session() as session:
            uris = [event.asset.uri for event in session.scalars(select(AssetEvent))]
            return [uri for uri in uris if uri.startswith("x-ledger://partitions/")]

    earlier = events()  # of other tests, with which this one shares Airflow's database
    batch, _ = ledger.whole_batch(pipeline(), 2)
    ledger.settle(batch.batch_id)
    ledger.deliver()
    with dags_of(DAGS) as dags:
        with monkeypatch.context() as patch:
            patch.setattr(completeness, "waits_for", lambda *_: "another batch is open")
            assert dags["ends"].test(run_conf={"batch": batch.batch_id}).state == "success"
        assert events() == earlier
        assert dags["ends"].test(run_conf={"batch": batch.batch_id}).state == "success"
        assert len(events()) == len(earlier) + 1
