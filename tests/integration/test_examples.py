"""Every block of Python on the pages runs: on a real pipeline, with rows that show what it says."""

import sys
import textwrap
from collections import Counter
from contextlib import chdir
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typer.testing import CliRunner

from ledger import FileSource, ParquetSink, Pipeline, audit, testing
from ledger.auditing.expected import read_expected
from ledger.cli import app
from tests.support import examples
from tests.support.audited_shop import COMMAND, working_in, write_shop
from tests.support.audits import loss, report, source
from tests.support.examples import proves
from tests.support.ledgers import Ledger
from tests.support.pages import blocks, shows, typed
from tests.support.places import ROOT
from tests.support.reasons import bare


@pytest.fixture
def orders(monkeypatch):
    """The module ``orders`` of the pages, with the first pipeline of the README."""
    module = ModuleType("orders")
    monkeypatch.setitem(sys.modules, "orders", module)
    exec(examples.EXAMPLES["README.md", "by_country"].code, vars(module))
    return module


@pytest.mark.parametrize(
    "block", examples.EXAMPLES.values(), ids=lambda proof: f"{proof.place}-{proof.name}"
)
def test_it_runs(block, spark, orders):
    """Each block runs as it stands, and what it declares does what the page says of it."""
    prove = examples.PROOFS.get((block.place, block.name))
    assert prove is not None, "say in this file what the block does, by @proves"
    prove(block, spark)


def drops(done):
    """What the stages of a batch dropped: the number of records by reason, without the line."""
    rows = Ledger(done.lab.database).rows("SELECT reason, records FROM step_drops")
    return {bare(row.reason): row.records for row in rows}


@proves("README.md", "by_country")
def _with_a_drop(block, spark):
    """It is the project that ``ackledger init`` writes; a cancelled order and an open one are
    dropped, and a paid one whose customer is in no list is lost.
    """
    template = (ROOT / "ledger" / "cli" / "new" / "pipeline.py.template").read_text()
    written = [line for line in template.replace("$name", "orders").splitlines() if line]
    assert [line for line in block.code.splitlines() if line] == written[1:]
    unknown = {**examples.ORDERS[2], "status": "paid"}
    orders = [*examples.ORDERS, {**unknown, "id": "4"}]
    done = examples.batch(examples.run(block, None)["pipeline"], spark, orders)
    assert [(record.content["id"], bare(record.reason)) for record in done.failed] == [
        ("4", "inner join: no partner for customer")
    ]
    assert drops(done) == {"filter: condition false: status = 'paid'": 2}
    assert {row["id"] for row in done.rows["by_country"]} == {"1"}


@proves("README.md", "per_country")
@proves("docs/how-to/audit.md", "per_country")
def _as_it_is(block, spark):
    """The command prints the report that the page shows below the script, and writes nothing."""
    assert block.code == examples.EXAMPLES["README.md", block.name].code
    shown = [line for each in blocks(block.page, "console") for line in typed(each)]
    (output,) = [line.output for line in shown if line.command == COMMAND and line.output]
    with TemporaryDirectory() as folder:
        write_shop(Path(folder))
        before = sorted(Path(folder).iterdir())
        with working_in(Path(folder), spark):
            done = CliRunner().invoke(app, COMMAND.split()[1:])
        assert sorted(Path(folder).iterdir()) == before
    assert done.exit_code == 1, done.output
    assert len(output) > 8
    assert shows(done.stdout, output), done.stdout


SOLD = "country STRING, cents BIGINT, status STRING"


