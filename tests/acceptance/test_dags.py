"""DAG files as Airflow parses them: fast, without Java and database, and clear when they are
wrong. And their tasks that need no Spark, as Airflow runs them.
"""

import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import BaseOperator
from airflow.utils.session import create_session
from airflow.utils.types import DagRunType

from ledger import FileSource, ParquetSink, Pipeline
from ledger.airflow import pipeline_dag, replay_dag
from ledger.airflow.intervals import interval_of
from ledger.airflow.pipelines import guarantee_in
from ledger.airflow.plugin import append_report
from ledger.airflow.versions import AirflowFailException, AirflowSkipException
from ledger.core.states import Guarantee
from ledger.errors import DeclarationError, InputError, LedgerError
from scripts.airflow_env import ROOT
from tests.support.airflow import dag_bag, dags_of
from tests.support.ledgers import pipeline

LIBRARY = ("ledger_accept", "ledger_replay", "ledger_sweeper")


DAGS = """
from airflow.sdk import DAG, task
from ledger.airflow import accept_dag, pipeline_dag
from ledger.airflow.settlement import Complete
from tests.acceptance.dated import pipeline

dated = pipeline_dag(pipeline, schedule="@monthly", target="tests.acceptance.dated:pipeline")
accept = accept_dag()
with DAG("last_task", schedule=None) as last:

    @task(task_id="open")
    def open_batch(**context):
        return context["dag_run"].conf["batch"]

    open_batch() >> Complete(task_id="complete", target="jobs.p:made", retries=0)
"""


@pytest.fixture(scope="module")
def dags():
    """The DAGs above."""
    with dags_of(DAGS) as loaded:
        yield loaded


def test_dag_files_import_without_java_or_database(monkeypatch):
    """Every DAG file of the project loads without an error, a database or Java."""
    monkeypatch.setenv("ACKLEDGER_DATABASE_URL", "postgresql+psycopg2://nobody@127.0.0.1:9/none")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    bag = dag_bag(ROOT / "dags")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"flights", "wordcount", *LIBRARY}


@pytest.mark.parametrize("name", ["flights", "wordcount", *LIBRARY])
def test_dag_files_import_fast(name):
    """Importing a DAG file adds less than a fifth to what Airflow and its Spark operator take of
    the processor, which any DAG file imports that submits a job.
    """
    program = (
        "from time import process_time as now; a = now(); import airflow.sdk; "
        "from airflow.providers.apache.spark.operators import spark_submit; b = now(); "
        f"import dags.{name}; print((now() - b) / (b - a))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shares = [
        float(subprocess.check_output([sys.executable, "-c", program], env=environment).split()[-1])
        for _ in range(3)
    ]
    assert min(shares) < 0.2


def test_pipeline_in_a_dag_file(tmp_path):
    """A pipeline declared in a DAG file, where no Spark job can import it, is an import error
    that says so.
    """
    (tmp_path / "own.py").write_text(
        "from ledger import FileSource, ParquetSink, Pipeline\n"
        "from ledger.airflow import pipeline_dag\n"
        "pipeline = Pipeline('own')\n"
        "pipeline.source('a', FileSource('a', schema='n INT'))\n"
        "pipeline.sink('b', ParquetSink('b'), reads='a')\n"
        "dag = pipeline_dag(pipeline, schedule=None)\n"
    )
    errors = dag_bag(tmp_path).import_errors
    assert "declare it in a module on PYTHONPATH" in next(iter(errors.values()))


def test_step_named_like_a_task():
    """A step that has the name of one of the DAG's own tasks is refused by name."""
    flow = Pipeline("clash")
    flow.source("open", FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads="open")
    with pytest.raises(DeclarationError, match="step 'open' of 'clash'"):
        pipeline_dag(flow, schedule=None)


