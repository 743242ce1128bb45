"""The task that submits a step: what it does when the driver fails."""

import os
import re
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
import structlog
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook, SubprocessResult
from airflow.sdk import BaseOperator, ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.execution_time.task_runner import _handle_current_task_failed
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import Template

from jobs.wordcount import pipeline
from ledger import FileSource, ParquetSink, Pipeline, run_step
from ledger.airflow import WhenFailedRatio, notifiers, pipeline_dag, pipelines, spark_tasks
from ledger.airflow.pipelines import open_for_run
from ledger.airflow.spark_tasks import SparkSubmit, spark_connect, submitted
from ledger.airflow.tasks import PermanentFailure, without_retry
from ledger.airflow.versions import AirflowException, AirflowFailException, AirflowSkipException
from ledger.batch.outcome import alerts
from ledger.errors import EXIT_PERMANENT, ConfigurationError, DeclarationError, InputError
from ledger.run_step import main as run_step_main

TAIL = """
Last spark-submit output:
2026-01-01 00:00:00,000 ackledger INFO starting
2026-01-01 00:00:01,000 ackledger ERROR words of batch 7: no file matches /data/x.csv"""


class Elsewhere(BaseOperator):
    """Runs a driver in another way."""

    def __init__(self, *, name, application, application_args, **options):
        super().__init__(**options)


class Numbering:
    """A ledger that draws one number."""

    def __init__(self, conn_id):
        self.conn_id = conn_id

    def transact(self, _work):
        return 42


def step_task(name="words", **options):
    """The task of a step, by spark-submit."""
    operator = SparkSubmit()
    arguments = ("jobs.wordcount:pipeline", name)
    return submitted(operator, pipeline, *arguments, application="run_step.py", **options)


@pytest.fixture(autouse=True)
def open_batch(monkeypatch):
    """The run's batch is open, and no ledger is asked."""
    monkeypatch.setattr(spark_tasks, "is_settled", lambda context, conn_id: False)


def failing(monkeypatch, code):
    """A step's task whose spark-submit ends with a code."""

    def execute(self, context):
        raise AirflowException(f"Cannot execute: spark-submit x. Error code is: {code}.{TAIL}")

    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    return step_task()


def state_after(task, error):
    """What Airflow makes of a task that has raised, and still has a retry."""
    server = SimpleNamespace(max_tries=1, should_retry=True)
    run = SimpleNamespace(
        task=task,
        try_number=1,
        rendered_map_index=None,
        _ti_context_from_server=server,
        _failure_metrics_emitted=True,
    )
    return _handle_current_task_failed(run, error, structlog.get_logger())[1]


def test_what_would_fail_again_is_not_retried(monkeypatch, caplog):
    """A missing file fails the task permanently, with the driver's own line, no traceback and no
    second JVM.
    """
    flow = failing(monkeypatch, EXIT_PERMANENT)
    with pytest.raises(PermanentFailure) as caught:
        flow.execute({})
    message = "words of batch 7: no file matches /data/x.csv"
    assert str(caught.value) == message
    assert caplog.messages == [message]
    assert isinstance(caught.value, SystemExit)  # of which Airflow logs no traceback
    assert state_after(flow, caught.value) == "failed"


@pytest.mark.parametrize("code", [1, 137, 650])
def test_what_may_succeed_is_retried(monkeypatch, code):
    """A driver that was killed, or failed in any other way, is left to the task's retries."""
    flow = failing(monkeypatch, code)
    with pytest.raises(AirflowException) as caught:
        flow.execute({})
    assert state_after(flow, caught.value) == "up_for_retry"


def test_a_retry_policy_of_the_users_own_is_kept():
    """What is not permanent is retried as the DAG's default_args say."""
    own = ExceptionRetryPolicy([RetryRule(KeyError, RetryAction.FAIL)])
    task = without_retry(BaseOperator(task_id="a", retry_policy=own))
    assert state_after(task, KeyError()) == "failed"
    assert state_after(task, ValueError()) == "up_for_retry"
    assert state_after(task, PermanentFailure("")) == "failed"