@proves("docs/pipelines.md", "per_country")
@proves("docs/pipelines.md", "totals")
def _ported(block, spark):
    """The job and its port have the same totals; the port drops the orders that the job's filter
    leaves out, and lists an order without a status.
    """
    page = "docs/pipelines.md"
    before, after = (examples.EXAMPLES[page, name] for name in ("per_country", "totals"))
    sold = [("GB", 5, "paid"), ("GB", 7, "paid"), ("FR", 9, "cancelled")]
    with TemporaryDirectory() as folder:
        day = f"{folder}/orders/2026-01-01"
        spark.createDataFrame(sold, SOLD).write.csv(day, header=True)
        written = f"{folder}/totals/2026-01-01"
        code = before.code.replace("orders/2026-01-01", day).replace("totals/2026-01-01", written)
        examples.run(replace(before, code=code), None, spark=spark, ORDER=SOLD)
        by_hand = [row.asDict() for row in spark.read.parquet(written).collect()]
    pipeline = examples.run(after, None, ORDER=SOLD)["pipeline"]
    rows = [dict(zip(("country", "cents", "status"), order, strict=True)) for order in sold]
    done = testing.run_batch(pipeline, {"orders": rows}, spark=spark)
    assert done.failed == []
    assert drops(done) == {"filter: condition false: status = 'paid'": 1}
    assert done.rows["by_country"] == by_hand == [{"country": "GB", "cents": 12}]
    unknown = {"country": "GB", "cents": 3, "status": None}
    done = testing.run_batch(pipeline, {"orders": [*rows, unknown]}, spark=spark)
    ((_, step, reason),) = examples.failures(done)
    assert (step, bare(reason)) == ("totals", "filter: condition NULL: status = 'paid'")
    assert done.rows["by_country"] == by_hand


@proves("docs/pipelines.md", "with_country")
def _first(block, spark):
    """An order whose customer is in no list is lost, by name, and the others are published."""
    pipeline = examples.run(block, None)["pipeline"]
    rows = [{key: order[key] for key in ("id", "customer", "cents")} for order in examples.ORDERS]
    done = examples.batch(pipeline, spark, rows)
    assert [(record.step, bare(record.reason)) for record in done.failed] == [
        ("with_country", "inner join: no partner for customer")
    ]
    assert {row["id"] for row in done.rows["by_country"]} == {"1", "2"}


@proves("docs/operating.md", "dag")
@proves("docs/alerting.md", "dag")
@proves("docs/how-to/schedule.md", "dag")
def _dag(block, spark):
    """The DAG of the pipeline, which ends with ``complete``."""
    dag = examples.run(block, None)["dag"]
    assert dag.dag_id == "orders"
    assert "complete" in dag.task_ids


@proves("docs/security.md", "pipeline")
def _redacted(block, spark):
    """The pipeline that masks two columns."""
    assert examples.run(block, None)["pipeline"].redact == ("name", "email")


@proves("docs/how-to/retention.md", "pipeline")
def _retained(block, spark):
    """The pipeline whose files are kept for thirty days."""
    assert examples.run(block, None)["pipeline"].keep_seconds == timedelta(days=30).total_seconds()


@proves("docs/how-to/backup.md", "unknown")
def _unknown(block, spark):
    """The batches in a Delta table that are above the ledger's newest."""
    texts = ("ackledger orders.out: batch 1203, run 9", "ackledger orders.out: batch 1204, run 10")
    with TemporaryDirectory() as folder, chdir(folder):
        for text in (*texts, "something else: batch 9999"):
            noted = CommitProperties(custom_metadata={"userMetadata": text})
            rows = pa.table({"id": [1]})
            write_deltalake("out/orders", rows, mode="append", commit_properties=noted)
        write_deltalake("out/orders", rows, mode="append")
        assert examples.run(block, None)["unknown"] == [1204]


@proves("docs/how-to/schedule.md", "acceptances")
def _forms(block, spark):
    """The DAGs beside the pipelines'."""
    pipeline = examples.run(block, None)
    names = {pipeline[name].dag_id for name in ("sweeper", "replays", "acceptances")}
    assert names == {"ledger_sweeper", "ledger_replay", "ledger_accept"}


@proves("docs/how-to/connection.md", "acceptances")
def _of_a_connection(block, spark):
    """The DAGs of a ledger that a connection names: its name is in those beside the pipeline's."""
    dags = examples.run(block, None)
    names = {dags[name].dag_id for name in ("sweeper", "replays", "acceptances")}
    assert names == {f"ledger_{what}.sales" for what in ("sweeper", "replay", "accept")}
    assert dags["orders"].get_task("complete").conn_id == "sales"


