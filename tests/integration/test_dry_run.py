"""``ackledger check`` of a pipeline: steps are checked without running them."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import functions as F
from sqlalchemy import text

from ledger import (
    DeltaSink,
    FileSource,
    ParquetSink,
    Pipeline,
    PostgresSink,
    StatefulStage,
    Upsert,
    dropped,
)
from ledger.batch.upkeep.checks import examine
from ledger.core.run_request import Interval
from ledger.spark.actions import written_by
from ledger.spark.dry_run import DryRun
from tests.support.runner import START

DAY = Interval(START, START + timedelta(days=1))


@pytest.fixture
def check(spark, settings, database):
    """Check a pipeline as the command does; by subject the findings that are not well, with what
    they are.
    """

    def look(pipeline, interval=DAY, database=database):
        earlier = {each.subject: each for each in examine(settings, pipeline, interval)}
        subjects = []
        run = DryRun(spark, settings, pipeline, interval, database, earlier, subjects.append)
        findings = list(run.findings())
        assert [each.subject for each in findings] == subjects
        rows = [each for each in findings if each.hint or not each.ok]
        return {each.subject: ("hint" if each.hint else "wrong", each.message) for each in rows}

    return look


def orders(tmp_path, text="id,customer,cents\n1,ada,5\n", **options):
    """A pipeline with a source of orders and a reference of customers, whose files are there."""
    (tmp_path / "orders.csv").write_text(text)
    (tmp_path / "customers.csv").write_text("customer,country\nada,GB\n")
    flow = Pipeline("shop", **options)
    flow.source("orders", FileSource("orders.csv", schema="id BIGINT, customer STRING, cents INT"))
    flow.reference(
        "customers", FileSource("customers.csv", schema="customer STRING, country STRING")
    )
    return flow


def stage(flow, function, reads="orders", **options):
    """Declare a function that keeps its anchors as a stage with a sink."""
    flow.stage(reads=reads, **{"anchors": "by_hand", **options})(function)
    flow.sink(f"{function.__name__}_out", ParquetSink(function.__name__), reads=function.__name__)
    return flow


def test_what_is_right_is_well(check, tmp_path, database):
    """Stages with references, marks, several inputs, whole ones, combines and states of a pipeline
    without a fault are all well, and nothing is claimed or written.
    """
    flow = orders(tmp_path, publish="complete")

    @flow.stage(reads="orders")
    def named(orders, *, customers):
        unknown = orders.join(customers, "customer", "left_anti")
        return orders.join(customers, "customer"), dropped(unknown, "unknown")

    @flow.record_stage(reads="orders", schema="id BIGINT, twice INT")
    def doubled(record):
        yield {"id": record["id"], "twice": 2 * record["cents"]}

    @flow.stage(reads=["named", "orders"])
    def both(named, orders):
        return named.select("id").unionByName(orders.select("id"))

    @flow.stage(reads="named")
    def totals(named):
        return named.groupBy("customer").agg(F.sum("cents").alias("cents"))

    @flow.combine(reads="named")
    def days(named):
        return named.groupBy("country").count()

    @flow.stateful_stage(reads="totals")
    def balance(state, totals):
        new = totals.select("customer", "cents")
        return new if state is None else state.unionByName(new)

    for name in ("named", "doubled", "both", "totals", "days", "balance"):
        flow.sink(f"{name}_out", ParquetSink(name), reads=name)
    (tmp_path / "storage").mkdir()  # which `require_storage` makes
    before = sorted(tmp_path.rglob("*"))
    assert check(flow) == {}
    assert sorted(tmp_path.rglob("*")) == before
    with database.plain.connect() as connection:
        for table in ("batch", "pipeline", "batch_source", "step_run"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_every_fault_of_every_step_is_reported(check, tmp_path, warehouse):
    """A wrong header, columns of Parquet, a stage without its anchor, an unknown column, an anchor
    that is compared and a table with other columns are six faults of one check; what reads a wrong
    stage is not checked.
    """
    flow = orders(tmp_path, "id,client,cents\n1,ada,5\n")
    pq.write_table(pa.table({"id": ["a"], "paid": [1]}), tmp_path / "payments.parquet")
    payments = FileSource("*.parquet", format="parquet", schema="id BIGINT, paid BIGINT, at DATE")
    flow.source("payments", payments)

    @flow.stage(reads="orders", anchors="by_hand")
    def bare(orders):
        return orders.select("id", "cents")

    @flow.stage(reads="bare")
    def after(bare):
        return bare

    @flow.stage(reads="orders")
    def misspelt(orders):
        return orders.where(F.col("amount") > 0)

    @flow.stage(reads="orders", anchors="by_hand")
    def single(orders):
        return orders.distinct()

    @flow.stage(reads="payments", anchors="by_hand")
    def paid(payments):
        return payments.select("id", "paid", "_anchor")

    warehouse.do("CREATE TABLE paid (id text, total bigint NOT NULL, ackledger_batch bigint)")
    for name in ("after", "misspelt", "single"):
        flow.sink(f"{name}_out", ParquetSink(name), reads=name)
    flow.sink("paid_out", PostgresSink(warehouse.url, "paid"), reads="paid")
    findings = check(flow)
    assert {subject: kind for subject, (kind, _) in findings.items()} == {
        "source orders": "wrong",
        "source payments": "wrong",
        "stage bare": "wrong",
        "stage after": "hint",
        "stage misspelt": "wrong",
        "stage single": "wrong",
        "sink after_out": "hint",
        "sink misspelt_out": "hint",
        "sink single_out": "hint",
        "sink paid_out": "wrong",
    }
    messages = {subject: message for subject, (_, message) in findings.items()}
    header = "expected id, customer, cents; found id, client, cents"
    assert f"{tmp_path}/orders.csv" in messages["source orders"]
    assert header in messages["source orders"]
    for words in ("expected column id of type bigint, found string", "expected column at of type"):
        assert words in messages["source payments"]
    assert "returned a frame without '_anchor'" in messages["stage bare"]
    assert messages["stage after"] == (
        "not checked, because the columns of stage 'bare' are not known"
    )
    assert "`amount` cannot be resolved" in messages["stage misspelt"]
    assert "test_dry_run.py:" in messages["stage misspelt"]
    assert "row_number()" in messages["stage single"]
    for column in ("'id': expected bigint, found text", "'paid' is missing", "'total': expected"):
        assert column in messages["sink paid_out"]
    assert "can be written to; not checked further, because" in messages["sink after_out"]


def test_all_files_that_are_wrong_are_named(check, tmp_path):
    """Of several files with other headers the check names the first five, and counts the others."""
    flow = orders(tmp_path)
    for number in range(7):
        (tmp_path / f"day-{number}.csv").write_text("a,b\n1,2\n" if number else "a,c\n1,2\n")
    flow.source("days", FileSource("day-*.csv", schema="a INT, c INT"))
    flow.sink("out", ParquetSink("out"), reads="days")
    flow.sink("others", ParquetSink("others"), reads="orders")
    ((subject, (kind, message)),) = check(flow).items()
    assert (subject, kind) == ("source days", "wrong")
    assert message.startswith("6 files are wrong: (1) the header of")
    assert [f"day-{number}.csv" in message for number in range(7)] == [False, *5 * [True], False]
    assert message.endswith("and 1 more")


def test_a_function_that_asks_for_rows_is_a_hint(check, tmp_path, capsys):
    """A function that fails over no rows, or returns early without any, is no fault after it asked
    for some, nor is what reads its result; one that fails without having asked is, and so is a
    column that no frame has.
    """
    flow = orders(tmp_path)

    def first(orders):
        return orders.withColumn("least", F.lit(orders.orderBy("cents").first()[0]))

    def pivoted(orders):
        rows = orders.groupBy("_anchor").pivot("customer").agg(F.sum("cents"))
        return rows.select("ada", "_anchor")

    def counted(orders):
        if not orders.count():
            raise ValueError("no orders")
        return orders

    def filled(orders):
        names = [row[0] for row in orders.select("customer").distinct().collect()]
        return orders.select("_anchor", "id", *(F.lit(1).alias(name) for name in names))

    def misspelt(orders):
        orders.show()  # for its author, and no line of the report
        return orders.select("nothing", "_anchor")

    def unset(orders):
        return orders.select(orders.nothing, "_anchor")

    def early(orders):
        return orders.select("id") if orders.isEmpty() else orders

    def nothing(orders):
        return orders if orders.count() else None

    def logged(orders):
        assert orders.count() == 0
        return orders.select("nothing", "_anchor")

    for function in (first, pivoted, counted, filled, misspelt, unset, early, nothing, logged):
        stage(flow, function)

    @flow.stage(reads="orders", anchors="by_hand")
    def skipped(orders):
        return orders.select("id", "_anchor") if orders.isEmpty() else orders

    flow.sink("by_customer", ParquetSink("skipped", partition_by="customer"), reads="skipped")

    def reading(filled):
        return filled.select("ada", "_anchor")

    stage(flow, reading, reads="filled")
    findings = {
        subject: finding for subject, finding in check(flow).items() if "_out" not in subject
    }
    assert {subject: kind for subject, (kind, _) in findings.items()} == {
        "stage first": "hint",
        "stage pivoted": "hint",
        "stage counted": "hint",
        "stage misspelt": "wrong",
        "stage unset": "wrong",
        "stage early": "hint",
        "stage nothing": "hint",
        "stage logged": "wrong",
        "stage reading": "hint",
        "sink by_customer": "hint",
    }
    messages = {subject: message for subject, (_, message) in findings.items()}
    assert (
        "asks for rows (first), and fails where there are none: TypeError"
        in (messages["stage first"])
    )
    assert capsys.readouterr().out == ""
    assert "asks for rows (pivot)" in messages["stage pivoted"]
    assert "ValueError: no orders" in messages["stage counted"]
    assert "asks for rows (isEmpty), and fails where there are none" in messages["stage early"]
    assert "asks for rows (count)" in messages["stage nothing"]
    assert "The result of stage 'filled' depends on its rows" in messages["stage reading"]
    assert "is partitioned by 'customer', which its input lacks" in messages["sink by_customer"]
    assert "The result of stage 'skipped' depends on its rows" in messages["sink by_customer"]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("-- nightly\nDELETE FROM t", "DELETE"),
        ("/* all */ INSERT INTO t VALUES (1)", "INSERT"),
        ("WITH s AS (SELECT 1) INSERT INTO t SELECT * FROM s", "INSERT"),
        ("FROM s INSERT INTO t SELECT *", "INSERT"),
        ("REPLACE TABLE t AS SELECT 1", "REPLACE"),
        ("CALL compact('t')", "CALL"),
        ("EXECUTE IMMEDIATE 'DROP TABLE t'", "EXECUTE"),
        ("CREATE TABLE t AS SELECT 1", "CREATE"),
        ("CREATE OR REPLACE TEMP VIEW v AS SELECT 1", None),
        ("  (SELECT 1) UNION (SELECT 2)", None),
        ("WITH s AS (SELECT 1) SELECT * FROM s -- all", None),
    ],
)
def test_a_statement_that_writes_is_known(statement, word):
    """By its first word, or one within; a statement that only reads is executed."""
    assert written_by(statement) == word


def test_a_function_that_writes_does_not(check, spark, tmp_path):
    """What a function writes by itself, with a frame or in SQL, is not written by a check; the same
    function writes afterwards.
    """
    flow = orders(tmp_path)
    place = tmp_path / "kept"

    def written(orders):
        orders.drop("_anchor").write.parquet(str(place))
        return orders

    def dropped_table(orders):
        spark.sql(sqlQuery="DROP TABLE IF EXISTS kept")
        return orders

    def selected(orders):
        orders.createOrReplaceTempView("selected_orders")
        return spark.sql("SELECT id, _anchor FROM selected_orders")

    for function in (written, dropped_table, selected):
        stage(flow, function)
    findings = check(flow)
    assert {name for name in findings if "stage" in name} == {
        "stage written",
        "stage dropped_table",
    }
    assert "writes by itself (write)" in findings["stage written"][1]
    assert "writes by itself (DROP)" in findings["stage dropped_table"][1]
    assert not place.exists()
    spark.range(1).write.parquet(str(place))
    assert spark.sql("SELECT 1").count() == 1


def test_what_follows_a_settlement_is_checked(check, tmp_path, warehouse):
    """The function of a combine, the second call of a state, the key of what they are written to,
    and an object that keeps its state are each reported.
    """

    class OwnState(StatefulStage):
        def init_state(self, snapshot):
            raise AssertionError("no check calls it")

        def finish_batch(self, batch_id, rows):
            raise AssertionError("no check calls it")

        def commit(self, batch_id, state):
            raise AssertionError("no check calls it")

    flow = orders(tmp_path)

    @flow.combine(reads="orders")
    def days(orders):
        return orders.groupBy("day").count()

    @flow.combine(reads="orders")
    def people(orders):
        return orders.groupBy("customer").count()

    @flow.stateful_stage(reads="orders")
    def balance(state, orders):
        new = orders.groupBy("customer").agg(F.sum("cents").alias("total"))
        return new if state is None else state.unionByName(orders)

    flow.stateful("kept", OwnState(), reads="orders")
    table = PostgresSink(warehouse.url, "people", mode=Upsert("person"))
    flow.sink("people_out", table, reads="people")
    flow.sink("days_out", ParquetSink("days"), reads="days")
    flow.sink("balance_out", ParquetSink("balance"), reads="balance")
    findings = check(flow)
    assert {subject: kind for subject, (kind, _) in findings.items()} == {
        "combine days": "wrong",
        "stateful balance": "wrong",
        "stateful kept": "hint",
        "sink people_out": "wrong",
        "sink days_out": "hint",
    }
    assert "`day` cannot be resolved" in findings["combine days"][1]
    assert "has the key 'person', which its input lacks" in findings["sink people_out"][1]


def test_sources_are_checked_as_a_run_checks_them(check, tmp_path):
    """A key and a condition of columns that a source lacks, and the header of a reference or that
    it has no rows, are known before a run.
    """
    flow = orders(tmp_path)
    columns = "id BIGINT, customer STRING, cents INT"
    flow.source("keyed", FileSource("orders.csv", schema=columns), key="number")
    flow.source("tracked", FileSource("orders.csv", schema=columns), track="amount > 0")
    (tmp_path / "customers.csv").write_text("customer\nada\n")

    @flow.stage(reads="orders")
    def joined(orders, *, customers):
        return orders.join(customers, "customer")

    flow.sink("joined_out", ParquetSink("joined", partition_by="land"), reads="joined")
    for name in ("keyed", "tracked"):
        flow.sink(f"{name}_out", ParquetSink(name), reads=name)
    findings = check(flow)
    assert "has no column 'number', which is to be its key" in findings["source keyed"][1]
    assert "`amount` cannot be resolved" in findings["source tracked"][1]
    assert "expected customer, country; found customer" in findings["reference customers"][1]
    (tmp_path / "customers.csv").write_text("customer,country\n\n")
    kind, message = check(flow)["reference customers"]
    assert (kind, "has no rows: expected at least one" in message) == ("wrong", True)


def test_an_incremental_source_is_checked_by_its_new_files(check, runner, tmp_path):
    """Files that earlier batches took are not read again, whatever they contain now."""
    place = tmp_path / "in"
    place.mkdir()
    (place / "a.csv").write_text("n\n1\n")
    flow = Pipeline("numbers")
    flow.source("numbers", FileSource("in/*.csv", schema="n INT", incremental=True))
    flow.sink("out", ParquetSink("out"), reads="numbers")
    batch = runner(flow).open()
    assert check(flow) == {}
    (place / "b.csv").write_text("m\n1\n")
    ((subject, (kind, message)),) = check(flow).items()
    assert (subject, kind) == ("source numbers", "wrong")
    assert "b.csv" in message
    assert "a.csv" not in message
    assert runner(flow).open("again").batch_id == batch.batch_id + 1
    ((_, (kind, message)),) = check(flow, database=None).items()
    assert kind == "hint"
    assert message.endswith("because only the ledger knows which of its files are new")


def test_a_redacting_pipeline_hides_what_files_hold(check, tmp_path):
    """Of a pipeline that redacts, neither a header nor the words of a function are shown."""
    flow = orders(tmp_path, "7,secret,9\n", redact=["customer"])

    def raising(orders):
        raise ValueError("secret")

    stage(flow, raising)
    findings = check(flow)
    assert findings["source orders"][0] == findings["stage raising"][0] == "wrong"
    assert "secret" not in str(findings)


def test_without_an_interval_stages_and_tables_are_checked(check, tmp_path):
    """Without an interval no file is read, and what is declared is still checked against tables."""
    flow = orders(tmp_path, "id,client,cents\n")
    write_deltalake(tmp_path / "same", pa.table({"id": ["a"]}))

    @flow.stage(reads="orders", anchors="by_hand")
    def same(orders):
        return orders.select("id", "_anchor")

    flow.sink("same_out", DeltaSink("same"), reads="same")
    ((subject, (kind, message)),) = check(flow, None).items()
    assert (subject, kind) == ("sink same_out", "wrong")
    assert "column 'id': expected string, found long" in message
    assert sorted(path.name for path in (tmp_path / "same").iterdir() if path.is_dir()) == [
        "_delta_log"
    ]


def test_params_are_those_of_the_run(check, tmp_path):
    """A function that asks for the run's parameters gets those of the interval, and is not checked
    without one.
    """
    flow = orders(tmp_path)

    def sold(orders, *, params):
        return orders.withColumn("shop", F.lit(params["shop"]))

    stage(flow, sold)
    assert check(flow, Interval(DAY.start, DAY.end, {"shop": "a"})) == {}
    assert check(flow)["stage sold"][0] == "wrong"
    kind, message = check(flow, None)["stage sold"]
    assert (kind, "asks for params: give --from" in message) == ("hint", True)


def test_what_spark_does_not_store_is_refused_by_its_stage(check, tmp_path):
    """A column of an interval of mixed units, which no file can hold, is refused where a stage
    returns it, in a struct too; texts of limited length in a source are no fault.
    """
    flow = orders(tmp_path)
    (tmp_path / "short.csv").write_text("a\nx\n")
    flow.source("short", FileSource("short.csv", schema="a VARCHAR(3), b CHAR(1)", header=False))
    flow.sink("short_out", ParquetSink("short"), reads="short")

    def waits(orders):
        return orders.select("_anchor", F.struct(F.expr("make_interval(1, 2)").alias("pause")))

    stage(flow, waits)
    findings = check(flow)
    assert [name for name, (kind, _) in findings.items() if kind == "wrong"] == ["stage waits"]
    assert "returned column 'pause' of type interval" in findings["stage waits"][1]
