"""Days of orders, the pipeline that reads them, and the ledger and sink that its batches leave."""

import json
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from ledger import FileSource, ParquetSink, Pipeline
from ledger.execution import run_steps, settle_and_follow
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


def pipeline(*, divides=False, last=None, sink=None, **options):
    """Three stages in a row, of which the first fails and drops, the second and third lose.
    ``divides``: whether the last one fails for an order of 0 cents. ``last``: what it does besides.
    ``sink``: the sink; None: a folder.
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

    flow.sink("out", sink or ParquetSink("out"), reads="priced")
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


def ended(run, day, by="id"):
    """Run a day, and return what the ledger has of it, and the day's rows in the sink, in order of
    a column.
    """
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
    return failures, dropped, counts, published(run, batch.batch_id, by)


def published(run, batch_id, by="id"):
    """Rows of a batch in the sink's folder, in order of a column."""
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
    assert not {row.get("id") for row in rows} & {json.loads(row.content)["id"] for row in lost}
    return sorted(rows, key=lambda row: (row[by], str(row)))


def plans(run):
    """Stages of each plan that was tried, and whether it was rejected."""
    return [(row.steps, row.rejected is not None) for row in run.ledger.rows(PLANS)]


STAGES = ["checked", "with_country", "priced"]


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


def copies(numbers):
    """Rows of which some orders come another number of times than once."""

    def changed(rows):
        times = F.lit(1)
        for order, number in numbers.items():
            times = F.when(F.col("id") == order, number).otherwise(times)
        return rows.withColumn("copy", F.explode(F.array_repeat(F.lit(1), times))).drop("copy")

    return changed


swapped = copies({200: 0, 201: 2})  # as many rows as before


def add_customers(folder, lines):
    """Append lines to the customers."""
    with (folder / "customers.csv").open("a") as file:
        file.write(lines)