@proves("docs/operating.md", "orders")
@proves(
    "docs/how-to/downstream.md",
    "from airflow.sdk import DAG, task",
    "from airflow.sdk import DAG, CronDataIntervalTimetable",
)
def _downstream(block, spark):
    """DAGs that wait; they parse, and their tasks are in order."""
    examples.run(block, None)


@proves("docs/how-to/downstream.md", "days")
def _months(block, spark):
    """A DAG that waits for all days of a month."""
    dags = examples.run(block, None)
    assert dags["month"].is_rollup
    assert dags["days"].default_partition_mapper is dags["month"]


@proves("docs/how-to/checks.md", "checked")
@proves("docs/comparison.md", "checked")
def _checked(block, spark):
    """A negative amount fails its record with the reason, and replays once it is right."""
    pipeline = examples.shop()
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="checked")
    done = examples.batch(pipeline, spark)
    assert examples.failures(done) == [(0, "checked", "negative amount")]
    assert {row["id"] for row in done.rows["out"]} == {"1", "3"}


@proves("docs/comparison.md", "from pyspark.sql import DataFrame")
def _imports(block, spark):
    """What the examples have in common can be imported."""
    assert examples.run(block, None)["F"] is F


@proves("docs/how-to/checks.md", "positive")
def _positive(block, spark):
    """The same, one record at a time."""
    pipeline = examples.shop()
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="positive")
    assert examples.failures(examples.batch(pipeline, spark)) == [
        (0, "positive", "negative amount")
    ]


@proves("docs/pipelines.md", "large")
def _large(block, spark):
    """One stage fails a record, the next drops one lawfully."""
    pipeline = examples.shop()
    pipeline.stage(reads="orders")(examples.joined)
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="large")
    customers = [*examples.CUSTOMERS, {"customer": "eve", "country": "SE"}]
    done = examples.batch(pipeline, spark, references=customers)
    assert examples.failures(done) == [(0, "checked", "negative amount")]
    assert [row["id"] for row in done.rows["out"]] == ["3"]


@proves("docs/pipelines.md", "balance")
def _balance(block, spark):
    """The state of the second batch includes the first."""
    pipeline = examples.shop()
    pipeline.stage(reads="orders")(examples.joined)
    examples.run(block, pipeline)
    first = examples.batch(pipeline, spark, examples.ORDERS[:1])
    second = examples.batch(pipeline, spark, examples.ORDERS[:2], after=first)
    totals = {row["customer"]: row["cents"] for row in second.rows["balances"]}
    assert totals == {"ada": 10, "bob": -7}


@proves("docs/pipelines.md", "Model")
def _model(block, spark):
    """A state with the hooks is declared, and its graph is one."""
    pipeline = examples.shop()
    pipeline.stage(reads="orders")(examples.joined)
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="with_country")
    assert [step.name for step in pipeline.states()] == ["model"]
    assert pipeline.steps()


@proves("docs/pipelines.md", "Feed")
def _feed(block, spark):
    """A source by offsets is declared, and in a test takes given rows."""
    pipeline = Pipeline("feeds")
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="feed")
    done = testing.run_batch(pipeline, {"feed": [{"id": 1, "cents": 5}]}, spark=spark)
    assert done.rows["out"] == [{"id": 1, "cents": 5}]


@proves("docs/exactly-once.md", "pipeline")
def _guarantees(block, spark):
    """Both guarantees are declared."""
    assert examples.run(block, None)["pipeline"].guarantee == "at_least_once"


@proves("docs/exactly-once.md", "per_carrier")
def _combined(block, spark):
    """The combine counts the acked records of a batch."""
    pipeline = Pipeline("flights")
    pipeline.source("flights", FileSource("flights.csv", schema="carrier STRING"))

    @pipeline.stage(reads="flights")
    def with_plane(flights):
        return flights

    examples.run(block, pipeline)
    records = [{"carrier": "UA"}, {"carrier": "UA"}, {"carrier": "B6"}]
    done = testing.run_batch(pipeline, {"flights": records}, spark=spark)
    totals = {row["carrier"]: row["flights"] for row in done.rows["daily"]}
    assert totals == {"UA": 2, "B6": 1}


