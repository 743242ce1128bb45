"""Notifiers of a pipeline's DAG, as Airflow calls them."""

import os
import sys
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from airflow.callbacks.callback_requests import DagCallbackRequest
from airflow.dag_processing.processor import _execute_dag_callbacks
from airflow.sdk import DAG, AsyncCallback, SyncCallback
from airflow.sdk.execution_time.callback_supervisor import execute_callback
from airflow.serialization.serialized_objects import DagSerialization
from structlog import get_logger

from jobs import wordcount
from ledger.airflow import WhenFailedRatio, WhenQuarantineGrows, near_deadline
from ledger.errors import DeclarationError
from tests.support.airflow import callbacks_of_missed_deadlines, dags_of
from tests.support.ledgers import pipeline
from tests.support.notifiers import FileNotifier, messages
from tests.support.places import ROOT

DAGS = """
import os
from airflow.sdk import DAG, task
from airflow.sdk import SyncCallback
from ledger.airflow import WhenFailedRatio, WhenQuarantineGrows, near_deadline
from ledger.airflow.settlement import Complete
from tests.support.ledgers import pipeline
from tests.support.notifiers import FileNotifier, write_facts

path = os.environ["NOTIFIED"]
text = "{{ ledger.batch_id }} {{ ledger.failed }} {{ ledger.quarantined }} {{ ledger.url }}"
ratio = WhenFailedRatio(above=0.1, notify=FileNotifier(path, "ratio " + text))
growth = WhenQuarantineGrows(by=1, within="1d", notify=FileNotifier(path, "growth " + text))
both = [ratio, growth]
with DAG(
    "dag", schedule=None, on_success_callback=both, on_failure_callback=both,
    default_args={"retries": 0},
):

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    open_batch() >> Complete(task_id="complete", target="jobs.p:made")

with DAG("task_level", schedule=None):

    @task(on_success_callback=ratio)
    def look():
        return None

    look()

text = "{{ ledger.batch_id }} of {{ ledger.run_id }}"
near = [
    near_deadline(pipeline(max_batch_age="1d"), before="1h", notify=notify)
    for notify in (
        SyncCallback(FileNotifier, kwargs={"path": path, "text": text}),
        SyncCallback(write_facts, kwargs={"path": path}),
    )
]
with DAG("late", schedule=None, deadline=near):
    pass
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """What the notifiers write."""
    place = tmp_path_factory.mktemp("notified") / "lines"
    os.environ["NOTIFIED"] = str(place)
    yield place
    del os.environ["NOTIFIED"]


@pytest.fixture(scope="module")
def dags(path):
    """The DAGs above."""
    with dags_of(DAGS) as loaded:
        yield loaded


@pytest.fixture
def lines(path):
    """What the notifiers have written since the test began."""
    path.unlink(missing_ok=True)
    return lambda: messages(path)


def settled(ledger, flow, count=4, **options):
    """A batch that is decided."""
    batch, _ = ledger.whole_batch(flow, count, **options)
    ledger.settle(batch.batch_id)
    return batch


def test_a_run_reports_how_much_of_it_has_failed(ledger, dags, lines):
    """The DAG's callback calls the notifier with the ledger's facts and the way to the batch; the
    next run's has facts of its own, and one that lost little reports nothing.
    """
    first = settled(ledger, pipeline(), lose_sink=[0])
    assert dags["dag"].test(run_conf={"batch": first.batch_id}).state == "failed"
    assert [line[: line.index("/")] for line in lines()] == [f"ratio {first.batch_id} 1 0 "]
    assert lines()[0].endswith(f"/plugin/ledger?batch={first.batch_id}")
    second = settled(ledger, pipeline(), run_id="b", day=1, lose_sink=[0, 1])
    assert dags["dag"].test(run_conf={"batch": second.batch_id}).state == "failed"
    assert lines()[1].startswith(f"ratio {second.batch_id} 2 0 ")
    third = settled(ledger, pipeline(), 20, run_id="c", day=2, lose_sink=[0])
    assert dags["dag"].test(run_conf={"batch": third.batch_id}).state == "failed"
    assert len(lines()) == 2


def test_a_green_run_may_have_something_to_report(ledger, dags, lines):
    """Records that a pipeline tolerates are lost all the same; those that fill the quarantine are
    reported once.
    """
    build = pipeline(max_replays=0, allow_failed=0.9)
    first, second, third = (
        settled(ledger, build, run_id=f"run {day}", day=day, lose_sink=[0]) for day in range(3)
    )
    ledger.deliver()
    for batch in (first, second, third):
        assert dags["dag"].test(run_conf={"batch": batch.batch_id}).state == "success"
    ratios = [int(line.split()[1]) for line in lines() if line.startswith("ratio")]
    assert ratios == [first.batch_id, second.batch_id, third.batch_id]
    assert [int(line.split()[1]) for line in lines() if line.startswith("growth")] == [
        second.batch_id
    ]


def test_the_dag_processor_reports_it(ledger, path, lines):
    """Where Airflow calls a DAG's callbacks, with no more of the run than its id if it knows no
    more; there the templates have the DAG, too.
    """
    settled(ledger, pipeline(), lose_sink=[0])
    alert = WhenFailedRatio(
        above=0.1, notify=FileNotifier(str(path), "{{ dag.dag_id }} {{ run_id }}")
    )
    with DAG("dag", schedule=None, on_failure_callback=alert) as dag:
        pass
    request = DagCallbackRequest(
        filepath="", bundle_name="b", bundle_version=None, dag_id="dag", run_id="run", msg="failed"
    )
    _execute_dag_callbacks(SimpleNamespace(dags={"dag": dag}), request, get_logger())
    assert lines() == ["dag run"]


def test_a_run_without_a_batch_reports_nothing(ledger, dags, lines, capfd):
    """Whatever other runs have lost."""
    settled(ledger, pipeline(), lose_sink=[0, 1])
    assert dags["task_level"].test().state == "success"
    assert lines() == []
    log = capfd.readouterr().out
    assert "WhenFailedRatio has nothing to report: the environment's ledger has no batch" in log


def missed(run_id, conf=None):
    """A run passes its deadlines: what Airflow's scheduler hands to an executor, and that calls."""
    for callback in callbacks_of_missed_deadlines("late", run_id, conf or {}):
        done, error = execute_callback(callback["path"], callback["kwargs"], "", None, get_logger())
        assert done, error