def test_totals_and_states_have_tasks_beside_publish():
    """A pipeline with a combine and a state has one task for each, between the settlement and
    the run's verdict: what becomes of publish is nothing to them.
    """
    flow = Pipeline("kept")
    flow.source("a", FileSource("a", schema="n INT"))

    @flow.stateful_stage(reads="a")
    def total(state, batch):
        return batch

    flow.sink("b", ParquetSink("b"), reads="a")
    flow.sink("c", ParquetSink("c"), reads="total")
    dag = pipeline_dag(flow, schedule=None, target="jobs.kept:pipeline")
    after = {"settle", "withhold", "publish", "state", "complete"}
    assert set(dag.task_dict) == {"open", "a", "b", *after}
    _check_beside_publish(dag, "state")

    flow = Pipeline("summed")
    flow.source("a", FileSource("a", schema="n INT"))

    @flow.combine(reads="a")
    def summed(a):
        return a

    flow.sink("c", ParquetSink("c"), reads="summed")
    _check_beside_publish(pipeline_dag(flow, schedule=None, target="jobs.kept:pipeline"), "combine")


def test_a_dag_reads_well():
    """Its steps and what follows the settlement are groups; the DAG and each task say what they
    are, a step in the words of its function; settle and complete lead to the batch's page.
    """
    flow = Pipeline("documented")
    flow.source("a", FileSource("a", schema="n INT"))

    @flow.stage(reads="a")
    def counted(a):
        """Counts what is there."""
        return a

    @flow.stateful_stage(reads="counted")
    def total(state, batch):
        return batch

    flow.sink("b", ParquetSink("b"), reads="counted")
    flow.sink("c", ParquetSink("c"), reads="total")
    for submit in ("stage", "batch"):
        dag = pipeline_dag(flow, schedule=None, target="jobs.documented:pipeline", submit=submit)
        assert "| `counted` | stage | `a` | Counts what is there. |" in dag.doc_md
        assert [task.task_id for task in dag.tasks if not task.doc_md] == []
        assert dag.get_task("complete").operator_extra_links[0].name == "Batch in the ledger"
    dag = pipeline_dag(flow, schedule=None, target="jobs.documented:pipeline")
    inside = dag.task_group.children
    groups = {
        name: set(group.children) for name, group in inside.items() if hasattr(group, "children")
    }
    assert groups["pipeline_steps"] == {"a", "counted", "b"}
    assert groups["after_settlement"] == {"withhold", "publish", "state"}
    assert set(inside) == {"open", "settle", "complete", *groups}
    assert "Counts what is there." in dag.get_task("counted").doc_md


def test_one_task_for_a_whole_batch():
    """With submit="batch" there is a single driver between open and complete, whatever the
    pipeline has.
    """
    flow = Pipeline("whole")
    flow.source("a", FileSource("a", schema="n INT"), on_ack=lambda batch_id, messages: None)
    flow.stage(reads="a")(lambda_named("b"))
    flow.sink("c", ParquetSink("c"), reads="b")
    dag = pipeline_dag(flow, schedule=None, target="jobs.whole:pipeline", submit="batch")
    chain = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    assert chain == {
        "open": set(),
        "run": {"open"},
        "complete": {"run"},
    }
    assert "--step" not in dag.get_task("run").application_args


class Elsewhere(BaseOperator):
    """Runs a driver in another way."""


@pytest.mark.parametrize("submit", ["stage", "batch"])
def test_spark_elsewhere(submit):
    """A task of another kind is made from what spark-submit would get; what is not due is
    skipped before it starts.
    """
    asked = []

    def operator(*, task_id, name, application, application_args, **options):
        asked.append((task_id, name, Path(application).name, application_args[:2]))
        return Elsewhere(task_id=task_id, **options)

    flow = Pipeline("elsewhere")
    flow.source("a", FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads="a")
    target = "jobs.elsewhere:pipeline"
    dag = pipeline_dag(flow, schedule=None, target=target, submit=submit, spark=operator)
    names = ["run"] if submit == "batch" else ["a", "b", "withhold"]
    arguments = ["--pipeline", target]
    assert asked == [(name, f"elsewhere.{name}", "run_step.py", arguments) for name in names]
    assert all(isinstance(dag.get_task(name), Elsewhere) for name in names)


def lambda_named(name):
    def stage(frame):
        return frame

    stage.__name__ = name
    return stage


def _check_beside_publish(dag, name):
    for task_id in (name, "publish"):
        task = dag.get_task(task_id)
        assert task.upstream_task_ids == {"withhold"}
        assert "complete" in task.downstream_task_ids
        assert (
            task.trigger_rule == "all_done"
        )  # it asks the ledger itself whether the batch is decided
    assert dag.get_task("complete").upstream_task_ids >= {"settle", "withhold", "publish", name}
    assert dag.get_task("complete").trigger_rule == "none_failed"