@proves("docs/acks.md", "paid")
def _paid(block, spark):
    """Emitted, dropped with a reason of its own, or failed. The filter drops another order, and
    loses one without a status.
    """
    pipeline = examples.shop()
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="paid")
    rows = [
        *examples.ORDERS[:2],
        {"id": "4", "customer": "ada", "cents": -1, "status": "paid"},
        examples.ORDERS[2],
        {"id": "5", "customer": "ada", "cents": 1, "status": None},
        {"id": "6", "customer": "ada", "cents": 1, "status": "cancelled"},
    ]
    result = examples.batch(pipeline, spark, rows)
    assert [row["id"] for row in result.rows["out"]] == ["1"]
    assert {record.content["id"]: bare(record.reason) for record in result.failed} == {
        "2": "negative amount",
        "4": "negative amount",
        "5": "filter: condition NULL: status = 'paid'",
    }
    assert drops(result) == {"cancelled": 1, "filter: condition false: status = 'paid'": 1}


@proves("docs/acks.md", "of_members")
def _expected(block, spark):
    """An order of a customer without an account is dropped, and one without a customer is lost."""
    pipeline = examples.shop()
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="of_members")
    rows = [*examples.ORDERS, {**examples.ORDERS[0], "id": "4", "customer": None}]
    result = examples.batch(pipeline, spark, rows)
    assert {row["id"] for row in result.rows["out"]} == {"1", "2"}
    assert [(record.content["id"], bare(record.reason)) for record in result.failed] == [
        ("4", "inner join: key NULL: customer")
    ]
    assert drops(result) == {"inner join: guests have no account": 1}


@proves("docs/acks.md", "sold")
def _united(block, spark):
    """A union has the rows of both inputs."""
    pipeline = Pipeline("orders")
    for name in ("online", "shops"):
        pipeline.source(name, FileSource(f"{name}.csv", schema="id STRING"))
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="sold")
    data = {"online": [{"id": "1"}], "shops": [{"id": "2"}]}
    done = testing.run_batch(pipeline, data, spark=spark)
    assert {row["id"] for row in done.rows["out"]} == {"1", "2"}


@proves("docs/whole-stages.md", "totals")
def _totals(block, spark):
    """Totals by customer; a customer without an order is dropped with a reason."""
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.csv", schema=examples.ORDER))
    pipeline.source("customers", FileSource("c.csv", schema="customer STRING, country STRING"))
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="totals")
    data = {
        "orders": [examples.ORDERS[0], {**examples.ORDERS[0], "id": "4"}],
        "customers": examples.CUSTOMERS,
    }
    done = testing.run_batch(pipeline, data, spark=spark)
    assert done.failed == []
    assert done.rows["out"] == [{"customer": "ada", "cents": 10}]


@proves("docs/whole-stages.md", "unique")
def _unique(block, spark):
    """The second of two equal orders is dropped with a reason, and nothing fails."""
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.csv", schema=examples.ORDER))
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="unique")
    data = {"orders": [examples.ORDERS[0], examples.ORDERS[0], {**examples.ORDERS[0], "id": "4"}]}
    done = testing.run_batch(pipeline, data, spark=spark)
    assert done.failed == []
    assert sorted(row["id"] for row in done.rows["out"]) == sorted([examples.ORDERS[0]["id"], "4"])


@proves("docs/whole-stages.md", "capitals")
def _by_hand(block, spark):
    """A function that gets parts of the rows hands on their anchors."""
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.csv", schema=examples.ORDER))
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="capitals")
    done = testing.run_batch(pipeline, {"orders": examples.ORDERS}, spark=spark)
    assert done.failed == []
    assert {row["customer"] for row in done.rows["out"]} == {"ADA", "BOB", "EVE"}