def test_an_open_batch_is_reported_before_its_deadline(ledger, dags, lines):
    """Airflow calls it an hour before the batch would be a day old, and the notifier if it is still
    open; a function of the context does as well. A run that looks after a batch reports that one.
    """
    assert {alert.interval for alert in dags["late"].deadline} == {timedelta(hours=23)}
    batch = ledger.open(pipeline(), dag="late")
    settled(ledger, pipeline(), run_id="next", day=1, dag="late")
    missed("run")
    templated, facts = lines()
    assert templated == f"{batch.batch_id} of run"
    assert facts["because"].startswith(f"batch {batch.batch_id} of chain is still open")
    missed("after_it", {"batch": batch.batch_id})
    assert lines()[2:] == [templated, facts]
    missed("another")
    missed("next")
    assert len(lines()) == 4


def deadline(path, notify, **options):
    """The alert of a pipeline, an hour before its batch is a day old."""
    flow = pipeline(max_batch_age="1d")
    callback = SyncCallback(notify, kwargs={"path": str(path), **options})
    return near_deadline(flow, before="1h", notify=callback)


def test_a_dag_with_a_deadline_is_serialized(path):
    """The alert goes through Airflow's database to the scheduler as it is."""
    alert = deadline(path, FileNotifier, text="{{ ledger.because }}")
    with DAG("dag", schedule=None, deadline=alert) as dag:
        pass
    serialized = str(DagSerialization.to_dict(dag)["dag"]["deadline"])
    assert "ledger.airflow.notifiers.tell_if_open" in serialized
    assert "tests.support.notifiers.FileNotifier" in serialized
    assert "{{ ledger.because }}" in serialized


def test_the_documented_dag_can_be_declared(monkeypatch):
    """It has both notifiers as callbacks of its runs, and the deadline."""
    page = (ROOT / "docs" / "alerting.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.setitem(sys.modules, "orders", wordcount)
    namespace = {}
    exec(code, namespace)
    dag = namespace["dag"]
    assert [type(callback) for callback in dag.on_failure_callback] == [
        WhenFailedRatio,
        WhenQuarantineGrows,
    ]
    assert dag.on_success_callback == dag.on_failure_callback
    assert DagSerialization.to_dict(dag)["dag"]["deadline"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WhenFailedRatio(above=1, notify=print), "above=1 of WhenFailedRatio"),
        (lambda: WhenFailedRatio(above=0.1, notify="slack"), "found 'slack'"),
        (lambda: WhenQuarantineGrows(by=-1, within="1d", notify=print), "by=-1"),
        (lambda: WhenQuarantineGrows(by=1, within="a day", notify=print), "duration 'a day'"),
        (partial(near_deadline, pipeline(), before="7d", notify=None), "7 days, 0:00:00"),
        (partial(near_deadline, pipeline(), before="1d", notify=print), r"SyncCallback\(...\)"),
        (
            lambda: near_deadline(
                pipeline(), before="1d", notify=AsyncCallback(FileNotifier, kwargs={"path": "x"})
            ),
            r"SyncCallback\(...\)",
        ),
    ],
)
def test_arguments_that_cannot_work(build, message):
    """They are refused when the DAG is read, by name and with what was expected."""
    with pytest.raises(DeclarationError, match=message):
        build()


def test_a_notifier_in_a_dag_file(path):
    """Airflow's executor imports what is called at a deadline, and cannot from a DAG file."""
    notify = SyncCallback("unusual_prefix_1.dags.FileNotifier", kwargs={"path": str(path)})
    with pytest.raises(DeclarationError, match="declare it in a module on PYTHONPATH"):
        near_deadline(pipeline(), before="1h", notify=notify)