def run_of(run_type, date=None, interval=(None, None)):
    return SimpleNamespace(
        run_type=run_type,
        logical_date=date,
        data_interval_start=interval[0],
        data_interval_end=interval[1],
    )


DECEMBER, JANUARY, FEBRUARY = (
    datetime(*month, 1, tzinfo=UTC) for month in ((2012, 12), (2013, 1), (2013, 2))
)
BEFORE = (DECEMBER, JANUARY)  # what Airflow gives a run by hand for 2013-01-01


def test_half_an_interval_is_refused():
    """A conf with only one end of the interval is an error, not the run's own interval."""
    with pytest.raises(InputError, match="only one of interval_start and interval_end"):
        interval_of(
            {"interval_start": "2013-01-01"}, run_of(DagRunType.MANUAL, JANUARY), "@monthly"
        )


BY_HAND = ("MANUAL", "OPERATOR_TRIGGERED")  # the latter since 3.2


@pytest.mark.parametrize("kind", [kind for kind in DagRunType if kind.name in BY_HAND])
@pytest.mark.parametrize("day", [datetime(2013, 1, 1), datetime(2013, 1, 31, 23)])
def test_a_run_by_hand_reads_the_interval_that_its_date_lies_in(kind, day):
    """A monthly DAG's run for a date in January 2013, its first instant included, reads January."""
    run = run_of(kind, day.replace(tzinfo=UTC), BEFORE)
    assert interval_of({}, run, "@monthly") == (JANUARY, FEBRUARY)
    params = {"interval_start": "2013-02-01", "interval_end": "2013-02-03"}
    assert interval_of(params, run, "@monthly")[0] == datetime(2013, 2, 1)  # what is given is taken


@pytest.mark.parametrize("kind", [DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB])
def test_scheduled_runs_and_backfills_keep_their_interval(kind):
    """What the scheduler made has the interval that it was made for."""
    run = run_of(kind, JANUARY, (JANUARY, FEBRUARY))
    assert interval_of({}, run, "@monthly", now=JANUARY) == (JANUARY, FEBRUARY)


def test_an_interval_that_has_not_ended_is_refused():
    """A run by hand for now, as the form has it, gets an error with the conf of the last interval
    that has ended; so does one that has no date.
    """
    now = datetime(2013, 2, 10, tzinfo=UTC)
    last = (
        r'\{"interval_start": "2013-01-01T00:00:00\+00:00", "interval_end":'
        r' "2013-02-01T00:00:00\+00:00"\}'
    )
    run = run_of(DagRunType.MANUAL, now, (JANUARY, FEBRUARY))
    with pytest.raises(InputError, match="has not ended: 2013-02-01T.*" + last):
        interval_of({}, run, "@monthly", now)
    with pytest.raises(InputError, match="this run has no data interval.*" + last):
        interval_of({}, run_of(DagRunType.MANUAL), "@monthly", now)
    with pytest.raises(InputError, match=r"its DAG has no schedule: .*conf"):
        interval_of({}, run_of(DagRunType.MANUAL, now, (now, now)), None, now)