def test_open_fails_permanently_in_one_line(monkeypatch, caplog):
    """The task that opens the batch logs what is permanent in one line, without a traceback, and
    is not retried.
    """
    monkeypatch.setattr(pipelines, "connected_by", lambda settings: None)
    dag = pipeline_dag(pipeline, schedule=None, target="jobs.wordcount:pipeline")
    task, conf = dag.get_task("open"), {"interval_start": "2013-01-01"}
    run = SimpleNamespace(dag_id="wordcount", run_id="by hand", conf=conf)
    with pytest.raises(PermanentFailure) as caught:
        task.python_callable(dag_run=run)
    assert "only one of interval_start and interval_end" in str(caught.value)
    logged = [record.message for record in caplog.records if record.name.startswith("ledger")]
    assert logged == [str(caught.value)]  # a gateway of Spark that closes logs as well
    assert state_after(task, caught.value) == "failed"
    assert state_after(task, OSError()) == "up_for_retry"
    assert DagSerialization.to_dict(dag)


@pytest.mark.parametrize(
    ("conn_id", "asked", "message"),
    [
        (None, "sales", "is for the ledger of 'sales', its DAG works with the environment's"),
        (
            "sales",
            None,
            "is for the environment's ledger, its DAG works with the ledger of 'sales'",
        ),
        (
            "sales",
            "stock",
            "is for the ledger of 'stock', its DAG works with the ledger of 'sales'",
        ),
    ],
)
@pytest.mark.parametrize("what", [{"batch": 1}, {"replay_of": 1}])
def test_a_run_for_another_ledger_is_refused(conn_id, asked, message, what):
    """Before any ledger is asked, whose batch of this number may be another."""
    run = SimpleNamespace(conf={**what, "conn_id": asked})
    with pytest.raises(InputError, match=message):
        open_for_run(pipeline, None, run, None, conn_id=conn_id)


def test_the_task_numbers_its_attempt(monkeypatch):
    """The driver gets the number that the ledger draws when the task's templates are rendered,
    before it starts.
    """
    monkeypatch.setattr(spark_tasks, "connected", Numbering)
    dag = pipeline_dag(pipeline, schedule=None, target="jobs.wordcount:pipeline")
    template = dag.get_task("words").application_args[-1]
    assert dag.get_task("words").application_args[-2] == "--attempt-number"
    macros = dag.user_defined_macros
    assert Template(template).render(**macros) == "42"


@pytest.mark.parametrize("conn_id", [None, "sales"])
@pytest.mark.parametrize("spark", [SparkSubmit(), "sc://h:1"])
def test_each_task_knows_the_connection_of_the_ledger(monkeypatch, spark, conn_id):
    """Those with a driver, which has a connection of Spark's beside it, and the number of their
    attempts.
    """
    options = {"schedule": None, "target": "jobs.wordcount:pipeline", "conn_id": conn_id}
    dag = pipeline_dag(pipeline, spark=spark, **options)
    for name in ("words", "withhold"):
        task = dag.get_task(name)
        assert task.ledger_conn_id == conn_id
        named = [] if conn_id is None else ["--conn-id", conn_id]
        places = [i for i, each in enumerate(task.driver_arguments) if each == "--conn-id"]
        assert [each for i in places for each in task.driver_arguments[i : i + 2]] == named
    for name in ("settle", "complete"):
        assert dag.get_task(name).conn_id == conn_id
    asked = []
    monkeypatch.setattr(
        spark_tasks, "connected", lambda name: asked.append(name) or Numbering(name)
    )
    assert Template("{{ ledger_attempt_number() }}").render(**dag.user_defined_macros) == "42"
    assert asked == [conn_id]


