"""Complete intervals as partitions of an asset: a DAG that starts once a whole month is there."""

from datetime import UTC, datetime

import pytest

from ledger.airflow.pipelines import pipeline_dag
from ledger.airflow.sensors import interval_complete, interval_partitions
from ledger.airflow.versions import HAS_PARTITIONS
from tests.support.airflow import begin_partitioned_runs, dags_of
from tests.support.ledgers import pipeline

DAGS = """
from airflow.sdk import (
    DAG, MonthWindow, PartitionedAssetTimetable, RollupMapper, StartOfMonthMapper, task,
)
from ledger.airflow import interval_complete, interval_partitions
from ledger.airflow.settlement import Complete

days = interval_partitions("chain")
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
    a lost record: then it waits until the record is accepted.
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
        states = [dags["ends"].test(run_conf={"batch": number}).state for number in numbers]
        assert states == ["success"] * (DAYS - 1) + ["failed"]
        assert begin_partitioned_runs() == []
        ledger.accept(numbers[-1], by="somebody", reason="known")
        assert dags["ends"].test(run_conf={"batch": numbers[-1]}).state == "success"
        assert begin_partitioned_runs() == [("months", "2013-01", datetime(2013, 1, 1, tzinfo=UTC))]


def test_the_last_task_has_the_partitions_as_outlet():
    """Of its own pipeline, where Airflow has partitions; they are another asset than the one that
    has an event for each complete interval.
    """
    task = pipeline_dag(pipeline(), schedule=None, target="jobs.p:made").get_task("complete")
    partitions = interval_partitions("chain")
    assert (partitions in task.outlets) == HAS_PARTITIONS
    assert partitions.uri != interval_complete("chain").uri
