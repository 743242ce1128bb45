"""Stages that run as one plan have the verdicts, sinks and reasons that they have one by one.

Plans that include the sink are in ``test_one_plan_to_sink.py``.
"""

import json
from pathlib import Path

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import failed
from ledger.batch import one_plans, recovery
from ledger.batch.records.trace import Fate, trace
from ledger.errors import NotReadyError
from ledger.execution import run_steps
from ledger.store.queries.one_plans import StageHistory
from tests.support.dying import Died, dies_at
from tests.support.order_days import (
    ORDERS,
    STAGES,
    STRANGE,
    Lying,
    add_customers,
    ended,
    orders,
    pipeline,
    plans,
    same,
    swapped,
    without,
    write_day,
)


@pytest.fixture
def days(tmp_path):
    """A day without losses, then two with them."""
    write_day(tmp_path, 1, orders())
    write_day(tmp_path, 2, orders(*STRANGE))
    write_day(tmp_path, 3, orders(*STRANGE))


@pytest.fixture
def history(monkeypatch):
    """A batch before the first one, in which no stage lost or multiplied rows."""
    histories = {step: StageHistory(step, False, 0, ORDERS) for step in STAGES}
    monkeypatch.setattr(one_plans, "history_of", lambda connection, batch: histories)


_SINGLE = {}  # results of the third day, by what the last stage does besides


def single(runner, last=None):
    """Return what the third day leaves if its stages run one by one. It is run once."""
    if last not in _SINGLE:
        _SINGLE[last] = ended(runner(pipeline(last=last, one_plan=False)), 2)
    return _SINGLE[last]


def test_a_plan_has_the_verdicts_of_its_stages(runner, days, history):
    """A batch that is one plan leaves the ledger and sink of single stages."""
    run = runner(pipeline())
    as_plan = ended(run, 1)
    assert plans(run) == [(STAGES, False)]
    assert as_plan == single(runner)
    failures, drops, _, rows = as_plan
    assert {id_: step for id_, (step, *_) in failures.items()} == {
        5: "checked",
        8: "checked",
        13: "with_country",
        21: "with_country",
    }
    assert sum(drops.values()) == 2
    assert len(rows) == ORDERS - len(STRANGE)


def test_a_clean_batch_writes_only_the_last_stage(runner, days, history):
    """Runs within the plan have no files if nothing is lost; ``trace`` says where the rows
    are, and the settled batch acks all.
    """
    run = runner(pipeline())
    assert ended(run, 0)[:2] == ({}, {})
    files = run.ledger.rows(
        "SELECT step, count(*) AS files FROM step_run_file JOIN step_run USING (step_run_id)"
        " WHERE one_plan_id IS NOT NULL GROUP BY step"
    )
    assert [row.step for row in files] == ["priced"]
    root = run.ledger.row("SELECT first_root FROM batch_source").first_root
    branch = trace(run.job.database, root).tree.branches[0]
    assert (branch.step, branch.fate, branch.content) == ("checked", Fate.PASSED_ON, None)
    assert "in one plan with priced" in branch.reason
    last = branch.branches[0].branches[0]
    assert (last.step, json.loads(last.content)["id"]) == ("priced", 0)
    summary = run.ledger.summary(1)
    assert "checked, with_country and priced ran as one plan: only priced wrote its rows" in (
        summary.notes
    )