def test_a_notifier_asks_the_ledger_of_its_dag(monkeypatch, capfd):
    """Unless it has a connection of its own. If that ledger has no batch of the run, the log says
    so.
    """
    asked = []

    def connected(conn_id):
        asked.append(conn_id)
        return SimpleNamespace(dispose=lambda: None)

    monkeypatch.setattr(notifiers, "connected", connected)
    monkeypatch.setattr(alerts, "batch_of_run", lambda *_: None)
    plain = WhenFailedRatio(above=0, notify=print)
    own = WhenFailedRatio(above=0, notify=print, conn_id="stock")
    options = {"schedule": None, "target": "jobs.wordcount:pipeline"}
    calls = {"on_failure_callback": plain, "on_success_callback": [plain, own, print]}
    dags = [pipeline_dag(pipeline, **options, **calls, conn_id=name) for name in ("sales", None)]
    context = {"dag": SimpleNamespace(dag_id="wordcount"), "run_id": "run"}
    for dag in dags:
        *several, function = dag.on_success_callback
        assert function is print
        for notifier in (dag.on_failure_callback, *several):
            notifier.notify(context)
    assert asked == ["sales", "sales", "stock", None, None, "stock"]
    assert "ledger sales has no batch of run run of wordcount" in capfd.readouterr().out


def test_a_ledger_that_refuses_the_number(monkeypatch):
    """Without a ledger nothing is submitted: the task fails permanently with the ledger's line."""

    def refuse(conn_id):
        raise ConfigurationError("run 'ackledger db upgrade'")

    monkeypatch.setattr(spark_tasks, "connected", refuse)
    with pytest.raises(AirflowFailException, match="run 'ackledger db upgrade'"):
        spark_tasks.drawn_number()


@pytest.mark.parametrize(
    ("name", "whole", "submits"),
    [("words", False, False), ("run", False, False), ("notify", False, True), ("run", True, True)],
)
def test_a_settled_step_starts_no_driver(monkeypatch, name, whole, submits):
    """A step of a settled batch that is cleared succeeds at once; what follows a settlement does
    run.
    """
    started = []
    monkeypatch.setattr(spark_tasks, "is_settled", lambda context, conn_id: True)
    monkeypatch.setattr(SparkSubmitOperator, "execute", lambda self, context: started.append(self))
    step_task(name, whole=whole).execute({})
    assert bool(started) is submits


@pytest.mark.parametrize("spark", [SparkSubmit(), "sc://h:1"])
def test_a_step_named_as_the_task_of_a_whole_batch(spark):
    """A step ``run`` has a task that runs just it; where one task runs the batch that one runs
    all.
    """
    flow = Pipeline("named")
    flow.source("run", FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads="run")
    options = {"schedule": None, "target": "jobs.named:pipeline", "spark": spark}
    name = "application_args" if isinstance(spark, SparkSubmit) else "arguments"
    steps, whole = pipeline_dag(flow, **options), pipeline_dag(flow, submit="batch", **options)
    asked = getattr(steps.get_task("run"), name)
    assert asked[4:6] == ["--step", "run"]
    asked = getattr(whole.get_task("run"), name)
    assert "--step" not in asked


def test_the_bare_job_of_the_benchmark_is_submitted_alike():
    """What a small batch is measured against has the same settings of Spark and Java."""
    from benchmarks.dags import small

    ours, bare = small.batch.get_task("run"), small.bare.get_task("run")
    assert bare.conf == ours.conf
    assert bare.env_vars == ours.env_vars


@pytest.mark.parametrize("due", [True, False])
def test_what_is_not_due_is_skipped(monkeypatch, due):
    """What follows a settlement is skipped before its driver starts, whichever operator runs it."""

    def asked(target, context):
        if not due:
            raise AirflowSkipException(f"nothing for {target}")

    task = submitted(Elsewhere, pipeline, "m:p", "combine", application="run_step.py", due=asked)
    if due:
        task._pre_execute_hook({})
    else:
        with pytest.raises(AirflowSkipException, match="nothing for m:p"):
            task._pre_execute_hook({})


