"""Tasks of a pipeline's DAG, called as Airflow calls them, against the real ledger."""

import json
import re
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from ledger.airflow import pipeline_dag
from ledger.airflow.maintenance import accept_dag
from ledger.airflow.versions import AirflowRescheduleException
from ledger.batch.outcome.report import advise
from ledger.core.logs import AboutFilter
from ledger.core.run_request import REPROCESS
from ledger.core.states import Guarantee
from ledger.pipeline import load as loading
from ledger.store.queries import batches
from tests.support.ledgers import pipeline

DAYS = [
    {"interval_start": f"2013-01-0{day}", "interval_end": f"2013-01-0{day + 1}"} for day in (1, 2)
]
POLL = timedelta(minutes=7)
TRIGGER = re.compile(r"airflow dags trigger (\S+) --conf '([^']*)'")


@pytest.fixture
def dag_of(environment, monkeypatch, tmp_path):
    """Makes the DAG of a pipeline, whose file is there."""
    (tmp_path / "in.csv").write_text("n\n1\n2\n3\n")

    def make(flow, **options):
        monkeypatch.setattr(loading, "load_pipeline", lambda target: flow)
        return pipeline_dag(
            flow, schedule=None, target="tests.support.ledgers:none", room_poll=POLL, **options
        )

    return make


def open_by(dag, run_id, **conf):
    """The number of the batch that the task ``open`` of a run with a conf returns."""
    run = SimpleNamespace(dag_id="dag", run_id=run_id, conf=conf)
    return dag.get_task("open").python_callable(dag_run=run)


def batch_of(ledger, batch_id):
    """A batch as the ledger has it."""
    return ledger.transact(batches.get_batch, batch_id)


def test_a_run_without_room_is_rescheduled(ledger, dag_of, caplog):
    """While as many records are pending as the pipeline bears the task waits without a worker's
    slot, looks again after ``room_poll``, and says for which batch.
    """
    dag = dag_of(pipeline(max_pending=2))
    first = open_by(dag, "first", **DAYS[0])
    ledger.emit(batch_of(ledger, first), 2)
    before = datetime.now(UTC)
    with caplog.at_level("INFO"), pytest.raises(AirflowRescheduleException) as raised:
        open_by(dag, "second", **DAYS[1])
    assert before + POLL <= raised.value.reschedule_date <= datetime.now(UTC) + POLL
    assert f"2 records are pending in batches {first}, max_pending is 2" in caplog.text


def test_the_log_of_open_has_the_batch_as_a_key(database, dag_of, caplog):
    """So one query of a log store finds it with the batch's other tasks."""
    with caplog.at_level("INFO", "ledger"), caplog.filtering(AboutFilter()):
        batch_id = open_by(dag_of(pipeline()), "first", **DAYS[0])
    (line,) = [record for record in caplog.records if record.name == "ledger.airflow.pipelines"]
    assert (line.pipeline, line.batch_id) == ("chain", batch_id)


def test_a_conf_reprocesses(ledger, dag_of):
    """A run with ``{"reprocess": true}`` opens a batch that replaces the one that has the
    interval, under a run id of its own; cleared, it finds that batch again.
    """
    flow = pipeline()
    dag = dag_of(flow)
    first, _ = ledger.whole_batch(flow)
    ledger.settle(first.batch_id)
    number = open_by(dag, "run", **DAYS[0], reprocess=True)
    again = batch_of(ledger, number)
    assert (again.replaces_batch_id, again.run_id) == (first.batch_id, "run" + REPROCESS)
    assert again.params == {}
    assert open_by(dag, "run", **DAYS[0], reprocess=True) == number
    assert batch_of(ledger, first.batch_id).replaces_batch_id is None


@pytest.mark.parametrize(
    ("conf", "guarantee"),
    [
        ({}, Guarantee.EXACTLY_ONCE),
        ({"guarantee": None}, Guarantee.EXACTLY_ONCE),
        ({"guarantee": "at_least_once"}, Guarantee.AT_LEAST_ONCE),
    ],
    ids=str,
)
def test_a_conf_names_the_guarantee(ledger, dag_of, conf, guarantee):
    """The guarantee in a run's conf is that of its batch, and none of its parameters; without
    one it is the pipeline's.
    """
    batch = batch_of(ledger, open_by(dag_of(pipeline()), "run", **DAYS[0], **conf, region="x"))
    assert batch.guarantee is guarantee
    assert batch.params == {"region": "x"}


@pytest.mark.parametrize("max_replays", [3, 0], ids=["failed", "quarantined"])
def test_the_runs_that_are_recommended_can_be_triggered(ledger, dag_of, max_replays):
    """What a run says to trigger in Airflow names a DAG that is there and a conf that its form
    takes; the pipeline's own DAG opens the replay that is meant.
    """
    flow = pipeline(max_replays=max_replays)
    dags = {"dag": dag_of(flow), "ledger_accept": accept_dag()}
    batch, _ = ledger.whole_batch(flow, 10, lose_sink=[1, 2], lose_middle=[3])
    ledger.settle(batch.batch_id)
    ledger.deliver()
    summary = ledger.summary(batch.batch_id)
    lines = advise(summary, "shop:pipeline").lines
    confs = [(dag_id, json.loads(conf)) for line in lines for dag_id, conf in TRIGGER.findall(line)]
    assert {dag_id for dag_id, _ in confs} == {
        "dag",
        *(["ledger_accept"] if not max_replays else []),
    }
    for number, (dag_id, conf) in enumerate(confs):
        if dag_id == "dag":
            replay = batch_of(ledger, open_by(dags[dag_id], f"again-{number}", **conf))
            assert (replay.original_id, replay.kind) == (batch.batch_id, "replay")
            ledger.abandon(replay.batch_id, "looked at")
        else:
            params = deepcopy(dags[dag_id].params)
            assert set(conf) <= set(params)
            params.update(conf)
            params.validate()