def fates(spark, functions, schema, rows, references):
    """The number of lost and of dropped records by reason, in an audit of some functions in a row
    and in a pipeline of them; the audit's report; the rows of the pipeline's sink.
    """

    def chained(orders: DataFrame, **lookups: DataFrame) -> DataFrame:
        for function in functions:
            orders = function(orders, **lookups)
        return orders

    frames = {
        name: spark.createDataFrame([tuple(row.values()) for row in data], columns)
        for name, (columns, data) in {"orders": (schema, rows), **references}.items()
    }
    audited = audit(chained, frames.pop("orders"), references=frames)
    in_audit = {}, {}
    for each in audited.losses:
        in_audit[each.is_intended][f"{each.operation}: {each.reason}"] = each.records

    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource("orders.json", format="json", schema=schema))
    for name, (columns, _) in references.items():
        pipeline.reference(name, FileSource(f"{name}.json", format="json", schema=columns))
    reads = "orders"
    for function in functions:
        pipeline.stage(reads=reads)(function)
        reads = function.__name__
    pipeline.sink("out", ParquetSink("out"), reads=reads)
    rows_of = {name: data for name, (_, data) in references.items()}
    done = testing.run_batch(pipeline, {"orders": rows}, references=rows_of, spark=spark)
    in_pipeline = dict(Counter(bare(record.reason) for record in done.failed)), drops(done)
    return in_audit, in_pipeline, audited, done.rows["out"]


