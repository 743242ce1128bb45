"""What the library takes of Airflow, in whatever version."""

from functools import partial
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from jobs.wordcount import pipeline
from ledger.airflow import sensors, versions
from ledger.airflow.maintenance import accept_dag, replay_dag, sweeper_dag
from ledger.airflow.pipelines import pipeline_dag
from ledger.airflow.tasks import PermanentFailure, fail_permanently
from ledger.errors import DeclarationError


def test_a_run_is_triggered():
    """With each argument that this Airflow has."""
    options = {
        "trigger_dag_id": "flights",
        "dag_run_id": "replay__1",
        "conf": {"batch": 1},
        "logical_date": None,
        "reset_dag_run": False,
        "skip_when_already_exists": True,
        "wait_for_completion": False,
        "allowed_states": ["success"],
        "failed_states": ["failed"],
        "poke_interval": 60,
        "deferrable": False,
    }
    triggered = versions.trigger(note="why", **options)
    assert (triggered.trigger_dag_id, triggered.conf) == ("flights", {"batch": 1})


@pytest.mark.parametrize(
    ("run", "user"),
    [(SimpleNamespace(triggering_user_name="eve"), "eve"), (SimpleNamespace(), None)],
)
def test_who_triggered_a_run(run, user):
    """If Airflow says so."""
    assert versions.triggering_user(run) == user


def test_a_metric_is_sent():
    """Nowhere, where Airflow's configuration names no receiver."""
    assert not versions.configuration().getboolean("metrics", "statsd_on", fallback=False)
    versions.send_gauge("ackledger.test", 1.0, {"pipeline": "flights"})


def test_deadlines_are_there_or_refused():
    """By Airflow's version, never by an error of an import."""
    if version("apache-airflow").startswith("3.1."):
        with pytest.raises(DeclarationError, match=r"expected Airflow 3\.2 or later"):
            versions.with_deadlines()
    else:
        assert versions.with_deadlines().SyncCallback is not None


def test_partitions_are_there_or_refused(monkeypatch):
    """The last task of a pipeline has an asset of partitions as outlet, beside the asset of events,
    where Airflow has partitions. Before, a DAG that asks for them is refused.
    """
    options = {"schedule": None, "target": "jobs.wordcount:pipeline"}
    outlets = pipeline_dag(pipeline, **options).get_task("complete").outlets
    if versions.HAS_PARTITIONS:
        assert outlets == [sensors.COMPLETED, sensors.interval_partitions(pipeline.name)]
    else:
        assert outlets == [sensors.COMPLETED]
    assert sensors.interval_complete(pipeline.name) not in outlets
    monkeypatch.setattr(sensors, "HAS_PARTITIONS", False)
    with pytest.raises(DeclarationError, match=r"expected Airflow 3\.3\.1 or later"):
        sensors.interval_partitions(pipeline.name)


def test_a_permanent_failure_is_no_plain_error():
    """No other attempt is made, with a policy or by the exception's own kind."""
    with pytest.raises(PermanentFailure) as caught:
        fail_permanently("no such file")
    kind = SystemExit if versions.HAS_POLICIES else versions.AirflowFailException
    assert isinstance(caught.value, kind)


DAGS = [partial(sweeper_dag, schedule=None), replay_dag, accept_dag]


@pytest.mark.parametrize("make", DAGS)
def test_the_dags_beside_are_made(make):
    """Each has its tasks."""
    assert make().task_ids
