"""What follows a settlement is one tuple: all of it has its task and its place in a driver."""

import re
from types import SimpleNamespace

import pytest

from jobs.wordcount import pipeline
from ledger import FileSource, ParquetSink, Pipeline, execution, run_step
from ledger.airflow import pipeline_dag, tasks
from ledger.airflow.versions import AirflowSkipException
from ledger.batch import follow_ups
from ledger.batch.follow_ups import SETTLE, FollowUp, Pending, WithoutSpark
from ledger.batch.settlement import Settlement
from ledger.batch.step_runs import Attempt
from ledger.core.states import BatchStatus
from ledger.errors import DeclarationError
from ledger.execution.follow_ups import RUNNERS
from tests.support.places import ROOT

TARGET = "jobs.wordcount:pipeline"


class Audit(FollowUp):
    """One that needs Spark, after ``publish``."""

    name = "audit"
    does = "Audit the batch."
    of_batch = True

    def after(self, pipeline):
        return "publish"

    def is_wanted(self, pipeline):
        return pipeline.name != "unaudited"

    def pending(self, connection, batch_id, steps):
        return Pending("audit", steps, (f"audit of {batch_id}",))


@pytest.fixture
def audited(monkeypatch):
    """A follow-up at the end of the tuple, with its function; the batches that it was done for."""
    done = []

    def audit(job, batch_id, attempt):
        done.append(batch_id)
        return ["audited"]

    monkeypatch.setattr(follow_ups, "FOLLOW_UPS", (*follow_ups.FOLLOW_UPS, Audit()))
    monkeypatch.setitem(RUNNERS, Audit, audit)
    return done


@pytest.fixture
def alone(audited, monkeypatch):
    """It is the only one, and the ledger has two batches of which it is pending."""
    monkeypatch.setattr(follow_ups, "FOLLOW_UPS", follow_ups.FOLLOW_UPS[-1:])

    def waiting(connection, pipeline, names, *, batch_id):
        assert (pipeline, names) == ("p", ["audit"])
        return [2, 4] if batch_id is None else [batch_id]

    monkeypatch.setattr(follow_ups.following, "waiting", waiting)
    monkeypatch.setattr(follow_ups.following, "pending", lambda *_: {"audit": 3})
    return audited


def named(name, step="a"):
    """A pipeline of one step and a sink."""
    flow = Pipeline(name)
    flow.source(step, FileSource("a", schema="n INT"))
    flow.sink("b", ParquetSink("b"), reads=step)
    return flow


def test_it_has_a_task(audited):
    """Its task starts a driver after the one that it names, whatever becomes of that; ``complete``
    waits for it."""
    dag = pipeline_dag(pipeline, schedule=None, target=TARGET)
    task = dag.get_task("audit")
    assert (task.upstream_task_ids, task.trigger_rule) == ({"publish"}, "all_done")
    assert task.downstream_task_ids == {"complete"}
    assert task.application_args[4:6] == ["--step", "audit"]
    assert task.follows


def test_its_task_is_skipped_while_nothing_is_decided(audited, monkeypatch):
    """No driver starts for a batch that is not decided, also where nothing else is asked."""

    def decided(context, database):
        raise AirflowSkipException("nothing follows yet")

    monkeypatch.setattr(tasks, "decided_batch", decided)
    monkeypatch.setattr(tasks.InTask, "database", None)
    task = pipeline_dag(pipeline, schedule=None, target=TARGET).get_task("audit")
    with pytest.raises(AirflowSkipException, match="nothing follows yet"):
        task._pre_execute_hook({})


def test_a_pipeline_without_it_has_no_task(audited):
    """What a pipeline does not want has no task there, nor where one task runs the batch."""
    result = named("unaudited")
    assert "audit" not in pipeline_dag(result, schedule=None, target=TARGET).task_dict
    dag = pipeline_dag(pipeline, schedule=None, target=TARGET, submit="batch")
    assert set(dag.task_dict) == {"open", "run", "complete"}


def test_no_step_has_its_name(audited):
    """A step of that name is refused, as for the other tasks of the DAG."""
    with pytest.raises(DeclarationError, match="step 'audit' of 'clash'"):
        pipeline_dag(named("clash", "audit"), schedule=None, target=TARGET)


def test_the_step_program_knows_it(audited):
    """``--step audit`` does it, instead of a step of the pipeline."""
    arguments = SimpleNamespace(step="audit", batch=7)
    run_step._run_part(SimpleNamespace(pipeline=pipeline), arguments, Attempt())
    assert audited == [7]


def test_a_driver_does_it(alone, monkeypatch):
    """A driver that settles a batch does it, if the pipeline wants it and the batch is settled."""
    for name, status in (("p", "settled"), ("p", "held"), ("unaudited", "settled")):
        settled = Settlement(7, BatchStatus(status), "", roots=1, failed=0)
        monkeypatch.setattr(
            execution.follow_ups, "settle_once", lambda *_, now, settlement=settled: settlement
        )
        job = SimpleNamespace(database=None, pipeline=named(name))
        assert execution.settle_and_follow(job, 7) is settled
    assert alone == [7]


def test_the_command_asks_for_it(alone):
    """``ackledger publish`` asks for the batches of which it is pending."""
    assert follow_ups.waiting(None, "p") == [2, 4]
    assert follow_ups.waiting(None, "p", 4) == [4]
    assert [each.name for each in follow_ups.by_publish(named("p"))] == ["audit"]
    assert follow_ups.by_publish(named("unaudited")) == []
    assert not follow_ups.is_due(None, named("p"))


def test_the_summary_asks_for_it(alone):
    """What is pending of it is found, without a pipeline at hand."""
    (pending,) = follow_ups.pending(None, 7)
    assert (pending.count, pending.sentences) == (3, ("audit of 7",))


def test_each_can_be_done():
    """What needs Spark has a task and a function; no function exists for what is none."""
    assert len({each.name for each in follow_ups.FOLLOW_UPS}) == len(follow_ups.FOLLOW_UPS)
    on_spark = [each for each in follow_ups.FOLLOW_UPS if not isinstance(each, WithoutSpark)]
    assert all(each.has_task for each in on_spark)
    assert {*RUNNERS} == {type(each) for each in on_spark}


def test_the_view_calls_them_by_name():
    """``pending_follow_up`` has rows of these follow-ups, and of what the sweeper is to replay."""
    views = (ROOT / "migrations" / "baseline" / "views.sql").read_text()
    view = views.partition("CREATE VIEW pending_follow_up")[2].partition("\nCOMMENT")[0]
    names = set(re.findall(r"(?:SELECT|b.dag_id,) '(\w+)'", view))
    assert {"publish", "keep"} < names
    assert names - {each.name for each in follow_ups.FOLLOW_UPS} == {"replay"}


def test_tasks_follow_earlier_ones():
    """A task follows ``settle``, or a follow-up that comes before it."""
    before = {SETTLE}
    for each in follow_ups.with_tasks():
        assert each.after(pipeline) in before, each.name
        before.add(each.name)
