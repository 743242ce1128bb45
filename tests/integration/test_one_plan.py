"""Stages that run as one plan have the verdicts, sinks and reasons that they have one by one."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import Window
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline, failed
from ledger.batch import one_plans, recovery
from ledger.batch.records.trace import Fate, trace
from ledger.errors import NotReadyError
from ledger.execution import run_steps, settle_and_follow
from ledger.store.queries.one_plans import StageHistory
from tests.support.dying import Died, dies_at
from tests.support.reasons import bare

ORDERS = 400
SCHEMA = "id BIGINT, customer BIGINT, cents BIGINT, status STRING"
CUSTOMER = "customer BIGINT, country STRING"
PLANS = "SELECT steps, rejected FROM one_plan ORDER BY one_plan_id"
FAILED = (
    "SELECT p.content, f.step, f.cause, f.reason FROM failed_root f"
    " JOIN failed_payload p USING (message_id) WHERE f.batch_id = :b"
)
DROPS = "SELECT step, reason, records FROM step_drops WHERE batch_id = :b"
DELTAS = (
    "SELECT step, input_rows, output_rows, failed_rows, emitted_edges, acked_edges FROM step_run"
    " WHERE batch_id = :b AND state = 'committed' ORDER BY step_run_id"
)


def pipeline(*, divides=False, last=None, **options):
    """Three stages in a row, of which the first fails and drops, the second and third lose.
    ``divides``: whether the last one fails for an order of 0 cents. ``last``: what it does besides.
    """
    flow = Pipeline("orders", **options)
    days = FileSource("{{ interval_start | ds }}/*.jsonl", format="json", schema=SCHEMA)
    flow.source("orders", days)
    flow.reference("customers", FileSource("customers.csv", schema=CUSTOMER))

    @flow.stage(reads="orders")
    def checked(orders):
        wrong = F.when(F.col("cents") < 0, "negative")
        return orders.where("status <> 'open'").withColumn("_failed", wrong)

    @flow.stage(reads="checked")
    def with_country(orders, *, customers):
        return orders.join(F.broadcast(customers), "customer")

    @flow.stage(reads="with_country")
    def priced(orders):
        euros = F.col("cents") / 100
        share = 1 / F.col("cents") if divides else F.lit(1)
        priced = orders.where("country <> 'XX'").select("*", euros.alias("euros"), share.alias("s"))
        return last(orders, priced) if last else priced

    flow.sink("out", ParquetSink("out"), reads="priced")
    return flow


def write_day(folder, day, orders):
    """Write the orders of a day, in two files."""
    at = folder / f"2013-01-{day:02d}"
    at.mkdir()
    for number in range(2):
        lines = [json.dumps(order) for order in orders[number::2]]
        (at / f"{number}.jsonl").write_text("\n".join(lines))
    (folder / "customers.csv").write_text(
        "customer,country\n" + "".join(f"{n},{'XX' if n == 8 else 'PT'}\n" for n in range(9))
    )


def orders(*strange):
    """Orders that arrive, and some that do not: by id, what is changed."""
    rows = [{"id": n, "customer": n % 7, "cents": n, "status": "paid"} for n in range(ORDERS)]
    for number, change in strange:
        rows[number] |= change
    return rows


STRANGE = (
    (3, {"status": "open"}),
    (5, {"status": None}),
    (8, {"cents": -1}),
    (13, {"customer": 77}),
    (21, {"customer": None}),
    (34, {"customer": 8}),
)


def ended(run, day):
    """Run a day, and return what the ledger has of it, and the day's rows in the sink."""
    batch = run.open_day(day)
    run_steps(run.job, batch.batch_id, lambda *_: None)
    settle_and_follow(run.job, batch.batch_id)
    ledger = run.ledger
    failures = {
        json.loads(row.content)["id"]: (row.step, row.cause, row.reason and bare(row.reason))
        for row in ledger.rows(FAILED, b=batch.batch_id)
    }
    drops = ledger.rows(DROPS, b=batch.batch_id)
    dropped = {(row.step, bare(row.reason)): row.records for row in drops}
    counts = [tuple(row) for row in ledger.rows(DELTAS, b=batch.batch_id)]
    return failures, dropped, counts, published(run, batch.batch_id)