def test_a_dated_run_of_a_monthly_dag(ledger, dags, tmp_path, monkeypatch):
    """Airflow's own run for 2013-01-01 opens a batch over January."""
    monkeypatch.setenv("ACKLEDGER_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("ACKLEDGER_DATA", str(tmp_path))
    (tmp_path / "in.csv").write_text("n\n1\n")
    run = dags["dated"].test(logical_date=JANUARY, mark_success_pattern="^(?!open$).*")
    assert run.get_task_instance("open").state == "success"
    row = ledger.row("SELECT interval_start, interval_end FROM batch")
    assert tuple(row) == (JANUARY, FEBRUARY)


def test_open_is_red_at_once_and_without_a_traceback(ledger, dags, capfd):
    """A conf that no other try can open a batch for fails the task, which still has retries, in one
    line.
    """
    half = {"interval_start": "2013-02-01"}
    run = dags["dated"].test(
        logical_date=FEBRUARY, run_conf=half, mark_success_pattern="^(?!open$).*"
    )
    opened = run.get_task_instance("open")
    assert (opened.state, opened.try_number, opened.max_tries) == ("failed", 1, 1)
    log = capfd.readouterr().out
    assert "Task exited" in log
    assert "only one of interval_start and interval_end" in log
    assert "Traceback" not in log


def last_task(dags, batch_id):
    """The last task of a run over a batch, as Airflow runs it: its state, report and link."""
    run = dags["last_task"].test(run_conf={"batch": batch_id})
    instance = run.get_task_instance("complete")
    values = [instance.xcom_pull("complete", key=key) for key in ("report", "_link_NextStep")]
    return instance.state, *values


def test_the_note_of_a_run(ledger, dags):
    """A run that has ended says in its note what its last task has reported, behind what a
    person wrote there; asked again it says that once. A run of another DAG has none.
    """
    batch, _ = ledger.whole_batch(pipeline("noted"), 4, lose_sink=[0])
    ledger.settle(batch.batch_id)
    run = dags["last_task"].test(run_conf={"batch": batch.batch_id})
    report = run.get_task_instance("complete").xcom_pull("complete", key="report")
    assert "3 acked, 1 failed" in report
    with create_session() as session:
        row = session.merge(run)
        append_report(row)
        assert row.note == f"ackledger: {report}"[:1000]
        row.note = "look at plane 7"
        for _ in range(2):
            append_report(row)
            assert row.note == f"look at plane 7\n\nackledger: {report}"[:1000]
    other = dags["ledger_accept"].test(run_conf={"batch": batch.batch_id, "reason": "none"})
    with create_session() as session:
        row = session.merge(other)
        append_report(row)
        assert row.note is None


def test_the_last_task_is_red_until_records_are_accepted(ledger, dags, capfd):
    """The run's last task says where records broke and what to type, links to the form for it,
    and fails without a traceback; once a person has accepted what is quarantined, by the form,
    it is green and still names it.
    """
    failed, _ = ledger.whole_batch(pipeline("one"), 4, lose_sink=[0])
    batch, _ = ledger.whole_batch(pipeline("two", max_replays=0), 4, lose_sink=[0, 1])
    for number in (failed.batch_id, batch.batch_id):
        ledger.settle(number)
    ledger.deliver()

    state, report, link = last_task(dags, failed.batch_id)
    assert (state, link.rpartition("/dags/")[2]) == ("failed", "ledger_replay")
    assert "sink  lost    failed  1" in report
    assert f"ackledger replay jobs.p:made --batch {failed.batch_id}" in report

    capfd.readouterr()
    state, report, link = last_task(dags, batch.batch_id)
    assert (state, link.rpartition("/dags/")[2]) == ("failed", "ledger_accept")
    assert "complete with quarantined records" in report
    assert f"ackledger accept {batch.batch_id}" in report
    log = capfd.readouterr().out
    assert "Task exited" in log
    assert "2 of 4 records are quarantined" in log
    assert "Traceback" not in log

    conf = {"batch": batch.batch_id, "reason": "unregistered"}
    assert dags["ledger_accept"].test(run_conf=conf).state == "success"
    by = ledger.row("SELECT DISTINCT accepted_by, accepted_because FROM accepted_record")
    assert by.accepted_because == "unregistered"
    assert by.accepted_by == "dag_test"  # the user that triggers a run in this process
    state, report, link = last_task(dags, batch.batch_id)
    assert (state, link) == ("success", "")
    assert "2 of 4 records accepted by dag_test" in report


def test_the_guarantee_is_a_parameter_of_the_dag():
    """The form of a run offers both guarantees, and the pipeline's own by default; another one
    is refused.
    """
    flow = Pipeline("offered")
    flow.source("a", FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads="a")
    param = pipeline_dag(flow, schedule=None, target="m:p").params.get_param("guarantee")
    assert param.value is None
    assert param.schema["enum"] == [None, "exactly_once", "at_least_once"]
    with pytest.raises(InputError, match="'twice' in the run's conf: expected exactly_once or"):
        guarantee_in({"guarantee": "twice"})
    assert guarantee_in({"guarantee": "at_least_once"}) is Guarantee.AT_LEAST_ONCE
    assert guarantee_in({}) is None


def test_settle_says_what_was_decided_before_it_came(ledger, caplog):
    """The task settle of a batch that the sweeper has settled logs that, and the counts; its link
    leads to the batch's page.
    """
    batch, _ = ledger.whole_batch(pipeline("swept"), 4, lose_sink=[0])
    assert ledger.sweep().settlements[0].decided
    dag = pipeline_dag(pipeline("swept"), schedule=None, target="tests.support.ledgers:none")
    run = SimpleNamespace(xcom_pull=lambda task_ids: batch.batch_id)
    with caplog.at_level(logging.INFO):
        dag.get_task("settle").execute({"ti": run})
    task = dag.get_task("settle")
    (link,) = task.operator_extra_links
    page = link.get_link(task, ti_key=None)
    assert page.endswith(f"/plugin/ledger?batch={batch.batch_id}")
    assert f"batch {batch.batch_id} is settled (already settled, 20" in caplog.text
    assert "4 records, 3 acked, 1 failed" in caplog.text


def test_settle_says_what_holds_a_batch(ledger, caplog):
    """The task settle of a batch with too many failures logs which they are, by step and reason,
    and fails with the limit and both ways on."""
    flow = pipeline("limited", hold_above=0.1)
    batch, _ = ledger.whole_batch(flow, 10, lose_middle=[1, 2], lose_sink=[4])
    dag = pipeline_dag(flow, schedule=None, target="tests.support.ledgers:none")
    run = SimpleNamespace(xcom_pull=lambda task_ids: batch.batch_id)
    message = (
        rf"batch {batch.batch_id} is on hold: 3 of 10 records failed; the limit is 10 % "
        rf".*Fix it and rerun: .*Or publish the rest anyway: ackledger release {batch.batch_id}$"
    )
    for _ in ("first", "tried again"):
        caplog.clear()
        with pytest.raises(LedgerError, match=message):
            dag.get_task("settle").execute({"ti": run})
        for line in ("On hold: not decided. These records", "2 at middle: lost", "1 at sink: lost"):
            assert line in caplog.text


def test_the_replay_dag_releases_a_held_batch(ledger):
    """Asked to release, the DAG's first task settles the batch and finds what failed in it;
    without its number, or for one that is not held, it fails and says why.
    """
    batch, _ = ledger.whole_batch(pipeline(hold_above=0.2), 4, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    find = replay_dag().get_task("find")
    params = {name: param.value for name, param in find.dag.params.items()}

    def asked(number):
        conf = {**params, "release": True, "batch": number}
        return find.python_callable(params=conf, dag_run=SimpleNamespace(run_id="by hand"))

    with pytest.raises(AirflowFailException, match="which batch is to be released"):
        asked(None)
    (trigger,) = asked(batch.batch_id)
    assert trigger["dag_id"] == "dag"
    with pytest.raises(LedgerError, match="only a batch on hold"):
        asked(batch.batch_id)


def test_the_replay_dag_refuses_names_that_the_ledger_does_not_know(ledger):
    """A step, source, reason, pipeline or batch that is misspelt in the form fails the run with
    what was meant; what is known and not failed skips it.
    """
    batch, _ = ledger.whole_batch(pipeline(), 4, lose_sink=[0, 1])
    ledger.settle(batch.batch_id)
    find = replay_dag().get_task("find")
    params = {name: param.value for name, param in find.dag.params.items()}

    def asked(**conf):
        run = SimpleNamespace(run_id="by hand")
        return find.python_callable(params={**params, **conf}, dag_run=run)

    typos = {"step": "snik", "source": "sorce", "reason": "lots", "pipeline": "chian"}
    for name, typo in typos.items():
        with pytest.raises(AirflowFailException, match=f"{typo}.*did you mean"):
            asked(**{name: typo})
    with pytest.raises(AirflowFailException, match="batch 99 is not in the ledger"):
        asked(batch=99)
    with pytest.raises(AirflowSkipException):
        asked(step="middle")
    ledger.quarantine("a test order", "ada", batch_id=batch.batch_id)
    with pytest.raises(AirflowSkipException):
        asked(quarantined=True)
    (run,) = asked(accepted=True)
    assert run["conf"] == {"replay_of": batch.batch_id, "accepted": True, "conn_id": None}
