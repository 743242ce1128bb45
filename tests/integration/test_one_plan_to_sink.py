"""A plan that goes on to the sink leaves the ledger and the sink's rows that its steps leave one by
one.
"""

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ledger import Bloom, FileSource, ParquetSink, Pipeline
from ledger.batch import one_plans, recovery
from ledger.batch.one_plans import plans_of
from ledger.batch.records.trace import Fate, trace
from ledger.errors import NotReadyError
from ledger.execution import run_steps, settle_and_follow
from ledger.spark.job import Job
from ledger.store.queries.one_plans import StageHistory
from tests.support.dying import Died, dies_at
from tests.support.order_days import (
    ORDERS,
    SCHEMA,
    STAGES,
    STRANGE,
    Lying,
    add_customers,
    copies,
    ended,
    orders,
    pipeline,
    plans,
    published,
    same,
    without,
    write_day,
)
from tests.support.runner import Runner

STEPS = [*STAGES, "out"]
GOOD = {step: StageHistory(step, False, 0, ORDERS) for step in STEPS}


@pytest.fixture
def days(tmp_path):
    """A day without losses, then two with them."""
    write_day(tmp_path, 1, orders())
    write_day(tmp_path, 2, orders(*STRANGE))
    write_day(tmp_path, 3, orders(*STRANGE))


@pytest.fixture
def history(monkeypatch):
    """A batch before the first one, in which nothing was lost, multiplied or refused."""
    monkeypatch.setattr(one_plans, "history_of", lambda connection, batch: GOOD)


_SINGLE = {}


def single(runner):
    """Return what the third day leaves if its steps run one by one. It is run once."""
    if not _SINGLE:
        _SINGLE["result"] = ended(runner(pipeline(one_plan=False)), 2)
    return _SINGLE["result"]


def test_a_plan_has_the_verdicts_of_its_steps(runner, days, tmp_path):
    """After a first batch of single steps, the next goes on to the sink, with equal ledger and
    sink, and columns of the same types in the sink's files.
    """
    run = runner(pipeline())
    ended(run, 0)
    assert plans(run) == []
    as_plan = ended(run, 1)
    assert plans(run) == [(STEPS, False)]
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
    schemas = {str(pq.read_schema(path)) for path in (tmp_path / "out").glob("a*/**/*.parquet")}
    assert len(schemas) == 1


def test_a_clean_batch_writes_only_the_sink_s_files(runner, days, history):
    """No stage has files if nothing is lost; ``trace`` says where the rows are, and a step that
    is to run alone asks for all of them.
    """
    run = runner(pipeline())
    batch = run.open_day(0)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    files = run.ledger.rows(
        "SELECT step, sum(rows) AS rows FROM step_run_file JOIN step_run USING (step_run_id)"
        " WHERE one_plan_id IS NOT NULL GROUP BY step"
    )
    assert [(row.step, row.rows) for row in files] == [("out", ORDERS)]
    root = run.ledger.row("SELECT first_root FROM batch_source").first_root
    assert fates(run, root) == [
        *((step, Fate.PASSED_ON) for step in STAGES),
        ("out", Fate.ACKED),
    ]
    with pytest.raises(NotReadyError, match="whose rows were only written by out"):
        run.step(batch, "out")
    everything = {"orders", *STEPS}
    assert recovery.finished(run.job.database, run.job.pipeline, batch.batch_id) == everything
    assert ended(run, 0)[:2] == ({}, {})
    summary = run.ledger.summary(1)
    assert "checked, with_country, priced and out ran as one plan: only out wrote its rows" in (
        summary.notes
    )


def fates(run, root):
    """Steps that the row of a record reached, and what became of it there."""
    pairs, branches = [], trace(run.job.database, root).tree.branches
    while branches:
        (branch,) = branches
        pairs.append((branch.step, branch.fate))
        branches = branch.branches
    return pairs


def test_a_record_that_did_not_arrive_is_traced(runner, days, history):
    """``trace`` finds where it ended, before the settlement and after it."""
    run = runner(pipeline())
    batch = run.open_day(1)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    first = run.ledger.row("SELECT first_root FROM batch_source").first_root
    # Orders of even numbers come first, then the others.
    ends = {
        5: ("checked", Fate.LOST),
        34: ("priced", Fate.DROPPED),
        13: ("with_country", Fate.LOST),
    }
    for settle in (False, True):
        if settle:
            settle_and_follow(run.job, batch.batch_id)
        for number, end in ends.items():
            root = first + number // 2 + (ORDERS // 2 if number % 2 else 0)
            assert fates(run, root)[-1] == end