def table(names, *rows):
    """Rows by the names of their columns."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


@proves("docs/operations.md", "valid")
def _filtered(block, spark):
    """A false condition drops an order, a NULL condition loses it, also if a UDF has made it."""
    valid = examples.run(block, None)["valid"]
    rows = table(
        "id status cents",
        (1, "paid", "5"), (2, "open", "5"), (3, None, "5"), (4, "paid", "n/a"), (5, "paid", "0"),
    )  # fmt: skip
    schema = "id INT, status STRING, cents STRING"
    in_audit, in_pipeline, _, out = fates(spark, [valid], schema, rows, {})
    assert in_audit == in_pipeline == tuple(
        {f"filter: condition {value}: {text}": 1 for text in ("status = 'paid'", "cents > 0")}
        for value in ("NULL", "false")
    )  # fmt: skip
    assert out == [{"id": 1, "status": "paid", "cents": 5}]


@proves("docs/operations.md", "placed")
def _looked_up(block, spark):
    """An inner join loses orders, an anti join drops one, and a left join doubles one."""
    placed = examples.run(block, None)["placed"]
    rows = table("id shop", (1, "a"), (2, "b"), (3, "x"), (4, None), (5, "c"))
    references = {
        "shops": ("shop STRING, country STRING", table("shop country", ("a", "DE"), ("c", "FR"))),
        "closed": ("shop STRING", table("shop", ("b",))),
        "rates": ("country STRING, rate INT", table("country rate", ("DE", 1), ("DE", 2))),
    }
    in_audit, in_pipeline, audited, out = fates(
        spark, [placed], "id INT, shop STRING", rows, references
    )
    assert in_audit == in_pipeline
    assert in_pipeline == (
        {"inner join: no partner for shop": 1, "inner join: key NULL: shop": 1},
        {"anti join: has a partner": 1},
    )
    assert Counter(row["id"] for row in out) == {1: 2, 5: 1}
    assert [(each.kind, each.operation, each.records) for each in audited.remarks] == [
        ("several rows", "left join", 1)
    ]


@proves("docs/operations.md", "totals")
def _gathered(block, spark):
    """A union drops an order that both branches drop, and loses one that both lose; a duplicate
    arrives in the row that is kept, and a rank drops an older order.
    """
    functions = examples.run(block, None)
    rows = table(
        "id day status shop cents",
        (1, 1, "paid", "a", 5), (1, 1, "paid", "a", 5), (2, 1, "paid", "a", 7),
        (2, 2, "refund", "a", 7), (3, 1, "open", "a", 9), (4, 1, None, "a", 9),
    )  # fmt: skip
    schema = "id INT, day INT, status STRING, shop STRING, cents INT"
    stages = [functions["payments"], functions["totals"]]
    in_audit, in_pipeline, audited, out = fates(spark, stages, schema, rows, {})
    reasons = {f"filter: condition {{}}: status = '{each}'" for each in ("paid", "refund")}
    assert in_audit[0].keys() == {reason.format("NULL") for reason in reasons}
    assert (audited.results[0].arrived, audited.lost_records) == (3, 1)
    rank = "filter: not kept by row_number()"
    assert in_audit[1].keys() == {rank, *(reason.format("false") for reason in reasons)}
    lost, dropped = in_pipeline
    assert lost.keys() <= in_audit[0].keys()
    assert dropped.pop(rank) == 1
    assert dropped.keys() <= in_audit[1].keys()
    assert [*lost.values(), *dropped.values()] == [1, 1]
    assert out == [{"shop": "a", "cents": -2}]


@proves("docs/withheld.md", "of_members")
def _withheld(block, spark):
    """An order that one branch loses is in the sink of neither, as a check says in these words."""
    pipeline = examples.shop()
    examples.run(block, pipeline)
    assert f"\n{pipeline.graph.loss_in_a_branch('orders')}\n" in block.page.read_text()
    done = examples.batch(pipeline, spark)
    assert {record.content["id"] for record in done.failed} == {"3"}
    for sink in ("members", "all_orders"):
        assert {row["id"] for row in done.rows[sink]} == {"1", "2"}


@proves("docs/how-to/stop.md", "files")
def _rewritten(block, spark):
    """The new folder has the rows of all batches, without the number of the batch."""
    with TemporaryDirectory() as folder, working_in(Path(folder), spark):
        for number, country in ((1, "GB"), (2, "FR")):
            place = f"warehouse/orders/ackledger_batch={number}/country={country}"
            spark.range(number).write.parquet(place)
        examples.run(block, None, spark=spark)
        rows = spark.read.parquet("warehouse/orders_plain")
        assert rows.columns == ["id", "country"]
        assert Counter(row.country for row in rows.collect()) == {"GB": 1, "FR": 2}


@proves("docs/acks.md", "parse")
def _parsed(block, spark):
    """A comment is dropped, a line without a customer fails, the others are parsed."""
    pipeline = Pipeline("lines")
    pipeline.source("lines", FileSource("lines.csv", schema="text STRING"))
    examples.run(block, pipeline)
    pipeline.sink("out", ParquetSink("out"), reads="parse")
    records = [{"text": text} for text in ("# shop", "ada;1.5", ";2", "bob;x")]
    done = testing.run_batch(pipeline, {"lines": records}, spark=spark)
    assert done.rows["out"] == [{"customer": "ada", "cents": 150}]
    assert sorted(record.reason for record in done.failed) == [
        "ValueError: could not convert string to float: 'x'",
        "no customer",
    ]


@proves("docs/incremental.md", "from ledger import SqlSource")
def _table(block, spark):
    """A table is declared without connecting to it."""
    pipeline = Pipeline("orders")
    examples.run(block, pipeline)
    assert pipeline.sources()[0].source.incremental


@proves("docs/incremental.md", "alert")
def _notices(block, spark):
    """The hooks of a source are declared."""
    pipeline = Pipeline("orders")
    examples.run(block, pipeline)
    assert pipeline.wants_notice


@proves("docs/how-to/test.md", "test_every_order_is_published")
def _tested(block, spark):
    """The test on the page passes."""
    result = examples.run(block, None)
    for name in (name for name in result if name.startswith("test_")):
        result[name](spark)


@proves("docs/how-to/test.md", "test_a_lost_order_comes_back")
def _tested_with_faults(block, spark):
    """So does the one that hurts the pipeline, after the imports of the first; it loses one."""
    before = examples.run(
        examples.EXAMPLES["docs/how-to/test.md", "test_every_order_is_published"], None
    )
    examples.run(block, None, **before)[block.name](spark)


@proves(
    "docs/how-to/publish.md",
    "from ledger import DeltaSink, ParquetSink, PostgresSink, Upsert",
)
def _published(block, spark):
    """Three sinks of one stage hold the same rows; a test has a folder for each."""
    pipeline = examples.shop()
    pipeline.stage(reads="orders")(examples.joined)
    examples.run(block, pipeline)
    done = examples.batch(pipeline, spark)
    for name in ("files", "lake", "table"):
        assert {row["id"] for row in done.rows[name]} == {"1", "2"}


@proves(
    "docs/extending.md",
    'pipeline.source("trades", ArrowSource("trades/*.arrow", "id BIGINT, cents BIGINT NOT NULL"))',
)
def _arrow_declared(block, spark):
    """The source of the example further down is one."""
    from tests.support.arrow_source import ArrowSource

    pipeline = Pipeline("trades")
    examples.run(block, pipeline, ArrowSource=ArrowSource)
    assert [step.name for step in pipeline.sources()] == ["trades"]


@proves("docs/extending.md", "count_rows")
def _arrow(block, spark):
    """It is the module that passes the contract of sources, word for word."""
    module = (ROOT / "tests" / "support" / "arrow_source.py").read_text()
    assert module.partition('"""\n\n')[2] == block.code