LIES = {
    # It arrives the second time.
    "lost before the second stage": {"with_country": [without(200)]},
    "lost before the last stage": {"priced": [without(200)]},
    "one lost, one doubled": {"priced": [swapped]},
    # It was counted behind the first stage, which the second time it does not reach.
    "lost at another place": {
        "checked": [same, without(200)],
        "with_country": [without(200)],
    },
    # As many rows were counted behind the first stage as are explained, but other ones.
    "counted twice": {"checked": [swapped], "with_country": [same, without(200)]},
    "lost and failed": {"checked": [same, without(8)]},
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_explained_is_rejected(runner, days, history, lie):
    """A plan counts only if what its rows did the second time is all that was counted the first
    time. Otherwise the stages run one by one, with the verdicts that they have without a plan.
    """
    run = runner(pipeline(), on_read=Lying(**LIES[lie]))
    result = ended(run, 1)
    assert plans(run) == [(STAGES, True)]
    assert result == single(runner)


def test_a_rejected_plan_is_not_tried_again_at_once(runner, tmp_path):
    """A stage that makes two rows of one is found when it does. The next batch knows: there the
    stage ends a plan, whose rows are written.
    """
    for day in range(1, 4):
        write_day(tmp_path, day, orders())
    run = runner(pipeline())
    ended(run, 0)
    add_customers(tmp_path, "0,PT\n")
    ended(run, 1)
    assert plans(run) == [([*STAGES, "out"], True)]
    ended(run, 2)
    assert plans(run) == [([*STAGES, "out"], True), (STAGES[:2], False)]


def test_a_stage_that_fails_says_why_by_itself(runner, days, history):
    """An error in a plan is that of the stage which raises it when it runs alone."""
    run = runner(pipeline(divides=True))
    batch = run.open_day(0)
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        run_steps(run.job, batch.batch_id, lambda *_: None)
    states = run.ledger.rows(
        "SELECT step, state, one_plan_id IS NOT NULL AS planned FROM step_run ORDER BY step_run_id"
    )
    assert [tuple(row) for row in states] == [
        ("orders", "committed", False),
        *((step, "fenced", True) for step in STAGES),
        ("checked", "committed", False),
        ("with_country", "committed", False),
        ("priced", "failed", False),
    ]


def asks_for_rows(orders, priced):
    """Return as many rows whatever the function asks for, but it asks."""
    return priced if orders.isEmpty() else priced.where("id >= 0")


def shows(orders, priced):
    """Return the same rows after a job, whose rows could be counted for those of the plan."""
    orders.foreach(bool)
    return priced


def marks(orders, priced):
    """Fail orders beside the output: the input is used twice."""
    return priced.where("id <> 300"), failed(orders.where("id = 300"), "three hundred")


def divides_in_two(orders, priced):
    """Unite two halves of the input, as if they went different ways."""
    return priced.where("id % 2 = 0").unionByName(priced.where("id % 2 = 1"))


def counts(orders, priced):
    """Number the orders of a customer, which needs all of them."""
    return priced.withColumn("n", F.row_number().over(Window.partitionBy("customer").orderBy("id")))


@pytest.mark.parametrize("last", [asks_for_rows, shows, marks, divides_in_two])
def test_a_function_that_a_plan_could_misread_is_rejected(runner, days, history, last):
    """A function may get another answer for the rows that run again, and what is read twice
    may be different each time: the stages run one by one.
    """
    run = runner(pipeline(last=last))
    result = ended(run, 1)
    assert plans(run) == [(STAGES, True)]
    assert result == single(runner, last)


def test_a_whole_stage_that_drops_rows_rejects_its_plan(runner, days):
    """A second run of the rows that it drops would number other rows."""
    run = runner(pipeline(last=counts))
    ended(run, 0)
    result = ended(run, 1)
    assert plans(run) == [([*STAGES, "out"], True)]
    assert result == single(runner, counts)


def test_a_rejected_plan_of_a_pipeline_that_redacts(runner, days, history):
    """It runs one by one like any other, and what was rejected is told without values."""
    run = runner(pipeline(redact="status"), on_read=Lying(priced=[without(200)]))
    ended(run, 0)
    assert plans(run) == [(STAGES, True)]


def test_a_stage_that_keeps_out_many_rows_runs_by_itself(runner, tmp_path):
    """A plan does not run a large part of its input twice, batch after batch."""
    cancelled = [(n, {"status": "open"}) for n in range(0, ORDERS, 10)]
    for day in (1, 2):
        write_day(tmp_path, day, orders(*cancelled))
    run = runner(pipeline())
    ended(run, 0)
    ended(run, 1)
    assert plans(run) == [(STAGES[1:], False)]


DEATHS = (("run opened", 2), ("files written", 2), ("files written", 3), ("files written", 6),
          ("committing run", 3), ("run committed", 2))  # fmt: skip


@pytest.mark.parametrize(("place", "nth"), DEATHS)
@pytest.mark.parametrize("silent", [False, True], ids=["failed", "killed"])
def test_a_driver_that_dies_in_a_plan(runner, days, history, place, nth, silent):
    """Nothing of a plan counts before all of it does; the next attempt runs what does not."""
    run = runner(pipeline())
    batch = run.open_day(1)
    with pytest.raises(Died), dies_at(place, nth=nth, silent=silent):
        run_steps(run.job, batch.batch_id, lambda *_: None)
    left = run.ledger.rows(
        "SELECT step FROM step_run WHERE state = 'committed' ORDER BY step_run_id"
    )
    assert [row.step for row in left] == ["orders", *(STAGES if place == "run committed" else [])]
    result = ended(run, 1)
    assert result == single(runner)


def test_a_single_stage_of_a_plan_has_no_rows_for_another(runner, days, history):
    """A stage that is to run alone behind a plan asks for the whole plan."""
    run = runner(pipeline())
    batch = run.open_day(1)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    with pytest.raises(NotReadyError, match="whose rows were only written by priced"):
        run.step(batch, "with_country")
    written = run.ledger.row(
        "SELECT path FROM step_run_file JOIN step_run USING (step_run_id)"
        " WHERE step = 'priced' ORDER BY 1 LIMIT 1"
    )
    Path(written.path).unlink()
    assert recovery.finished(run.job.database, run.job.pipeline, batch.batch_id) == {
        "orders",
        "out",
    }
