"""DAG files as Airflow parses them: fast, without Java and database, and clear when they are wrong."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException

from ledger import FileSource, ParquetSink, Pipeline
from ledger.airflow import pipeline_dag, replay_dag
from ledger.airflow.pipelines import _guarantee
from ledger.errors import DeclarationError, InputError, LedgerError
from ledger.settlement import settle_once
from ledger.states import Guarantee
from scripts.airflow_env import ROOT
from tests.support.ledgers import pipeline, whole_batch


def test_dag_files_import_without_java_or_database(monkeypatch):
    """Every DAG file of the project loads without an error, a database or Java."""
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", "postgresql+psycopg2://nobody@127.0.0.1:9/none")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    assert set(bag.dags) == {"flights", "wordcount", "ledger_sweeper", "ledger_replay"}


@pytest.mark.parametrize("name", ["flights", "wordcount", "ledger_sweeper", "ledger_replay"])
def test_dag_files_import_fast(name):
    """Importing a DAG file adds less than a fifth to what `import airflow.sdk` takes of the processor."""
    program = (
        "from time import process_time as now; a = now(); import airflow.sdk; b = now(); "
        f"import dags.{name}; print((now() - b) / (b - a))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shares = [
        float(subprocess.check_output([sys.executable, "-c", program], env=environment).split()[-1])
        for _ in range(3)
    ]
    assert min(shares) < 0.2


def test_pipeline_in_a_dag_file(tmp_path):
    """A pipeline declared in a DAG file, where no Spark job can import it, is an import error that says so."""
    (tmp_path / "own.py").write_text(
        "from ledger import FileSource, ParquetSink, Pipeline\n"
        "from ledger.airflow import pipeline_dag\n"
        "pipeline = Pipeline('own')\n"
        "pipeline.source('a', FileSource('a', schema='n INT'))\n"
        "pipeline.sink('b', ParquetSink('b'), reads='a')\n"
        "dag = pipeline_dag(pipeline, schedule=None)\n"
    )
    errors = DagBag(str(tmp_path)).import_errors
    assert "declare it in a module on PYTHONPATH" in next(iter(errors.values()))


def test_step_named_like_a_task():
    """A step that has the name of one of the DAG's own tasks is refused by name."""
    made = Pipeline("clash")
    made.source("open", FileSource("a", schema="n INT"))
    made.sink("b", ParquetSink("b"), reads="open")
    with pytest.raises(DeclarationError, match="step 'open' of 'clash'"):
        pipeline_dag(made, schedule=None)


def test_totals_and_states_have_tasks_beside_publish():
    """A pipeline with a combine and a state has one task for each, between the settlement and the run's verdict: what
    becomes of publish is nothing to them. Nor does the next part of an interval wait until all sinks show this one."""
    made = Pipeline("kept", max_pending=10)
    made.source("a", FileSource("a", schema="n INT"))

    @made.stateful_stage(reads="a")
    def total(state, batch):
        return batch

    made.sink("b", ParquetSink("b"), reads="a")
    made.sink("c", ParquetSink("c"), reads="total")
    dag = pipeline_dag(made, schedule=None, target="jobs.kept:pipeline")
    after = {"settle", "withhold", "publish", "state", "next_part", "complete"}
    assert set(dag.task_dict) == {"open", "a", "b", *after}
    assert dag.get_task("next_part").trigger_rule == "all_done"
    _check_beside_publish(dag, "state")

    made = Pipeline("summed")
    made.source("a", FileSource("a", schema="n INT"))

    @made.combine(reads="a")
    def summed(a):
        return a

    made.sink("c", ParquetSink("c"), reads="summed")
    _check_beside_publish(pipeline_dag(made, schedule=None, target="jobs.kept:pipeline"), "combine")


def _check_beside_publish(dag, name):
    for one in (name, "publish"):
        task = dag.get_task(one)
        assert task.upstream_task_ids == {"withhold"}
        assert "complete" in task.downstream_task_ids
        assert (
            task.trigger_rule == "all_done"
        )  # it asks the ledger itself whether the batch is decided
    assert dag.get_task("complete").upstream_task_ids >= {"settle", "withhold", "publish", name}
    assert dag.get_task("complete").trigger_rule == "none_failed"


def test_half_an_interval_is_refused():
    """A conf with only one end of the interval is an error, not the run's own interval."""
    from ledger.airflow.pipelines import _interval

    with pytest.raises(InputError, match="only one of interval_start and interval_end"):
        _interval({"interval_start": "2013-01-01"}, {})


def test_the_guarantee_is_a_parameter_of_the_dag():
    """The form of a run offers both guarantees, and the pipeline's own by default; another one is refused."""
    made = Pipeline("offered")
    made.source("a", FileSource("a", schema="n INT"))
    made.sink("b", ParquetSink("b"), reads="a")
    param = pipeline_dag(made, schedule=None, target="m:p").params.get_param("guarantee")
    assert param.value is None
    assert param.schema["enum"] == [None, "exactly_once", "at_least_once"]
    with pytest.raises(InputError, match="'twice' in the run's conf: expected exactly_once or"):
        _guarantee({"guarantee": "twice"})
    assert _guarantee({"guarantee": "at_least_once"}) is Guarantee.AT_LEAST_ONCE
    assert _guarantee({}) is None


def test_the_replay_dag_releases_a_held_batch(database, migrated, monkeypatch):
    """Asked to release, the DAG's first task settles the batch and finds what failed in it; without its number, or
    for one that is not held, it fails and says why."""
    url = migrated.url.render_as_string(hide_password=False)
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", url)
    batch, _ = whole_batch(database, pipeline(max_failed_ratio=0.2), 4, lose_sink=[0, 1])
    settle_once(database, batch.batch_id)
    find = replay_dag().get_task("find")
    params = {name: param.value for name, param in find.dag.params.items()}

    def asked(number):
        given = {**params, "release": True, "batch": number}
        return find.python_callable(params=given, dag_run=SimpleNamespace(run_id="by hand"))

    with pytest.raises(AirflowFailException, match="which batch is to be released"):
        asked(None)
    (trigger,) = asked(batch.batch_id)
    assert trigger["dag_id"] == "dag"
    with pytest.raises(LedgerError, match="only a held batch"):
        asked(batch.batch_id)