@proves("docs/extending.md", "read_messages")
def _topic(block, spark):
    """It is the module that passes the contract of sources, word for word."""
    module = (ROOT / "tests" / "support" / "topic_source.py").read_text()
    assert module.partition('"""\n\n')[2] == block.code


@proves(
    "docs/exactly-once.md",
    'pipeline.sink("customer_table", PostgresSink("env:SHOP_URL", "customers"), reads="people")',
)
def _referring(block, spark):
    """The sinks, in the order in which they are published."""
    pipeline = examples.shop()
    examples.run(block, pipeline)
    assert [sink.name for sink in pipeline.sinks()] == ["customer_table", "order_table"]


@proves("docs/extending.md", "SqliteSink", "plan", "publish")
def _sqlite(block, spark):
    """It stands in the sink that passes the contract, word for word."""
    module = (ROOT / "tests" / "support" / "sqlite_sink.py").read_text()
    assert block.code in module or textwrap.indent(block.code, "    ") in module


@proves(
    "docs/extending.md",
    'pipeline.sink("orders", SqliteSink("shop.db", "orders"), reads="priced")  # in your pipeline',
)
def _sqlite_declared(block, spark):
    """A pipeline takes it as it takes a ParquetSink."""
    from tests.support.sqlite_sink import SqliteSink

    pipeline = Pipeline("orders")
    pipeline.source("priced", FileSource("orders.csv", schema="id STRING"))
    examples.run(block, pipeline, SqliteSink=SqliteSink)
    assert [step.name for step in pipeline.steps()] == ["priced", "orders"]


@proves("docs/how-to/audit.md", "placed", "report", "with_files")
def _audited(block, spark):
    """The audit names a loss of each kind that the page shows, and takes a column of file names."""
    job = examples.EXAMPLES["docs/how-to/audit.md", "placed"]
    orders = spark.createDataFrame(
        [("o1", "paid", "13", "s1"), ("o2", None, "13", "s1"), ("o3", "paid", "n/a", "s1")],
        "order_id string, state string, cents string, shop string",
    )
    shops = spark.createDataFrame([("s1", "DE")], "shop string, country string")
    texts = []
    placed = examples.run(job, None)["placed"]
    examples.run(block, None, placed=placed, orders=orders, shops=shops, print=texts.append)
    for text in map(str, texts):
        assert "condition NULL: state = 'paid'" in text
        assert "did not parse: TRY_CAST(cents AS INT)" in text


@proves("docs/how-to/audit.md", 'report.write_expected("expected.json")', "compared")
def _expected(block, spark):
    """What is written is expected, so nothing is lost in a report that is compared with it."""
    with TemporaryDirectory() as folder, chdir(folder):
        audited = report([loss(source(), 0, 3)])
        audited.write_expected("expected.json")
        examples.run(block, None, report=audited)
        assert read_expected("expected.json")[0].at_most == 3