def on_a_server(monkeypatch, code, line=""):
    """A step's task on a Spark Connect server, whose driver ends with a code and a last line."""
    done = SubprocessResult(exit_code=code, output=line)
    asked = []

    def run_command(self, call, cwd):
        asked.append((call, cwd))
        return done

    monkeypatch.setattr(SubprocessHook, "run_command", run_command)
    arguments = ("jobs.wordcount:pipeline", "words")
    task = submitted(spark_connect("sc://h:1"), pipeline, *arguments, application="run_step.py")
    return task, asked


def test_a_driver_on_a_server(monkeypatch):
    """It is a process of this Python with the address of its Spark; its failures are those of
    spark-submit.
    """
    task, asked = on_a_server(monkeypatch, 0)
    assert task.template_fields == ("arguments",)
    task.execute({})
    ((call, folder),) = asked
    assert call[:3] == [sys.executable, "-u", "run_step.py"]
    assert call[-2:] == ["--remote", "sc://h:1"]
    assert folder == os.getcwd()
    line = TAIL.strip().splitlines()[-1]
    with pytest.raises(
        PermanentFailure, match=r"^words of batch 7: no file matches /data/x\.csv$"
    ) as caught:
        on_a_server(monkeypatch, EXIT_PERMANENT, line)[0].execute({})
    assert state_after(task, caught.value) == "failed"
    with pytest.raises(AirflowException, match="the driver ended with 1: lost") as caught:
        on_a_server(monkeypatch, 1, "lost")[0].execute({})
    assert state_after(task, caught.value) == "up_for_retry"


def test_a_settled_batch_starts_no_driver_on_a_server(monkeypatch):
    """A cleared step of a settled batch changes nothing, and starts nothing."""
    task, asked = on_a_server(monkeypatch, 0)
    monkeypatch.setattr(spark_tasks, "is_settled", lambda context, conn_id: True)
    task.execute({})
    assert asked == []


SERVER = "expected a Spark Connect server, sc://HOST:PORT"


@pytest.mark.parametrize(
    ("spark", "message"),
    [
        ("local[2]", f"'local[2]': {SERVER}"),
        ("sc://", f"'sc://': {SERVER}"),
        ("sc://h;user_id=me", f"'sc://h': {SERVER}"),
        ("sc://h;token=hush", "set SPARK_CONNECT_AUTHENTICATE_TOKEN"),
        ("sc://h:1/;token=hush", "set SPARK_CONNECT_AUTHENTICATE_TOKEN"),
    ],
)
def test_what_is_no_server_is_refused(spark, message):
    """A DAG that names no server is refused with what was found, but for a token."""
    with pytest.raises(DeclarationError) as caught:
        pipeline_dag(pipeline, schedule=None, spark=spark)
    assert "the DAG of 'wordcount'" in str(caught.value)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


def other_task(**options):
    """An operator with a name of its own."""
    return Elsewhere(**{**options, "task_id": "mine"})


def takes_nothing(task_id):
    """No operator can be made of one name alone."""


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (17, "or a function that makes a task, found 17"),
        (lambda **_: None, "expected an operator with task_id 'sentences', found None"),
        (
            other_task,
            "expected an operator with task_id 'sentences', found <Task(Elsewhere): mine>",
        ),
        (
            takes_nothing,
            "cannot make the task 'sentences': takes_nothing() got an unexpected keyword",
        ),
    ],
    ids=["no function", "no operator", "another task_id", "other arguments"],
)
def test_an_operator_that_makes_no_task_is_refused(operator, message):
    """The error says what was expected of that which makes the tasks, and what came."""
    with pytest.raises(DeclarationError, match=re.escape(message)):
        pipeline_dag(pipeline, schedule=None, spark=operator)