def marker_of(folder, rows):
    """Return rows, of which order 200 is left out when they are computed for the first time."""
    path = folder / "computed"

    def is_there(number):
        if number != 200 or path.exists():
            return True
        path.touch()
        return False

    return rows.where(F.udf(is_there, "boolean")("id"))


LIES = {
    "lost before the last stage": {"priced": [without(200)]},
    "lost at another place": {"checked": [same, without(200)], "with_country": [without(200)]},
    "lost before the sink": {"out": [without(200)]},
    "one lost, one doubled before the sink": {"out": [copies({200: 0, 201: 2})]},
    "doubled before the sink": {"out": [copies({201: 2})]},
    "doubled by the last stage": {"priced": [copies({201: 2})]},
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_explained_is_rejected(runner, days, history, lie):
    """A plan counts only if the sink's writer got all that arrived. Otherwise the steps run one by
    one, and the next plan ends before the sink.
    """
    run = runner(pipeline(), on_read=Lying(**LIES[lie]))
    result = ended(run, 1)
    assert plans(run) == [(STEPS, True)]
    assert result == single(runner)
    batch = run.open_day(2)
    assert tried(run, batch) == [STAGES]


def tried(run, batch):
    """Names of the steps of each plan that may run."""
    planned = plans_of(run.job.database, run.job.pipeline, batch.batch_id)
    return [steps.names for steps in planned]


def test_rows_that_are_computed_again_do_not_prove_what_was_written(
    runner, days, history, tmp_path
):
    """The sink's files do not say which rows are missing. The rows are computed again for that, and
    they have to be the rows that the sink got.
    """
    run = runner(pipeline(), on_write=Lying(out=[lambda rows: marker_of(tmp_path, rows)]))
    result = ended(run, 1)
    assert plans(run) == [(STEPS, True)]
    assert "sink 'out' took" in run.ledger.row("SELECT rejected FROM one_plan").rejected
    assert result == single(runner)


def test_a_lie_that_only_the_xor_shows(runner, days, history):
    """On a day without losses, one row less and another twice are as many rows as the input has."""
    run = runner(pipeline(), on_read=Lying(out=[copies({200: 0, 201: 2})]))
    failures, _, _, rows = ended(run, 0)
    assert plans(run) == [(STEPS, True)]
    assert "sink 'out' took" in run.ledger.row("SELECT rejected FROM one_plan").rejected
    assert failures == {}
    assert [row["id"] for row in rows] == [*range(ORDERS)]


def test_a_row_without_a_folder_rejects_the_plan(runner, tmp_path, days, history):
    """A row that no folder can have was staged without its partition. Computed again it could fit,
    so it is not.
    """
    sink = ParquetSink("out", partition_by="status")
    empty_once = Lying(out=[lambda rows: rows.withColumn("status", F.lit(""))])
    run = runner(pipeline(sink=sink), on_read=empty_once)
    failures, _, _, rows = ended(run, 0)
    assert plans(run) == [(STEPS, True)]
    rejected = run.ledger.row("SELECT rejected FROM one_plan").rejected
    assert "has no folder for 400 of its rows" in rejected
    assert failures == {}
    assert len(rows) == ORDERS


def test_a_sink_that_refuses_rows(runner, tmp_path, history):
    """A record that the sink refuses fails there, as without a plan. Then the sink is part of no
    plan until it refuses none.
    """
    strange = [*STRANGE, (50, {"status": ""})]
    results = []
    for day, one_plan in enumerate((True, False)):
        write_day(tmp_path, day + 1, orders(*strange))
        sink = ParquetSink("out", partition_by="status")
        run = runner(pipeline(sink=sink, one_plan=one_plan))
        results.append(ended(run, day))
    as_plan, one_by_one = results
    assert as_plan == one_by_one
    assert as_plan[0][50][0] == "out"
    assert plans(run) == [(STEPS, True)]
    rejected = run.ledger.row("SELECT rejected FROM one_plan").rejected
    assert "has no folder for 1 of its rows" in rejected


def another(**changed):
    """The history with other counts of one step."""
    return {**GOOD, **{step: StageHistory(step, *counts) for step, counts in changed.items()}}


NOT_TO_SINK = {
    "at least once": ({"guarantee": "at_least_once"}, GOOD),
    "dedup": ({"sink": ParquetSink("out", dedup=Bloom(capacity=1000, key="id"))}, GOOD),
    "a sink that refused": ({}, another(out=(False, 0, ORDERS, 1))),
    "a stage that multiplied": ({}, another(priced=(True, 0, ORDERS))),
    "losses at several stages": (
        {},
        another(checked=(False, 15, ORDERS), with_country=(False, 15, ORDERS)),
    ),
    "a sink that is new": ({}, {step: GOOD[step] for step in STAGES}),
}


@pytest.fixture
def tried_of(days, database, settings):
    """Names of the steps of each plan that the first batch of a pipeline may run."""

    def tried_of(flow):
        run = Runner(Job(None, database, settings, flow))
        return tried(run, run.open_day(0))

    return tried_of


@pytest.mark.parametrize("case", NOT_TO_SINK)
def test_a_plan_that_has_to_end_before_the_sink(tried_of, monkeypatch, case):
    """A sink is part of a plan only if it never has to leave out a row that it has staged."""
    options, history = NOT_TO_SINK[case]
    monkeypatch.setattr(one_plans, "history_of", lambda connection, batch: history)
    assert tried_of(pipeline(**options)) == [STAGES]


def test_a_plan_of_a_pipeline_with_two_sinks_ends_before_them(tried_of, history):
    """A record that fails on the way to one sink is withheld from the other, too."""
    flow = pipeline()
    flow.sink("more", ParquetSink("more"), reads="priced")
    assert tried_of(flow) == [STAGES]


def test_a_plan_whose_rows_a_combine_reads_ends_before_the_sink(tried_of, history):
    """A combine reads what the last stage wrote."""
    flow = pipeline()

    @flow.combine(reads="priced")
    def total(priced):
        return priced.groupBy("country").count()

    flow.sink("totals", ParquetSink("totals"), reads="total")
    assert tried_of(flow) == [STAGES]


def test_one_stage_and_the_sink_are_a_plan(tried_of, history, monkeypatch):
    """A plan that ends before the sink has two stages at least."""
    flow = Pipeline("orders")
    days = FileSource("{{ interval_start | ds }}/*.jsonl", format="json", schema=SCHEMA)
    flow.source("orders", days)
    flow.stage(reads="orders")(checked)
    flow.sink("out", ParquetSink("out"), reads="checked")
    assert tried_of(flow) == [["checked", "out"]]
    monkeypatch.setattr(one_plans, "history_of", lambda *_: NOT_TO_SINK["a sink that refused"][1])
    assert tried_of(flow) == []


def checked(orders):
    """A stage that keeps what it reads."""
    return orders


@pytest.mark.parametrize(
    ("place", "nth"), [("files written", 2), ("files written", 3), ("committing run", 5)]
)
@pytest.mark.parametrize("silent", [False, True], ids=["failed", "killed"])
def test_a_driver_that_dies_in_a_plan(runner, days, history, place, nth, silent):
    """Nothing of a plan counts before all of it does; the next attempt runs what does not."""
    run = runner(pipeline())
    batch = run.open_day(1)
    with pytest.raises(Died), dies_at(place, nth=nth, silent=silent):
        run_steps(run.job, batch.batch_id, lambda *_: None)
    left = run.ledger.rows("SELECT step FROM step_run WHERE state = 'committed'")
    assert [row.step for row in left] == ["orders"]
    assert ended(run, 1) == single(runner)


@pytest.mark.parametrize("publish", ["settled", "complete"])
def test_a_lost_record_is_replayed(runner, tmp_path, history, publish):
    """The replay recovers a record that a plan lost, and the sink publishes the rows of both. The
    batch needs no job that withholds rows, whenever it is published.
    """
    write_day(tmp_path, 1, orders((13, {"customer": 77})))
    run = runner(pipeline(publish=publish))
    batch = run.open_day(0)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    settle_and_follow(run.job, batch.batch_id)
    assert plans(run) == [(STEPS, False)]
    assert len(published(run, batch.batch_id)) == (ORDERS - 1 if publish == "settled" else 0)
    add_customers(tmp_path, "77,PT\n")
    replay = run.open_replay(batch.batch_id)
    run_steps(run.job, replay.batch_id, lambda *_: None)
    settle_and_follow(run.job, replay.batch_id)
    assert [row["id"] for row in published(run, replay.batch_id)] == [13]
    assert 13 not in {row["id"] for row in published(run, batch.batch_id)}
    assert len(published(run, batch.batch_id)) == ORDERS - 1
    messages = run.ledger.rows("SELECT status FROM failed_message")
    assert [row.status for row in messages] == ["recovered"]
    publications = run.ledger.rows("SELECT folder FROM publication")  # of rows staged again
    assert [row.folder for row in publications] == [None, None]