def published(run, batch_id):
    """Rows of a batch in the sink's folder, in order."""
    (staged,) = run.ledger.rows(
        "SELECT folder FROM step_run WHERE batch_id = :b AND step = 'out' AND state = 'committed'",
        b=batch_id,
    )
    folder = Path(staged.folder.split("/_staging/")[0])
    rows = [
        row
        for path in folder.glob(f"ackledger_batch={batch_id}/**/*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    lost = run.ledger.rows(
        "SELECT p.content FROM failed_root JOIN failed_payload p"
        " USING (message_id) WHERE failed_root.batch_id = :b",
        b=batch_id,
    )
    assert not {row["id"] for row in rows} & {json.loads(row.content)["id"] for row in lost}
    return sorted(rows, key=lambda row: row["id"])


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


def test_a_plan_has_the_verdicts_of_its_stages(runner, days):
    """After a first batch of single stages, the next is one plan, with equal ledger and sink."""
    run = runner(pipeline())
    ended(run, 0)
    assert plans(run) == []
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


def plans(run):
    """Stages of each plan that was tried, and whether it was rejected."""
    return [(row.steps, row.rejected is not None) for row in run.ledger.rows(PLANS)]


STAGES = ["checked", "with_country", "priced"]


def test_a_clean_batch_writes_only_the_last_stage(runner, days, history):
    """Where nothing is lost, the runs within the plan have no files; ``trace`` says where the rows
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


class Lying:
    """Changes the rows that a step reads at its first and second reading, which are the plan's and
    that of the rows which did not arrive; later ones, of single stages, are as they are.
    """

    def __init__(self, **changes):
        self._changes = {step: list(own) for step, own in changes.items()}

    def __call__(self, step, rows):
        changes = self._changes.get(step)
        return changes.pop(0)(rows) if changes else rows


def same(rows):
    """Return the rows unchanged."""
    return rows


def without(number):
    """Rows without an order."""
    return lambda rows: rows.where(f"id <> {number}")


def swapped(rows):
    """One order less and another one twice: as many rows as before."""
    return rows.where("id <> 200").unionByName(rows.where("id = 201"))


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
    assert plans(run) == [(STAGES, True)]
    ended(run, 2)
    assert plans(run) == [(STAGES, True), (STAGES[:2], False)]


def add_customers(folder, lines):
    """Append lines to the customers."""
    with (folder / "customers.csv").open("a") as file:
        file.write(lines)


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


def marks(orders, priced):
    """Fail orders beside the output: the input is used twice."""
    return priced.where("id <> 300"), failed(orders.where("id = 300"), "three hundred")


def divides_in_two(orders, priced):
    """Unite two halves of the input, as if they went different ways."""
    return priced.where("id % 2 = 0").unionByName(priced.where("id % 2 = 1"))


def counts(orders, priced):
    """Number the orders of a customer, which needs all of them."""
    return priced.withColumn("n", F.row_number().over(Window.partitionBy("customer").orderBy("id")))


@pytest.mark.parametrize("last", [asks_for_rows, marks, divides_in_two])
def test_a_function_that_a_plan_could_misread_is_rejected(runner, days, history, last):
    """What a function asks for may be different for the rows that run again, and what is read twice
    may be different each time: the stages run one by one.
    """
    run = runner(pipeline(last=last))
    result = ended(run, 1)
    assert plans(run) == [(STAGES, True)]
    assert result == single(runner, last)


def test_a_whole_stage_is_part_of_no_plan(runner, days):
    """A stage that needs all rows of its input gets them from files."""
    run = runner(pipeline(last=counts))
    ended(run, 0)
    result = ended(run, 1)
    assert plans(run) == [(STAGES[:2], False)]
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