@pytest.mark.parametrize(
    "schedule",
    [timedelta(hours=6), [], ["0 6 * * *"], "@once", "@continuous", "daily", "61 * * * *", ""],
)
def test_a_schedule_without_intervals_is_refused(schedule):
    """Airflow's other schedules are refused by what is allowed, and not by its serializer."""
    with pytest.raises(DeclarationError, match=r"schedule=.* expected a cron expression .*None"):
        pipeline_dag(pipeline, schedule=schedule, target="m:p")


def test_a_driver_refuses_arguments_that_were_not_rendered(monkeypatch, capsys):
    """An operator without templates would hand the driver the templates themselves."""
    records = ["run_step", "--pipeline", "a:b", "--batch", "{{ ti.xcom_pull(task_ids='open') }}"]
    monkeypatch.setattr(sys, "argv", records)
    with pytest.raises(SystemExit):
        run_step_main()
    assert "must have application_args among its template_fields" in capsys.readouterr().err


def driver_for(monkeypatch, conn_id):
    """What a driver of batch 7 ends with; the ledger that it finds has that batch of another
    pipeline.
    """
    monkeypatch.setattr(run_step, "connect", lambda settings: SimpleNamespace())

    def other(database, batch_id, name):
        raise InputError(f"batch {batch_id} is of pipeline 'other', not {name!r}")

    monkeypatch.setattr(run_step, "get_batch", other)
    for name in ("require_storage", "build_session"):
        monkeypatch.setattr(run_step, name, lambda *_, **__: pytest.fail("was opened"))
    attempt = "0190a0a0-0000-7000-8000-000000000000"
    arguments = ["--pipeline", "jobs.wordcount:pipeline", "--batch", "7", "--attempt", attempt]
    arguments += [] if conn_id is None else ["--conn-id", conn_id]
    monkeypatch.setattr(sys, "argv", ["run_step", *arguments])
    return run_step_main()


@pytest.mark.parametrize(
    ("conn_id", "environment", "message"),
    [
        (None, None, "batch 7 is of pipeline 'other', not 'wordcount'"),
        (None, "sales", "batch 7 is of pipeline 'other', not 'wordcount'"),
        ("sales", "sales", "batch 7 is of pipeline 'other', not 'wordcount'"),
        ("sales", "stock", "of connection 'sales', its environment is of 'stock': set ACKLEDGER_"),
        ("sales", None, "of connection 'sales', its environment is of no connection: set ACKL"),
    ],
)
def test_a_driver_refuses_the_batch_of_another_ledger(
    monkeypatch, caplog, conn_id, environment, message
):
    """By the pipeline of the batch, and by the connection if one is named, before anything is
    opened.
    """
    monkeypatch.delenv("ACKLEDGER_CONN_ID", raising=False)
    if environment is not None:
        monkeypatch.setenv("ACKLEDGER_CONN_ID", environment)
    assert driver_for(monkeypatch, conn_id) == EXIT_PERMANENT
    assert message in caplog.text


def test_a_task_that_is_killed_ends_its_driver(monkeypatch):
    """The driver gets SIGTERM, and interrupts what it began on the server."""
    messages = []
    monkeypatch.setattr(SubprocessHook, "send_sigterm", lambda self: messages.append(self))
    task, _ = on_a_server(monkeypatch, 0)
    task.execute({})
    task.on_kill()
    assert messages == [task._process]


def test_a_pipeline_that_no_job_can_import_is_refused(monkeypatch):
    """What is declared in a DAG file, even one that is run as a script, needs a target: Spark
    jobs cannot import it. So does what is no global of its module.
    """
    flow = Pipeline("own")
    flow.source("a", FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads="a")
    with pytest.raises(DeclarationError, match="'own' is no global of module"):
        pipeline_dag(flow, schedule=None)
    in_dag_file = "unusual_prefix_0a1b_own"
    monkeypatch.setitem(sys.modules, in_dag_file, SimpleNamespace(pipeline=flow))
    for flow.module in (in_dag_file, "__main__"):
        with pytest.raises(DeclarationError, match="declare it in a module on PYTHONPATH"):
            pipeline_dag(flow, schedule=None)
